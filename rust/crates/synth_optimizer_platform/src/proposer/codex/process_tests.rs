//! Search for the codex binary in temporary directories, and cleaning of log lines.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use super::*;

fn env(pairs: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> + use<> {
    let known: BTreeMap<String, String> =
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    move |name| known.get(name).cloned()
}

fn place() -> (tempfile::TempDir, Utf8PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = Utf8Path::from_path(dir.path()).unwrap().canonicalize_utf8().unwrap();
    (dir, path)
}

fn program(path: &Utf8Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, "#!/bin/sh\n").unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_configured_command_comes_first_and_gets_missing_arguments() {
    let (_dir, place) = place();
    let codex = place.join("tools/bin/codex");
    program(&codex);
    let env = env(&[("PATH", place.join("tools/bin").as_str())]);
    for command in [codex.as_str(), "codex"] {
        let found = locate(&[command.to_owned()], &env, Some(&codex)).unwrap();
        assert_eq!((found.path, found.source), (codex.clone(), "proposer.command"), "{command}");
        assert_eq!(found.arguments, ["app-server", "--strict-config"]);
    }
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let found = locate(&words(&["codex", "-c", "a=1", "app-server"]), &env, None).unwrap();
    assert_eq!(found.arguments, ["-c", "a=1", "app-server", "--strict-config"]);
    let found = locate(&words(&["codex", "app-server", "--strict-config"]), &env, None).unwrap();
    assert_eq!(found.arguments, ["app-server", "--strict-config"]);
}

#[test]
fn the_package_comes_before_the_path_and_is_fully_readable() {
    let (_dir, place) = place();
    let (bundled, other) = (place.join("pkg/bin/codex"), place.join("path/codex"));
    program(&bundled);
    program(&other);
    fs::create_dir_all(place.join("pkg/codex-resources")).unwrap();
    let path = place.join("path");
    let known = env(&[("PATH", path.as_str())]);
    let found = locate(&[], &known, Some(&bundled)).unwrap();
    assert_eq!((found.source, found.package), ("openai-codex-cli-bin", place.join("pkg")));
    let found = locate(&[], &known, None).unwrap();
    assert_eq!((found.source, found.package), ("PATH", other));
}

#[test]
fn the_npm_script_is_replaced_by_its_native_binary() {
    let (_dir, place) = place();
    let (script, link) = (place.join("m/@openai/codex/bin/codex.js"), place.join("bin/codex"));
    let native_binary = place.join("m/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex");
    program(&script);
    program(&native_binary);
    fs::create_dir_all(native_binary.parent().unwrap().parent().unwrap().join("codex-resources")).unwrap();
    fs::create_dir_all(place.join("bin")).unwrap();
    std::os::unix::fs::symlink(&script, &link).unwrap();
    let found = locate(&[], &env(&[("PATH", place.join("bin").as_str())]), None).unwrap();
    assert_eq!((found.path, found.source), (native_binary, "PATH"));
    assert!(found.package.as_str().ends_with("x86_64-unknown-linux-musl"), "{}", found.package);
}

#[test]
fn a_missing_binary_is_reported_with_a_hint() {
    let (_dir, place) = place();
    fs::write(place.join("codex"), "not a program").unwrap();
    let here = env(&[("PATH", place.as_str())]);
    // A relative path is not searched in parent directories.
    let (missing, runtime) = (["no/such/codex".to_owned()], Utf8Path::new("/no/such/codex"));
    for error in [
        locate(&[], &here, None).unwrap_err(),
        locate(&missing, &here, None).unwrap_err(),
        locate(&[], &here, Some(runtime)).unwrap_err(),
    ] {
        assert_eq!(error.code, ErrorCode::Proposer);
        assert!(error.hint.contains("synth-optimizers[codex]"), "{}", error.hint);
    }
}

#[test]
fn colours_are_removed_from_the_log() {
    assert_eq!(strip_colours("\u{1b}[2m2026\u{1b}[0m \u{1b}[31mERROR\u{1b}[0m it"), "2026 ERROR it");
    assert_eq!(strip_colours("as it is"), "as it is");
    assert_eq!(strip_colours("cut \u{1b}["), "cut ");
}
