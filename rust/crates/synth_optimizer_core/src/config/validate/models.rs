//! Rules about `[policy]` and `[proposer]`: endpoints, credentials, and settings of the chosen backend.

use serde_json::{Value, json};

use super::super::proposer::{
    AnswerMode, ApprovalPolicy, AuthMode, EARLIER_MAX_CONCURRENT_REQUESTS, ProposerBackend, ProposerSection,
    SandboxMode,
};
use super::super::report::Code;
use super::super::sections::{CredentialMode, PolicySection, ProxyMode};
use super::super::tree::join;
use super::Validator;
use super::names_and_paths::{base_url_problem, url_problem};
use crate::secrets::{can_name_variable, is_credential_name, looks_like_key};

/// Settings of the Codex backend only.
const CODEX_ONLY: &[&str] = &[
    "command",
    "sandbox_mode",
    "approval_policy",
    "auth_mode",
    "codex_home",
    "answer",
    "max_turn_tokens",
    "max_commands",
    "startup_timeout_seconds",
    "rpc_timeout_seconds",
    "interrupt_timeout_seconds",
];
/// Settings of the endpoint backend only.
const ENDPOINT_ONLY: &[&str] =
    &["structured_output", "max_output_tokens", "backoff_ms", "backoff_max_seconds", "max_concurrent_requests"];

pub(super) fn check(rules: &mut Validator<'_, '_>) {
    let config = rules.config;
    let policy_section = config.policy.as_ref();
    let of_policy = |url: fn(&PolicySection) -> Option<&String>| policy_section.and_then(url).map(String::as_str);
    let urls = [
        ("policy.base_url", of_policy(|policy| policy.base_url.as_ref()).and_then(url_problem)),
        ("policy.inference_url", of_policy(|policy| policy.inference_url.as_ref()).and_then(url_problem)),
        ("proposer.base_url", config.proposer.base_url.as_deref().and_then(base_url_problem)),
    ];
    for (field, problem) in urls {
        if let Some(problem) = problem {
            rules.add(Code::InvalidUrl, field, format!("`{field}` {problem}"), "Write it like https://host/v1.");
        }
    }
    check_key_variable(rules, "container.token_env", config.container.token_env.as_deref());
    check_key_variable(rules, "policy.api_key_env", of_policy(|policy| policy.api_key_env.as_ref()));
    check_key_variable(rules, "proposer.api_key_env", config.proposer.api_key_env.as_deref());
    policy(rules);
    refuse_unsafe_settings(rules);
    if rules.can_read(&["proposer.backend"]) {
        match config.proposer.backend {
            ProposerBackend::OpenaiCompatible => endpoint(rules),
            ProposerBackend::CodexAppServer => codex(rules),
        }
    }
    prices(rules);
    let can_read = rules.can_read(&["proposer.auth_mode", "proposer.api_key_env"]);
    rules.add_if(
        config.proposer.auth_mode == AuthMode::Host && config.proposer.api_key_env.is_some() && can_read,
        Code::ConflictingFields,
        "proposer.api_key_env",
        "`proposer.api_key_env` is given, but `proposer.auth_mode` is \"host\", which uses no key",
        "Remove it, or write auth_mode = \"api_key\".",
    );
}

fn policy(rules: &mut Validator<'_, '_>) {
    let Some(policy) = &rules.config.policy else { return };
    let proxied = policy.credential_mode == CredentialMode::Proxy && rules.can_read(&["policy.credential_mode"]);
    rules.add_if(
        proxied && policy.inference_url.is_none(),
        Code::Required,
        "policy.inference_url",
        "`policy.inference_url` is required when `policy.credential_mode` is \"proxy\"",
        "Name the proxy that holds the credentials.",
    );
    rules.add_if(
        proxied && policy.proxy_mode == ProxyMode::AllowDirect && rules.is_given("policy.proxy_mode"),
        Code::ProxyNotEnforced,
        "policy.proxy_mode",
        "`policy.proxy_mode` is \"allow_direct\" but a proxy holds the credentials",
        "Write proxy_mode = \"proxy_only\" to forbid direct calls.",
    );
    for (name, value) in &policy.config {
        refuse_credentials(rules, &join("policy.config", name), name, value);
    }
}

/// Rejects credentials at any depth, because the policy is sent to the container and stored with the run.
fn refuse_credentials(rules: &mut Validator<'_, '_>, path: &str, name: &str, value: &Value) {
    const HINT: &str = "Keep keys in the container's environment and name the variable in policy.api_key_env.";
    let is_key = |text: &str| looks_like_key(text) || text.to_lowercase().starts_with("bearer ");
    match value {
        _ if is_credential_name(name) => {
            rules.add(Code::CredentialInConfig, path, format!("`{path}` looks like a credential"), HINT);
        }
        Value::Object(entries) => {
            entries.iter().for_each(|(name, value)| refuse_credentials(rules, &join(path, name), name, value));
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                refuse_credentials(rules, &format!("{path}[{index}]"), "", item);
            }
        }
        Value::String(text) if is_key(text.trim()) => {
            rules.add(Code::CredentialInConfig, path, format!("the value of `{path}` looks like a key"), HINT);
        }
        _ => {}
    }
}

