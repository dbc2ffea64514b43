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
  });
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

  const body = () => (text.value.trim() === "" && path.value.trim() !== ""
    ? { config_path: path.value.trim() }
    : { config: text.value });
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
      show(findings, reasonOf(problem), problem.fields ?? [], problem.hint);
    } finally {
      check.disabled = submit.disabled = false;
    }
  };
  check.addEventListener("click", () => run(async () => {
    const report = await call("/runs/preflight", { method: "POST", body: body() });
    const found = [...report.blockers, ...report.warnings];
    show(findings, report.ok ? "Nothing prevents this run from starting." : "This run cannot start.", found, "");
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

function show(place, title, found, hint) {
  const list = document.createElement("ul");
  for (const finding of found) {
    const item = document.createElement("li");
    const where = [finding.field, finding.location].filter(Boolean).join(", ");
    if (where !== "") item.append(element("code", where), ": ");
    item.append(finding.message);
    if (finding.hint) item.append(Object.assign(element("div", finding.hint), { className: "note" }));
    list.append(item);
  }
  place.replaceChildren(element("p", title), list);
  if (hint && found.length === 0) place.append(Object.assign(element("p", hint), { className: "muted" }));
}

function element(name, text) {
  return Object.assign(document.createElement(name), { textContent: text });
}
