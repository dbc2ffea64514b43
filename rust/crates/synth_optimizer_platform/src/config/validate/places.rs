//! Rules of `[run]`, `[container]`, `[candidate]`, `[seed_candidate]`, `[cache]` and `[disk_budget]`.

use super::super::sections::CacheMode;
use super::super::tree::join;
use super::super::url::problem_of_base_url;
use super::{Rules, is_blank, repeated};

pub(super) fn check(rules: &mut Rules<'_, '_>) {
    run(rules);
    container(rules);
    candidate(rules);
    cache(rules);
    disk_budget(rules);
    home_paths(rules);
}

fn run(rules: &mut Rules<'_, '_>) {
    const LONGEST: usize = 128;
    let run = &rules.config.run;
    if let Some(id) = &run.run_id {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let fits = (1..=LONGEST).contains(&id.len()) && id.chars().all(allowed) && !id.starts_with(['-', '.']);
        if !fits {
            rules.error(
                "bad_run_id",
                "run.run_id",
                format!("{id:?} cannot name a run"),
                "Use 1 to 128 letters, digits, `.`, `_` or `-`, starting with a letter, a digit or `_`.",
            );
        }
    }
    if is_blank(run.output_dir.as_str()) {
        rules.error(
            "blank",
            "run.output_dir",
            "`run.output_dir` is blank",
            "Name a directory, or leave it out for `runs`.",
        );
    }
}

fn container(rules: &mut Rules<'_, '_>) {
    let container = &rules.config.container;
    if is_blank(&container.url) {
        rules.error(
            "required",
            "container.url",
            "`container.url` is required",
            "Write url = \"http://127.0.0.1:9100\" under [container].",
        );
    } else if let Some(problem) = problem_of_base_url(&container.url) {
        rules.error(
            "bad_url",
            "container.url",
            format!("`container.url` {problem}"),
            "Write it like http://127.0.0.1:9100.",
        );
    }
    for (index, argument) in container.command.iter().enumerate() {
        if is_blank(argument) {
            let field = format!("container.command[{index}]");
            rules.error("blank", &field, format!("`{field}` is blank"), "Remove the entry, or give the argument.");
        }
    }
    if container.cwd.as_ref().is_some_and(|cwd| is_blank(cwd.as_str())) {
        rules.error("blank", "container.cwd", "`container.cwd` is blank", "Name a directory, or leave it out.");
    }
}

fn candidate(rules: &mut Rules<'_, '_>) {
    const LONGEST_PREFIX: usize = 32;
    let candidate = &rules.config.candidate;
    let modules = &candidate.target_modules;
    if modules.is_empty() {
        rules.error(
            "required",
            "candidate.target_modules",
            "`candidate.target_modules` names no module",
            "Name at least one mutable field of the container's program.",
        );
    }
    for (index, module) in modules.iter().enumerate() {
        if is_blank(module) {
            let field = format!("candidate.target_modules[{index}]");
            rules.error(
                "blank",
                &field,
                format!("`{field}` is blank"),
                "Name a mutable field of the container's program.",
            );
        }
    }
    for index in repeated(modules) {
        let field = format!("candidate.target_modules[{index}]");
        rules.error(
            "duplicate",
            &field,
            format!("{:?} is named twice in `candidate.target_modules`", modules[index]),
            "Keep one.",
        );
    }
    let prefix = &candidate.candidate_id_prefix;
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    if prefix.is_empty() || prefix.len() > LONGEST_PREFIX || !prefix.chars().all(allowed) || prefix.starts_with('-') {
        rules.error(
            "bad_prefix",
            "candidate.candidate_id_prefix",
            format!("{prefix:?} cannot begin a candidate id"),
            "Use 1 to 32 letters, digits, `_` or `-`, not starting with `-`.",
        );
    }
    for (name, text) in &rules.config.seed_candidate {
        if is_blank(name) || is_blank(text) {
            let field = join("seed_candidate", name);
            rules.error(
                "blank",
                &field,
                format!("`{field}` is blank"),
                "Give the text to start from, or leave the entry out.",
            );
        }
    }
}

fn cache(rules: &mut Rules<'_, '_>) {
    let cache = &rules.config.cache;
    if cache.path.as_ref().is_some_and(|path| is_blank(path.as_str())) {
        rules.error("blank", "cache.path", "`cache.path` is blank", "Name a file, or leave it out.");
    }
    if cache.namespace.as_deref().is_some_and(is_blank) {
        rules.error("blank", "cache.namespace", "`cache.namespace` is blank", "Name a namespace, or leave it out.");
    }
    if cache.mode == CacheMode::Readonly && cache.path.is_none() && rules.can_read(&["cache.path"]) {
        rules.error(
            "required",
            "cache.mode",
            "`cache.mode` is \"readonly\" but no `cache.path` is given, and the cache of a new run is empty",
            "Name the cache file of an earlier run in cache.path.",
        );
    }
    if cache.mode == CacheMode::Readonly
        && cache.path.is_some()
        && cache.namespace.is_none()
        && rules.can_read(&["cache.namespace"])
    {
        rules.warn(
            "readonly_namespace",
            "cache.mode",
            "`cache.mode` is \"readonly\" and the namespace is that of this run, so only a run of the same id finds anything",
            "Name the namespace that the cache was written under in cache.namespace.",
        );
    }
}

fn disk_budget(rules: &mut Rules<'_, '_>) {
    let budget = &rules.config.disk_budget;
    if budget.path.as_ref().is_some_and(|path| is_blank(path.as_str())) {
        rules.error("blank", "disk_budget.path", "`disk_budget.path` is blank", "Name a directory, or leave it out.");
    }
    if !budget.enabled || !rules.can_read(&["disk_budget.enabled"]) {
        return;
    }
    let limits =
        [("disk_budget.soft_limit_gb", budget.soft_limit_gb), ("disk_budget.hard_limit_gb", budget.hard_limit_gb)];
    for (field, limit) in limits {
        if limit <= 0.0 {
            rules.error(
                "out_of_range",
                field,
                format!("`{field}` is {limit}; it must be above 0"),
                "Set enabled = false for no limit.",
            );
        }
    }
    let (soft, hard) = (budget.soft_limit_gb, budget.hard_limit_gb);
    if hard < soft && rules.can_read(&["disk_budget.soft_limit_gb", "disk_budget.hard_limit_gb"]) {
        let field = if rules.is_given("disk_budget.hard_limit_gb") {
            "disk_budget.hard_limit_gb"
        } else {
            "disk_budget.soft_limit_gb"
        };
        rules.error(
            "contradiction",
            field,
            format!("`disk_budget.hard_limit_gb` ({hard}) is below `disk_budget.soft_limit_gb` ({soft})"),
            "The soft limit refuses new runs, the hard one stops them: soft <= hard.",
        );
    }
}

/// A shell would have replaced `~`; here it would quietly name a directory.
fn home_paths(rules: &mut Rules<'_, '_>) {
    let config = rules.config;
    let paths = [
        ("run.output_dir", Some(&config.run.output_dir)),
        ("container.cwd", config.container.cwd.as_ref()),
        ("cache.path", config.cache.path.as_ref()),
        ("disk_budget.path", config.disk_budget.path.as_ref()),
    ];
    for (field, path) in paths {
        if path.is_some_and(|path| path.starts_with("~")) {
            rules.error(
                "home_path",
                field,
                format!("`{field}` begins with `~`, which only a shell replaces"),
                "Write the whole path, or one relative to the config file.",
            );
        }
    }
}
