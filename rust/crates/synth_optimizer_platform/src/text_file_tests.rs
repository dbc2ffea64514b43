#![allow(clippy::unwrap_used)]

use camino::Utf8Path;

use super::read_text_file;

#[test]
fn a_text_is_read_and_every_other_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let dir = Utf8Path::from_path(dir.path()).unwrap();
    let file = |name: &str, bytes: &[u8]| {
        std::fs::write(dir.join(name), bytes).unwrap();
        dir.join(name)
    };
    assert_eq!(read_text_file(&file("a.md", "Be brief é.\n".as_bytes())).as_deref(), Ok("Be brief é.\n"));
    let problem = |path: &Utf8Path| read_text_file(path).unwrap_err();
    assert_eq!(problem(&dir.join("missing.md")), "does not exist");
    assert_eq!(problem(dir), "is not a regular file");
    assert_eq!(problem(Utf8Path::new("/dev/zero")), "is not a regular file");
    assert_eq!(problem(&file("b.md", b"one\n\xff")), "is not UTF-8 text: line 2 has other bytes");
    assert_eq!(problem(&file("c.md", &vec![b'a'; (1 << 20) + 1])), "is larger than 1 MB");
}