/// Checks the name of a variable. Messages do not repeat the value, because it may be the key itself.
fn check_key_variable(rules: &mut Validator<'_, '_>, field: &str, name: Option<&str>) {
    let Some(name) = name else { return };
    let is_key = looks_like_key(name) || name.to_lowercase().starts_with("sk-");
    let what = if is_key {
        "holds what looks like a key; it takes the name of a variable"
    } else {
        "is not the name of a variable"
    };
    let hint = "Write a name such as \"OPENAI_API_KEY\" and put the key into that variable.";
    rules.add_if(
        is_key || !can_name_variable(name),
        Code::InvalidKeyVariable,
        field,
        format!("`{field}` {what}"),
        hint,
    );
}

fn refuse_unsafe_settings(rules: &mut Validator<'_, '_>) {
    let proposer = &rules.config.proposer;
    rules.add_if(
        proposer.copy_host_auth,
        Code::UnsupportedValue,
        "proposer.copy_host_auth",
        "`proposer.copy_host_auth` cannot be true: credentials are never copied into a run",
        "Remove it; auth_mode = \"host\" uses the sign-in where it is.",
    );
    rules.add_if(
        proposer.sandbox_mode == Some(SandboxMode::DangerFullAccess),
        Code::UnsupportedValue,
        "proposer.sandbox_mode",
        "`proposer.sandbox_mode` cannot be \"danger_full_access\": the proposer may write only its workspace",
        "Write sandbox_mode = \"workspace_write\".",
    );
    if let Some(policy) = proposer.approval_policy.filter(|policy| *policy != ApprovalPolicy::Never) {
        let message = format!("`proposer.approval_policy` cannot be {:?}: a run cannot answer it", policy.as_str());
        let hint = "Write approval_policy = \"never\", or leave it out.";
        rules.add(Code::UnsupportedValue, "proposer.approval_policy", message, hint);
    }
}

/// Checks the settings of the endpoint backend.
fn endpoint(rules: &mut Validator<'_, '_>) {
    let proposer = &rules.config.proposer;
    for (name, is_missing) in [("base_url", proposer.base_url.is_none()), ("model", proposer.model.is_none())] {
        let field = format!("proposer.{name}");
        rules.add_if(
            is_missing,
            Code::Required,
            &field,
            format!("`{field}` is required when `proposer.backend` is \"openai_compatible\""),
            "Set base_url to the endpoint, ending with /v1, and model to its model.",
        );
    }
    refuse_settings_of_other_backend(rules, CODEX_ONLY, ProposerBackend::CodexAppServer);
}

/// Checks the settings of the Codex backend.
fn codex(rules: &mut Validator<'_, '_>) {
    let proposer = &rules.config.proposer;
    refuse_settings_of_other_backend(rules, ENDPOINT_ONLY, ProposerBackend::OpenaiCompatible);
    let (has_home, has_url) = (proposer.codex_home.is_some(), proposer.base_url.is_some());
    let contradictions = [
        (
            proposer.sandbox_mode == Some(SandboxMode::ReadOnly) && proposer.answer == AnswerMode::Manifest,
            ("sandbox_mode", "is \"read_only\", but the proposer must write proposal/manifest.json"),
            "Write answer = \"structured\", or remove sandbox_mode.",
        ),
        (
            has_home && proposer.auth_mode == AuthMode::ApiKey,
            ("codex_home", "is given, but `proposer.auth_mode` is \"api_key\", which uses no sign-in"),
            "Remove it, or write auth_mode = \"host\".",
        ),
        (
            has_home && has_url,
            ("codex_home", "is given, but `proposer.base_url` names a server without this sign-in"),
            "Remove one of them.",
        ),
        (
            has_url && proposer.auth_mode == AuthMode::Host,
            (
                "base_url",
                "is given, but `proposer.auth_mode` is \"host\", which signs in at the provider's own address",
            ),
            "Remove it, or write auth_mode = \"api_key\".",
        ),
    ];
    for (is_wrong, (name, problem), hint) in contradictions {
        let field = format!("proposer.{name}");
        rules.add_if(is_wrong, Code::ConflictingFields, &field, format!("`{field}` {problem}"), hint);
    }
}

/// Rejects settings of the backend that is not used. Ignores settings with their default value.
fn refuse_settings_of_other_backend(rules: &mut Validator<'_, '_>, settings: &[&str], other: ProposerBackend) {
    let (mut given, usual) = (json!(rules.config.proposer), json!(ProposerSection::default()));
    if rules.config.proposer.max_concurrent_requests == Some(EARLIER_MAX_CONCURRENT_REQUESTS) {
        given["max_concurrent_requests"] = usual["max_concurrent_requests"].clone();
    }
    let (used, other) = (rules.config.proposer.backend.as_str(), other.as_str());
    for name in settings.iter().filter(|name| given[**name] != usual[**name]) {
        let field = format!("proposer.{name}");
        // Both backends accept a key; only Codex can use the sign-in of the host.
        let what = if *name == "auth_mode" { " = \"host\"" } else { "" };
        let message = format!("`{field}`{what} belongs to the backend {other:?}, but `proposer.backend` is {used:?}");
        let is_wrong = *name != "auth_mode" || rules.config.proposer.auth_mode == AuthMode::Host;
        rules.add_if(is_wrong, Code::ConflictingFields, &field, message, "Remove it, or change the backend.");
    }
}

/// Checks that each model has both prices.
fn prices(rules: &mut Validator<'_, '_>) {
    for (model, price) in &rules.config.proposer.prices {
        for (name, amount) in [("prompt_usd", price.prompt_usd), ("completion_usd", price.completion_usd)] {
            let field = format!("proposer.prices.{model}.{name}");
            let hint = "Set both prices in dollars per million tokens; 0 means free.";
            rules.add_if(amount.is_none(), Code::Required, &field, format!("`{field}` is required"), hint);
        }
    }
}
