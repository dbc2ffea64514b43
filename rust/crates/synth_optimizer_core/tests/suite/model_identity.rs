//! Tests of canonical JSON, content ids, rollout ids and cache keys: equal values have equal ids, different values do not.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use serde_json::{Map, Value, json};
use synth_optimizer_core::model::cache_key::{CacheBoundary, RolloutRequest, cache_key};
use synth_optimizer_core::model::canonical::{canonical_digest, canonical_json, content_id, hex, write_canonical};
use synth_optimizer_core::model::ids::{
    CandidateId, HeldoutRow, Payload, RolloutIdentity, RolloutScope, RowId, TrainRow,
};
use synth_optimizer_core::model::program::{Inputs, Module, Program, Row};

fn canonical(text: &str) -> String {
    canonical_json(&serde_json::from_str(text).unwrap())
}

#[test]
fn keys_are_sorted_by_bytes_at_every_depth() {
    let text = r#" { "b" : { "z" : 1 , "Z" : 2 , "é" : 3 , "" : 4 }, "a" : [ { "y" : 0, "x" : 0 } ] } "#;
    assert_eq!(canonical(text), r#"{"a":[{"x":0,"y":0}],"b":{"":4,"Z":2,"z":1,"é":3}}"#);
    // UTF-8 order, not UTF-16 order: U+FF5E precedes U+1F600.
    assert_eq!(canonical("{\"\u{1F600}\":1,\"\u{FF5E}\":2}"), "{\"\u{FF5E}\":2,\"\u{1F600}\":1}");
    // Keys are ordered by their text, not by their escaped form.
    assert_eq!(canonical(r#"{"b":1,"a\"":2,"a!":3,"a#":4,"\n":5}"#), r#"{"\n":5,"a!":3,"a\"":2,"a#":4,"b":1}"#);
    // A prefix of a key precedes it.
    assert_eq!(canonical(r#"{"ab":1,"a":2,"a b":3}"#), r#"{"a":2,"a b":3,"ab":1}"#);
}

#[test]
fn empty_and_plain_values() {
    for text in ["null", "true", "false", "[]", "{}", "\"\"", "[[],{}]"] {
        assert_eq!(canonical(text), text);
    }
}

#[test]
fn numbers_have_one_spelling() {
    let cases = [
        ("1", "1"),
        ("1.0", "1"),
        ("10e-1", "1"),
        ("0", "0"),
        ("0.0", "0"),
        ("-0.0", "0"),
        ("-0", "0"),
        ("-10.0", "-10"),
        ("100.0", "100"),
        ("0.5", "0.5"),
        ("-2.50", "-2.5"),
        ("0.1", "0.1"),
        ("1e15", "1000000000000000"),
        ("9007199254740991.0", "9007199254740991"),
        ("9007199254740992.0", "9007199254740992"),
        ("1e19", "10000000000000000000"),
        ("-9223372036854775808.0", "-9223372036854775808"),
        ("18446744073709551615", "18446744073709551615"),
        ("-9223372036854775808", "-9223372036854775808"),
    ];
    for (text, expected) in cases {
        assert_eq!(canonical(text), expected, "of {text}");
    }
    assert_eq!(canonical_json(&json!(u64::MAX)), "18446744073709551615");
    assert_eq!(canonical_json(&json!(i64::MIN)), "-9223372036854775808");
    // A minus sign in a text is not part of a number.
    assert_eq!(canonical(r#"["x-",0.0,"-",-0.0]"#), r#"["x-",0,"-",0]"#);
}

#[test]
fn very_large_and_very_small_numbers_keep_their_value() {
    for float in [1e21, -1e21, 1e300, f64::MAX, f64::MIN_POSITIVE, 5e-324, 1e-7, 18_446_744_073_709_551_616.0] {
        let text = canonical_json(&json!(float));
        assert_eq!(text.parse::<f64>().unwrap().to_bits(), float.to_bits(), "{text}");
        assert!(text.len() < 32, "{text} is short");
    }
    assert_eq!(canonical("1e21"), canonical("1000000000000000000000"));
}

#[test]
fn strings_escape_what_json_demands_and_nothing_else() {
    let text = "\"\\/\n\r\t\u{8}\u{c}\u{0}\u{1f}\u{7f}\u{2028}é😀";
    assert_eq!(canonical_json(&json!(text)), "\"\\\"\\\\/\\n\\r\\t\\b\\f\\u0000\\u001f\u{7f}\u{2028}é😀\"");
    // Different escapes of the same text are equal.
    assert_eq!(canonical(r#""\u0041\u00e9\ud83d\ude00\/""#), "\"Aé😀/\"");
    // Composed and decomposed letters are different texts.
    assert_ne!(canonical_digest(&json!("é")), canonical_digest(&json!("e\u{301}")));
}

/// Every serde data type has the same canonical text as its JSON value.
#[test]
fn every_serializable_value_has_the_canonical_text_of_its_json() {
    #[derive(serde::Serialize)]
    enum Shape {
        Unit,
        New(u8),
        Pair(i64, f64),
        Named { z: Option<char>, a: () },
    }
    #[derive(serde::Serialize)]
    struct Whole<'a> {
        shapes: Vec<Shape>,
        numbers: BTreeMap<u32, f64>,
        text: &'a str,
        bytes: (bool, [u8; 2]),
        nested: BTreeMap<String, Value>,
    }
    let whole = Whole {
        shapes: vec![Shape::Unit, Shape::New(7), Shape::Pair(-3, -0.0), Shape::Named { z: Some('"'), a: () }],
        numbers: BTreeMap::from([(10, 1.0), (9, f64::NAN), (2, 1e300)]),
        text: "a\n\"b\"",
        bytes: (true, [1, 2]),
        nested: BTreeMap::from([("\"k".to_owned(), json!({"b": 1.5, "a": []}))]),
    };
    let mut written = Vec::new();
    write_canonical(&whole, &[], &mut written).unwrap();
    assert_eq!(String::from_utf8(written).unwrap(), canonical_json(&serde_json::to_value(&whole).unwrap()));
    assert_eq!(canonical_digest(&whole), canonical_digest(&serde_json::to_value(&whole).unwrap()));
}

/// Each expected value is the output of `sha256sum` for the canonical text next to it.
#[test]
fn digests_are_those_of_sha256sum() {
    let cases = [
        (json!({}), "{}", "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"),
        (json!(null), "null", "74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b"),
        (
            json!({ "b": [true, null, "é\n"], "a": 1.0 }),
            r#"{"a":1,"b":[true,null,"é\n"]}"#,
            "2f2b79c76ebcbc133d438259b9a02fd2d8be37175dff246826774e6a4cadb9fc",
        ),
        (
            json!({ "style": "Plain.", "instruction": "Answer briefly." }),
            r#"{"instruction":"Answer briefly.","style":"Plain."}"#,
            "187514009617a8e86f849d9bd08996ad99ff9acaadd7ebb8f7ba933e0e8fd751",
        ),
    ];
    for (value, text, sha) in cases {
        assert_eq!(canonical_json(&value), text);
        assert_eq!(canonical_digest(&value), sha, "of {text}");
    }
    assert_eq!(hex(&[0x00, 0x0f, 0xa0, 0xff]), "000fa0ff");
    assert_eq!(canonical_digest(&f64::NAN), canonical_digest(&json!(null)));
}

#[test]
fn content_ids_are_a_prefix_and_twelve_digits() {
    assert_eq!(content_id("gepa_", &json!({})), "gepa_44136fa355b3");
    assert_eq!(content_id("", &json!(null)), "74234e98afe7");
    let payload: Payload = [("style", "Plain."), ("instruction", "Answer briefly.")]
        .map(|(field, text)| (field.into(), text.into()))
        .into();
    assert_eq!(CandidateId::of("gepa_", &payload).as_str(), "gepa_187514009617");
    assert_eq!(CandidateId::of("gepa_", &payload).to_string(), "gepa_187514009617");
    assert_eq!(CandidateId::of("gepa_", &Payload::new()).as_str(), "gepa_44136fa355b3");
    assert_eq!(CandidateId::of("gepa_", &Payload::new()).number(), 0x4413_6fa3_55b3);
    // The number does not depend on the prefix. Ids of another form have no number.
    assert_eq!(CandidateId::of("é0", &Payload::new()).number(), 0x4413_6fa3_55b3);
    for odd in ["", "seed", "gepa_nohexdigits", "ééééééé"] {
        assert_eq!(CandidateId::new(odd).number(), u64::MAX, "{odd}");
    }
}

fn any_number() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_filter("JSON has no such number", |float| float.is_finite()).prop_map(Value::from),
        (-1e4..1e4f64).prop_map(|float| Value::from(float.trunc())),
    ]
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any_number(),
        any::<String>().prop_map(Value::from),
        "[\\x00-\\x20\"\\\\a]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((any::<String>(), inner), 0..4).prop_map(|entries| entries.into_iter().collect::<Value>()),
        ]
    })
}

/// Returns the same value with every map in reverse order.
fn reversed(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(reversed).collect(),
        Value::Object(map) => map.iter().rev().map(|(key, item)| (key.clone(), reversed(item))).collect(),
        plain => plain.clone(),
    }
}

/// Compares values; 1 and 1.0 are equal.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (whole(a), whole(b)) {
            (Some(a), Some(b)) => a == b,
            _ => a.as_f64() == b.as_f64(),
        },
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, item)| b.get(key).is_some_and(|other| same(item, other)))
        }
        (a, b) => a == b,
    }
}

