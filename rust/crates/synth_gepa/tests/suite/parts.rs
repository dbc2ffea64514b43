//! Tests parts of the search against independent definitions: frontier, random streams, minibatches and leakage.

use std::collections::BTreeSet;

use proptest::prelude::*;
use synth_gepa::{Frontier, LeakIndex, MinibatchSampler, random_stream};
use synth_optimizer_core::config::gepa::Sampler;
use synth_optimizer_core::model::ids::{Payload, RowId, TrainRow};
use synth_optimizer_core::model::program::Row;

fn scores() -> impl Strategy<Value = (usize, Vec<Vec<Option<f64>>>)> {
    (1usize..90).prop_flat_map(|cells| {
        // Few distinct values, so that ties are common.
        let value = prop_oneof![1 => Just(None), 6 => (0u8..3).prop_map(|value| Some(f64::from(value)))];
        (Just(cells), prop::collection::vec(prop::collection::vec(value, cells), 1..25))
    })
}

fn mean(values: &[Option<f64>]) -> f64 {
    let known: Vec<f64> = values.iter().flatten().copied().collect();
    known.iter().sum::<f64>() / known.len().max(1) as f64
}

/// Reference implementation: the candidates with the largest value of a cell.
fn winners(all: &[Vec<Option<f64>>], cell: usize) -> Vec<u32> {
    let best = all.iter().filter_map(|values| values[cell]).fold(f64::NEG_INFINITY, f64::max);
    (0..all.len() as u32).filter(|place| all[*place as usize][cell] == Some(best)).collect()
}

/// Reference implementation: repeatedly goes through members from the lowest rank up, and drops each whose cells are all
/// held by other remaining members, until no member can be dropped.
fn undominated(all: &[Vec<Option<f64>>], cells: usize) -> Vec<u32> {
    let fronts: Vec<BTreeSet<u32>> = (0..cells).map(|cell| winners(all, cell).into_iter().collect()).collect();
    let mut left: Vec<u32> =
        (0..all.len() as u32).filter(|place| fronts.iter().any(|front| front.contains(place))).collect();
    left.sort_by(|a, b| mean(&all[*a as usize]).total_cmp(&mean(&all[*b as usize])).then(a.cmp(b)));
    loop {
        let droppable = left.iter().copied().find(|place| {
            let others = |front: &BTreeSet<u32>| front.iter().any(|other| other != place && left.contains(other));
            fronts.iter().filter(|front| front.contains(place)).all(others)
        });
        let Some(place) = droppable else { return left };
        left.retain(|other| *other != place);
    }
}

proptest! {
    #[test]
    fn the_frontier_matches_its_definition((cells, all) in scores()) {
        let mut frontier = Frontier::new(cells);
        let members = |frontier: &Frontier| -> BTreeSet<u32> {
            (0..frontier.ranked().len() as u32).filter(|place| frontier.cells_won(*place) > 0).collect()
        };
        for values in &all {
            let change = frontier.preview_insert(values);
            let before = members(&frontier);
            frontier.insert(mean(values), values);
            let after = members(&frontier);
            let place = frontier.ranked().len() as u32 - 1;
            prop_assert_eq!(change.won.len() as u64, frontier.cells_won(place));
            prop_assert_eq!(change.left, before.difference(&after).copied().collect::<Vec<_>>());
            prop_assert_eq!(change.size as usize, after.len());
            prop_assert_eq!(frontier.size() as usize, after.len());
        }
        let mut held = 0;
        for (cell, best, found) in frontier.winners() {
            let expected = winners(&all, cell);
            prop_assert!(all.iter().filter_map(|values| values[cell]).all(|value| value <= best));
            prop_assert_eq!(found, expected.as_slice());
            held += expected.len() as u64;
        }
        prop_assert_eq!(held, (0..all.len() as u32).map(|place| frontier.cells_won(place)).sum::<u64>());
        prop_assert_eq!(frontier.undominated(), undominated(&all, cells));
    }
}

#[test]
fn of_fully_tied_candidates_only_the_newest_remains() {
    let mut frontier = Frontier::new(3);
    for _ in 0..4 {
        frontier.insert(1.0, &[Some(1.0), Some(1.0), Some(1.0)]);
    }
    assert_eq!(frontier.size(), 4);
    assert_eq!(frontier.undominated(), [3]);
}

