//! Rules about `[run]`, `[container]`, `[candidate]`, `[cache]` and `[disk_budget]`, and about URLs.

use super::super::report::Code;
use super::super::sections::CacheMode;
use super::{Validator, is_blank};

pub(super) fn check(rules: &mut Validator<'_, '_>) {
    container(rules);
    names(rules);
    cache(rules);
    disk_budget(rules);
    home_paths(rules);
}

fn names(rules: &mut Validator<'_, '_>) {
    const MAX_RUN_ID_LENGTH: usize = 128;
    const MAX_PREFIX_LENGTH: usize = 32;
    let (run, candidate) = (&rules.config.run, &rules.config.candidate);
    let fits = |name: &str, longest: usize, also: &str, not_first: &[char]| {
        (1..=longest).contains(&name.len())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || also.contains(c))
            && !name.starts_with(not_first)
    };
    if let Some(id) = run.run_id.as_ref().filter(|id| !fits(id, MAX_RUN_ID_LENGTH, "._-", &['-', '.'])) {
        let hint = "Use 1 to 128 letters, digits, `.`, `_` or `-`, starting with a letter, a digit or `_`.";
        rules.add(Code::InvalidRunId, "run.run_id", format!("{id:?} cannot name a run"), hint);
    }
    let prefix = &candidate.candidate_id_prefix;
    rules.add_if(
        !fits(prefix, MAX_PREFIX_LENGTH, "_-", &['-']),
        Code::InvalidPrefix,
        "candidate.candidate_id_prefix",
        format!("{prefix:?} cannot begin a candidate id"),
        "Use 1 to 32 letters, digits, `_` or `-`, not starting with `-`.",
    );
    rules.add_if(
        candidate.target_modules.is_empty(),
        Code::Required,
        "candidate.target_modules",
        "`candidate.target_modules` is empty",
        "Name at least one mutable field of the container's program.",
    );
    let known = &candidate.target_modules;
    for name in candidate.sources.keys().filter(|name| !known.contains(name)) {
        let message = format!("`candidate.sources` has {name:?}, which is no target module");
        let hint = format!("Name one of candidate.target_modules: {}.", known.join(", "));
        rules.add(Code::UnknownValue, "candidate.sources", message, hint);
    }
}

fn container(rules: &mut Validator<'_, '_>) {
    let url = &rules.config.container.url;
    if is_blank(url) {
        let hint = "Write url = \"http://127.0.0.1:9100\" under [container].";
        rules.add(Code::Required, "container.url", "`container.url` is required", hint);
    } else if let Some(problem) = base_url_problem(url) {
        let hint = "Write it like http://127.0.0.1:9100.";
        rules.add(Code::InvalidUrl, "container.url", format!("`container.url` {problem}"), hint);
    }
}

fn cache(rules: &mut Validator<'_, '_>) {
    let cache = &rules.config.cache;
    let is_readonly = cache.mode == CacheMode::Readonly;
    rules.add_if(
        is_readonly && cache.path.is_none() && rules.can_read(&["cache.path"]),
        Code::Required,
        "cache.mode",
        "`cache.mode` is \"readonly\" but `cache.path` is not set, and the cache of a new run is empty",
        "Name the cache file of an earlier run in cache.path.",
    );
    rules.add_if(
        is_readonly && cache.path.is_some() && cache.namespace.is_none() && rules.can_read(&["cache.namespace"]),
        Code::ReadonlyNamespace,
        "cache.mode",
        "`cache.mode` is \"readonly\" and the namespace belongs to this run, so only a run with the same id finds entries",
        "Name the namespace that the cache was written under in cache.namespace.",
    );
}

fn disk_budget(rules: &mut Validator<'_, '_>) {
    const FIELDS: [&str; 2] = ["disk_budget.hard_limit_gb", "disk_budget.soft_limit_gb"];
    let budget = &rules.config.disk_budget;
    if !budget.enabled || !rules.can_read(&["disk_budget.enabled"]) {
        return;
    }
    let (soft, hard) = (budget.soft_limit_gb, budget.hard_limit_gb);
    for (field, limit) in FIELDS.into_iter().zip([hard, soft]) {
        rules.add_if(
            limit <= 0.0,
            Code::OutOfRange,
            field,
            format!("`{field}` is {limit}; it must be above 0"),
            "Set disk_budget.enabled = false to disable the limit.",
        );
    }
    rules.add_if(
        hard < soft && rules.can_read(&FIELDS),
        Code::ConflictingFields,
        FIELDS.into_iter().find(|field| rules.is_given(field)).unwrap_or(FIELDS[1]),
        format!("`disk_budget.hard_limit_gb` ({hard}) is below `disk_budget.soft_limit_gb` ({soft})"),
        "Set soft_limit_gb to at most hard_limit_gb: the soft limit refuses new runs, the hard limit stops them.",
    );
}

/// Rejects paths that start with `~`: only a shell expands it, and here it would be a directory of that name.
fn home_paths(rules: &mut Validator<'_, '_>) {
    let config = rules.config;
    let paths = [
        ("run.output_dir", Some(&config.run.output_dir)),
        ("container.cwd", config.container.cwd.as_ref()),
        ("cache.path", config.cache.path.as_ref()),
        ("disk_budget.path", config.disk_budget.path.as_ref()),
        ("proposer.instructions_file", config.proposer.instructions_file.as_ref()),
    ];
    for (field, _) in paths.into_iter().filter(|(_, path)| path.is_some_and(|path| path.starts_with("~"))) {
        let message = format!("`{field}` begins with `~`, which only a shell expands");
        rules.add(Code::TildePath, field, message, "Write the whole path, or one relative to the config file.");
    }
}

/// Returns the first problem of a base URL, if any.
pub(super) fn base_url_problem(url: &str) -> Option<&'static str> {
    url_problem(url)
        .or_else(|| url.contains(['?', '#']).then_some("has a query or fragment, which a base URL cannot have"))
}

/// Returns the first problem of a URL, if any.
pub(super) fn url_problem(url: &str) -> Option<&'static str> {
    let rest = ["http://", "https://"].into_iter().find_map(|scheme| {
        url.get(..scheme.len()).filter(|start| start.eq_ignore_ascii_case(scheme)).and(url.get(scheme.len()..))
    });
    let Some(rest) = rest else { return Some("does not start with http:// or https://") };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // A password may contain `/`, so an `@` in the path also counts as the end of a password.
    let before_query = rest.split(['?', '#']).next().unwrap_or_default();
    if authority.contains('@') || before_query.contains('@') {
        return Some("holds a user or password");
    }
    if url.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Some("holds white space");
    }
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => (host, port.strip_prefix(':').or(if port.is_empty() { None } else { Some(port) })),
        None => match authority.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    if host.is_empty() || host.contains(['[', ']']) {
        return Some("has no host");
    }
    match port.map(str::parse::<u16>) {
        None => None,
        Some(Ok(port)) if port > 0 => None,
        Some(_) => Some("has a port that is not a number from 1 to 65535"),
    }
}
