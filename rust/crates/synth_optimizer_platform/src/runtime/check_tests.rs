//! A check leaves the directories that it tries unchanged.

use camino::Utf8Path;

use super::{ScratchDir, check_writable};

#[test]
fn created_directories_are_removed_and_existing_ones_stay() {
    let place = tempfile::tempdir().unwrap();
    let root = Utf8Path::from_path(place.path()).unwrap();
    check_writable(&root.join("a/b/c")).unwrap();
    assert!(!root.join("a").exists());
    std::fs::create_dir(root.join("a")).unwrap();
    check_writable(&root.join("a/b")).unwrap();
    assert!(root.join("a").exists() && !root.join("a/b").exists());
    std::fs::write(root.join("file"), "").unwrap();
    assert!(check_writable(&root.join("file/below")).is_err());
    assert!(check_writable(&root.join("file")).is_err());
    assert!(root.join("file").is_file());
}

#[test]
fn a_dropped_scratch_directory_is_removed_with_its_content() {
    let scratch = ScratchDir::new(None).unwrap();
    let path = scratch.0.clone();
    std::fs::write(path.join("log"), "words").unwrap();
    drop(scratch);
    assert!(!path.exists());
}
