//! Files of a turn: for their owner alone, and read with care where a model may have put something else in their place.

use std::fs::{self, DirBuilder, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};

use camino::Utf8Path;

/// Makes a directory and those above it.
pub(super) fn make_dir(path: &Utf8Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Removes a directory with all it holds. One that is not there is no error.
pub(super) fn remove_dir(path: &Utf8Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Writes a file that is not there yet: what is there already is neither followed nor written.
pub(super) fn write_new(path: &Utf8Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(bytes)
}

/// Reads a text of at most `most` bytes from a regular file. A link is not followed, and a pipe is not waited for.
pub(super) fn read_text(path: &Utf8Path, most: u64) -> io::Result<String> {
    let check = |found: &Metadata| match found.len() {
        _ if !found.is_file() => Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file")),
        bytes if bytes > most => {
            let message = format!("it has {bytes} bytes; at most {most} are allowed");
            Err(io::Error::new(ErrorKind::FileTooLarge, message))
        }
        _ => Ok(()),
    };
    check(&fs::symlink_metadata(path)?)?;
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path)?;
    // Another one may have been put there meanwhile.
    check(&file.metadata()?)?;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("it is larger than {most} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not UTF-8 text"))
}
