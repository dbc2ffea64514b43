// The page: shows the view of the address, keeps it current, and remembers nothing but the token, in memory.

import { ServiceError, send } from "./api.js";
import { connectControls } from "./controls.js";
import { Feed } from "./feed.js";
import { connect } from "./pictures.js";
import { submitView } from "./submit.js";
import { connectTables, refreshTimes } from "./tables.js";

const LIVE_MILLIS = 1000;
const LIST_MILLIS = 2000;
const STATE_TICKS = 3;
const NARROW = window.matchMedia("(max-width: 600px)");

const main = document.getElementById("view");
const connection = document.querySelector(".connection");

/** What the page shows now. A new one replaces it with every navigation. */
let shown = { stop: new AbortController(), etag: null, runId: null };
/** The feed of the run that is shown. It is kept across the views of the run. */
let feed = null;

/** Goes to another address of the page. */
function go(address) {
  history.pushState(null, "", address);
  return open();
}

/** Shows the view of the current address. The focus moves to it, except when the page was opened with it. */
async function open(isOpening = false) {
  shown.stop.abort();
  shown = { stop: new AbortController(), etag: null, runId: null };
  const mine = shown;
  main.setAttribute("aria-busy", "true");
  if (location.pathname === "/ui/submit") {
    document.title = "Submit a run";
    main.replaceChildren(submitView(go));
    main.removeAttribute("aria-busy");
    return;
  }
  await refresh(mine, true);
  main.removeAttribute("aria-busy");
  if (mine.stop.signal.aborted) return;
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target) target.scrollIntoView();
  else {
    window.scrollTo(0, 0);
    if (!isOpening) main.focus({ preventScroll: true });
  }
  keepCurrent(mine);
}

