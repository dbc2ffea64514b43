use serde_json::json;

use super::*;

fn numbers(value: Value) -> Vec<i64> {
    read::<i64>(&value).unwrap().known().to_vec()
}

fn ids(value: Value) -> Vec<String> {
    read::<String>(&value).unwrap().known().to_vec()
}

#[test]
fn ranges_include_both_ends_and_mix_with_rows() {
    assert_eq!(numbers(json!("0..359")).len(), 360);
    assert_eq!(numbers(json!(["0..2", 7, "20..21"])), [0, 1, 2, 7, 20, 21]);
    assert_eq!(numbers(json!("5..5")), [5]);
    assert_eq!(ids(json!("train:0..2")), ["train:0", "train:1", "train:2"]);
    assert_eq!(ids(json!(["row-008..010", "a..b", "all"])), ["row-008", "row-009", "row-010", "a..b", "all"]);
}

#[test]
fn all_rows_are_known_only_to_the_container() {
    assert_eq!(read::<i64>(&json!("all")).unwrap(), RowSelection::All);
    assert_eq!(RowSelection::<String>::All.listed(), None);
    assert_eq!(json!(RowSelection::<String>::default()), "all");
}

#[test]
fn a_selection_is_stored_as_it_was_written() {
    for written in [json!("all"), json!("0..359"), json!([1, "5..9", 3]), json!([])] {
        assert_eq!(json!(read::<i64>(&written).unwrap()), written);
    }
    assert_eq!(json!(RowSelection::from(vec![1, 2])), json!([1, 2]));
}

#[test]
fn a_row_knows_the_entry_that_names_it() {
    let RowSelection::Listed(list) = read::<i64>(&json!([4, "0..2", 9])).unwrap() else { panic!("a list") };
    assert_eq!((0..list.len()).map(|row| list.entry(row)).collect::<Vec<_>>(), [0, 1, 1, 1, 2]);
}

#[test]
fn values_that_name_no_rows_are_problems_with_their_place() {
    let problem = |value: Value| read::<i64>(&value).map_err(|found| (found.entry, found.message)).unwrap_err();
    assert_eq!(problem(json!("9..0")), (None, "\"9..0\" runs backwards".into()));
    assert_eq!(problem(json!([1, "9..0"])), (Some(1), "\"9..0\" runs backwards".into()));
    assert_eq!(problem(json!("train:0..9")), (None, "\"train:0..9\" is a range of ids, not of row numbers".into()));
    assert_eq!(problem(json!("0..1000000")), (None, "\"0..1000000\" has more than 1000000 rows".into()));
    assert_eq!(problem(json!(["0..599999", "600000..1200000"])).1, "names more than 1000000 rows");
    assert_eq!(
        problem(json!("0..99999999999999999999")).1,
        "\"0..99999999999999999999\" has a number that is too large"
    );
    assert_eq!(problem(json!("every")), (None, "\"every\" names no rows".into()));
    assert_eq!(problem(json!(["all"])), (Some(0), "\"all\" names no rows".into()));
    assert_eq!(problem(json!(["0.."])), (Some(0), "\"0..\" names no rows".into()));
    assert_eq!(problem(json!(7)), (None, "names no rows".into()));
    assert!(read::<String>(&json!("train:5")).is_err(), "a single id is written as a list");
}
