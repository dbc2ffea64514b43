//! Rows: both dialects, mapping between row numbers and task ids, and inconsistent replies.

use serde_json::{Value, json};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::ids::{HeldoutRow, TrainRow};
use synth_optimizer_platform::container::{Client, Task, load};

use super::program::load_toy;
use super::server::{Server, json as reply};
use super::toy::{ToyContainer, config, config_of_tasks};

fn ids(task: &Task) -> (Vec<String>, Vec<String>) {
    let names = |rows: &[synth_optimizer_core::model::program::Row]| {
        rows.iter().map(|row| row.id.as_str().to_owned()).collect()
    };
    (names(&task.inputs.train), names(&task.inputs.heldout))
}

/// Loads the task of a toy container with a config of task ids.
async fn load_tasks(toy: ToyContainer, train: &[&str], heldout: &[&str]) -> (Result<Task, OptimizerError>, Vec<Value>) {
    let server = Server::start(move |request| toy.answer(request));
    let config = config_of_tasks(&server.url(), train, heldout);
    let client = Client::new(&config.container).unwrap();
    let task = load(&config, &client).await;
    (task, server.seen().iter().filter(|request| request.method == "POST").map(|request| request.json()).collect())
}

/// Loads the task of a container that returns these rows for each split.
async fn load_rows(
    dialect: &'static str,
    change: impl FnOnce(&mut Config),
    rows: impl Fn(&str) -> Value + Send + Sync + 'static,
) -> Result<Task, OptimizerError> {
    let toy = ToyContainer::new(dialect);
    let key = if dialect == "dataset" { "rows" } else { "tasks" };
    let server = Server::start(move |request| match request.method.as_str() {
        "POST" => reply(200, &json!({ key: rows(request.json()["split"].as_str().unwrap()) })),
        _ => toy.answer(request),
    });
    let mut config = config(&server.url());
    change(&mut config);
    load(&config, &Client::new(&config.container).unwrap()).await
}

#[tokio::test]
async fn dataset_rows_are_requested_by_row_number() {
    let toy = ToyContainer::new("dataset");
    let server = Server::start(move |request| toy.answer(request));
    let mut config = config(&server.url());
    config.dataset.as_mut().unwrap().filters = [("level".to_owned(), json!(3))].into();
    config.gepa.seed_pools.pareto_eval = vec![2, 0];
    config.gepa.seed_pools.validation = vec![1];
    let task = load(&config, &Client::new(&config.container).unwrap()).await.unwrap();
    let lines = server.lines();
    let expected = ["/metadata", "/program", "/task_info", "/dataset", "/dataset/rows", "/dataset/rows"];
    assert!(lines.iter().zip(expected).all(|(line, path)| line.ends_with(path)) && lines.len() == 6, "{lines:?}");
    assert_eq!(server.seen()[4].json(), json!({ "split": "train", "seeds": [0, 1, 2], "filters": { "level": 3 } }));
    assert_eq!(ids(&task).0, ["ex_train_0", "ex_train_1", "ex_train_2"]);
    assert_eq!(ids(&task).1, ["ex_test_0", "ex_test_1"]);
    assert_eq!(task.inputs.pareto_pool, [TrainRow(2), TrainRow(0)]);
    assert_eq!(task.inputs.heldout_pool, [HeldoutRow(1)]);
    assert_eq!((task.rows.len(), &task.mapping), (5, &None));
    let row = &task.inputs.train[1];
    assert_eq!(row.stratum.as_deref(), Some("1"));
    assert_eq!(row.texts, ["train", "ticket 1", "billing", "refund", "ex_train_1"]);
    assert_eq!(task.rows[&row.id].seed, Some(1));
    assert_eq!(task.rows[&row.id].digest.len(), 64);
}

#[tokio::test]
async fn row_numbers_are_mapped_to_task_ids_for_a_taskset_container() {
    let mut toy = ToyContainer::new("taskset");
    let task = load_toy(toy.clone(), |_| {}).await.unwrap();
    assert_eq!(ids(&task).0, ["train:0", "train:1", "train:2"]);
    let mapping = task.mapping.unwrap();
    assert_eq!((mapping.rule.as_str(), named(&mapping.heldout, 1)), ("split_and_seed", "test:1"));

    // By id, in any order of the list.
    toy.info =
        json!({ "splits": { "train": ["train:9", "train:2", "train:1", "train:0"], "test": ["test:0", "test:1"] } });
    let task = load_toy(toy.clone(), |_| {}).await.unwrap();
    assert_eq!(ids(&task).0, ["train:0", "train:1", "train:2"]);
    assert_eq!(task.mapping.unwrap().rule, "split_list");

    // By index, if the ids contain no row numbers.
    toy.info = json!({ "splits": { "train": ["a:7", "b:8", "c:9"], "test": ["x:1", "y:2"] } });
    let task = load_toy(toy.clone(), |_| {}).await.unwrap();
    assert_eq!(ids(&task), (vec!["a:7".into(), "b:8".into(), "c:9".into()], vec!["x:1".into(), "y:2".into()]));
    let mapping = task.mapping.unwrap();
    assert_eq!((mapping.rule.as_str(), named(&mapping.train, 2)), ("split_list", "c:9"));

    // A row number beyond the list is an error.
    toy.info = json!({ "splits": { "train": ["a", "b"], "test": ["x", "y"] } });
    let error = load_toy(toy, |_| {}).await.unwrap_err();
    assert!(error.message.contains("row number 2 has no task in split \"train\""), "{error}");
}

