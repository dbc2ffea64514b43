#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use reqwest::Method;

use super::{EgressPolicy, EgressRule, LookupFuture};
use crate::container::Client;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

async fn client(url: &str, egress_policy: &EgressPolicy) -> Result<Client, OptimizerError> {
    let mut config = Config::default();
    config.container.url = url.to_owned();
    config.container.connect_retries = 0;
    config.container.connect_timeout_seconds = 5;
    Client::with_egress_policy(&config.container, egress_policy).await
}

/// Replaces DNS with a fixed table of names.
fn with_test_names(egress_policy: EgressPolicy) -> EgressPolicy {
    let lookup = |name: String| -> LookupFuture {
        let found: &[&str] = match name.as_str() {
            "here" | "localhost" => &["127.0.0.1", "::1"],
            "half" => &["127.0.0.1", "169.254.169.254"],
            "metadata" => &["169.254.169.254"],
            "mapped" => &["::ffff:169.254.169.254"],
            "tasks.internal" => &["10.1.2.3"],
            other => panic!("{other} was looked up"),
        };
        let found = found.iter().map(|address| address.parse().unwrap()).collect();
        Box::pin(async { Ok(found) })
    };
    EgressPolicy { lookup, ..egress_policy }
}

async fn is_allowed(url: &str, egress_policy: &EgressPolicy) -> bool {
    let checked = client(url, egress_policy).await;
    if let Err(error) = &checked {
        assert_eq!(error.code, ErrorCode::Container, "{url}: {error}");
        assert!(error.message.contains("container_not_allowed"), "{url}: {error}");
        assert!(error.hint.contains("--allow-container"), "{url}: {}", error.hint);
        // The error does not reveal the address of a name. It may repeat an address that the URL contains.
        let is_name = ["metadata", "mapped", "half"].iter().any(|name| url.contains(name) && !url.contains("254"));
        assert!(!is_name || !error.message.contains("169.254"), "{url}: {error}");
    }
    checked.is_ok()
}

#[tokio::test]
async fn containers_are_allowed_only_on_this_machine() {
    let egress_policy = with_test_names(EgressPolicy::containers());
    for (url, expected) in [
        ("http://127.0.0.1:9100", true),
        ("http://127.9.9.9", true),
        ("http://[::1]:9100", true),
        ("https://127.0.0.1", true),
        ("http://[::ffff:127.0.0.1]:9100", true),
        // 127.0.0.1 as one number, in hex and in octal: the resolved address counts.
        ("http://2130706433/", true),
        ("http://0x7f.1/", true),
        ("http://0177.0.0.1/", true),
        ("http://localhost:9100", true),
        ("http://here", true),
        ("http://169.254.169.254/latest/meta-data", false),
        ("http://2852039166/", false),
        ("http://0xa9fea9fe/", false),
        ("http://[::ffff:169.254.169.254]/", false),
        ("http://[::ffff:a9fe:a9fe]/", false),
        ("http://0.0.0.0:9100", false),
        ("http://[::]:9100", false),
        ("http://10.1.2.3", false),
        ("http://[fe80::1]/", false),
        ("http://metadata", false),
        ("http://mapped", false),
        ("http://half", false),
        ("http://tasks.internal", false),
        ("file:///etc/passwd", false),
        ("gopher://127.0.0.1:70/", false),
        ("ftp://127.0.0.1/", false),
    ] {
        assert_eq!(is_allowed(url, &egress_policy).await, expected, "{url}");
    }
}

