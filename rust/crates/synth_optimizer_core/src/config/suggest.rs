//! Says what a misspelt or retired name or word should have been.

use super::shape::{Field, root};
use crate::words::fold;

/// The likeliest intended name, when one is near enough to be worth naming.
pub fn nearest<'n>(word: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    const NEAR: f64 = 0.84;
    let word = fold(word);
    let score = |name: &str| {
        let edits = strsim::damerau_levenshtein(&word, &fold(name));
        let few = edits <= 2 && edits * 3 <= name.len().max(word.len());
        strsim::jaro_winkler(&word, &fold(name)).max(if few { 0.9 } else { 0.0 })
    };
    known
        .into_iter()
        .map(|name| (score(name), name))
        .filter(|(score, _)| *score >= NEAR)
        .max_by(|(left, _), (right, _)| left.total_cmp(right))
        .map(|(_, name)| name)
}

/// The tables that do have a field of this name.
pub(super) fn homes_of(name: &str) -> Vec<String> {
    let has_name = |field: &Field| field.name == name || field.alias.as_deref() == Some(name);
    root().fields_below().into_iter().filter(|(_, field)| has_name(field)).map(|(home, _)| home).collect()
}

/// Why a field that other versions of the optimizer read is not one here.
pub(super) fn retired_field(path: &str) -> Option<&'static str> {
    const RETIRED: &[(&str, &str)] = &[
        ("run.correlation", "Keep the experiment's own record next to the run; leave this table out."),
        ("container.headers", "Requests to the container carry no extra headers; leave it out."),
        ("container.auth_bearer_env", "The container is called without credentials; leave it out."),
        ("container.auth_refresh", "The container is called without credentials; leave it out."),
        ("container.pool", "Hosted pools are not called; name the container in container.url."),
        ("policy.enabled", "The policy is always sent to the container; leave it out."),
        ("policy.policy_type", "The container decides how its policy works; put anything it reads into policy.config."),
        ("proposer.runtime_substrate", "The proposer runs as a local process; leave it out."),
        ("proposer.docker", "The proposer runs as a local process; leave it out."),
        ("proposer.daytona", "The proposer runs as a local process; leave it out."),
        ("proposer.nano_codex", "Use backend = \"codex_app_server\" or \"openai_compatible\"; leave this table out."),
        ("proposer.service_tier", "The service tier is the proposer's own setting; leave it out."),
        ("proposer.message_stall_timeout_seconds", "proposer.timeout_seconds limits the whole turn; leave it out."),
        ("proposer.allow_unverified_model", "Any model name is passed on; leave it out."),
        ("proposer.prompt", "The proposer's instructions are part of the optimizer; leave it out."),
        ("gepa.pipeline.delta_max", "Only staleness_policy = \"full\" exists, which has no bound; leave it out."),
        ("gepa.pipeline.speculative_completion", "It belongs to `flash_evolve`, which is not available; leave it out."),
        ("gepa.pipeline.adaptive_stage_workers", "Set gepa.pipeline.workers instead."),
        ("jesterky_workflow", "Workflows are not part of this optimizer; leave the section out."),
    ];
    RETIRED.iter().find(|(field, _)| *field == path).map(|(_, sentence)| *sentence)
}

/// Why a word that other versions of the optimizer took is refused here, and what to write.
pub(super) fn refused_word(path: &str, word: &str) -> Option<(&'static str, &'static str)> {
    const ENDPOINT: &str = "Write backend = \"openai_compatible\" with base_url, model and api_key_env.";
    const PROCESS: &str =
        "Write backend = \"codex_app_server\", or \"openai_compatible\" with a base_url that your process serves.";
    const FULL: &str = "Write staleness_policy = \"full\" or leave it out.";
    let word = fold(word);
    Some(match (path, word.as_str()) {
        ("proposer.backend", "local_process_json") => {
            ("there is no proposer that talks JSON with a local process", PROCESS)
        }
        ("proposer.backend", "chat_completions") => {
            ("the proposer that speaks chat completions is `openai_compatible`", ENDPOINT)
        }
        ("proposer.backend", "deepseek_chat" | "openai") => ("no provider has a backend of its own", ENDPOINT),
        ("proposer.backend", "codex") => {
            ("the backend that runs Codex is `codex_app_server`", "Write backend = \"codex_app_server\".")
        }
        ("proposer.execution_mode", "stdio") => {
            ("the proposer runs as `local_process`, which talks over its standard streams", "Leave it out.")
        }
        ("proposer.execution_mode", "websocket" | "ws") => {
            ("the proposer is not reached over a WebSocket", "Leave it out.")
        }
        ("proposer.auth_mode", "chatgpt") => {
            ("the sign-in of the host is called `host`", "Write auth_mode = \"host\".")
        }
        ("gepa.pipeline.mode", "flash_evolve") => {
            ("it decides by timing, so a run could not be repeated", "Write mode = \"async_pipelined\".")
        }
        ("gepa.pipeline.staleness_policy", "guarded" | "reflective") => {
            ("no proposal is dropped or redone for its age, so that a run can be repeated", FULL)
        }
        _ => return None,
    })
}
