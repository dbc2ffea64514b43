use super::*;

fn splits(entries: &[(&str, SplitRows)]) -> BTreeMap<String, SplitRows> {
    entries.iter().map(|(name, rows)| ((*name).to_owned(), rows.clone())).collect()
}

fn counts(train: u64, test: u64) -> BTreeMap<String, SplitRows> {
    splits(&[("train", SplitRows::Count(train)), ("test", SplitRows::Count(test))])
}

fn ids(names: &[&str]) -> SplitRows {
    SplitRows::Ids(names.iter().map(|name| (*name).to_owned()).collect())
}

#[test]
fn all_rows_are_those_of_the_container() {
    let resolved = resolve(&Config::default(), &counts(20, 5), true).unwrap();
    let rows = resolved.dataset.unwrap();
    assert_eq!(json!(rows.train_seeds), "0..19");
    assert_eq!(json!(rows.heldout_seeds), "0..4");
    assert_eq!(resolved.gepa.seed_pools, Config::default().gepa.seed_pools, "every row fits the budget");
    let named = splits(&[("train", ids(&["a", "b"])), ("test", ids(&["c"]))]);
    let rows = resolve(&Config::default(), &named, true).unwrap().taskset.unwrap();
    assert_eq!((rows.train_ids.known(), rows.heldout_ids.known()), (&["a".into(), "b".into()][..], &["c".into()][..]));
    let rows = resolve(&Config::default(), &named, false).unwrap().dataset.unwrap();
    assert_eq!(rows.train_seeds.known(), [0, 1], "a container without task ids is asked by row number");
}

#[test]
fn task_ids_of_a_counted_split_have_its_name() {
    let config = Config { taskset: Some(TasksetSection::default()), ..Config::default() };
    let rows = resolve(&config, &counts(3, 2), true).unwrap().taskset.unwrap();
    assert_eq!(json!(rows.train_ids), "train:0..2");
    assert_eq!(rows.heldout_ids.known(), ["test:0", "test:1"]);
}

#[test]
fn listed_rows_stay_as_they_are() {
    let listed = DatasetSection { train_seeds: vec![4, 2].into(), ..DatasetSection::default() };
    let config = Config { dataset: Some(listed), ..Config::default() };
    let rows = resolve(&config, &counts(300, 2), true).unwrap();
    assert_eq!(rows.dataset.as_ref().unwrap().train_seeds.known(), [4, 2]);
    assert_eq!(rows.dataset.unwrap().heldout_seeds.known(), [0, 1]);
}

#[test]
fn a_split_that_the_container_does_not_name_is_an_error() {
    let refusal = |splits| {
        let error = resolve(&Config::default(), &splits, true).unwrap_err();
        (error.message, error.hint)
    };
    let (message, hint) = refusal(splits(&[]));
    assert_eq!(message, "`dataset.train_seeds` selects all rows, but the container does not name its splits");
    assert_eq!(hint, "Write a range, such as dataset.train_seeds = \"0..359\".");
    let (message, hint) = refusal(splits(&[("train", SplitRows::Count(4)), ("validation", SplitRows::Count(4))]));
    assert_eq!(
        message,
        "`dataset.heldout_seeds` selects all rows of split \"test\", but the container has \"train\", \"validation\""
    );
    assert_eq!(hint, "Set dataset.heldout_split to one of them, or write a range of rows.");
    let (message, _) = refusal(counts(1, 0));
    assert_eq!(
        message, "`dataset.heldout_seeds` selects all rows of split \"test\", which has none",
        "one row cannot be divided"
    );
    assert!(refusal(counts(2_000_000, 1)).0.contains("at most 1000000"));
}

