//! Rules of `[policy]` and `[proposer]`: endpoints, credentials and what belongs to which backend.

use serde_json::Value;

use super::super::proposer::{
    AnswerMode, ApprovalPolicy, AuthMode, ProposerBackend, ProposerSection, SandboxMode, StructuredOutput,
};
use super::super::secrets::{is_credential_name, looks_like_key};
use super::super::sections::{CredentialMode, ProxyMode};
use super::super::tree::join;
use super::super::url::{problem_of_base_url, problem_of_url};
use super::{Rules, is_blank};

pub(super) fn check(rules: &mut Rules<'_, '_>) {
    policy(rules);
    proposer(rules);
    endpoint(rules);
    codex(rules);
    prices(rules);
    host_only(rules);
}

fn policy(rules: &mut Rules<'_, '_>) {
    let config = rules.config;
    let policy = &config.policy;
    required_texts(rules, &[("policy.provider", &policy.provider), ("policy.model", &policy.model)]);
    for (field, url) in [("policy.base_url", &policy.base_url), ("policy.inference_url", &policy.inference_url)] {
        if let Some(problem) = url.as_deref().and_then(problem_of_url) {
            rules.error("bad_url", field, format!("`{field}` {problem}"), "Write it like https://host/v1.");
        }
    }
    let proxied = policy.credential_mode == CredentialMode::Proxy && rules.can_read(&["policy.credential_mode"]);
    if proxied && policy.inference_url.is_none() {
        rules.error(
            "required",
            "policy.inference_url",
            "`policy.inference_url` is required when `policy.credential_mode` is \"proxy\"",
            "Name the proxy that holds the credentials.",
        );
    }
    if proxied && policy.proxy_mode == ProxyMode::AllowDirect && rules.is_given("policy.proxy_mode") {
        rules.warn(
            "proxy_not_enforced",
            "policy.proxy_mode",
            "`policy.proxy_mode` is \"allow_direct\" while the credentials are with a proxy",
            "Write proxy_mode = \"proxy_only\" to forbid direct calls.",
        );
    }
    key_variable(rules, "policy.api_key_env", policy.api_key_env.as_deref());
    for (name, value) in &policy.config {
        credentials_in(rules, &join("policy.config", name), name, value);
    }
}

