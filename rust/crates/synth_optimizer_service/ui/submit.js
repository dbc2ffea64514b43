// The form that submits a run, with what the preflight check finds.

import { call, reasonOf } from "./api.js";

/** Builds the form. `go` receives the address of the submitted run. */
export function submitView(go) {
  const view = document.createElement("div");
  const head = element("h1", "Submit a run");
  const form = document.createElement("form");
  const text = document.createElement("textarea");
  text.name = "config";
  text.spellcheck = false;
  text.setAttribute("aria-label", "configuration (TOML)");
  text.placeholder = '[run]\nrun_id = "first"\n...';
  const file = document.createElement("input");
  file.type = "file";
  file.accept = ".toml,text/plain";
  file.setAttribute("aria-label", "read the configuration from a file");
  const path = document.createElement("input");
  path.name = "config_path";
  path.placeholder = "gepa.toml";
  const check = element("button", "check");
  check.type = "button";
  const submit = element("button", "submit");
  const findings = document.createElement("div");
  findings.setAttribute("role", "status");
  findings.id = "findings";
  file.addEventListener("change", async () => {
    if (file.files[0]) text.value = await file.files[0].text();
    allowOne();
  });
  // The configuration is either the text or the named file.
  const allowOne = () => {
    path.disabled = text.value.trim() !== "";
    text.disabled = file.disabled = path.value.trim() !== "";
  };
  form.addEventListener("input", allowOne);
  const pathLabel = element("label", "or a file of the service ");
  pathLabel.append(path);
  const buttons = document.createElement("p");
  buttons.className = "filters";
  buttons.append(check, submit);
  const pick = document.createElement("p");
  pick.className = "filters";
  pick.append(file, pathLabel);
  form.append(element("p", "Paste a configuration, pick a file, or name a file below the service's --config-root."), text, pick, buttons, findings);
  view.append(head, form);

  const body = () => (path.value.trim() === "" ? { config: text.value } : { config_path: path.value.trim() });
  // The same content is submitted once, also if the answer to the first attempt was lost.
  let sent = { content: "", key: "" };
  const keyOf = (content) => {
    const text = JSON.stringify(content);
    if (sent.content !== text) sent = { content: text, key: randomKey() };
    return sent.key;
  };
  const run = async (work) => {
    check.disabled = submit.disabled = true;
    findings.replaceChildren(element("p", "Checking"));
    try {
      await work();
    } catch (problem) {
      show(findings, reasonOf(problem), problem.hint, [["", problem.fields ?? []]]);
    } finally {
      check.disabled = submit.disabled = false;
    }
  };
  check.addEventListener("click", () => run(async () => {
    const report = await call("/runs/preflight", { method: "POST", body: body() });
    const title = report.ok ? "Nothing prevents this run from starting." : "This run cannot start.";
    show(findings, title, "", [["What prevents it", report.blockers], ["Warnings", report.warnings]]);
  }));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run(async () => {
      const content = body();
      const stored = await call("/runs", { method: "POST", body: content, headers: { "Idempotency-Key": keyOf(content) } });
      go(`/ui/runs/${encodeURIComponent(stored.run_id)}`);
    });
  });
  return view;
}

/** Returns a random key. `crypto.randomUUID` is missing on pages that are read over plain HTTP from another machine. */
function randomKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Shows an answer: its title, and findings in groups, each with a heading. The hint counts if there are no findings. */
function show(place, title, hint, groups) {
  const shown = groups.filter(([, found]) => found.length > 0);
  const parts = shown.flatMap(([heading, found]) => [...(heading === "" ? [] : [element("h2", heading)]), listOf(found)]);
  if (hint && shown.length === 0) parts.push(Object.assign(element("p", hint), { className: "muted" }));
  place.replaceChildren(element("p", title), ...parts);
}

/** Lists findings with their places and hints. */
function listOf(found) {
  const list = document.createElement("ul");
  for (const finding of found) {
    const item = document.createElement("li");
    const where = [finding.field, finding.location].filter(Boolean).join(", ");
    if (where !== "") item.append(element("code", where), ": ");
    item.append(finding.message);
    if (finding.hint) item.append(Object.assign(element("div", finding.hint), { className: "note" }));
    list.append(item);
  }
  return list;
}

function element(name, text) {
  return Object.assign(document.createElement(name), { textContent: text });
}
