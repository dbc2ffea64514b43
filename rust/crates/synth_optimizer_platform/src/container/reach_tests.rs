#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use reqwest::Method;

use super::{Looking, Reach, Rule};
use crate::container::Client;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

async fn client(url: &str, reach: &Reach) -> Result<Client, OptimizerError> {
    let mut config = Config::default();
    config.container.url = url.to_owned();
    config.container.connect_retries = 0;
    config.container.connect_timeout_seconds = 5;
    Client::within(&config.container, reach).await
}

/// Names of a small world of its own.
fn world(reach: Reach) -> Reach {
    let lookup = |name: String| -> Looking {
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
    Reach { lookup, ..reach }
}

async fn is_allowed(url: &str, reach: &Reach) -> bool {
    let checked = client(url, reach).await;
    if let Err(error) = &checked {
        assert_eq!(error.code, ErrorCode::Container, "{url}: {error}");
        assert!(error.message.contains("container_not_allowed"), "{url}: {error}");
        assert!(error.hint.contains("--allow-container"), "{url}: {}", error.hint);
        // What a name stands for in this network is not told; an address is, however it is written.
        let is_name = ["metadata", "mapped", "half"].iter().any(|name| url.contains(name) && !url.contains("254"));
        assert!(!is_name || !error.message.contains("169.254"), "{url}: {error}");
    }
    checked.is_ok()
}

#[tokio::test]
async fn a_service_reaches_only_its_own_machine() {
    let reach = world(Reach::loopback());
    for (url, expected) in [
        ("http://127.0.0.1:9100", true),
        ("http://127.9.9.9", true),
        ("http://[::1]:9100", true),
        ("https://127.0.0.1", true),
        ("http://[::ffff:127.0.0.1]:9100", true),
        // 127.0.0.1 in one number, in hex and in octal: what counts is what is connected to.
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
        assert_eq!(is_allowed(url, &reach).await, expected, "{url}");
    }
}

#[tokio::test]
async fn entries_widen_the_reach_by_what_they_name() {
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
        let reach = world(Reach::loopback().allow(entry).unwrap());
        assert_eq!(is_allowed(url, &reach).await, expected, "{entry} {url}");
    }
    for entry in ["", " ", "10.0.0.0/33", "host:port", "http://host", "a b", "user@host", "::/129", "host:99999"] {
        assert_eq!(Rule::parse(entry), None, "{entry:?}");
    }
}

/// A name that is harmless when it is checked and another one when it is connected to.
#[tokio::test]
async fn a_name_that_changes_its_meaning_is_refused_where_it_is_connected_to() {
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
    // The network of the listener is the one that is not allowed after the second lookup.
    let rebound = |_: String| -> Looking {
        let found = if LOOKUPS.fetch_add(1, Ordering::SeqCst) == 0 { "10.1.2.3" } else { "127.0.0.1" };
        Box::pin(async { Ok(vec![found.parse().unwrap()]) })
    };
    let reach = Reach { rules: Some(vec![Rule::parse("10.0.0.0/8").unwrap()]), lookup: rebound };
    let client = client(&format!("http://rebound:{port}"), &reach).await.unwrap();
    let error = client.json(Method::GET, "/metadata", None).await.unwrap_err();
    assert!(error.message.contains("container_not_allowed") && error.hint.contains("--allow-container"), "{error}");
    assert!(!client.is_taken().await);
    assert_eq!(connects.load(Ordering::SeqCst), 0);
    assert!(LOOKUPS.load(Ordering::SeqCst) >= 3, "the address is looked up where it is connected to");

    let reach = Reach { lookup: rebound, ..Reach::loopback() };
    let client = self::client(&format!("http://rebound:{port}"), &reach).await.unwrap();
    client.json(Method::GET, "/metadata", None).await.unwrap();
    assert_eq!(connects.load(Ordering::SeqCst), 1);
}
