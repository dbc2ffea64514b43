//! Which paths a client may name as a configuration file.

#![allow(clippy::unwrap_used)]

use camino::Utf8PathBuf;

use super::{read_beneath, read_named_text};
use crate::ServiceErrorCode;

fn root() -> (tempfile::TempDir, Utf8PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let outside = Utf8PathBuf::from_path_buf(dir.path().canonicalize().unwrap()).unwrap();
    let root = outside.join("root");
    std::fs::create_dir_all(root.join("deeper")).unwrap();
    std::fs::write(root.join("deeper/gepa.toml"), "[run]\n").unwrap();
    std::fs::write(outside.join("secret.toml"), "canary").unwrap();
    std::os::unix::fs::symlink("deeper/gepa.toml", root.join("inside")).unwrap();
    std::os::unix::fs::symlink("../secret.toml", root.join("outside")).unwrap();
    (dir, root)
}

#[test]
fn files_beneath_the_root_are_read() {
    let (_dir, root) = root();
    for named in ["deeper/gepa.toml", "./deeper/gepa.toml", "deeper/../deeper/gepa.toml", "inside"] {
        assert_eq!(read_beneath(&root, named).unwrap().text, "[run]\n", "{named}");
    }
    let file = read_beneath(&root, root.join("deeper/gepa.toml").as_str()).unwrap();
    assert_eq!((file.name.as_str(), file.base_dir), ("deeper/gepa.toml", root.join("deeper")));
}

#[test]
fn files_outside_the_root_and_special_files_are_rejected() {
    let (_dir, root) = root();
    let pipe = std::process::Command::new("mkfifo").arg(root.join("pipe")).status().unwrap();
    assert!(pipe.success());
    std::fs::File::create(root.join("large")).unwrap().set_len(5 << 30).unwrap();
    std::fs::write(root.join("latin"), [0xe9]).unwrap();
    for (named, why) in [
        ("", "is not the name"),
        ("deeper", "is not a regular file"),
        ("gone.toml", "does not exist"),
        ("../secret.toml", "leads out"),
        ("deeper/../../secret.toml", "leads out"),
        ("outside", "leads out"),
        ("/etc/passwd", "is not beneath"),
        ("/proc/self/environ", "is not beneath"),
        ("pipe", "is not a regular file"),
        ("large", "is larger than 1 MB"),
        ("latin", "is not UTF-8"),
        ("a\0b", "is not the name"),
    ] {
        let refusal = read_beneath(&root, named).unwrap_err();
        assert!(refusal.is(ServiceErrorCode::ConfigPathRefused), "{named}");
        let shown = format!("{refusal:?}");
        assert!(shown.contains(why) && !shown.contains("canary"), "{named}: {shown}");
    }
}

#[test]
fn a_configuration_names_notes_beneath_the_root_only() {
    let (_dir, root) = root();
    std::fs::write(root.join("deeper/notes.md"), "Be brief.").unwrap();
    std::fs::write(root.join(".env"), "canary").unwrap();
    std::os::unix::fs::symlink("../secret.toml", root.join("linked.txt")).unwrap();
    assert_eq!(read_named_text(&root, &root.join("deeper/notes.md")).as_deref(), Ok("Be brief."));
    for (path, why) in [
        (root.join(".env"), "is not read by the service, which reads .md and .txt files only"),
        (root.join("deeper/gepa.toml"), "is not read by the service, which reads .md and .txt files only"),
        (root.join("gone.md"), "does not exist beneath the config root"),
        (root.join("linked.txt"), "leads out of the config root"),
        ("/etc/notes.md".into(), "is not beneath the config root"),
    ] {
        assert_eq!(read_named_text(&root, &path).unwrap_err(), why, "{path}");
    }
}
