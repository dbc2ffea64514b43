//! The generated diagrams match the lifecycle tables, and every test that ARCHITECTURE.md names exists.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use synth_optimizer_core::model::lifecycle::{CandidateStatus, Lifecycle, RequestState, RunState};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

#[test]
fn the_diagrams_are_those_of_the_tables() {
    let path = root().join("docs/reference/lifecycles.md");
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
    let mut known = BTreeSet::new();
    collect(&root().join("rust/crates"), &mut known);
    collect(&root().join("tests"), &mut known);
    let named: Vec<&str> =
        invariants.split('`').skip(1).step_by(2).filter(|name| name.contains('_') && !name.contains(' ')).collect();
    assert!(named.len() >= 10, "{named:?}");
    for name in named {
        assert!(known.contains(name), "{name} is named in ARCHITECTURE.md and is no test");
    }
}

/// The names of all tests below a directory, and of the files that hold some.
fn collect(directory: &Path, known: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let found = match path.extension().and_then(|extension| extension.to_str()) {
            _ if path.is_dir() => {
                collect(&path, known);
                continue;
            }
            Some("rs") => rust_tests(&std::fs::read_to_string(&path).unwrap()),
            Some("py") => python_tests(&std::fs::read_to_string(&path).unwrap()),
            _ => continue,
        };
        if !found.is_empty() {
            known.insert(path.file_stem().unwrap().to_str().unwrap().to_owned());
        }
        known.extend(found);
    }
}

/// Functions whose attributes, which may have comments between them, make them tests.
fn rust_tests(source: &str) -> Vec<String> {
    let (mut found, mut is_test) = (Vec::new(), false);
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some(rest) = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ") {
            found.extend(is_test.then(|| name_of(rest)));
            is_test = false;
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            is_test = false;
        }
    }
    found
}

fn python_tests(source: &str) -> Vec<String> {
    let functions =
        source.lines().filter_map(|line| line.trim_start().strip_prefix("async ").unwrap_or(line).strip_prefix("def "));
    functions.map(name_of).filter(|name| name.starts_with("test_")).collect()
}

fn name_of(rest: &str) -> String {
    rest.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()
}

#[test]
fn a_name_in_a_comment_or_of_a_helper_is_no_test() {
    let rust =
        "#[test]\n#[ignore]\n// Why.\nfn yes() {}\n// fn no()\nfn helper() {}\n#[tokio::test]\nasync fn also() {}\n";
    assert_eq!(rust_tests(rust), ["yes", "also"]);
    let python = "def test_yes(x):\n    pass\n# def test_no\ndef helper(): ...\nasync def test_also(): ...\n";
    assert_eq!(python_tests(python), ["test_yes", "test_also"]);
}