/** Reads the view again and replaces the sections that changed. */
async function refresh(mine, isFirst) {
  const query = new URLSearchParams(location.search);
  if (NARROW.matches) query.set("width", "narrow");
  const path = `/views${location.pathname.slice("/ui".length).replace(/\/$/, "")}?${query}`;
  let answer;
  try {
    answer = await send(path, { headers: mine.etag ? { "If-None-Match": mine.etag } : {}, signal: mine.stop.signal });
  } catch (problem) {
    if (mine.stop.signal.aborted) return;
    connected("lost");
    if (isFirst) showProblem("The service does not answer.", "The page tries again.");
    return;
  }
  if (mine.stop.signal.aborted) return;
  connected("live");
  if (answer.status === 304) return;
  const text = await answer.text();
  if (mine.stop.signal.aborted) return;
  if (!answer.ok) {
    const problem = new ServiceError(answer.status, parsed(text));
    mine.runId = null;
    showProblem(problem.message, problem.hint);
    return;
  }
  mine.etag = answer.headers.get("ETag");
  const view = new DOMParser().parseFromString(text, "text/html").body.firstElementChild;
  document.title = `${view.dataset.title} - synth-optimizers`;
  mine.runId = view.dataset.liveRun ?? null;
  update(view, isFirst);
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Replaces the parts of the view that changed. What the reader opened or typed stays. */
function update(view, isFirst) {
  const before = main.querySelector(":scope > .view");
  if (isFirst || before === null) {
    main.replaceChildren(view);
    prepare(view);
    return;
  }
  const parts = new Map([...before.children].map((part, place) => [part.id || `part-${place}`, part]));
  [...view.children].forEach((part, place) => {
    const old = parts.get(part.id || `part-${place}`);
    if (old === undefined) return;
    parts.delete(part.id || `part-${place}`);
    if (old.original === part.outerHTML || old.dataset.events !== undefined) part.replaceWith(old);
    else keepState(old, part);
  });
  const changed = [...view.children].filter((part) => part.original === undefined);
  const focus = focusedPath();
  before.replaceWith(view);
  changed.forEach(preparePart);
  finish(view);
  focus?.();
}

/** Copies what the reader opened and typed. */
function keepState(old, part) {
  const fresh = [...part.querySelectorAll("details")];
  [...old.querySelectorAll("details")].forEach((details, place) => {
    if (fresh[place]) fresh[place].open = details.open;
  });
  const scrolls = [...part.querySelectorAll(".scroll, .feed, pre, .diff")];
  [...old.querySelectorAll(".scroll, .feed, pre, .diff")].forEach((box, place) => {
    const next = scrolls[place];
    if (next && (box.scrollTop || box.scrollLeft)) requestAnimationFrame(() => next.scrollTo(box.scrollLeft, box.scrollTop));
  });
  const inputs = [...part.querySelectorAll("input, select, textarea")];
  [...old.querySelectorAll("input, select, textarea")].forEach((input, place) => {
    if (inputs[place]?.name === input.name) inputs[place].value = input.value;
  });
}

/** Returns a function that gives the focus back to the same place. */
function focusedPath() {
  const active = document.activeElement;
  const section = active?.closest("#view .view > *");
  if (!section?.id) return null;
  const key = active.dataset.candidate
    ? `[data-candidate="${CSS.escape(active.dataset.candidate)}"]${active.dataset.row ? `[data-row="${CSS.escape(active.dataset.row)}"]` : ""}`
    : active.getAttribute("href") ? `[href="${CSS.escape(active.getAttribute("href"))}"]`
      : active.dataset.action ? `[data-action="${active.dataset.action}"]`
        : active.name ? `[name="${CSS.escape(active.name)}"]` : null;
  if (key === null) return null;
  return () => {
    if (!active.isConnected) document.getElementById(section.id)?.querySelector(key)?.focus({ preventScroll: true });
  };
}

function prepare(view) {
  [...view.children].forEach(preparePart);
  finish(view);
}

function preparePart(part) {
  part.original ??= part.outerHTML;
  connectTables(part);
  const run = location.pathname.match(/^\/ui\/runs\/[^/]+/);
  if (run !== null) connect(part, run[0], go);
  connectControls(part, { refresh: () => refresh(shown, false), leave: () => go("/ui/") });
  if (part.dataset.events !== undefined) feedOf(part.dataset.events).attach(part);
}

function finish(view) {
  refreshTimes(view);
}

function showProblem(message, hint) {
  const box = document.createElement("div");
  box.className = "view";
  const problem = document.createElement("div");
  problem.className = "problem";
  problem.setAttribute("role", "alert");
  problem.append(paragraph(message), paragraph(hint ?? ""));
  const back = document.createElement("a");
  back.href = "/ui/";
  back.textContent = "All runs";
  box.append(problem, back);
  main.replaceChildren(box);
}

function paragraph(text) {
  return Object.assign(document.createElement("p"), { textContent: text });
}

/** Keeps a view current: a live run when it has new events, any other view of changing things at even times. */
async function keepCurrent(mine) {
  const { signal } = mine.stop;
  await readEvents(mine);
  for (let tick = 1; !signal.aborted; tick += 1) {
    const isList = ["/ui/", "/ui/health"].includes(location.pathname);
    await pause(isList ? LIST_MILLIS : LIVE_MILLIS, signal);
    if (signal.aborted) return;
    refreshTimes(main);
    const isLost = connection.dataset.state === "lost";
    if (document.hidden && !isLost) continue;
    const hasNews = await readEvents(mine);
    // The state of a live run can change without an event, such as when it waits for a worker.
    const isDue = isList || (mine.runId !== null && (feed.isComplete || tick % STATE_TICKS === 0));
    if (isDue || isLost || hasNews) await refresh(mine, isLost && main.querySelector(".view > .problem") !== null);
  }
}

/** Reads the new events of a run that is live, or whose feed is shown for the first time. Returns whether there are any. */
async function readEvents(mine) {
  const runId = mine.runId ?? main.querySelector("[data-events]")?.dataset.events;
  if (runId === undefined) return false;
  const followed = feedOf(runId);
  if (mine.runId === null && followed.isComplete) return false;
  try {
    return await followed.read(mine.stop.signal);
  } catch (problem) {
    if (!mine.stop.signal.aborted && !(problem instanceof ServiceError)) connected("lost");
    // A refused request has its reason in the view.
    return problem instanceof ServiceError;
  }
}

/** Returns the feed of a run. */
function feedOf(runId) {
  if (feed?.runId !== runId) feed = new Feed(runId);
  return feed;
}

/** Waits, unless the signal is aborted. */
function pause(millis, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, millis);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}

function connected(state) {
  if (connection.dataset.state === state) return;
  connection.dataset.state = state;
  connection.textContent = state === "lost" ? "connection lost, trying again" : "";
}

/** Downloads a file with the token. */
async function download(link) {
  const answer = await send(link.pathname);
  if (!answer.ok) return;
  const address = URL.createObjectURL(await answer.blob());
  const anchor = Object.assign(document.createElement("a"), { href: address, download: link.pathname.split("/").at(-1) });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  if (link === null || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
  if (link.dataset.download !== undefined) {
    event.preventDefault();
    download(link);
  } else if (link.origin === location.origin && link.pathname.startsWith("/ui/") && !link.hash) {
    event.preventDefault();
    go(link.pathname + link.search);
  }
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (event.defaultPrevented || form.method === "dialog") return;
  event.preventDefault();
  const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
  go(`${new URL(form.action).pathname}?${query}`);
});

window.addEventListener("popstate", () => open());
NARROW.addEventListener("change", () => { shown.etag = null; refresh(shown, false); });
open(true);