fn whole(number: &serde_json::Number) -> Option<i128> {
    let float =
        || number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 1e30).map(|float| float as i128);
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from)).or_else(float)
}

fn sorted_everywhere(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().all(sorted_everywhere),
        Value::Object(map) => {
            let keys: Vec<&[u8]> = map.keys().map(|key| key.as_bytes()).collect();
            keys.is_sorted() && map.values().all(sorted_everywhere)
        }
        _ => true,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn canonical_text_reads_back_as_the_same_value(value in any_json()) {
        let text = canonical_json(&value);
        let back: Value = serde_json::from_str(&text).unwrap();
        prop_assert!(same(&back, &value), "{text} from {value}");
        prop_assert!(sorted_everywhere(&back), "{text}");
        prop_assert_eq!(canonical_json(&back), text.clone());
        let mut written = Vec::new();
        write_canonical(&value, &[], &mut written).unwrap();
        prop_assert_eq!(written, text.into_bytes());
    }

    #[test]
    fn the_order_of_writing_does_not_matter(value in any_json()) {
        prop_assert_eq!(canonical_json(&reversed(&value)), canonical_json(&value));
        prop_assert_eq!(canonical_digest(&reversed(&value)), canonical_digest(&value));
    }

    #[test]
    fn equal_numbers_have_equal_bytes_and_different_ones_do_not(a in any_number(), b in any_number(), bits in 0..64u32) {
        prop_assert_eq!(canonical_json(&a) == canonical_json(&b), same(&a, &b));
        // Powers of two are exact as floats.
        let power = 1u64 << bits;
        prop_assert_eq!(canonical_json(&json!(power as f64)), canonical_json(&json!(power)));
        prop_assert_eq!(canonical_json(&json!(-(power as f64))), (-i128::from(power)).to_string());
    }
}

