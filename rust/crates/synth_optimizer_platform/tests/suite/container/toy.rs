//! A toy container in both dialects, and a matching config.

use serde_json::{Value, json};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::sections::{DatasetSection, TasksetSection};

use super::server::{ReceivedRequest, ServerAction, json};

pub(crate) const ROUTES: [(&str, &str); 4] = [
    ("taskset_route", "/taskset"),
    ("taskset_tasks_route", "/taskset/tasks"),
    ("dataset_route", "/dataset"),
    ("dataset_rows_route", "/dataset/rows"),
];

/// A container as JSON values that a test may change.
#[derive(Clone)]
pub(crate) struct ToyContainer {
    pub(crate) metadata: Value,
    pub(crate) program: Value,
    pub(crate) info: Value,
}

impl ToyContainer {
    pub(crate) fn new(dialect: &str) -> Self {
        let mut gepa = json!({
            "version": "synth_optimizers.gepa.v2", "program_route": "/program", "rollout_route": "/rollouts", "extra": 1,
        });
        for (name, route) in ROUTES {
            if dialect == "both" || name.starts_with(dialect) {
                gepa[name] = route.into();
            }
        }
        Self {
            metadata: json!({
                "capabilities": { "rollout_modes": ["blocking", "async"] },
                "metadata": { "optimizer_contracts": { "gepa": gepa } },
            }),
            program: program(),
            info: json!({ "splits": { "train": 4, "test": 4 } }),
        }
    }

    pub(crate) fn answer(&self, request: &ReceivedRequest) -> ServerAction {
        let body = request.json();
        let split = body["split"].as_str().unwrap_or_default().to_owned();
        match request.path.as_str() {
            "/metadata" => json(200, &self.metadata),
            "/program" => json(200, &self.program),
            "/task_info" => json(404, &json!({ "detail": "no" })),
            "/taskset" | "/dataset" => json(200, &self.info),
            "/taskset/tasks" => {
                let ids = body["task_ids"].as_array().cloned().unwrap_or_default();
                let task = |id: Value| {
                    let seed: i64 = id.as_str().unwrap().rsplit(':').next().unwrap().parse().unwrap_or(0);
                    row(&split, seed, Some(id.as_str().unwrap()))
                };
                json(200, &json!({ "tasks": ids.into_iter().map(task).collect::<Vec<_>>() }))
            }
            "/dataset/rows" => {
                let seeds = body["seeds"].as_array().cloned().unwrap_or_default();
                let rows = seeds.iter().map(|seed| row(&split, seed.as_i64().unwrap(), None)).collect::<Vec<_>>();
                json(200, &json!({ "rows": rows }))
            }
            _ => json(404, &json!({ "detail": "Not Found" })),
        }
    }
}

fn row(split: &str, seed: i64, id: Option<&str>) -> Value {
    let mut row = json!({
        "split": split, "seed": seed, "text": format!("ticket {seed}"), "metadata": { "difficulty": seed % 2 },
        "labels": ["billing", { "reason": "refund" }],
    });
    match id {
        Some(id) => row["task_id"] = id.into(),
        None => row["example_id"] = format!("ex_{split}_{seed}").into(),
    }
    row
}

pub(crate) fn program() -> Value {
    json!({
        "version": "prompt_program.v1",
        "program_id": "toy",
        "modules": [
            { "module_id": "triage", "role": "system", "content": "Route {text} well.", "mutable": true,
              "candidate_field": "triage_rules", "template_variables": ["text", "unused"] },
            { "module_id": "style", "role": "system", "mutable": true, "candidate_field": "reply_style" },
            { "module_id": "ticket", "role": "user", "content": "Ticket: {text}", "mutable": false,
              "candidate_field": "ticket_text", "template_variables": ["text"] },
        ],
        "target_modules": [{ "module_id": "triage", "candidate_field": "triage_rules", "objective": "accuracy" }],
        "seed_candidate": { "triage_rules": "Route {text} well.", "reply_style": "Be brief." },
        "rollout_overlay_schema": { "candidate_fields": ["triage_rules", "reply_style"] },
        "metadata": { "task_id": "toy.triage" },
    })
}

/// Returns a config with row numbers for a container at this URL. Its timeouts are short, so that tests are fast.
pub(crate) fn config(url: &str) -> Config {
    let mut config = Config::default();
    config.container.url = url.to_owned();
    config.container.request_timeout_seconds = 2;
    config.container.connect_timeout_seconds = 1;
    config.container.rollout_timeout_seconds = 1;
    config.container.retry_backoff_ms = 1;
    config.container.retry_backoff_max_ms = 20;
    config.container.max_reply_mb = 1;
    config.gepa.rollout_poll_interval_ms = 10;
    config.gepa.rollout_async_timeout_seconds = 1;
    config.candidate.target_modules = vec!["triage_rules".into()];
    config.dataset = Some(DatasetSection {
        train_seeds: vec![0, 1, 2].into(),
        heldout_seeds: vec![0, 1].into(),
        ..DatasetSection::default()
    });
    config
}

/// Returns the same config with task ids.
pub(crate) fn config_of_tasks(url: &str, train: &[&str], heldout: &[&str]) -> Config {
    let owned = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
    let mut config = config(url);
    config.dataset = None;
    config.taskset =
        Some(TasksetSection { train_ids: owned(train), heldout_ids: owned(heldout), ..TasksetSection::default() });
    config
}