/// Refuses credentials at any depth, since the policy is sent to the container and kept with the run.
fn credentials_in(rules: &mut Rules<'_, '_>, path: &str, name: &str, value: &Value) {
    const HINT: &str = "Keep keys in the container's environment and name the variable in policy.api_key_env.";
    if is_credential_name(name) {
        rules.error("credential_in_config", path, format!("`{path}` looks like a credential"), HINT);
        return;
    }
    match value {
        Value::Object(entries) => {
            for (name, value) in entries {
                credentials_in(rules, &join(path, name), name, value);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                credentials_in(rules, &format!("{path}[{index}]"), "", item);
            }
        }
        Value::String(text) => {
            if looks_like_key(text.trim()) || text.trim().to_lowercase().starts_with("bearer ") {
                rules.error("credential_in_config", path, format!("the value of `{path}` looks like a key"), HINT);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The name of a variable; the value is never repeated, because it may be the key itself.
fn key_variable(rules: &mut Rules<'_, '_>, field: &str, name: Option<&str>) {
    let Some(name) = name else { return };
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && name.chars().next().is_some_and(|c| !c.is_ascii_digit());
    let message = if looks_like_key(name) || name.to_lowercase().starts_with("sk-") {
        format!("`{field}` holds what looks like a key; it takes the name of a variable")
    } else if !is_name {
        format!("`{field}` is not the name of a variable")
    } else {
        return;
    };
    rules.error(
        "bad_key_variable",
        field,
        message,
        "Write a name such as \"OPENAI_API_KEY\" and put the key into that variable.",
    );
}

fn proposer(rules: &mut Rules<'_, '_>) {
    let config = rules.config;
    let proposer = &config.proposer;
    required_texts(rules, &[("proposer.provider", &proposer.provider)]);
    if proposer.model.as_deref().is_some_and(is_blank) {
        rules.error("blank", "proposer.model", "`proposer.model` is blank", "Name a model, or leave it out.");
    }
    for (index, argument) in proposer.command.iter().enumerate() {
        if is_blank(argument) {
            let field = format!("proposer.command[{index}]");
            rules.error("blank", &field, format!("`{field}` is blank"), "Remove the entry, or give the argument.");
        }
    }
    if let Some(problem) = proposer.base_url.as_deref().and_then(problem_of_base_url) {
        rules.error(
            "bad_url",
            "proposer.base_url",
            format!("`proposer.base_url` {problem}"),
            "Write it like https://host/v1.",
        );
    }
    key_variable(rules, "proposer.api_key_env", proposer.api_key_env.as_deref());
    if proposer.copy_host_auth {
        rules.error(
            "refused_value",
            "proposer.copy_host_auth",
            "`proposer.copy_host_auth` cannot be true: credentials are never copied into a run",
            "Remove it; auth_mode = \"host\" uses the sign-in where it is.",
        );
    }
    match proposer.sandbox_mode {
        Some(SandboxMode::DangerFullAccess) => rules.error(
            "refused_value",
            "proposer.sandbox_mode",
            "`proposer.sandbox_mode` cannot be \"danger_full_access\": the proposer may write only its workspace",
            "Write sandbox_mode = \"workspace_write\".",
        ),
        Some(SandboxMode::ReadOnly | SandboxMode::WorkspaceWrite) | None => {}
    }
    match proposer.approval_policy {
        Some(policy @ (ApprovalPolicy::OnRequest | ApprovalPolicy::OnFailure | ApprovalPolicy::Untrusted)) => rules
            .error(
                "refused_value",
                "proposer.approval_policy",
                format!("`proposer.approval_policy` cannot be {:?}: a run has nobody to ask", policy.word()),
                "Write approval_policy = \"never\", or leave it out.",
            ),
        Some(ApprovalPolicy::Never) | None => {}
    }
}

fn endpoint(rules: &mut Rules<'_, '_>) {
    let proposer = &rules.config.proposer;
    if proposer.backend != ProposerBackend::OpenaiCompatible || !rules.can_read(&["proposer.backend"]) {
        return;
    }
    // A file that writes every setting out as it is anyway contradicts nothing.
    let usual = ProposerSection::default();
    let missing = [("base_url", proposer.base_url.is_none()), ("model", proposer.model.is_none())];
    let codex_only = [
        ("command", !proposer.command.is_empty()),
        ("sandbox_mode", proposer.sandbox_mode.is_some()),
        ("approval_policy", proposer.approval_policy.is_some()),
        ("auth_mode", proposer.auth_mode == AuthMode::Host),
        ("codex_home", proposer.codex_home.is_some()),
        ("answer", proposer.answer != AnswerMode::Manifest),
        ("max_turn_tokens", proposer.max_turn_tokens != usual.max_turn_tokens),
        ("max_commands", proposer.max_commands != usual.max_commands),
        ("startup_timeout_seconds", proposer.startup_timeout_seconds != usual.startup_timeout_seconds),
        ("rpc_timeout_seconds", proposer.rpc_timeout_seconds != usual.rpc_timeout_seconds),
        ("interrupt_timeout_seconds", proposer.interrupt_timeout_seconds != usual.interrupt_timeout_seconds),
    ];
    for (name, is_missing) in missing {
        if is_missing {
            let field = format!("proposer.{name}");
            rules.error(
                "required",
                &field,
                format!("`{field}` is required when `proposer.backend` is \"openai_compatible\""),
                "Name the endpoint in base_url, up to and with /v1, and its model in model.",
            );
        }
    }
    of_the_other(rules, &codex_only, ProposerBackend::CodexAppServer);
}

/// Settings that are given and belong to the backend that is not used.
fn of_the_other(rules: &mut Rules<'_, '_>, settings: &[(&str, bool)], other: ProposerBackend) {
    let used = rules.config.proposer.backend.word();
    for (name, _) in settings.iter().filter(|(_, is_set)| *is_set) {
        let field = format!("proposer.{name}");
        let what = if *name == "auth_mode" { format!("`{field}` = \"host\"") } else { format!("`{field}`") };
        rules.error(
            "contradiction",
            &field,
            format!("{what} belongs to the backend {:?}, but `proposer.backend` is {used:?}", other.word()),
            "Remove it, or change the backend.",
        );
    }
}

/// What only an endpoint that is called directly has, and what a codex needs.
fn codex(rules: &mut Rules<'_, '_>) {
    let proposer = &rules.config.proposer;
    if proposer.backend != ProposerBackend::CodexAppServer || !rules.can_read(&["proposer.backend"]) {
        return;
    }
    let usual = ProposerSection::default();
    let endpoint_only = [
        ("structured_output", proposer.structured_output != StructuredOutput::Auto),
        ("max_output_tokens", proposer.max_output_tokens.is_some()),
        ("backoff_ms", proposer.backoff_ms != usual.backoff_ms),
        ("backoff_max_seconds", proposer.backoff_max_seconds != usual.backoff_max_seconds),
        ("max_concurrent_requests", proposer.max_concurrent_requests != usual.max_concurrent_requests),
    ];
    of_the_other(rules, &endpoint_only, ProposerBackend::OpenaiCompatible);
    if proposer.sandbox_mode == Some(SandboxMode::ReadOnly) && proposer.answer == AnswerMode::Manifest {
        rules.error(
            "contradiction",
            "proposer.sandbox_mode",
            "`proposer.sandbox_mode` is \"read_only\", but the proposer is to write proposal/manifest.json",
            "Write answer = \"structured\", or remove sandbox_mode.",
        );
    }
    if proposer.codex_home.is_some() && proposer.auth_mode == AuthMode::ApiKey {
        rules.error(
            "contradiction",
            "proposer.codex_home",
            "`proposer.codex_home` is given, but `proposer.auth_mode` is \"api_key\", which uses no sign-in",
            "Remove it, or write auth_mode = \"host\".",
        );
    }
    if proposer.codex_home.is_some() && proposer.base_url.is_some() {
        rules.error(
            "contradiction",
            "proposer.codex_home",
            "`proposer.codex_home` is given, but `proposer.base_url` names a server of its own, which knows no such sign-in",
            "Remove one of them.",
        );
    }
    if proposer.base_url.is_some() && proposer.auth_mode == AuthMode::Host {
        rules.error(
            "contradiction",
            "proposer.base_url",
            "`proposer.base_url` is given, but `proposer.auth_mode` is \"host\", which signs in at the provider's own address",
            "Remove it, or write auth_mode = \"api_key\".",
        );
    }
}

/// A price of half the tokens is none.
fn prices(rules: &mut Rules<'_, '_>) {
    for (model, price) in &rules.config.proposer.prices {
        for (name, amount) in [("prompt_usd", price.prompt_usd), ("completion_usd", price.completion_usd)] {
            if amount.is_none() {
                let field = format!("proposer.prices.{model}.{name}");
                let hint = "Give both prices in dollars per million tokens; 0 is free.";
                rules.error("required", &field, format!("`{field}` is required"), hint);
            }
        }
    }
}

fn host_only(rules: &mut Rules<'_, '_>) {
    let proposer = &rules.config.proposer;
    let fields = ["proposer.auth_mode", "proposer.api_key_env"];
    if proposer.auth_mode == AuthMode::Host && proposer.api_key_env.is_some() && rules.can_read(&fields) {
        rules.error(
            "contradiction",
            "proposer.api_key_env",
            "`proposer.api_key_env` is given, but `proposer.auth_mode` is \"host\", which uses no key",
            "Remove it, or write auth_mode = \"api_key\".",
        );
    }
}

fn required_texts(rules: &mut Rules<'_, '_>, fields: &[(&str, &str)]) {
    for (field, text) in fields {
        if is_blank(text) {
            rules.error("blank", field, format!("`{field}` is blank"), "Give a name, or leave it out for the default.");
        }
    }
}
