//! Selection of the URL and of the key.

use reqwest::{Method, Url};

use super::Endpoint;
use crate::access::EgressPolicy;
use crate::proposer::connection::Connection;
use crate::proposer::credentials::{ApiKey, base_url, is_openai, key, required_key};
use synth_optimizer_core::config::proposer::ProposerSection;
use synth_optimizer_core::secrets::Secret;

fn section(url: &str, variable: Option<&str>) -> ProposerSection {
    ProposerSection {
        base_url: Some(url.to_owned()),
        api_key_env: variable.map(str::to_owned),
        ..ProposerSection::default()
    }
}

fn key_for(url: &str, variable: Option<&str>) -> Option<String> {
    let env = |name: &str| match name {
        "OPENAI_API_KEY" => Some("the default".to_owned()),
        "MY_KEY" => Some(" mine ".to_owned()),
        _ => None,
    };
    key(&section(url, variable), &Url::parse(url).unwrap(), &env).unwrap().map(|key| key.value.expose().to_owned())
}

#[test]
fn the_default_key_is_sent_only_to_openai() {
    assert_eq!(key_for("https://api.openai.com/v1", None).as_deref(), Some("the default"));
    for foreign in [
        "http://api.openai.com/v1",
        "https://openrouter.ai/api/v1",
        "http://127.0.0.1:11434/v1",
        "https://api.openai.com.example.org/v1",
        "https://example.org/api.openai.com",
    ] {
        assert_eq!(key_for(foreign, None), None, "{foreign}");
        assert_eq!(key_for(foreign, Some("MY_KEY")).as_deref(), Some("mine"), "{foreign}");
    }
    assert!(!is_openai(&Url::parse("https://eu.openai.example/v1").unwrap()));
}

#[test]
fn a_well_known_provider_needs_a_key() {
    let checked = |url: &str, variable: Option<&str>, value: Option<&str>| {
        let env = |_: &str| value.map(str::to_owned);
        required_key(&section(url, variable), &Url::parse(url).unwrap(), &env)
    };
    for (url, variable) in [
        ("https://api.openai.com/v1", "OPENAI_API_KEY"),
        ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
        ("https://api.anthropic.com/v1/", "ANTHROPIC_API_KEY"),
        ("https://API.groq.com./openai/v1", "GROQ_API_KEY"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
    ] {
        let error = checked(url, None, None).unwrap_err();
        assert!(error.hint.contains(variable), "{url}: {error:?}");
        assert!(format!("{error}{}", error.hint).contains("proposer.api_key_env"), "{url}: {error:?}");
        assert!(checked(url, Some("MY_KEY"), None).unwrap_err().message.contains("MY_KEY"), "{url}");
        assert!(checked(url, Some("MY_KEY"), Some("mine")).unwrap().is_some(), "{url}");
    }
    for url in ["http://127.0.0.1:11434/v1", "https://llm.example.com/v1"] {
        assert_eq!(checked(url, None, None).unwrap(), None, "{url}");
    }
}

#[test]
fn an_invalid_url_is_rejected_and_not_repeated() {
    for (url, problem) in [
        ("not an address", "is not a URL"),
        ("ftp://host/v1", "does not start with"),
        ("https://user:canary@host/v1", "holds a user or password"),
    ] {
        let error = base_url(Some(url)).unwrap_err();
        assert!(error.message.contains(problem) && !format!("{error:?}").contains("canary"), "{error:?}");
    }
    assert!(base_url(None).unwrap_err().message.contains("is missing"));
}

#[test]
fn the_route_follows_the_path_of_the_base() {
    for (base, url) in [
        ("https://api.openai.com/v1", "https://api.openai.com/v1/chat/completions"),
        ("https://openrouter.ai/api/v1/", "https://openrouter.ai/api/v1/chat/completions"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080/chat/completions"),
    ] {
        let section = section(base, None);
        let base = base_url(section.base_url.as_deref()).unwrap();
        // Without system certificates, an https client cannot be created.
        let Ok(connection) = Connection::new(&base, None, &EgressPolicy::default()) else { continue };
        let endpoint = Endpoint::new(&section, connection);
        let request = endpoint.connection.request(Method::POST, endpoint.route).build().unwrap();
        assert_eq!((request.url().as_str(), endpoint.connection.has_key()), (url, false));
    }
}

#[test]
fn an_invalid_key_is_rejected_and_not_repeated() {
    let key = ApiKey { variable: "MY_KEY".into(), value: Secret::new("canary\nkey") };
    let base = base_url(Some("http://127.0.0.1:1/v1")).unwrap();
    let error = Connection::new(&base, Some(&key), &EgressPolicy::default()).unwrap_err();
    assert!(error.message.contains("MY_KEY") && !format!("{error:?}").contains("canary"), "{error:?}");
}
