//! The task of the stub: every row needs one hidden rule, and a text that contains the rule's word solves the row.

use serde_json::{Value, json};
use synth_optimizer_core::model::ids::Payload;

use super::flags::{Dialect, Flags};

/// The mutable fields. With one module, only the first one exists.
pub const FIELDS: [&str; 2] = ["instructions", "guide"];
/// Name of the held-out split. All other rows are in the train split.
const HELDOUT: &str = "test";
/// The texts of the initial candidate. Rule 0 is known from the start.
const INITIAL_TEXTS: [&str; 2] = ["Answer by the house rules: r0", "Keep to the guide:"];

/// One row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    pub heldout: bool,
    pub index: u32,
}

impl Row {
    pub(super) fn split(self) -> &'static str {
        if self.heldout { HELDOUT } else { "train" }
    }
}

/// The rows, the rules and the fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StubTask {
    pub train: u32,
    pub heldout: u32,
    pub rules: u32,
    /// How many rules a row needs.
    pub needs: u32,
    pub modules: usize,
}

impl StubTask {
    pub fn new(flags: &Flags) -> Self {
        let needs = flags.needs.max(1);
        let rules = flags.rules.unwrap_or(flags.train * needs).max(1);
        Self { train: flags.train, heldout: flags.heldout, rules, needs, modules: flags.modules }
    }

    /// Returns the row of a split and row number, if it exists.
    pub fn row(&self, split: &str, seed: u32) -> Option<Row> {
        let heldout = matches!(split, HELDOUT | "heldout" | "validation");
        let rows = if heldout { self.heldout } else { self.train };
        (seed < rows).then_some(Row { heldout, index: seed })
    }

    /// Returns the row of an id like `train:3`.
    pub fn row_of_id(&self, id: &str) -> Option<Row> {
        let (split, seed) = id.split_once(':')?;
        self.row(split, seed.parse().ok()?)
    }

    /// Returns the rules that a row needs, each with the field that must contain it.
    pub fn needed(&self, row: Row) -> impl Iterator<Item = (u32, &'static str)> {
        let rules = (0..self.needs).map(move |number| (row.index + number * self.train) % self.rules);
        rules.map(|rule| (rule, FIELDS[rule as usize % self.modules]))
    }

    /// Returns the rules that the texts lack for a row. A missing field has its initial text, as in real containers.
    pub fn missing(&self, candidate: &Payload, row: Row) -> Vec<(u32, &'static str)> {
        self.needed(row)
            .filter(|(rule, field)| {
                let seed = FIELDS.iter().position(|known| known == field).map_or("", |place| INITIAL_TEXTS[place]);
                let text = candidate.get(*field).map_or(seed, String::as_str);
                !text
                    .split(|c: char| !c.is_ascii_alphanumeric())
                    .any(|word| word.strip_prefix('r').and_then(|digits| digits.parse().ok()) == Some(*rule))
            })
            .collect()
    }

    /// Returns the row as JSON, as in the row routes and rollout requests.
    pub fn row_json(&self, row: Row) -> Value {
        let (split, index) = (row.split(), row.index);
        json!({
            "task_id": format!("{split}:{index}"),
            "example_id": format!("{split}:{index}"),
            "split": split,
            "seed": index,
            "question": format!("What does case {index} need?"),
        })
    }

    /// Returns the initial candidate.
    pub fn seed(&self) -> Payload {
        (0..self.modules).map(|place| (FIELDS[place].to_owned(), INITIAL_TEXTS[place].to_owned())).collect()
    }

    pub fn program(&self) -> Value {
        let fields: Vec<&str> = FIELDS[..self.modules].to_vec();
        let mut modules: Vec<Value> = (0..self.modules)
            .map(|place| {
                json!({
                    "module_id": format!("{}_module", FIELDS[place]), "role": "system", "content": INITIAL_TEXTS[place],
                    "mutable": true, "candidate_field": FIELDS[place], "template_variables": [],
                    "metadata": {"lever_kind": "system_prompt"},
                })
            })
            .collect();
        modules.push(json!({
            "module_id": "question", "role": "user", "content": "{question}", "mutable": false,
            "candidate_field": "", "template_variables": ["question"], "metadata": {},
        }));
        let targets: Vec<Value> = fields
            .iter()
            .map(|field| json!({"module_id": format!("{field}_module"), "candidate_field": field}))
            .collect();
        json!({
            "version": "prompt_program.v1", "program_id": "house_rules", "modules": modules,
            "target_modules": targets, "seed_candidate": self.seed(),
            "rollout_overlay_schema": {"candidate_fields": fields}, "metadata": {"task_id": "stub.house_rules"},
        })
    }

    /// Returns the reply of the dataset and taskset routes.
    pub fn rows(&self) -> Value {
        json!({
            "dataset_id": "house_rules_rows", "taskset_id": "house_rules_rows",
            "splits": {"train": self.train, HELDOUT: self.heldout}, "source": "stub",
        })
    }

    /// Returns the reply of `/metadata`.
    pub fn metadata(&self, dialect: Dialect, modes: &[&str], remembers_rollouts: bool) -> Value {
        let mut gepa = json!({
            "version": "synth_optimizers.gepa.v2", "program_route": "/program", "rollout_route": "/rollouts",
            "remembers_rollouts": remembers_rollouts,
        });
        if dialect != Dialect::Taskset {
            gepa["dataset_route"] = "/dataset".into();
            gepa["dataset_rows_route"] = "/dataset/rows".into();
        }
        if dialect != Dialect::Dataset {
            gepa["taskset_route"] = "/taskset".into();
            gepa["taskset_tasks_route"] = "/taskset/tasks".into();
        }
        json!({
            "runtime": {"runtime_id": "stub", "name": "stub"},
            "capabilities": {"rollout_modes": modes, "metadata": {"policy_ready": true, "program_ready": true}},
            "metadata": {"optimizer_contracts": {"gepa": gepa}},
        })
    }
}
