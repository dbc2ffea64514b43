use serde_json::json;

use super::*;

#[test]
fn a_split_is_a_number_a_list_or_an_object() {
    let info = json!({"splits": {
        "train": 3, "test": ["a", "b"], "more": {"count": 4}, "named": {"task_ids": ["c"]}, "rows": [0, 1],
        "odd": "all", "negative": -1, "nothing": null,
    }});
    let found = read_splits(&info);
    let named = |name: &str| found.get(name).cloned();
    assert_eq!(named("train"), Some(SplitRows::Count(3)));
    assert_eq!(named("test"), Some(SplitRows::Ids(vec!["a".into(), "b".into()])));
    assert_eq!(named("more"), Some(SplitRows::Count(4)));
    assert_eq!(named("named"), Some(SplitRows::Ids(vec!["c".into()])));
    assert_eq!(named("rows"), Some(SplitRows::Count(2)), "entries without ids are counted");
    assert_eq!(found.len(), 5);
    assert_eq!(read_splits(&json!({"splits": ["train", "test"]})), BTreeMap::new(), "names alone are not enough");
}
