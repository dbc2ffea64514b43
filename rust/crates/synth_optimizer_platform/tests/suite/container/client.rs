//! Setup calls: retries, limits, and errors without secrets.

use serde_json::json as value;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::container::{Client, Method};

use super::server::{Server, ServerAction, json, text, unused_address};
use super::toy::config;
use crate::pauses::with_pauses;
use crate::waiting::with_timeout;

fn client(config: &Config) -> Client {
    Client::new(&config.container).unwrap()
}

async fn get(server: &Server) -> Result<serde_json::Value, OptimizerError> {
    client(&config(&server.url())).json(Method::GET, "/metadata", None).await
}

#[tokio::test]
async fn a_path_in_the_base_url_is_kept() {
    let server = Server::start(|_| json(200, &value!({ "a": 1 })));
    for base in [format!("{}/v1/pool", server.url()), format!("{}/v1/pool/", server.url())] {
        let client = client(&config(&base));
        let reply = client.json(Method::POST, "/taskset/tasks", Some(&value!({ "split": "train" }))).await.unwrap();
        assert_eq!(reply, value!({ "a": 1 }));
    }
    let seen = server.seen();
    assert_eq!(seen[0].line(), "POST /v1/pool/taskset/tasks");
    assert_eq!(seen[1].line(), "POST /v1/pool/taskset/tasks");
    assert_eq!(seen[0].headers["content-type"], "application/json");
    assert_eq!(seen[0].json(), value!({ "split": "train" }));
    assert!(!seen[0].headers.contains_key("authorization"));
}

/// A variable that is set in every test, and its value.
const TOKEN: (&str, &str) = ("CARGO_PKG_NAME", env!("CARGO_PKG_NAME"));

#[tokio::test]
async fn the_token_is_sent_to_the_container_and_hidden_in_its_replies() {
    let server = Server::start(|request| match request.path.as_str() {
        "/metadata" => json(200, &value!({ "seen": request.headers.get("authorization") })),
        _ => text(401, "text/plain", &format!("{:?} is wrong", request.headers.get("authorization"))),
    });
    let mut config = config(&server.url());
    config.container.token_env = Some(TOKEN.0.into());
    let client = client(&config);
    let reply = client.json(Method::GET, "/metadata", None).await.unwrap();
    assert_eq!(reply, value!({ "seen": "Bearer [hidden]" }));
    assert!(!client.is_healthy().await);
    let error = client.json(Method::GET, "/program", None).await.unwrap_err();
    assert!(error.hint.contains("container.token_env") && error.hint.contains(TOKEN.0), "{}", error.hint);
    assert!(!format!("{error:?}{client:?}").contains(TOKEN.1), "{error:?}");
    let sent = format!("Bearer {}", TOKEN.1);
    assert!(server.seen().iter().all(|request| request.headers["authorization"] == sent));
    // Without a token, the hint says how to send one.
    config.container.token_env = None;
    let error = self::client(&config).json(Method::GET, "/program", None).await.unwrap_err();
    assert!(error.hint.contains("container.token_env"), "{}", error.hint);
    assert!(!server.seen().last().unwrap().headers.contains_key("authorization"));
}

#[tokio::test]
async fn a_token_does_not_follow_a_redirect() {
    let other = Server::start(|_| json(200, &value!({})));
    let location = format!("{}/metadata", other.url());
    let server = Server::start(move |_| ServerAction::Reply {
        status: 307,
        headers: vec![("location", location.clone())],
        body: vec![],
    });
    let mut config = config(&server.url());
    config.container.token_env = Some(TOKEN.0.into());
    client(&config).json(Method::GET, "/metadata", None).await.unwrap_err();
    assert_eq!((server.lines().len(), other.lines().len()), (1, 0));
}

#[test]
fn a_missing_token_variable_is_an_error() {
    let mut config = config("http://127.0.0.1:1");
    config.container.token_env = Some("NO_SUCH_TOKEN_IN_THIS_TEST".into());
    let error = Client::new(&config.container).unwrap_err();
    assert_eq!(error.code, ErrorCode::Container);
    assert!(error.message.contains("container.token_env") && error.message.contains("NO_SUCH_TOKEN"), "{error}");
}

