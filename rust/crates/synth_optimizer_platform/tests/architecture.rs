//! The diagrams of ARCHITECTURE.md are those of the tables, and the tests that it names exist.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};

use synth_optimizer_platform::model::lifecycle::{CandidateStatus, Lifecycle, RequestState, RunState};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

#[test]
fn the_diagrams_are_those_of_the_tables() {
    let path = root().join("ARCHITECTURE.md");
    let before = std::fs::read_to_string(&path).unwrap();
    let mut after = before.clone();
    let diagrams =
        [("run", RunState::diagram()), ("request", RequestState::diagram()), ("candidate", CandidateStatus::diagram())];
    for (name, diagram) in diagrams {
        let (open, close) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
        let from = after.find(&open).unwrap() + open.len();
        let to = after.find(&close).unwrap();
        after.replace_range(from..to, &format!("```mermaid\n{diagram}```\n"));
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &after).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), after, "run with UPDATE_DOCS=1 to write the diagrams");
}

#[test]
fn every_test_that_is_named_exists() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let invariants = text.split("## Invariants").nth(1).unwrap().split("\n## ").next().unwrap();
    let mut sources = String::new();
    for folder in [
        "rust/crates/synth_e2e/tests",
        "rust/crates/synth_e2e/tests/codex",
        "rust/crates/synth_gepa/tests",
        "rust/crates/synth_optimizer_platform/src/proposer",
        "rust/crates/synth_optimizer_platform/tests",
        "rust/crates/synth_optimizer_platform/tests/config",
        "rust/crates/synth_optimizer_platform/tests/queue",
        "tests/service",
    ] {
        for entry in std::fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "rs" || extension == "py") {
                sources.push_str(&format!("{}\n", path.file_stem().unwrap().to_string_lossy()));
                sources.push_str(&std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    let named: Vec<&str> =
        invariants.split('`').skip(1).step_by(2).filter(|name| name.contains('_') && !name.contains(' ')).collect();
    assert!(named.len() >= 10, "{named:?}");
    for name in named {
        assert!(sources.contains(name), "{name} is named in ARCHITECTURE.md and is no test");
    }
}
