//! Validation of the contract and the program: every rule and its error.

use serde_json::{Value, json};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::program::Module;
use synth_optimizer_platform::container::{Client, Task, load};

use super::server::Server;
use super::toy::{ToyContainer, config};

pub(crate) async fn load_toy(toy: ToyContainer, change: impl FnOnce(&mut Config)) -> Result<Task, OptimizerError> {
    let server = Server::start(move |request| toy.answer(request));
    let mut config = config(&server.url());
    change(&mut config);
    let client = Client::new(&config.container).unwrap();
    load(&config, &client).await
}

fn set(value: &mut Value, pointer: &str, new: Value) {
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    match value.pointer_mut(parent).unwrap() {
        Value::Object(map) => {
            map.insert(name.to_owned(), new);
        }
        Value::Array(list) => list[name.parse::<usize>().unwrap()] = new,
        other => panic!("{other} has no {name}"),
    }
}

#[tokio::test]
async fn a_valid_program_becomes_the_inputs_of_the_search() {
    let task = load_toy(ToyContainer::new("taskset"), |_| {}).await.unwrap();
    let program = &task.inputs.program;
    assert_eq!((task.family.as_str(), program.program_id.as_str()), ("toy.triage", "toy"));
    assert_eq!(program.targets, ["triage_rules"]);
    let modules = [
        Module { field: "triage_rules".into(), template_variables: vec!["{text}".into()] },
        Module { field: "reply_style".into(), template_variables: vec![] },
    ];
    assert_eq!(program.modules, modules);
    assert_eq!(program.seed.keys().collect::<Vec<_>>(), ["reply_style", "triage_rules"]);
    assert!(task.task_info.unwrap_err().contains("GET /task_info answered 404"));
    assert_eq!(task.contract.rollout_modes, ["blocking", "async"]);
}

#[tokio::test]
async fn the_config_may_provide_the_initial_candidate() {
    let task = load_toy(ToyContainer::new("taskset"), |config| {
        config.seed_candidate = [("triage_rules".to_owned(), "Mine.".to_owned())].into();
    });
    let program = task.await.unwrap().inputs.program;
    assert_eq!(program.seed, [("triage_rules".to_owned(), "Mine.".to_owned())].into());
    assert!(program.modules[0].template_variables.is_empty(), "a text that has no placeholder cannot lose one");
}

#[tokio::test]
async fn the_program_digest_depends_on_the_modules_only() {
    let digest = async |pointer: &str, new: Value| {
        let mut toy = ToyContainer::new("taskset");
        set(&mut toy.program, pointer, new);
        load_toy(toy, |_| {}).await.unwrap().program_digest
    };
    let same = digest("/metadata", json!({ "labels": [1] })).await;
    assert_eq!(digest("/modules/0/metadata", json!({})).await, same);
    for (pointer, new) in [("/modules/2/content", json!("Other")), ("/modules/0/role", json!("user"))] {
        assert_ne!(digest(pointer, new).await, same, "{pointer}");
    }
}

#[tokio::test]
async fn every_program_error_names_its_field() {
    let cases = [
        ("/version", json!("prompt_program.v9"), "version is \"prompt_program.v9\""),
        ("/version", Value::Null, "version is missing"),
        ("/program_id", json!(" "), "program_id is missing or empty"),
        ("/modules", json!([]), "modules is missing or empty"),
        ("/modules", json!({}), "modules is {}, not a list"),
        ("/modules/1", json!("x"), "modules[1] is x, not an object"),
        ("/modules/1/module_id", json!(""), "modules[1].module_id is missing"),
        ("/modules/1/module_id", json!(7), "modules[1].module_id is 7, not a text"),
        ("/modules/1/role", json!(7), "modules[1].role is 7"),
        ("/modules/1/mutable", json!("yes"), "modules[1].mutable is yes"),
        ("/modules/1/candidate_field", Value::Null, "modules[1].candidate_field is missing"),
        ("/modules/0/template_variables", json!("text"), "modules[0].template_variables is text, not a list"),
        ("/modules/0/template_variables", json!([1]), "modules[0].template_variables[0] is 1"),
        ("/target_modules", json!([]), "target_modules is missing or empty"),
        ("/target_modules/0/module_id", Value::Null, "target_modules[0].module_id is missing"),
        ("/target_modules/0/candidate_field", json!("ticket_text"), "target_modules[0].candidate_field names"),
        ("/target_modules/0/objective", json!(1), "target_modules[0].objective is 1"),
        ("/seed_candidate", Value::Null, "seed_candidate is missing"),
        ("/seed_candidate", json!([]), "seed_candidate is [], not an object"),
        ("/seed_candidate", json!({ "triage_rules": 1 }), "seed_candidate.triage_rules is 1"),
        ("/seed_candidate", json!({ "triage_rules": " " }), "seed_candidate.triage_rules is empty"),
        ("/seed_candidate", json!({ "ticket_text": "a" }), "seed_candidate.ticket_text names"),
        ("/seed_candidate", json!({ "reply_style": "a" }), "seed_candidate has no text for \"triage_rules\""),
        ("/rollout_overlay_schema/candidate_fields", json!([1]), "rollout_overlay_schema.candidate_fields[0] is 1"),
        ("/rollout_overlay_schema/candidate_fields", json!(["x"]), "rollout_overlay_schema.candidate_fields[0] names"),
    ];
    for (pointer, new, expected) in cases {
        let mut toy = ToyContainer::new("taskset");
        set(&mut toy.program, pointer, new);
        let error = load_toy(toy, |_| {}).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Container);
        assert!(error.message.contains(expected), "{pointer}: {error}");
    }
    let mut toy = ToyContainer::new("taskset");
    for module in ["/modules/0/mutable", "/modules/1/mutable"] {
        set(&mut toy.program, module, json!(false));
    }
    let error = load_toy(toy, |_| {}).await.unwrap_err();
    assert!(error.message.contains("no module with mutable = true"), "{error}");
}

