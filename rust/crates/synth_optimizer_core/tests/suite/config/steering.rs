//! Instructions, texts to keep, guarded rows and the length as an objective.

use std::collections::BTreeMap;

use camino::Utf8Path;
use synth_optimizer_core::config::{ConfigContent, ConfigSource, ResolvedConfig, load_with, render, search_digest};
use synth_optimizer_core::model::error::OptimizerError;

use super::{SMALLEST, read};

fn with(more: &str) -> String {
    format!("{SMALLEST}{more}")
}

/// Loads a file whose directory has one other file.
fn read_beside(more: &str, name: &str, content: &str) -> Result<ResolvedConfig, OptimizerError> {
    let read = |path: &Utf8Path| match path.strip_prefix("/base/configs") {
        Ok(path) if path == name => Ok(content.to_owned()),
        _ => Err("does not exist".to_owned()),
    };
    let text = with(more);
    let base_dir = Utf8Path::new("/base/configs");
    load_with(
        ConfigSource { name: "gepa.toml", content: ConfigContent::Toml(&text), base_dir },
        &BTreeMap::new(),
        &[],
        &read,
    )
}

const FILE: &str = "[proposer]\ninstructions_file = \"notes/style.md\"\n";

#[test]
fn the_text_of_a_file_becomes_the_instructions() {
    let from_file = read_beside(FILE, "notes/style.md", "\u{feff}Be brief.\n").unwrap();
    let proposer = &from_file.config.proposer;
    assert_eq!((proposer.instructions.as_deref(), &proposer.instructions_file), (Some("Be brief.\n"), &None));
    let value = |path: &str| from_file.values.iter().find(|value| value.path == path).unwrap().clone();
    assert_eq!(value("proposer.instructions").value, "Be brief.\n");
    assert_eq!(value("proposer.instructions").origin.to_string(), {
        let line = with(FILE).lines().position(|line| line.starts_with("instructions_file")).unwrap() + 1;
        format!("file:{line}:21")
    });
    // The text counts, not where it came from.
    let inline = read(&with("[proposer]\ninstructions = \"Be brief.\\n\"\n")).unwrap();
    assert_eq!(search_digest(&inline.config), search_digest(&from_file.config));
    let changed = read_beside(FILE, "notes/style.md", "Be kind.").unwrap();
    assert_ne!(search_digest(&changed.config), search_digest(&from_file.config));
}

#[test]
fn demands_load() {
    let loaded = read(&with(
        "[[candidate.keep]]\ntext = \"one label\"\n[[candidate.keep]]\ntext = \"label.\"\nfield = \"instructions\"\n\
         [gepa]\nguard_ids = [0, \"train:1\"]\nmax_candidate_tokens = 900\n\
         objective_keys = [\"outcome_reward\", \"candidate_tokens\"]\n",
    ));
    let config = loaded.unwrap().config;
    assert_eq!(config.candidate.keep.len(), 2);
    assert_eq!(serde_json::json!(config.gepa.guard_ids), serde_json::json!([0, "train:1"]));
    assert_eq!(config.gepa.max_candidate_tokens, Some(900));
}

#[test]
fn findings() {
    let long = format!("[proposer]\ninstructions = \"{}\"\n", "word ".repeat(7000));
    let cases = [
        ("a missing file", FILE.to_owned(), ""),
        ("both", FILE.replace("[proposer]", "[proposer]\ninstructions = \"Be brief.\""), "Be brief."),
        ("a control character", "[proposer]\ninstructions = \"Be\\u001b brief.\"\n".to_owned(), ""),
        ("a blank file", FILE.replace("notes/style.md", "blank.md"), ""),
        ("too long", long, ""),
        ("a home path", FILE.replace("notes", "~/notes"), ""),
        ("no text", "[[candidate.keep]]\nfield = \"instructions\"\n".to_owned(), ""),
        ("another field", "[[candidate.keep]]\ntext = \"label\"\nfield = \"style\"\n".to_owned(), ""),
        ("not in the text", "[[candidate.keep]]\ntext = \"Label\"\n".to_owned(), ""),
        ("twice", "[[candidate.keep]]\ntext = \"label\"\n[[candidate.keep]]\ntext = \"label\"\n".to_owned(), ""),
        ("a misspelt key", "[[candidate.keep]]\ntexts = \"label\"\n".to_owned(), ""),
        ("guards", "[gepa]\nguard_ids = [1, 1, \" \", 2.5, true]\n".to_owned(), ""),
        ("no tokens", "[gepa]\nmax_candidate_tokens = 0\n".to_owned(), ""),
        ("the length decides", "[gepa]\nobjective_keys = [\"candidate_tokens\"]\n".to_owned(), ""),
    ];
    let mut text = String::new();
    for (name, more, content) in cases {
        let findings =
            read_beside(&more, "blank.md", content).map_or_else(|error| error.findings, |loaded| loaded.warnings);
        let shown = render(&findings).replace(&"word ".repeat(5), "");
        text.push_str(&format!("=== {name}\n{shown}\n"));
    }
    let mut settings = insta::Settings::clone_current();
    settings.set_omit_expression(true);
    settings.set_prepend_module_to_snapshot(false);
    settings.bind(|| insta::assert_snapshot!("steering", text));
}
