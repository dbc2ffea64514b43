// Buttons that control a run.

import { call, reasonOf } from "./api.js";

const QUESTIONS = {
  cancel: "Cancel the run? It ends without a result.",
  stop: "Stop the search now and evaluate the best candidate on held-out rows?",
  delete: "Delete the run and its directory?",
};

/** Connects the buttons of a view. `refresh` shows the new state, `leave` goes back to the list. */
export function connectControls(view, { refresh, leave }) {
  const group = view.querySelector(".controls[data-run]");
  if (group === null) return;
  const runId = encodeURIComponent(group.dataset.run);
  const answer = view.querySelector(".control-answer");
  for (const button of group.querySelectorAll("button[data-action]")) {
    button.addEventListener("click", async () => {
      const { action } = button.dataset;
      if (action in QUESTIONS && !window.confirm(QUESTIONS[action])) return;
      const buttons = group.querySelectorAll("button");
      buttons.forEach((each) => { each.disabled = true; });
      try {
        if (action === "delete") {
          await call(`/runs/${runId}`, { method: "DELETE" });
          leave();
          return;
        }
        await call(`/runs/${runId}/${action}`, { method: "POST", body: action === "resume" ? {} : { reason: "asked on the page" } });
        answer.textContent = `The run was asked to ${action}.`;
        refresh();
      } catch (problem) {
        answer.textContent = reasonOf(problem);
      } finally {
        // A run that was asked to stop can still be cancelled.
        buttons.forEach((each) => { each.disabled = false; });
        if (document.activeElement === document.body) button.focus();
      }
    });
  }
}
