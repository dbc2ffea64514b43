//! Normalization of JSON texts.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{MAX_DEPTH, normalize, parse, stored_value};

fn changed(text: &[u8]) -> (String, String) {
    let (out, altered) = normalize(text).unwrap();
    (String::from_utf8(out).unwrap(), altered.to_string())
}

#[test]
fn readable_text_is_left_alone() {
    for text in [
        r#"{"a":[1,-2.5e-07,1E+300,true,false,null],"b":"\ud83d\ude00 \\ud83d \" \u00e9"}"#,
        "\"\u{e9}\u{1f600}\"",
        "",
        "<html>",
        "{\"cut",
        "\"cut\\",
        "\"cut\\ud8",
    ] {
        assert_eq!(normalize(text.as_bytes()), None, "{text}");
    }
    let deepest = format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
    assert_eq!(normalize(deepest.as_bytes()), None);
}

#[test]
fn each_defect_is_changed_as_little_as_possible() {
    let lone = [
        (r#"["\ud83d"]"#, r#"["\ufffd"]"#),
        (r#"["\uDE00x"]"#, r#"["\ufffdx"]"#),
        (r#"["\ud83d\u0041"]"#, r#"["\ufffd\u0041"]"#),
        (r#"["\ud83d\ud83d\ude00"]"#, r#"["\ufffd\ud83d\ude00"]"#),
        (r#"{"\ud83d":1}"#, r#"{"\ufffd":1}"#),
    ];
    for (text, expected) in lone {
        assert_eq!(changed(text.as_bytes()), (expected.into(), "1 lone surrogates became U+FFFD".into()));
    }
    let numbers = [("[1e999]", "[\"1e999\"]"), ("[-1E+400]", "[\"-1E+400\"]"), ("[NaN]", "[\"NaN\"]")];
    for (text, expected) in numbers.into_iter().chain([("[-Infinity]", "[\"-Infinity\"]")]) {
        assert_eq!(changed(text.as_bytes()).0, expected);
    }
    let long = "9".repeat(400);
    assert_eq!(changed(long.as_bytes()).0, format!("\"{long}\""));
    let (text, altered) = changed(b"{\"a\":\"x\xff\xfey\"}");
    assert_eq!(
        (text.as_str(), altered.as_str()),
        ("{\"a\":\"x\u{fffd}\u{fffd}y\"}", "bytes that are not UTF-8 became U+FFFD")
    );
}

#[test]
fn deep_values_are_kept_as_text() {
    let inner = r#"{"a":["]\"",1]}"#;
    let text = format!("{}{inner},2{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
    let (value, altered) = parse(text.as_bytes()).unwrap();
    assert_eq!(altered.unwrap().to_string(), "1 values below 100 levels became texts");
    let mut at = &value;
    for _ in 1..MAX_DEPTH {
        at = &at[0];
    }
    assert_eq!(at, &json!([inner, 2]));
    let endless = "[".repeat(1_000_000);
    assert!(parse(endless.as_bytes()).is_err());
    assert!(stored_value(endless.as_bytes()).is_string());
}

proptest! {
    /// What a reader accepts is not changed, and what is normalized needs no second change.
    #[test]
    fn normalizing_is_stable(text in prop::collection::vec(prop::sample::select(
        [&b"\""[..], b"\\", b"\\ud83d", b"\\ude00", b"u", b"[", b"]", b"{", b"}", b",", b":", b"1", b"e999", b"-", b"NaN",
         b"\xff", b"\xf0\x9f", b"a", b"\\\"", b" "].to_vec()), 0..60)) {
        let text = text.concat();
        match normalize(&text) {
            None => prop_assert!(std::str::from_utf8(&text).is_ok()),
            Some((normalized, _)) => prop_assert_eq!(normalize(&normalized), None),
        }
        if serde_json::from_slice::<Value>(&text).is_ok() {
            prop_assert_eq!(normalize(&text), None);
        }
    }
}