#[test]
fn a_complementary_candidate_remains_with_a_lower_mean() {
    let mut frontier = Frontier::new(4);
    frontier.insert(0.75, &[Some(1.0), Some(1.0), Some(1.0), Some(0.0)]);
    frontier.insert(0.25, &[Some(0.0), Some(0.0), Some(0.0), Some(1.0)]);
    frontier.insert(0.50, &[Some(1.0), Some(1.0), Some(0.0), Some(0.0)]);
    assert_eq!(frontier.undominated(), [1, 0]);
    assert_eq!((frontier.cells_won(0), frontier.cells_won(1), frontier.cells_won(2)), (3, 1, 2));
}

/// Recorded values. A change here changes the runs of all users.
#[test]
fn random_streams_have_fixed_values() {
    let mut first = random_stream(0, "parent", 0);
    assert_eq!([first.below(1000), first.below(1000), first.below(1000)], PINNED_BELOW);
    let mut order: Vec<u32> = (0..10).collect();
    random_stream(42, "minibatch", 7).shuffle(&mut order);
    assert_eq!(order, PINNED_SHUFFLE);
    assert_eq!(random_stream(42, "minibatch", 7).sample(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 4), PINNED_SAMPLE);
    assert_eq!(random_stream(1, "epsilon", 0).unit(), PINNED_UNIT);
    assert_eq!(random_stream(9, "weights", 3).weighted(&[0, 5, 0, 1]), Some(1));
    assert_eq!(random_stream(9, "weights", 3).weighted(&[0, 0]), None);
}

const PINNED_BELOW: [u64; 3] = [959, 274, 937];
const PINNED_SHUFFLE: [u32; 10] = [8, 9, 0, 7, 2, 6, 4, 5, 1, 3];
const PINNED_SAMPLE: [i32; 4] = [3, 2, 7, 1];
const PINNED_UNIT: f64 = 0.9690207021982487;

#[test]
fn streams_are_independent_of_each_other() {
    let draws = |seed, label: &str, index| {
        let mut random = random_stream(seed, label, index);
        (0..8).map(|_| random.below(u64::MAX)).collect::<Vec<_>>()
    };
    let all = [draws(0, "a", 0), draws(1, "a", 0), draws(0, "b", 0), draws(0, "a", 1)];
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 4);
    assert_eq!(draws(0, "a", 0), all[0]);
}

#[test]
fn random_choices_are_uniform() {
    let mut counts = [0u32; 7];
    let mut random = random_stream(5, "even", 0);
    for _ in 0..70_000 {
        counts[random.index(7)] += 1;
    }
    // Six standard deviations of a fair draw.
    assert!(counts.iter().all(|count| count.abs_diff(10_000) < 560), "{counts:?}");
}

fn rows(count: u32, strata: u32) -> (Vec<TrainRow>, Vec<Row>) {
    let row = |index: u32| Row {
        id: RowId::new(&format!("row-{index}")),
        stratum: (index % 5 != 4).then(|| format!("s{}", index % strata)),
        texts: Vec::new(),
    };
    ((0..count).map(TrainRow).collect(), (0..count).map(row).collect())
}

fn draw(sampler: Sampler, size: usize, width: usize) -> MinibatchSampler<'static> {
    MinibatchSampler { sampler, seed: 11, label: "minibatch", size, width }
}

const SAMPLERS: [Sampler; 4] =
    [Sampler::SeededShuffle, Sampler::EpochShuffled, Sampler::OrderedEpoch, Sampler::Stratified];

proptest! {
    #[test]
    fn minibatches_are_distinct_rows_of_the_pool(
        count in 1u32..60, size in 1usize..20, width in 1usize..20, number in 0u64..500, sampler in 0usize..4,
    ) {
        let (pool, rows) = rows(count, 3);
        let sampler = SAMPLERS[sampler];
        let batch = draw(sampler, size, width.min(size)).rows(&pool, &rows, number);
        prop_assert_eq!(batch.len(), size.min(count as usize));
        prop_assert_eq!(batch.iter().collect::<BTreeSet<_>>().len(), batch.len());
        prop_assert!(batch.iter().all(|row| row.0 < count));
    }

    /// Each epoch visits every row once or twice.
    #[test]
    fn every_epoch_visits_every_row(count in 2u32..60, size in 1usize..20, epoch in 0u64..20, ordered in any::<bool>()) {
        let (pool, rows) = rows(count, 3);
        let size = size.min(count as usize - 1);
        let sampler = if ordered { Sampler::OrderedEpoch } else { Sampler::EpochShuffled };
        let slices = u64::from(count).div_ceil(size as u64);
        let mut seen = vec![0; count as usize];
        for slice in 0..slices {
            for row in draw(sampler, size, size).rows(&pool, &rows, epoch * slices + slice) {
                seen[row.0 as usize] += 1;
            }
        }
        prop_assert!(seen.iter().all(|times| *times == 1 || *times == 2), "{:?}", seen);
        prop_assert_eq!(seen.iter().sum::<usize>(), slices as usize * size);
    }
}