fn rollout_id<'a>(change: impl Fn(&mut RolloutScope<'a>, &mut RolloutIdentity<'a>)) -> String {
    static IDS: LazyLock<(CandidateId, RowId)> =
        LazyLock::new(|| (CandidateId::new("cand_0123456789ab"), RowId::new("row-7")));
    let (candidate, row) = &*IDS;
    let routes = BTreeMap::from([("rollout_route".to_owned(), "/rollouts".to_owned())]);
    let mut scope = RolloutScope { run_id: "run-1", contract_version: "gepa.v2", routes, submission_mode: "sync" };
    let request = RolloutRequest {
        task_id: "task",
        program: "program",
        candidate: "texts",
        row: "row",
        policy: "policy",
        replicate: 0,
    };
    let (stage, attempt) = ("candidate_minibatch", 1);
    let mut identity = RolloutIdentity { scope: "", request, candidate, row, stage, attempt };
    change(&mut scope, &mut identity);
    let scope = scope.digest();
    RolloutIdentity { scope: &scope, ..identity }.rollout_id()
}

#[test]
fn rollout_id_changes_with_each_of_its_parts() {
    let (other_candidate, other_row) = (CandidateId::new("cand_0123456789ac"), RowId::new("row-8"));
    let other_routes = || BTreeMap::from([("rollout_route".to_owned(), "/rollout".to_owned())]);
    let ids = [
        rollout_id(|_, _| ()),
        rollout_id(|scope, _| scope.run_id = "run-2"),
        rollout_id(|scope, _| scope.contract_version = "gepa.v1"),
        rollout_id(|scope, _| scope.routes = other_routes()),
        rollout_id(|scope, _| scope.submission_mode = "async"),
        rollout_id(|_, identity| identity.request.task_id = "other"),
        rollout_id(|_, identity| identity.request.program = "other"),
        rollout_id(|_, identity| identity.request.candidate = "other"),
        rollout_id(|_, identity| identity.request.row = "other"),
        rollout_id(|_, identity| identity.request.policy = "other"),
        rollout_id(|_, identity| identity.request.replicate = 1),
        rollout_id(|_, identity| identity.candidate = &other_candidate),
        rollout_id(|_, identity| identity.row = &other_row),
        rollout_id(|_, identity| identity.stage = "candidate_full_train"),
        rollout_id(|_, identity| identity.attempt = 2),
        // The same numbers, swapped.
        rollout_id(|_, identity| (identity.request.replicate, identity.attempt) = (1, 0)),
    ];
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
    assert_eq!(ids[0], rollout_id(|_, _| ()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rollout_ids_are_safe_in_any_path(run in any::<String>(), row in any::<String>(), attempt in any::<u32>()) {
        let row = RowId::new(&row);
        let id = rollout_id(|scope, identity| {
            (scope.run_id, identity.row, identity.attempt) = (&run, &row, attempt);
        });
        prop_assert!((1..=128).contains(&id.len()));
        prop_assert!(id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte)), "{id}");
    }
}

