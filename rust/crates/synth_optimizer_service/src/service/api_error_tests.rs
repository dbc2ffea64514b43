//! Error responses hide the directories of this machine.

use super::hide_paths;

#[test]
fn directories_are_hidden_and_routes_are_kept() {
    for (text, shown) in [
        ("cannot read /tmp/secret/gepa.toml: no such file", "cannot read …/gepa.toml: no such file"),
        ("(/etc/passwd)", "(…/passwd)"),
        ("GET /health and /runs/{run_id}/events", "GET /health and /runs/{run_id}/events"),
        ("http://127.0.0.1:9100/metadata", "http://127.0.0.1:9100/metadata"),
        ("\"/tmp/a b\" is /usr/lib/x.", "\"…/a b\" is …/x."),
        ("input/output", "input/output"),
        ("/tmp", "/tmp"),
    ] {
        assert_eq!(hide_paths(text), shown);
    }
}