#[test]
fn held_out_rows_are_set_aside_if_the_train_split_is_all_there_is() {
    let divided = |count: u64| {
        let only = splits(&[("train", SplitRows::Count(count))]);
        let rows = resolve(&Config::default(), &only, true).unwrap().dataset.unwrap();
        assert_eq!((rows.train_split.as_str(), rows.heldout_split.as_str()), ("train", "train"));
        let mut all: Vec<i64> = [rows.train_seeds.known(), rows.heldout_seeds.known()].concat();
        all.sort_unstable();
        assert_eq!(all, (0..count as i64).collect::<Vec<i64>>(), "every row is on one side");
        (rows.train_seeds.known().len(), rows.heldout_seeds.known().len(), rows.heldout_seeds.known().to_vec())
    };
    assert_eq!((divided(300).0, divided(300).1), (240, 60));
    assert_eq!((divided(60).0, divided(60).1), (40, 20));
    assert_eq!((divided(5).0, divided(5).1), (3, 2));
    let aside = divided(100).2;
    let classes: BTreeSet<i64> = aside.iter().map(|row| row % 5).collect();
    assert_eq!(classes.len(), 5, "rows that repeat in a pattern are all represented: {aside:?}");
    // A resumed run keeps the division.
    let only = splits(&[("train", SplitRows::Count(60))]);
    let mut again = Config { dataset: Some(DatasetSection::default()), ..Config::default() };
    let started = resolve(&again, &only, true).unwrap();
    adopt_stored(&mut again, &json!(started));
    assert_eq!(again.dataset, started.dataset);
    // Rows that the user lists stay as they are.
    let listed = DatasetSection { train_seeds: vec![4, 2].into(), ..DatasetSection::default() };
    let error = resolve(&Config { dataset: Some(listed), ..Config::default() }, &only, true).unwrap_err();
    assert_eq!(error.hint, "Set dataset.heldout_split to one of them, or write a range of rows.");
}

#[test]
fn a_large_split_is_fully_evaluated_on_evenly_spaced_rows() {
    let mut config = Config::default();
    config.gepa.search = SearchMode::Reference;
    config.gepa.max_total_rollouts = 500;
    let resolved = resolve(&config, &counts(360, 40), true).unwrap();
    let pools = &resolved.gepa.seed_pools;
    assert_eq!(pools.pareto_eval.len(), 70, "a sixth of 500 - 2 * 40");
    assert_eq!((pools.pareto_eval[0], pools.pareto_eval[1], pools.pareto_eval[69]), (0, 5, 354));
    assert_eq!(pools.minibatch.len(), 360);
    assert_eq!(resolved.gepa.minibatch_size, Some(8));
    config.dataset = Some(DatasetSection { train_seeds: (0..360).collect(), ..DatasetSection::default() });
    assert!(
        resolve(&config, &counts(360, 40), true).unwrap().gepa.seed_pools.pareto_eval.is_empty(),
        "listed rows count"
    );
}

#[test]
fn a_small_budget_has_small_minibatches() {
    let size = |search: SearchMode, rollouts: u32, train: u64, test: u64| {
        let mut config = Config::default();
        config.gepa.search = search;
        config.gepa.max_total_rollouts = rollouts;
        resolve(&config, &counts(train, test), true).unwrap().gepa.minibatch_size
    };
    for search in [SearchMode::Reference, SearchMode::Sprint] {
        assert_eq!(size(search, 2000, 20, 20), Some(8));
        assert_eq!(size(search, 60, 12, 12), Some(3));
        assert_eq!(size(search, 2000, 2, 2), Some(2), "a minibatch has at most all train rows");
    }
    assert_eq!(size(SearchMode::Reference, 180, 12, 12), Some(6), "the initial evaluation uses all rows");
    assert_eq!(size(SearchMode::Sprint, 180, 12, 12), Some(6));
    assert_eq!(size(SearchMode::Reference, 180, 36, 12), Some(5));
    let mut config = Config::default();
    config.gepa.minibatch_size = Some(5);
    assert_eq!(resolve(&config, &counts(20, 20), true).unwrap().gepa.minibatch_size, Some(5));
}

#[test]
fn a_resumed_run_uses_the_rows_that_it_started_with() {
    let config = Config::default();
    let stored = json!(resolve(&config, &counts(360, 40), true).unwrap());
    let mut resumed = config.clone();
    adopt_stored(&mut resumed, &stored);
    // The split has grown.
    assert_eq!(json!(resolve(&resumed, &counts(500, 50), true).unwrap()), stored);
    // Fields that the file sets are compared with the stored ones, not replaced.
    let mut changed = config;
    changed.gepa.max_generations = Some(7);
    changed.dataset = Some(DatasetSection { train_seeds: vec![1].into(), ..DatasetSection::default() });
    adopt_stored(&mut changed, &stored);
    assert_eq!(changed.gepa.max_generations, Some(7));
    assert_eq!(changed.dataset.unwrap().train_seeds.known(), [1]);
}

#[test]
fn a_pool_row_that_the_container_does_not_have_is_an_error() {
    let mut config = Config::default();
    config.gepa.seed_pools.pareto_eval = vec![3, 30];
    let error = resolve(&config, &counts(20, 5), true).unwrap_err();
    assert_eq!(error.message, "`gepa.seed_pools.pareto_eval` has row 30, which the container does not have");
}
