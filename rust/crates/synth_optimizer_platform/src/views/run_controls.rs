//! What can be done with a run, as buttons that the page connects.

use maud::{Markup, html};

/// Returns the actions that a run in this state allows, with their names.
fn actions(state: &str) -> &'static [(&'static str, &'static str)] {
    match state {
        "paused" => &[("resume", "resume"), ("cancel", "cancel")],
        "completed" | "failed" | "cancelled" => &[("delete", "delete")],
        "queued" => &[("cancel", "cancel")],
        _ => &[("pause", "pause"), ("stop", "stop and evaluate"), ("cancel", "cancel")],
    }
}

/// Offers what can be done with a run in this state.
pub(super) fn control_buttons(run_id: &str, state: &str) -> Markup {
    html! {
        div.controls role="group" aria-label={"control " (run_id)} data-run=(run_id) {
            @for (action, name) in actions(state) { button type="button" data-action=(action) { (name) } }
        }
    }
}

/// The place where the page says what became of a control request.
pub(super) fn control_answer() -> Markup {
    html! { p.control-answer role="status" {} }
}
