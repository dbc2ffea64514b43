//! Reads a configuration file that a client has named: beneath the config root, a regular file, and not large.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::refusal::Refusal;
use crate::Code;

/// Larger than any configuration that a person writes.
const MOST_BYTES: u64 = 1024 * 1024;

/// A file beneath the root.
#[derive(Debug)]
pub(super) struct ConfigFile {
    /// As the client may name it again.
    pub(super) name: String,
    pub(super) text: String,
    /// The directory that its relative paths start at.
    pub(super) base_dir: Utf8PathBuf,
}

/// Reads the file. What is refused is told without what is in it.
pub(super) fn read(root: &Utf8Path, named: &str) -> Result<ConfigFile, Refusal> {
    let refused = |why: &str| Refusal::new(Code::ConfigPathRefused, format!("config_path {named:?} {why}"));
    if named.is_empty() || named.contains('\0') {
        return Err(refused("is not the name of a file"));
    }
    let path = Utf8Path::new(named);
    // A path from the root of the file system is fine where it leads to the same place.
    let Ok(relative) = (if path.is_absolute() { path.strip_prefix(root) } else { Ok(path) }) else {
        return Err(refused("is not beneath the config root"));
    };
    let file = open_beneath(root, relative).map_err(|error| match error {
        Errno::NOENT | Errno::NOTDIR => refused("does not exist beneath the config root"),
        Errno::XDEV | Errno::LOOP => refused("leads out of the config root"),
        Errno::ACCESS | Errno::PERM => refused("may not be read"),
        Errno::NAMETOOLONG => refused("is too long"),
        _ => refused("cannot be opened"),
    })?;
    let mut file = File::from(file);
    let found = file.metadata().map_err(|_| refused("cannot be read"))?;
    if !found.is_file() {
        return Err(refused("is not a regular file"));
    }
    if found.len() > MOST_BYTES {
        return Err(refused("is larger than 1 MB"));
    }
    let mut bytes = Vec::new();
    // A file may grow while it is read.
    let read = (&mut file).take(MOST_BYTES + 1).read_to_end(&mut bytes);
    if read.is_err() || bytes.len() as u64 > MOST_BYTES {
        return Err(refused("cannot be read"));
    }
    let text = String::from_utf8(bytes).map_err(|_| refused("is not UTF-8 text"))?;
    let base_dir = root.join(relative.parent().unwrap_or(Utf8Path::new("")));
    Ok(ConfigFile { name: relative.to_string(), text, base_dir })
}

/// The kernel itself keeps `..`, links and links of `/proc` from leading out, also when they change meanwhile.
fn open_beneath(root: &Utf8Path, relative: &Utf8Path) -> Result<OwnedFd, Errno> {
    let directory =
        rustix::fs::open(root.as_std_path(), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // Without NONBLOCK the opening of a pipe would wait for somebody to write into it.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    openat2(&directory, relative.as_std_path(), flags, Mode::empty(), within)
}

#[cfg(test)]
#[path = "config_file_tests.rs"]
mod tests;
