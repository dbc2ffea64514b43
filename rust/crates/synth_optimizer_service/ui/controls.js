// Buttons that control runs: those of the run that is shown, or of each run of the list.

import { call, reasonOf } from "./api.js";

const QUESTIONS = {
  cancel: (run) => `Cancel the run ${run}? It ends without a result.`,
  stop: (run) => `Stop the search of the run ${run} now, and evaluate its best candidate on held-out rows?`,
  delete: (run) => `Delete the run ${run} and its directory?`,
};

/** Connects the buttons of a section. `refresh` shows the new state, `leave` is called when the run is deleted. */
export function connectControls(section, { refresh, leave }) {
  for (const group of section.querySelectorAll(".controls[data-run]")) {
    for (const button of group.querySelectorAll("button[data-action]")) {
      button.addEventListener("click", () => control(group, button, { refresh, leave }));
    }
  }
}

async function control(group, button, { refresh, leave }) {
  const { action } = button.dataset;
  const { run } = group.dataset;
  if (action in QUESTIONS && !window.confirm(QUESTIONS[action](run))) return;
  const say = (text) => {
    const answer = document.querySelector("#view .control-answer");
    if (answer !== null) answer.textContent = text;
  };
  const buttons = group.querySelectorAll("button");
  buttons.forEach((each) => { each.disabled = true; });
  const path = `/runs/${encodeURIComponent(run)}`;
  try {
    if (action === "delete") {
      await call(path, { method: "DELETE" });
      say(`The run ${run} was deleted.`);
      leave();
      return;
    }
    const done = await call(`${path}/${action}`, { method: "POST", body: action === "resume" ? {} : { reason: "asked on the page" } });
    say(done.acknowledgement === "noop" ? `The run ${run}: ${done.message}.` : `The run ${run} was asked to ${action}.`);
    refresh();
  } catch (problem) {
    say(reasonOf(problem));
  } finally {
    // A run that was asked to stop can still be cancelled.
    buttons.forEach((each) => { each.disabled = false; });
    if (document.activeElement === document.body) button.focus();
  }
}