#[tokio::test]
async fn task_ids_are_preferred_if_the_container_serves_both() {
    let mut toy = ToyContainer::new("both");
    toy.info = json!({ "splits": { "train": ["train:0", "train:1", "train:2"], "test": ["test:0", "test:1"] } });
    let task = load_toy(toy.clone(), |_| {}).await.unwrap();
    assert_eq!(ids(&task).0, ["train:0", "train:1", "train:2"]);
    assert!(task.mapping.is_some());
    toy.info = json!({ "splits": { "train": 3, "test": 2 } });
    let task = load_toy(toy, |_| {}).await.unwrap();
    assert_eq!(ids(&task).0, ["ex_train_0", "ex_train_1", "ex_train_2"]);
    assert!(task.mapping.is_none());
}

#[tokio::test]
async fn task_ids_work_with_every_container() {
    for dialect in ["taskset", "both"] {
        let (task, posts) = load_tasks(ToyContainer::new(dialect), &["train:5", "train:6"], &["test:1"]).await;
        assert_eq!(ids(&task.unwrap()).0, ["train:5", "train:6"]);
        assert_eq!(posts[0], json!({ "split": "train", "task_ids": ["train:5", "train:6"], "filters": {} }));
    }
    let (task, posts) = load_tasks(ToyContainer::new("dataset"), &["train:5", "6"], &["test:1"]).await;
    assert_eq!(ids(&task.unwrap()).0, ["ex_train_5", "ex_train_6"]);
    assert_eq!(posts[1], json!({ "split": "test", "seeds": [1], "filters": {} }));
    for strange in ["test:5", "ep_5"] {
        let (task, posts) = load_tasks(ToyContainer::new("dataset"), &["train:5", strange], &["test:1"]).await;
        let error = task.unwrap_err();
        assert!(error.message.contains("`taskset.train_ids[1]`") && error.message.contains(strange), "{error}");
        assert!(posts.is_empty());
    }
}

#[tokio::test]
async fn a_row_id_is_the_first_identifier_of_the_row() {
    let rows = |split: &str| match split {
        "train" => json!([{ "id": 7, "seed": 0 }, { "split": "T", "seed": 1, "id": "" }, { "text": "a" }]),
        _ => json!([{ "task_instance_id": "inst" , "example_id": null }, { "seed": 1 }]),
    };
    let task = load_rows("dataset", |_| {}, rows).await.unwrap();
    assert_eq!(ids(&task), (vec!["7".into(), "T:1".into(), "train:2".into()], vec!["inst".into(), "test:1".into()]));
}

#[tokio::test]
async fn inconsistent_rows_are_rejected() {
    let two = |value: Value| move |_: &str| value.clone();
    let cases: [(&str, Value, &str); 9] = [
        ("dataset", json!([{ "id": 1 }]), "has 1 entries, but 3 were requested"),
        ("dataset", json!({}), "is not a list"),
        ("dataset", json!([{ "id": 1 }, 5, {}]), "entry 1 is 5, not an object"),
        ("dataset", json!([{ "id": 1 }, { "id": 2 }, { "id": 1 }]), "seed 0 and seed 2 are the same row, \"1\""),
        ("dataset", json!([{ "a": 1 }, { "a": 2 }, { "a": 1 }]), "seed 0 and seed 2 are the same row"),
        ("dataset", json!([{ "seed": 1 }, { "seed": 0 }, { "seed": 2 }]), "entry 0 has row number 1, but row number 0"),
        (
            "taskset",
            json!([{ "task_id": "train:0" }, { "task_id": "train:2" }, { "task_id": "train:1" }]),
            "entry 1 is",
        ),
        ("taskset", json!([{ "text": "a" }, {}, {}]), "entry 0 is without a task_id"),
        ("dataset", json!([{ "id": 1, "env": { "OPENAI_API_KEY": "x" } }, {}, {}]), "rows[0].env.OPENAI_API_KEY"),
    ];
    for (dialect, rows, expected) in cases {
        let error = load_rows(dialect, |_| {}, two(rows)).await.unwrap_err();
        assert!(error.message.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn train_and_heldout_share_no_row() {
    let only_two = |config: &mut Config| config.dataset.as_mut().unwrap().train_seeds = vec![0, 1].into();
    for rows in [json!([{ "id": "a" }, { "id": "b" }]), json!([{ "text": "a" }, { "text": "b" }])] {
        let error = load_rows("dataset", only_two, move |_| rows.clone()).await.unwrap_err();
        assert!(error.message.contains("both a train row and a held-out row"), "{error}");
    }
}

#[tokio::test]
async fn nothing_is_sent_if_the_policy_contains_a_credential() {
    let server = Server::start(|_| reply(200, &json!({})));
    let mut config = config(&server.url());
    config.policy.get_or_insert_default().config = [("extra".to_owned(), json!({ "openai-api-key": "abc" }))].into();
    let error = load(&config, &Client::new(&config.container).unwrap()).await.unwrap_err();
    assert!(error.message.contains("`policy.config.extra.openai-api-key`"), "{error}");
    assert!(server.seen().is_empty());
}

/// Returns the task id to which a row number was mapped.
fn named(mapping: &[(i64, String)], seed: i64) -> &str {
    mapping.iter().find(|(known, _)| *known == seed).map_or("", |(_, id)| id)
}