#[tokio::test]
async fn each_entry_allows_exactly_what_it_names() {
    for (entry, url, expected) in [
        ("10.0.0.0/8", "http://10.200.1.1:80", true),
        ("10.0.0.0/8", "http://tasks.internal:9100", true),
        ("10.0.0.0/8", "http://11.0.0.1", false),
        ("10.1.2.3", "http://10.1.2.3:9100", true),
        ("10.1.2.3", "http://10.1.2.4:9100", false),
        ("10.1.2.3:9100", "http://10.1.2.3:9100", true),
        ("10.1.2.3:9100", "http://10.1.2.3:9101", false),
        ("[fd00::1]:9100", "http://[fd00::1]:9100", true),
        ("fd00::/8", "http://[fd12::1]", true),
        ("fd00::/8", "http://[fe80::1]", false),
        ("0.0.0.0/0", "http://169.254.169.254", true),
        ("0.0.0.0/0", "http://[fd00::1]", false),
        ("tasks.internal", "http://tasks.internal:1234", true),
        ("Tasks.Internal.", "http://TASKS.internal/", true),
        ("tasks.internal:9100", "http://tasks.internal:9100", true),
        ("tasks.internal:9100", "http://tasks.internal:9200", false),
        ("tasks.internal", "http://10.1.2.3", false),
        ("tasks.internal", "http://127.0.0.1:9100", true),
    ] {
        let egress_policy = with_test_names(EgressPolicy::containers().allow(entry).unwrap());
        assert_eq!(is_allowed(url, &egress_policy).await, expected, "{entry} {url}");
    }
    for entry in ["", " ", "10.0.0.0/33", "host:port", "http://host", "a b", "user@host", "::/129", "host:99999"] {
        assert_eq!(EgressRule::parse(entry), None, "{entry:?}");
    }
}

/// A name that resolves to an allowed address during the check and to another one at the connection.
#[tokio::test]
async fn dns_rebinding_is_denied_at_the_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connects = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connects);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}");
        }
    });
    static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
    // From the second lookup on, the name resolves to the listener, which is not allowed.
    let rebound = |_: String| -> LookupFuture {
        let found = if LOOKUPS.fetch_add(1, Ordering::SeqCst) == 0 { "10.1.2.3" } else { "127.0.0.1" };
        Box::pin(async { Ok(vec![found.parse().unwrap()]) })
    };
    let rules = Some(vec![EgressRule::parse("10.0.0.0/8").unwrap()]);
    let egress_policy = EgressPolicy { rules, lookup: rebound, ..EgressPolicy::containers() };
    let client = client(&format!("http://rebound:{port}"), &egress_policy).await.unwrap();
    let error = client.json(Method::GET, "/metadata", None).await.unwrap_err();
    assert!(error.message.contains("container_not_allowed") && error.hint.contains("--allow-container"), "{error}");
    assert!(!client.is_listening().await);
    assert_eq!(connects.load(Ordering::SeqCst), 0);
    assert!(LOOKUPS.load(Ordering::SeqCst) >= 3, "the address is looked up where it is connected to");

    let egress_policy = EgressPolicy { lookup: rebound, ..EgressPolicy::containers() };
    let client = self::client(&format!("http://rebound:{port}"), &egress_policy).await.unwrap();
    client.json(Method::GET, "/metadata", None).await.unwrap();
    assert_eq!(connects.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn proposers_are_allowed_on_this_machine_and_at_providers_over_tls() {
    let lookup = |_: String| -> LookupFuture { Box::pin(async { Ok(vec!["203.0.113.7".parse().unwrap()]) }) };
    let egress_policy = EgressPolicy { lookup, ..EgressPolicy::proposers() };
    for (url, expected) in [
        ("http://127.0.0.1:11434/v1", true),
        ("https://api.openai.com/v1", true),
        ("https://API.OpenAI.com./v1", true),
        ("https://openrouter.ai/api/v1", true),
        ("https://api.groq.com/openai/v1", true),
        ("http://api.openai.com/v1", false),
        ("https://api.openai.com:8443/v1", false),
        ("https://api.openai.com.example.org/v1", false),
        ("https://example.org/v1", false),
        ("http://169.254.169.254/v1", false),
        ("http://[::ffff:169.254.169.254]/v1", false),
    ] {
        let checked = egress_policy.check(url).await;
        assert_eq!(checked.is_ok(), expected, "{url}: {checked:?}");
        if let Err(error) = checked {
            assert_eq!(error.code, ErrorCode::Proposer);
            assert!(error.message.starts_with("proposer_not_allowed: proposer.base_url"), "{error}");
            assert!(error.hint.contains("--allow-proposer"), "{}", error.hint);
        }
    }
    let own = EgressPolicy { lookup, ..EgressPolicy::proposers() }.allow("models.internal:8000").unwrap();
    assert!(own.check("http://models.internal:8000/v1").await.is_ok());
    assert!(own.check("http://models.internal/v1").await.is_err());
}
