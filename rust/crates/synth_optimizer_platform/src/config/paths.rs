//! Makes the paths of a configuration absolute, by their text alone.

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};

use super::sections::Config;

/// Resolves every path field against the directory of the file, whichever layer it came from.
pub(super) fn resolve(config: &mut Config, base_dir: &Utf8Path) {
    let optional = [
        &mut config.container.cwd,
        &mut config.cache.path,
        &mut config.disk_budget.path,
        &mut config.proposer.codex_home,
    ];
    // A name alone is looked for on the path of programs.
    if let Some(program) = config.proposer.command.first_mut().filter(|program| program.contains('/')) {
        *program = absolute(base_dir, Utf8Path::new(program)).into_string();
    }
    for path in optional.into_iter().flatten().chain([&mut config.run.output_dir]) {
        *path = absolute(base_dir, path);
    }
}

/// The joined path without `.` and `..`. A `..` at the root stays at the root.
fn absolute(base_dir: &Utf8Path, path: &Utf8Path) -> Utf8PathBuf {
    let mut resolved = Utf8PathBuf::new();
    for component in base_dir.join(path).components() {
        match component {
            Utf8Component::CurDir => {}
            Utf8Component::ParentDir => {
                resolved.pop();
            }
            Utf8Component::Prefix(_) | Utf8Component::RootDir | Utf8Component::Normal(_) => {
                resolved.push(component.as_str());
            }
        }
    }
    resolved
}