#[tokio::test]
async fn unknown_target_fields_are_explained() {
    let cases = [
        ("triage_rule", "Did you mean \"triage_rules\"?"),
        ("triage", "write its candidate field \"triage_rules\""),
        ("ticket_text", "\"ticket_text\" is fixed"),
        ("zzz", "Mutable fields are triage_rules, reply_style."),
    ];
    for (target, hint) in cases {
        let load =
            load_toy(ToyContainer::new("taskset"), |config| config.candidate.target_modules = vec![target.into()]);
        let error = load.await.unwrap_err();
        assert!(error.message.contains("`candidate.target_modules[0]`"), "{error}");
        assert!(error.hint.contains(hint), "{}", error.hint);
    }
    let load = load_toy(ToyContainer::new("taskset"), |config| {
        config.seed_candidate = [("replystyle".to_owned(), "x".to_owned())].into();
    });
    let error = load.await.unwrap_err();
    assert!(error.message.contains("seed_candidate.replystyle") && error.hint.contains("reply_style"), "{error}");
}

#[tokio::test]
async fn the_contract_is_found_in_each_supported_location() {
    let gepa = ToyContainer::new("taskset").metadata["metadata"]["optimizer_contracts"]["gepa"].clone();
    for metadata in [
        json!({ "optimizer_contracts": { "gepa": gepa } }),
        json!({ "capabilities": { "optimizer_contracts": { "gepa": gepa } }, "metadata": null }),
    ] {
        let mut toy = ToyContainer::new("taskset");
        toy.metadata = metadata;
        assert_eq!(load_toy(toy, |_| {}).await.unwrap().contract.routes.dialects(), ["taskset"]);
    }
    let mut toy = ToyContainer::new("dataset");
    toy.metadata["metadata"]["optimizer_contracts"]["gepa"]["version"] = json!("synth_optimizers.gepa.v1");
    let contract = load_toy(toy, |_| {}).await.unwrap().contract;
    assert_eq!(contract.version, "synth_optimizers.gepa.v1");
    assert_eq!(contract.routes.dialects(), ["dataset"]);
}

#[tokio::test]
async fn every_contract_error_is_reported() {
    let cases = [
        ("", Value::Null, "does not support GEPA"),
        ("", json!("synth_optimizers.gepa.v2"), "not an object"),
        (
            "/version",
            json!("synth_optimizers.gepa.v3"),
            "contract has the unsupported version synth_optimizers.gepa.v3",
        ),
        ("/version", Value::Null, "contract has the unsupported version null"),
        ("/program_route", json!("program"), "program_route of the container's GEPA contract is program"),
        ("/program_route", Value::Null, "has no program_route"),
        ("/rollout_route", json!(1), "rollout_route of the container's GEPA contract is 1"),
        ("/taskset_route", Value::Null, "has no routes for rows"),
        ("/taskset_tasks_route", json!("http://elsewhere"), "taskset_tasks_route"),
    ];
    for (pointer, new, expected) in cases {
        let mut toy = ToyContainer::new("taskset");
        set(&mut toy.metadata, &format!("/metadata/optimizer_contracts/gepa{pointer}"), new);
        let error = load_toy(toy, |_| {}).await.unwrap_err();
        assert!(error.message.contains(expected), "{pointer}: {error}");
    }
}