#[test]
fn epochs_differ_when_shuffled_and_do_not_when_ordered() {
    let (pool, rows) = rows(20, 3);
    let first = |sampler, epoch: u64| draw(sampler, 5, 5).rows(&pool, &rows, epoch * 4);
    assert_ne!(first(Sampler::EpochShuffled, 0), first(Sampler::EpochShuffled, 1));
    assert_eq!(first(Sampler::OrderedEpoch, 0), first(Sampler::OrderedEpoch, 1));
    assert_eq!(first(Sampler::OrderedEpoch, 0), (0..5).map(TrainRow).collect::<Vec<_>>());
}

#[test]
fn strata_take_turns() {
    // Four of five rows belong to three strata; the fifth has no stratum and counts as a separate one.
    let (pool, rows) = rows(40, 3);
    for number in 0..20 {
        let batch = draw(Sampler::Stratified, 8, 8).rows(&pool, &rows, number);
        let mut counts = std::collections::BTreeMap::new();
        for row in batch {
            *counts.entry(rows[row.0 as usize].stratum.clone()).or_insert(0) += 1;
        }
        assert_eq!(counts.values().copied().collect::<Vec<i32>>(), [2, 2, 2, 2], "{counts:?}");
    }
}

fn row(text: &str) -> Row {
    Row { id: RowId::new(text), stratum: None, texts: vec![text.to_owned()] }
}

const QUESTION: &str = "My card was swallowed by the machine at the station and the hotline does not answer";

#[test]
fn repetitions_are_found_at_any_position() {
    let rows = [row("short"), row(QUESTION)];
    let index = LeakIndex::train(&rows, &Payload::new(), 30);
    let found = |text: &str| index.find(text).map(|leak| (leak.row, leak.chars));
    assert_eq!(found(QUESTION), Some((1, QUESTION.len() as u32)));
    assert_eq!(found(&format!("Example: {QUESTION}!")), Some((1, QUESTION.len() as u32)));
    // A different line break does not hide a repetition.
    assert_eq!(found(&QUESTION.replace("by the", "by\n   the")), Some((1, QUESTION.len() as u32)));
    assert_eq!(found("xxswallowed by the machine at the yy"), Some((1, 32)));
    assert_eq!(found("xx swallowed by the machine xx at the station"), None);
    assert_eq!(found("short"), None);
    assert_eq!(found(""), None);
}

#[test]
fn text_of_the_initial_candidate_is_not_a_leak() {
    let rows = [row(&format!("Classify the following message of a customer: {QUESTION}"))];
    let seed = Payload::from([("prompt".into(), "Classify the following message of a customer: ".into())]);
    let index = LeakIndex::train(&rows, &seed, 30);
    assert_eq!(index.find("Classify the following message of a customer: {message}"), None);
    let leak = index.find(&format!("Classify the following message of a customer: {QUESTION}"));
    assert_eq!(leak.map(|leak| leak.chars as usize), Some(QUESTION.len() + 46));
    // A passage of the initial candidate with one more letter is still allowed.
    assert_eq!(index.find("Classify the following message of a customer: M"), None);
}

#[test]
fn text_that_several_rows_share_is_not_a_leak() {
    let rows = ["one", "two"].map(|end| row(&format!("Classify the following message of a customer: {end}")));
    let index = LeakIndex::train(&rows, &Payload::new(), 20);
    assert_eq!(index.find("Classify the following message of a customer: three"), None);
    // Text of train rows is not a leak of held-out rows; other text is.
    let heldout = [row(&format!("Classify the following message of a customer: {QUESTION}"))];
    let index = LeakIndex::heldout(&heldout, &rows, &Payload::new(), 20);
    assert_eq!(index.find("Classify the following message of a customer: three"), None);
    assert!(index.find(QUESTION).is_some());
}

#[test]
fn a_copied_row_is_a_leak_even_if_it_contains_shared_phrases() {
    let rows = |texts: &[&str]| texts.iter().map(|text| row(text)).collect::<Vec<_>>();
    let train =
        rows(&["where does my card payment still show", "I noticed that my card is late", "it shows up twice today"]);
    let heldout = rows(&["I noticed that my card payment still shows up twice"]);
    let index = LeakIndex::heldout(&heldout, &train, &Payload::new(), 32);
    assert!(index.find("Example: I noticed that my card payment still shows up twice.").is_some());
}

