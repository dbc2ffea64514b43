//! Lanes: what only one request at a time may use.

use crate::config::sections::CacheMode;

/// The container, under one name however its address is written. The names of loopback are one.
pub(crate) fn container_lane(url: &str) -> String {
    let (scheme, rest) = url.trim().split_once("://").unwrap_or(("http", url.trim()));
    let scheme = scheme.to_ascii_lowercase();
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let authority = authority.to_ascii_lowercase();
    // The colons of an IPv6 address are within brackets.
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    let port = match (has_port, scheme.as_str()) {
        (true, _) => "",
        (false, "https") => ":443",
        (false, _) => ":80",
    };
    let (host, given) = match authority.rsplit_once(':') {
        Some((host, given)) if has_port => (host, format!(":{given}")),
        _ => (authority.as_str(), String::new()),
    };
    let host = if matches!(host, "127.0.0.1" | "[::1]") { "localhost" } else { host.trim_end_matches('.') };
    format!("{scheme}://{host}{given}{port}{}", path.trim_end_matches('/'))
}

/// The cache, unless it is off.
pub(super) fn cache_lane(mode: CacheMode, namespace: &str) -> Option<&str> {
    match mode {
        CacheMode::Off => None,
        CacheMode::Readwrite | CacheMode::Readonly => Some(namespace),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_container_has_one_lane() {
        let same = ["http://Example.COM", "HTTP://example.com:80/", "http://example.com:80"];
        assert!(same.iter().all(|url| container_lane(url) == "http://example.com:80"), "{same:?}");
        assert_eq!(container_lane("https://h/a/B//"), "https://h:443/a/B");
        assert_eq!(container_lane("http://[::2]"), "http://[::2]:80");
        let loopback =
            ["http://[::1]:9100/", "http://127.0.0.1:9100", "http://LOCALHOST:9100", "http://localhost.:9100"];
        assert!(loopback.iter().all(|url| container_lane(url) == "http://localhost:9100"), "{loopback:?}");
        assert_ne!(container_lane("http://h:9100"), container_lane("http://h:9101"));
        assert_ne!(container_lane("http://h/a"), container_lane("http://h/A"));
    }
}
