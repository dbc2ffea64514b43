//! Every spelling of a container's address gives the same lane.

use super::container_lane;

#[test]
fn every_spelling_of_an_address_gives_the_same_lane() {
    let same = ["http://Example.COM", "HTTP://example.com:80/", "http://example.com:80"];
    assert!(same.iter().all(|url| container_lane(url) == "http://example.com:80"), "{same:?}");
    assert_eq!(container_lane("https://h/a/B//"), "https://h:443/a/B");
    assert_eq!(container_lane("http://[::2]"), "http://[::2]:80");
    let loopback = ["http://[::1]:9100/", "http://127.0.0.1:9100", "http://LOCALHOST:9100", "http://localhost.:9100"];
    assert!(loopback.iter().all(|url| container_lane(url) == "http://localhost:9100"), "{loopback:?}");
    let spelt =
        ["http://127.1:9100", "http://127.0.0.1:09100", "http://0x7f000001:9100/./", "http://[::ffff:127.0.0.1]:9100"];
    assert!(spelt.iter().all(|url| container_lane(url) == "http://localhost:9100"), "{spelt:?}");
    assert_ne!(container_lane("http://h:9100"), container_lane("http://h:9101"));
    assert_ne!(container_lane("http://h/a"), container_lane("http://h/A"));
}