/// Each spelling of a row that a proposer may use to hide it.
fn spellings(text: &str) -> Vec<String> {
    let zero_width: String = text.chars().flat_map(|letter| [letter, '\u{200b}']).collect();
    vec![
        text.to_uppercase(),
        text.replace(' ', "_"),
        text.replace(' ', " - "),
        text.replace(' ', "\u{2013}"),
        text.replace(' ', "\u{a0}"),
        text.replace(' ', "\u{200b}"),
        zero_width,
        text.replace(' ', ""),
        text.replace("card", "ca\u{ad}rd"),
    ]
}

#[test]
fn another_spelling_does_not_hide_a_repetition() {
    let rows = [row("short"), row(QUESTION)];
    let indexes = [LeakIndex::train(&rows, &Payload::new(), 32), LeakIndex::heldout(&rows, &[], &Payload::new(), 32)];
    for (spelling, index) in spellings(QUESTION).iter().flat_map(|text| indexes.iter().map(move |index| (text, index)))
    {
        let found = index.find(&format!("Example: {spelling}!")).map(|leak| (leak.row, leak.chars as usize));
        assert_eq!(found, Some((1, QUESTION.len())), "{spelling}");
    }
}

#[test]
fn lengths_are_characters_in_any_script() {
    let text = "ЗДРАВСТВУЙТЕ, МОЯ КАРТА ЗАСТРЯЛА В БАНКОМАТЕ НА ВОКЗАЛЕ, İSTANBUL'DA DEĞİL";
    let index = LeakIndex::heldout(&[row(text)], &[], &Payload::new(), 32);
    let lower = text.to_lowercase();
    let leak = index.find(&lower.replace(' ', "_"));
    assert_eq!(leak.map(|leak| leak.chars as usize), Some(lower.chars().count()));
}

#[test]
fn an_ordinary_prompt_is_no_leak() {
    let rows = [QUESTION, "I would like to know why my top-up was reverted this morning, although I have paid for it"];
    let rows = rows.map(row);
    let seed = Payload::from([("prompt".into(), "Answer with the intent of the customer's message.".into())]);
    let prompt = "Answer with the intent of the customer's message.\n\n\
        - card_swallowed: the machine keeps a card, at a station or elsewhere\n\
        - top_up_reverted: the customer's top-up was reverted, and they ask why\n\
        Do NOT answer with a sentence; one intent in snake_case is enough. \u{2014} \u{1f4b3}";
    let indexes = [LeakIndex::train(&rows, &seed, 32), LeakIndex::heldout(&rows, &[], &seed, 32)];
    assert!(indexes.iter().all(|index| index.find(prompt).is_none()));
    // The initial candidate may be repeated in another spelling too.
    let row_with_seed = [row(&format!("{} {QUESTION}", seed["prompt"]))];
    let index = LeakIndex::heldout(&row_with_seed, &[], &seed, 32);
    assert_eq!(index.find("ANSWER WITH THE INTENT OF THE CUSTOMER'S MESSAGE. {message}"), None);
}

/// A text in lower case, with a single space for every separator and without zero-width characters.
fn folded(text: &str) -> Vec<char> {
    let visible: String = text.chars().filter(|letter| *letter != '\u{200b}').collect();
    let words: Vec<&str> = visible
        .split(|letter: char| letter.is_whitespace() || "_-".contains(letter))
        .filter(|word| !word.is_empty())
        .collect();
    words.join(" ").to_lowercase().chars().collect()
}

proptest! {
    /// A common span of full length is always found, and every leak is a span whose letters both texts have.
    #[test]
    fn leaks_are_common_spans(
        row_text in "[abB ä_\u{200b}-]{0,60}", text in "[aAb ä_\u{200b}-]{0,60}", span in 4usize..12,
    ) {
        let (a, b) = (folded(&text), folded(&row_text));
        let mut longest = 0;
        for i in 0..a.len() {
            for j in 0..b.len() {
                longest = longest.max(a[i..].iter().zip(&b[j..]).take_while(|(x, y)| x == y).count());
            }
        }
        let found = LeakIndex::train(&[row(&row_text)], &Payload::new(), span).find(&text);
        prop_assert!(longest < span || found.is_some());
        let letters = |text: &[char]| text.iter().filter(|letter| **letter != ' ').collect::<String>();
        let ours = letters(&a);
        let is_shared = |chars: usize| b.windows(chars).any(|shared| ours.contains(&letters(shared)));
        let is_leak = |chars: usize| chars >= span && is_shared(chars);
        prop_assert!(found.is_none_or(|leak| is_leak(leak.chars as usize)));
    }
}