fn payload(text: &str) -> Payload {
    [("instruction".to_owned(), text.to_owned())].into()
}

/// Returns the key of one rollout. The run, the stage and the attempt are not parameters.
fn rollout_key(
    namespace: &str,
    boundary: CacheBoundary,
    change: impl Fn(&mut (String, Payload, Value, Value, u32)),
) -> String {
    let mut parts = (
        "quiz".to_owned(),
        payload("Answer."),
        json!({ "id": 7, "text": "What?" }),
        json!({ "temperature": 0.0, "model": "m" }),
        0,
    );
    change(&mut parts);
    let (task_id, payload, row, policy, replicate) = &parts;
    let (candidate, row, policy) = (canonical_digest(&json!(payload)), canonical_digest(row), canonical_digest(policy));
    let request = RolloutRequest {
        task_id,
        program: "p",
        candidate: &candidate,
        row: &row,
        policy: &policy,
        replicate: *replicate,
    };
    cache_key(namespace, boundary, &request)
}

#[test]
fn cache_key_changes_with_all_that_can_change_the_answer() {
    let keys = [
        rollout_key("demo", CacheBoundary::Rollout, |_| ()),
        rollout_key("other", CacheBoundary::Rollout, |_| ()),
        rollout_key("demo", CacheBoundary::Proposer, |_| ()),
        rollout_key("demo", CacheBoundary::Rollout, |parts| parts.0 = "exam".into()),
        rollout_key("demo", CacheBoundary::Rollout, |parts| parts.1 = payload("Answer!")),
        rollout_key("demo", CacheBoundary::Rollout, |parts| parts.2["id"] = json!(8)),
        rollout_key("demo", CacheBoundary::Rollout, |parts| parts.3["temperature"] = json!(0.5)),
        rollout_key("demo", CacheBoundary::Rollout, |parts| parts.3["model"] = json!("n")),
        rollout_key("demo", CacheBoundary::Rollout, |parts| parts.4 = 1),
    ];
    assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
    assert!(keys.iter().all(|key| key.len() == 64));
    // The output of `sha256sum` for the canonical text of the call.
    assert_eq!(keys[0], "ccf69fbdb3eb246bdae6a14f7b6acb61d22505d1c34aca4acf8f57fbeeb6c1b0");
}

