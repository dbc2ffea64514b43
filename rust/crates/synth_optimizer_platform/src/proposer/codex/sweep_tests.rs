//! A workspace before and after.
#![allow(clippy::unwrap_used)]

use super::*;
use synth_optimizer_core::secrets::Secret;

#[test]
fn what_stays_is_text_without_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let place = Utf8Path::from_path(dir.path()).unwrap();
    let outside = tempfile::NamedTempFile::new().unwrap();
    fs::write(outside.path(), "the-secret").unwrap();
    fs::create_dir_all(place.join("a/b")).unwrap();
    fs::write(place.join("a/b/note.txt"), "it is the-secret here").unwrap();
    fs::write(place.join("plain.txt"), "words").unwrap();
    fs::write(place.join("binary"), [0xff, 0xfe]).unwrap();
    fs::write(place.join("large"), vec![b'x'; 5 << 20]).unwrap();
    std::os::unix::fs::symlink(outside.path(), place.join("link")).unwrap();
    // What is the same file as one outside, or stands in the way of a new one, is not written through.
    fs::hard_link(outside.path(), place.join("same.txt")).unwrap();
    fs::write(place.join("blocked.txt"), "the-secret").unwrap();
    std::os::unix::fs::symlink(outside.path(), place.join("blocked.redacted.new")).unwrap();
    sweep(place, &Redactor::new([Secret::new("the-secret")]));
    assert_eq!(fs::read_to_string(place.join("a/b/note.txt")).unwrap(), "it is [hidden] here");
    assert_eq!(fs::read_to_string(place.join("plain.txt")).unwrap(), "words");
    for gone in ["binary", "large", "link", "blocked.redacted.new"] {
        assert!(fs::symlink_metadata(place.join(gone)).is_err(), "{gone} is still there");
    }
    assert_eq!(fs::read_to_string(place.join("same.txt")).unwrap(), "[hidden]");
    assert!(
        fs::read_to_string(place.join("blocked.txt")).is_ok_and(|text| text == "[hidden]")
            || !place.join("blocked.txt").exists()
    );
    assert_eq!(fs::read_to_string(outside.path()).unwrap(), "the-secret");
}
