//! The data model of a run: events, calls, candidates, budgets and their folds.

pub mod answer;
pub mod budget;
pub mod cache_key;
pub mod candidate_view;
pub mod canonical;
pub mod claim;
pub mod command;
pub mod control;
pub mod decision_words;
pub mod edit;
pub mod envelope;
pub mod error;
pub mod event;
pub mod event_effects;
pub mod event_fields;
pub mod frontier_view;
pub mod ids;
pub mod in_flight;
pub mod lifecycle;
pub mod program;
pub mod run_totals;
pub mod run_view;
pub mod score;
pub mod usage;