#[test]
fn cache_key_does_not_depend_on_the_order_of_keys() {
    let plain = rollout_key("demo", CacheBoundary::Rollout, |_| ());
    let rewritten = rollout_key("demo", CacheBoundary::Rollout, |parts| {
        parts.2 = json!({ "text": "What?", "id": 7.0 });
        parts.3 = json!({ "model": "m", "temperature": 0 });
    });
    assert_eq!(rewritten, plain);
    // The full key of a rollout, without the run, its stage or its attempts.
    let request =
        json!(RolloutRequest { task_id: "quiz", program: "p", candidate: "c", row: "r", policy: "o", replicate: 0 });
    let parts: BTreeSet<&str> = request.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(parts, BTreeSet::from(["task_id", "program", "candidate", "row", "policy", "replicate"]));
}

#[test]
fn every_boundary_has_its_own_keys() {
    let keys: BTreeSet<String> = CacheBoundary::NAMES
        .iter()
        .map(|word| cache_key("demo", CacheBoundary::parse(word).unwrap(), &json!(Map::new())))
        .collect();
    assert_eq!(keys.len(), 7);
}

fn inputs() -> Inputs {
    let program = Program {
        program_id: "quiz".into(),
        modules: vec![Module { field: "instruction".into(), template_variables: vec!["{question}".into()] }],
        targets: vec!["instruction".into()],
        seed: payload("Answer {question}."),
    };
    let row = |id: &str| Row { id: RowId::new(id), stratum: None, texts: vec![format!("text of {id}")] };
    Inputs {
        program,
        train: vec![row("a"), row("b")],
        heldout: vec![row("c")],
        pareto_pool: vec![TrainRow(0), TrainRow(1)],
        minibatch_pool: vec![TrainRow(0), TrainRow(1)],
        reflection_pool: vec![TrainRow(0), TrainRow(1)],
        heldout_pool: vec![HeldoutRow(0)],
    }
}

#[test]
fn digests_of_inputs_change_with_program_rows_and_their_order() {
    let plain = inputs();
    assert_eq!(plain.train_id(TrainRow(1)).as_str(), "b");
    assert_eq!(plain.heldout_id(HeldoutRow(0)).as_str(), "c");
    assert_eq!((plain.pareto_pool.len(), plain.heldout_pool.len()), (2, 1));

    let mut other = inputs();
    other.program.seed = payload("Reply {question}.");
    assert_ne!(other.program_digest(), plain.program_digest());
    assert_eq!(other.rows_digest(), plain.rows_digest());

    let mut swapped = inputs();
    swapped.train.swap(0, 1);
    let mut moved = inputs();
    let last = moved.train.pop().unwrap();
    moved.heldout.insert(0, last);
    let mut edited = inputs();
    edited.heldout[0].texts.push("more".into());
    let digests = [&plain, &swapped, &moved, &edited].map(Inputs::rows_digest);
    assert_eq!(digests.iter().collect::<BTreeSet<_>>().len(), 4);
    assert_eq!(swapped.program_digest(), plain.program_digest());
}
