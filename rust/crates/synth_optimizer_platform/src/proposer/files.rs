//! Private files of a turn. Reads are safe even if a model replaced a file with a link, a pipe or a large file.

use std::fs::{self, DirBuilder, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};

use camino::Utf8Path;

use crate::file_error::if_exists;

/// Creates a private directory and its parents.
pub(super) fn make_dir(path: &Utf8Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Removes a directory and its contents. Succeeds if the directory does not exist.
pub(super) fn remove_dir(path: &Utf8Path) -> io::Result<()> {
    if_exists(fs::remove_dir_all(path)).map(drop)
}

/// Writes a new private file. Fails if the path exists, and follows no link.
pub(super) fn write_new(path: &Utf8Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(bytes)
}

/// Reads a text of at most `most` bytes from a regular file. Follows no links and does not block on a pipe.
pub(super) fn read_text(path: &Utf8Path, most: u64) -> io::Result<String> {
    let check = |found: &Metadata| match found.len() {
        _ if !found.is_file() => Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file")),
        bytes if bytes > most => {
            let message = format!("the file has {bytes} bytes; at most {most} are allowed");
            Err(io::Error::new(ErrorKind::FileTooLarge, message))
        }
        _ => Ok(()),
    };
    check(&fs::symlink_metadata(path)?)?;
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path)?;
    // The file may have been replaced since the first check.
    check(&file.metadata()?)?;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("the file is larger than {most} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        io::Error::new(ErrorKind::InvalidData, format!("the file is not UTF-8 text: {}", error.utf8_error()))
    })
}