#[tokio::test]
async fn unreadable_parts_of_a_setup_reply_are_altered() {
    let deep = format!("{}{}", "[".repeat(127), "]".repeat(127));
    let body = format!(r#"{{"cut":"\ud83d","beyond":1e999,"deep":{deep}}}"#);
    let server = Server::start(move |_| text(200, "application/json", &body));
    let reply = get(&server).await.unwrap();
    assert_eq!((&reply["cut"], &reply["beyond"]), (&value!("\u{fffd}"), &value!("1e999")));
    // The cache and the workspace store the reply inside other documents.
    let stored = value!({ "answered": [reply] }).to_string();
    assert!(serde_json::from_str::<serde_json::Value>(&stored).is_ok());
}

#[tokio::test]
async fn overload_responses_are_retried_and_retry_after_is_honoured() {
    let server = Server::start(|request| match request.nth {
        0 => ServerAction::Reply { status: 503, headers: vec![("retry-after", "0".into())], body: b"busy".to_vec() },
        1 => ServerAction::Reply { status: 429, headers: vec![], body: vec![] },
        _ => json(200, &value!({})),
    });
    get(&server).await.unwrap();
    assert_eq!(server.count("GET /metadata"), 3);
}

#[tokio::test]
async fn a_long_retry_after_is_capped() {
    let date = || "Fri, 31 Dec 2038 23:59:59 GMT".to_owned();
    let server = Server::start(move |request| match request.nth {
        0 => ServerAction::Reply { status: 503, headers: vec![("retry-after", "3600".into())], body: vec![] },
        1 => ServerAction::Reply { status: 503, headers: vec![("retry-after", date())], body: vec![] },
        _ => json(200, &value!({})),
    });
    let mut config = config(&server.url());
    config.container.retry_backoff_max_ms = 300;
    let client = client(&config);
    let (reply, pauses) = with_pauses(with_timeout(client.json(Method::GET, "/metadata", None))).await;
    assert_eq!((reply.is_ok(), pauses), (true, vec![300, 300]));
}

#[tokio::test]
async fn other_failures_are_not_retried() {
    type Case = (fn() -> ServerAction, &'static str);
    let cases: [Case; 4] = [
        (|| text(500, "text/plain", "Internal Server Error"), "answered 500: Internal Server Error"),
        (|| json(422, &value!({ "detail": "unknown task_id 'nope'" })), "answered 422: {\"detail\":\"unknown task_id"),
        (|| ServerAction::Close, "returned no answer"),
        (|| ServerAction::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{".to_vec()), "returned no answer"),
    ];
    for (act, expected) in cases {
        let server = Server::start(move |_| act());
        let error = get(&server).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Container);
        assert!(error.message.starts_with("GET /metadata") && error.message.contains(expected), "{error}");
        assert_eq!(server.count("GET /metadata"), 1, "{error}");
    }
}

#[tokio::test]
async fn persistent_overload_is_an_error() {
    let server = Server::start(|_| text(503, "text/plain", "no key in the container"));
    let mut config = config(&server.url());
    config.container.overload_retries = 2;
    let error = client(&config).json(Method::GET, "/metadata", None).await.unwrap_err();
    assert_eq!(error.message, "GET /metadata answered 503: no key in the container");
    assert_eq!(server.count("GET /metadata"), 3);
}

#[tokio::test]
async fn a_refused_connection_is_reported() {
    let mut config = config(&format!("http://{}", unused_address()));
    config.container.connect_retries = 1;
    let error = client(&config).json(Method::GET, "/metadata", None).await.unwrap_err();
    assert!(error.message.contains("was not sent to 127.0.0.1:"), "{error}");
    assert!(error.message.ends_with(": nothing listens there (connection refused)"), "{error}");
    assert!(error.hint.contains("container.url"), "{error}");
    assert!(!client(&config).is_healthy().await);
}

#[tokio::test]
async fn a_reply_that_is_not_json_is_reported() {
    let server = Server::start(|_| text(200, "text/html", "<html>Login</html>"));
    let error = get(&server).await.unwrap_err();
    assert_eq!(error.message, "GET /metadata answered 200 without JSON (text/html)");
    assert_eq!(error.detail.as_deref(), Some("<html>Login</html>"));
}

#[tokio::test]
async fn an_endless_reply_is_stopped_at_the_size_limit() {
    let floods =
        ["HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n", "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"];
    for head in floods {
        let server = Server::start(move |_| ServerAction::Flood(head.as_bytes().to_vec()));
        let error = get(&server).await.unwrap_err();
        assert_eq!(error.message, "GET /metadata answered 200 with more than 1 MB");
        assert!(error.hint.contains("container.max_reply_mb"));
    }
}

#[tokio::test]
async fn a_slow_reply_is_stopped_at_the_deadline() {
    let server = Server::start(|_| ServerAction::Drip(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n".to_vec()));
    let mut config = config(&server.url());
    config.container.request_timeout_seconds = 1;
    let error = with_timeout(client(&config).json(Method::GET, "/metadata", None)).await.unwrap_err();
    assert!(error.message.contains("no complete answer arrived within 1 s"), "{error}");
}

#[tokio::test]
async fn redirects_and_credential_requests_are_errors() {
    let other = Server::start(|_| json(200, &value!({})));
    let place = format!("{}/metadata", other.url());
    let server = Server::start(move |_| ServerAction::Reply {
        status: 307,
        headers: vec![("location", place.clone())],
        body: vec![],
    });
    let error = get(&server).await.unwrap_err();
    assert!(error.message.contains("answered 307") && error.hint.contains("redirects"), "{error}");
    assert!(other.seen().is_empty());
    let server = Server::start(|_| ServerAction::Reply {
        status: 401,
        headers: vec![("www-authenticate", "Basic".into())],
        body: vec![],
    });
    let error = get(&server).await.unwrap_err();
    assert!(error.message.contains("answered 401") && error.hint.contains("container.token_env"), "{error}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn no_error_shows_a_secret() {
    let server = Server::start(|_| {
        json(
            422,
            &value!({ "detail": [{ "type": "value_error", "loc": ["body", "policy"], "msg": "bad policy",
                "input": { "candidate": "THE WHOLE TEXT" }, "ctx": { "x": "sk-aaaaaaaabbbbbbbb" } }] }),
        )
    });
    let url = format!("http://user:hunter2secret@{}", server.address);
    let config = config(&url);
    let error = client(&config).json(Method::GET, "/metadata", None).await.unwrap_err();
    let shown = format!("{error} {:?} {} {:?}", error.detail, error.hint, client(&config));
    assert!(shown.contains("value_error at body.policy: bad policy"), "{shown}");
    let gone = self::config(&format!("http://user:hunter2secret@{}", unused_address()));
    let error = client(&gone).json(Method::GET, "/metadata", None).await.unwrap_err();
    let shown = format!("{shown} {error} {:?} {}", error.detail, error.hint);
    for secret in ["hunter2secret", "WHOLE TEXT", "aaaabbbb"] {
        assert!(!shown.contains(secret), "{shown}");
    }
    let error = Client::new(&self::config("ht!tp://user:hunter2secret@").container).unwrap_err();
    assert!(!format!("{error:?}").contains("hunter2"), "{error}");
}

#[tokio::test]
async fn a_failed_tls_handshake_counts_as_not_sent() {
    let server = Server::start(|_| ServerAction::Close);
    let mut config = config(&format!("https://{}", server.address));
    config.container.connect_retries = 0;
    match Client::new(&config.container) {
        Ok(client) => {
            let error = client.json(Method::GET, "/metadata", None).await.unwrap_err();
            assert!(error.message.contains("was not sent"), "{error}");
        }
        // The machine has no certificates.
        Err(error) => assert!(error.hint.contains("certificates"), "{error}"),
    }
}
