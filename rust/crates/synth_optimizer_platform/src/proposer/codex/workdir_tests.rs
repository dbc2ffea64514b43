#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::fs::{PermissionsExt, symlink};

use camino::Utf8PathBuf;

use super::{MANIFEST, Workdir};
use crate::proposer::TurnId;
use crate::proposer::brief::Brief;
use crate::proposer::tests_support::request;
use crate::proposer::transcript::Redactor;
use synth_optimizer_core::config::proposer::ProposerSection;
use synth_optimizer_core::model::ids::CallId;
use synth_optimizer_core::secrets::Secret;

const MAX_MANIFEST_BYTES: u64 = 1024;

fn workdir() -> (tempfile::TempDir, Workdir) {
    let dir = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::try_from(dir.path().to_owned()).unwrap();
    let turn = TurnId { call_id: CallId(7), attempt: 1 };
    let workdir = Workdir::create(
        &path,
        turn,
        "Do it.",
        &Brief::new(&request(), &ProposerSection::default(), &Redactor::default()),
    )
    .unwrap();
    (dir, workdir)
}

#[test]
fn a_workspace_contains_the_brief_and_is_private() {
    let (_dir, workdir) = workdir();
    assert!(workdir.path.as_str().ends_with("proposer_workspaces/turn_000007_1"));
    let readme = std::fs::read_to_string(workdir.path.join("README.md")).unwrap();
    assert!(readme.contains("Do it.") && readme.contains("- evidence.md"), "{readme}");
    for entry in workdir.path.read_dir_utf8().unwrap() {
        let mode = entry.unwrap().metadata().unwrap().permissions().mode() & 0o077;
        assert_eq!(mode, 0);
    }
}

#[test]
fn a_workspace_is_recreated_for_every_attempt() {
    let (dir, workdir) = workdir();
    std::fs::write(workdir.path.join(MANIFEST), "old").unwrap();
    let root = Utf8PathBuf::try_from(dir.path().to_owned()).unwrap();
    let turn = TurnId { call_id: CallId(7), attempt: 1 };
    let again = Workdir::create(
        &root,
        turn,
        "Do it.",
        &Brief::new(&request(), &ProposerSection::default(), &Redactor::default()),
    )
    .unwrap();
    assert_eq!(again.manifest(MAX_MANIFEST_BYTES), Ok(None));
}

#[test]
fn the_manifest_must_be_a_small_regular_file_of_the_workspace() {
    let (dir, workdir) = workdir();
    let path = workdir.path.join(MANIFEST);
    assert_eq!(workdir.manifest(MAX_MANIFEST_BYTES), Ok(None));
    std::fs::write(&path, "{}").unwrap();
    assert_eq!(workdir.manifest(MAX_MANIFEST_BYTES), Ok(Some("{}".to_owned())));
    std::fs::write(&path, "x".repeat(2000)).unwrap();
    assert!(workdir.manifest(MAX_MANIFEST_BYTES).unwrap_err().message.contains("2000 bytes"));
    std::fs::write(&path, [0xff, 0xfe]).unwrap();
    assert!(workdir.manifest(MAX_MANIFEST_BYTES).unwrap_err().message.contains("UTF-8"));

    let outside = dir.path().join("canary");
    std::fs::write(&outside, "secret").unwrap();
    std::fs::remove_file(&path).unwrap();
    symlink(&outside, &path).unwrap();
    assert!(workdir.manifest(MAX_MANIFEST_BYTES).unwrap_err().message.contains("not a regular file"));

    std::fs::remove_dir_all(workdir.path.join("proposal")).unwrap();
    assert_eq!(workdir.manifest(MAX_MANIFEST_BYTES), Ok(None));
    symlink(dir.path(), workdir.path.join("proposal")).unwrap();
    assert!(workdir.manifest(MAX_MANIFEST_BYTES).unwrap_err().message.contains("not a directory"));
}

#[test]
fn a_pipe_in_place_of_the_manifest_does_not_block() {
    let (_dir, workdir) = workdir();
    let path = workdir.path.join(MANIFEST);
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert!(workdir.manifest(MAX_MANIFEST_BYTES).unwrap_err().message.contains("not a regular file"));
}

#[test]
fn only_empty_sandbox_leftovers_are_removed() {
    let (_dir, workdir) = workdir();
    std::fs::create_dir(workdir.path.join(".git")).unwrap();
    std::fs::create_dir(workdir.path.join(".codex")).unwrap();
    std::fs::write(workdir.path.join(".codex/config.toml"), "kept").unwrap();
    workdir.remove_sandbox_leftovers();
    assert!(!workdir.path.join(".git").exists());
    assert!(workdir.path.join(".codex/config.toml").exists());
}

#[test]
fn only_text_files_without_secrets_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let place = Utf8PathBuf::try_from(dir.path().to_owned()).unwrap();
    let outside = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(outside.path(), "the-secret").unwrap();
    std::fs::create_dir_all(place.join("a/b")).unwrap();
    std::fs::write(place.join("a/b/note.txt"), "it is the-secret here").unwrap();
    std::fs::write(place.join("plain.txt"), "words").unwrap();
    std::fs::write(place.join("binary"), [0xff, 0xfe]).unwrap();
    std::fs::write(place.join("large"), vec![b'x'; 5 << 20]).unwrap();
    symlink(outside.path(), place.join("link")).unwrap();
    // A hard link to an outside file and a link in place of the draft must not be written through.
    std::fs::hard_link(outside.path(), place.join("same.txt")).unwrap();
    std::fs::write(place.join("blocked.txt"), "the-secret").unwrap();
    symlink(outside.path(), place.join("blocked.redacted.new")).unwrap();
    Workdir { path: place.clone() }.redact(&Redactor::new([Secret::new("the-secret")]));
    assert_eq!(std::fs::read_to_string(place.join("a/b/note.txt")).unwrap(), "it is [hidden] here");
    assert_eq!(std::fs::read_to_string(place.join("plain.txt")).unwrap(), "words");
    for gone in ["binary", "large", "link", "blocked.redacted.new"] {
        assert!(std::fs::symlink_metadata(place.join(gone)).is_err(), "{gone} is still there");
    }
    assert_eq!(std::fs::read_to_string(place.join("same.txt")).unwrap(), "[hidden]");
    assert!(
        std::fs::read_to_string(place.join("blocked.txt")).is_ok_and(|text| text == "[hidden]")
            || !place.join("blocked.txt").exists()
    );
    assert_eq!(std::fs::read_to_string(outside.path()).unwrap(), "the-secret");
}
