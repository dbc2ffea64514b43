//! Places that are tried are left as they were.

use camino::Utf8Path;

use super::{Scratch, try_directory};

#[test]
fn what_was_made_is_removed_and_what_was_there_stays() {
    let place = tempfile::tempdir().unwrap();
    let root = Utf8Path::from_path(place.path()).unwrap();
    try_directory(&root.join("a/b/c")).unwrap();
    assert!(!root.join("a").exists());
    std::fs::create_dir(root.join("a")).unwrap();
    try_directory(&root.join("a/b")).unwrap();
    assert!(root.join("a").exists() && !root.join("a/b").exists());
    std::fs::write(root.join("file"), "").unwrap();
    assert!(try_directory(&root.join("file/below")).is_err());
    assert!(try_directory(&root.join("file")).is_err());
    assert!(root.join("file").is_file());
}

#[test]
fn a_scratch_directory_is_gone_with_its_content() {
    let scratch = Scratch::new(None).unwrap();
    let path = scratch.0.clone();
    std::fs::write(path.join("log"), "words").unwrap();
    drop(scratch);
    assert!(!path.exists());
}
