//! The configuration that is written for codex.
#![allow(clippy::unwrap_used)]

use std::fs;

use super::*;
use crate::proposer::credentials::ApiKey;
use synth_optimizer_core::secrets::Secret;

fn place() -> (tempfile::TempDir, Utf8PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::from_path_buf(dir.path().to_owned()).unwrap();
    (dir, path)
}

fn read(run_dir: &Utf8Path) -> toml::Table {
    fs::read_to_string(run_dir.join(HOME).join("config.toml")).unwrap().parse().unwrap()
}

#[test]
fn the_configuration_is_complete_and_contains_no_key() {
    let (_dir, run_dir) = place();
    let nasty = "model \"with\"\n[quotes] = 1";
    let (base_url, model) = (Some("http://here/v1".into()), Some(nasty.to_owned()));
    let section = ProposerSection { base_url, model, ..ProposerSection::default() };
    let key = ApiKey { variable: "MINE".into(), value: Secret::new("the-secret") };
    let access = ModelAccess::Endpoint { base_url: "http://here/v1".into(), key: Some(key) };
    let package = Utf8Path::new("/opt/a \"b\"/codex");
    let create = || CodexHome::create(&run_dir, &section, &access, package, "tok").unwrap();
    let home = create();
    let config = read(&run_dir);
    assert_eq!(config["model"].as_str(), Some(nasty));
    assert_eq!(config["default_permissions"].as_str(), Some("proposer"));
    assert!(!config.contains_key("sandbox_mode"));
    let provider = &config["model_providers"]["proposer"];
    assert_eq!(provider["env_key"].as_str(), Some("MINE"));
    assert_eq!(provider["stream_idle_timeout_ms"].as_integer(), Some(120_000));
    let rights = &config["permissions"]["proposer"]["filesystem"];
    assert_eq!(rights[package.as_str()].as_str(), Some("read"));
    assert_eq!(rights[":workspace_roots"]["."].as_str(), Some("write"));
    assert_eq!(config["features"]["unbounded_connection_retries"].as_bool(), Some(false));
    let catalog = fs::read_to_string(run_dir.join(HOME).join("catalog.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&catalog).unwrap()["models"][0]["slug"], nasty);
    let text = fs::read_to_string(run_dir.join(HOME).join("config.toml")).unwrap();
    assert!(!text.contains("the-secret"));
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&home.path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o700);
    // A new home contains no files of the previous one.
    fs::write(home.path.join("left"), "x").unwrap();
    create();
    assert!(!home.path.join("left").exists());
    home.remove().unwrap();
    home.remove().unwrap();
    assert!(!run_dir.join(HOME).exists());
}

#[test]
fn a_sign_in_is_linked_and_a_read_only_workspace_is_read_only() {
    let (_dir, run_dir) = place();
    let section = ProposerSection { sandbox_mode: Some(SandboxMode::ReadOnly), ..ProposerSection::default() };
    let auth = run_dir.join("host-auth.json");
    fs::write(&auth, "{}").unwrap();
    let access = ModelAccess::Host { auth: auth.clone() };
    let home = CodexHome::create(&run_dir, &section, &access, Utf8Path::new("/x"), "tok").unwrap();
    assert_eq!(fs::read_link(home.path.join(AUTH_FILE)).unwrap(), auth);
    let config = read(&run_dir);
    assert!(!config.contains_key("model"), "codex chooses the model");
    assert_eq!(config["model_provider"].as_str(), Some("openai"));
    assert!(!config.contains_key("model_providers") && !config.contains_key("model_catalog_json"));
    assert_eq!(config["permissions"]["proposer"]["filesystem"][":workspace_roots"]["."].as_str(), Some("read"));
    home.remove().unwrap();
    assert!(auth.exists(), "the sign-in itself was removed");
}
