//! Three-way merges of lines: examples, and the identities that hold for every text.

use super::{Carried, carry};
use synth_optimizer_core::random::random_stream;

fn clean(text: &str) -> Carried {
    Carried::Clean(text.to_owned())
}

#[test]
fn changes_of_different_lines_are_joined() {
    assert_eq!(carry("a\nb\nc", "a\nb\nC", "A\nb\nc"), clean("A\nb\nC"));
    // Changes that touch do not overlap.
    assert_eq!(carry("a\nb\nc\n", "a\nB\nc\n", "A\nb\nc\n"), clean("A\nB\nc\n"));
    assert_eq!(carry("a\nb\nc", "b\nc", "a\nb"), clean("b"));
}

#[test]
fn lines_that_both_add_at_one_place_are_kept_in_order() {
    assert_eq!(carry("a", "a\nchild", "a\nonto"), clean("a\nonto\nchild"));
    assert_eq!(carry("a\nz", "a\nsame\nz", "a\nsame\nz"), Carried::Nothing);
    assert_eq!(carry("a\nz", "a\nsame\nz\nmore", "a\nsame\nz"), clean("a\nsame\nz\nmore"));
    let long = "Answer with the name of the queue.";
    let known = format!("a\n{long}\nz");
    assert_eq!(carry("a\nz", &format!("a\nz\n{}", long.to_uppercase()), &known), Carried::Nothing);
}

#[test]
fn overlapping_changes_are_a_conflict() {
    assert_eq!(carry("a\nb", "a\nchild", "a\nonto"), Carried::Conflict("both change the same lines"));
    assert_eq!(carry("a\nb\nc", "a\nc", "a\nB\nc"), Carried::Conflict("both change the same lines"));
}

#[test]
fn a_line_that_repeats_an_added_one_in_other_words_is_a_conflict() {
    let base = "Be kind.";
    let onto = "Be kind.\nRoute changes are not permitted after the ticket was issued, so do not rebook.";
    let child = "Be kind.\nRoute changes are not permitted after the ticket was issued: cancel and rebook.";
    assert_eq!(carry(base, child, onto), Carried::Conflict("it repeats a line that the head added"));
}

#[test]
fn identities_hold_for_random_texts() {
    for case in 0..20_000 {
        let mut random = random_stream(5, "carry", case);
        let mut text = |alphabet: u64| -> String {
            let end = if random.below(2) == 0 { "\n" } else { "" };
            let lines: Vec<String> = (0..random.below(7)).map(|_| format!("{}", random.below(alphabet))).collect();
            if lines.is_empty() { String::new() } else { lines.join("\n") + end }
        };
        let (base, child, onto) = (text(5), text(5), text(5));
        assert_eq!(carry(&base, &base, &onto), Carried::Nothing);
        assert_eq!(carry(&base, &child, &child), Carried::Nothing);
        if child != base {
            assert_eq!(carry(&base, &child, &base), clean(&child));
        }
        let merged = carry(&base, &child, &onto);
        assert_eq!(merged, carry(&base, &child, &onto), "repeatable");
        if let Carried::Clean(merged) = merged {
            let known = |line: &str| [&base, &child, &onto].iter().any(|text| text.lines().any(|other| other == line));
            assert!(merged.lines().all(known), "no line from nowhere: {merged:?}");
            // A line that both sides keep is kept.
            let both = base.lines().filter(|line| child == base && onto.contains(line));
            assert!(both.into_iter().all(|line| merged.contains(line)));
        }
    }
}
