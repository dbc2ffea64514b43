// The page: shows the view of the address, keeps it current, and remembers nothing but the token, in memory.

import { ServiceError, errorOf, send } from "./api.js";
import { connectControls } from "./controls.js";
import { download } from "./download.js";
import { Feed } from "./feed.js";
import { connect } from "./pictures.js";
import { rememberSection, replaceSections } from "./sections.js";
import { submitView } from "./submit.js";
import { connectTables, keepOrder, refreshTimes } from "./tables.js";

const LIVE_MILLIS = 1000;
const LIST_MILLIS = 2000;
const STATE_TICKS = 3;
const NARROW = window.matchMedia("(max-width: 600px)");

const main = document.getElementById("view");
const connection = document.querySelector(".connection");

/** What the page shows now. A new one replaces it with every navigation. */
let shown = nothingYet();
/** The feed of the run that is shown. It is kept across the views of the run. */
let feed = null;

function nothingYet() {
  return { stop: new AbortController(), address: viewAddress(), etag: null, runId: null, hasView: false, needsToken: false };
}

/** Returns the address at which the service renders the view. The order of a table is the page's own. */
function viewAddress() {
  const query = new URLSearchParams(location.search);
  query.delete("sort");
  return `/views${location.pathname.slice("/ui".length).replace(/\/$/, "")}?${query}`;
}

/** Goes to another address of the page. */
function go(address) {
  history.pushState(null, "", address);
  return open();
}

/** Shows the view of the current address. The focus moves to it, except when the page was opened with it. */
async function open(isOpening = false) {
  shown.stop.abort();
  shown = nothingYet();
  const mine = shown;
  checkFeedAgain();
  main.setAttribute("aria-busy", "true");
  const isForm = location.pathname === "/ui/submit";
  await (isForm ? showForm(mine) : refresh(mine));
  if (mine.stop.signal.aborted) return;
  main.removeAttribute("aria-busy");
  if (!isOpening) main.focus({ preventScroll: true });
  const target = document.getElementById(location.hash.slice(1));
  if (target) target.scrollIntoView();
  else window.scrollTo(0, 0);
  if (!isForm) keepCurrent(mine);
}

/** Shows the form that submits a run. A page without a service cannot take it. */
async function showForm(mine) {
  document.title = "Submit a run - synth-optimizers";
  let hasService = true;
  try {
    hasService = (await send("/health", { signal: mine.stop.signal })).status !== 404;
  } catch {
    // The form says that the service does not answer when it is sent.
  }
  if (mine.stop.signal.aborted) return;
  if (hasService) main.replaceChildren(submitView(go));
  else showProblem("This page only shows runs; it cannot submit one.", "Open the page of a service: `synth-optimizers gepa service` starts one.");
}

/** Reads the view again and replaces the sections that changed. A view that is shown stays while the service cannot answer. */
async function refresh(mine) {
  let answer;
  let text;
  try {
    const headers = mine.etag ? { "If-None-Match": mine.etag } : {};
    answer = await send(NARROW.matches ? `${mine.address}&width=narrow` : mine.address, { headers, signal: mine.stop.signal });
    text = await answer.text();
  } catch {
    if (mine.stop.signal.aborted) return;
    connected("lost");
    if (!mine.hasView) showProblem("The service does not answer.", "The page tries again.");
    return;
  }
  if (mine.stop.signal.aborted) return;
  // A service that starts or is busy answers soon. Until then the view of before is right about most of the run.
  const isFailing = answer.status >= 500;
  connected(isFailing && (mine.hasView || answer.status === 503) ? "failing" : "live");
  if (answer.status === 304 || (isFailing && mine.hasView)) return;
  if (!answer.ok) {
    explain(mine, errorOf(answer.status, text));
    return;
  }
  mine.etag = answer.headers.get("ETag");
  const view = new DOMParser().parseFromString(text, "text/html").body.firstElementChild;
  document.title = `${view.dataset.title} - synth-optimizers`;
  mine.runId = view.dataset.liveRun ?? null;
  if (mine.hasView) {
    replaceSections(main.querySelector(":scope > .view"), view, prepareSection);
  } else {
    main.replaceChildren(view);
    [...view.children].forEach(prepareSection);
  }
  refreshTimes(main);
  mine.hasView = true;
}

/** Says why there is no view. It is asked for again, because a run may start, or come back under the same id. */
function explain(mine, problem) {
  Object.assign(mine, { etag: null, runId: null, hasView: false, needsToken: problem.status === 401 });
  if (!mine.needsToken) {
    showProblem(problem.message, problem.hint);
    return;
  }
  showProblem("The service needs its token.", "Without it, the page shows nothing.");
  const again = Object.assign(document.createElement("button"), { type: "button", textContent: "enter the token" });
  again.addEventListener("click", () => open());
  main.querySelector(".problem").append(again);
}

/** Connects a section that the page shows from now on. */
function prepareSection(section) {
  rememberSection(section);
  connectTables(section);
  const run = location.pathname.match(/^\/ui\/runs\/[^/]+/);
  if (run !== null) connect(section, run[0], go);
  connectControls(section, {
    refresh: () => refresh(shown),
    leave: () => {
      // The next run with this id has other events.
      feed = null;
      return location.pathname === "/ui/" ? refresh(shown) : go("/ui/");
    },
  });
  if (section.dataset.events !== undefined) feedOf(section.dataset.events).attach(section);
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
  for (let tick = 1; !signal.aborted && !mine.needsToken; tick += 1) {
    const isList = ["/ui/", "/ui/health"].includes(location.pathname);
    await pause(isList ? LIST_MILLIS : LIVE_MILLIS, signal);
    if (signal.aborted) return;
    refreshTimes(main);
    const isLost = connection.dataset.state !== "live";
    if (document.hidden && !isLost) continue;
    const hasNews = await readEvents(mine);
    if (signal.aborted || mine.needsToken) return;
    // The state of a live run can change without an event, such as when it waits for a worker.
    // One that has ended was submitted again if its events have no end.
    const isLive = mine.runId !== null || !mine.hasView || feed?.isComplete === false;
    const isDue = isList || (isLive && (feed?.isComplete || tick % STATE_TICKS === 0));
    if (isDue || isLost || hasNews) await refresh(mine);
  }
}

/** Reads the new events of a run that is live, or whose feed is shown for the first time. Returns whether there are any. */
async function readEvents(mine) {
  const known = mine.hasView ? feed?.runId : undefined;
  const runId = mine.runId ?? main.querySelector("[data-events]")?.dataset.events ?? known;
  if (runId === undefined) return false;
  const followed = feedOf(runId);
  if (mine.runId === null && followed.isComplete) return false;
  try {
    return await followed.read(mine.stop.signal);
  } catch (problem) {
    if (mine.stop.signal.aborted) return false;
    if (!(problem instanceof ServiceError)) {
      connected("lost");
      return false;
    }
    if (problem.status === 404) followed.forget();
    if (problem.status === 401) explain(mine, problem);
    // Any other refused request has its reason in the view.
    return true;
  }
}

/** Returns the feed of a run. */
function feedOf(runId) {
  if (feed?.runId !== runId) feed = new Feed(runId);
  return feed;
}

/** Makes sure that the feed is not that of an earlier run with the same id, which was deleted meanwhile. */
function checkFeedAgain() {
  if (feed === null) return;
  const run = location.pathname.match(/^\/ui\/runs\/([^/]+)/)?.[1];
  if (run === encodeURIComponent(feed.runId)) feed.isComplete = false;
  else feed = null;
}

/** Waits, unless the signal is aborted. */
function pause(millis, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, millis);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}

const CONNECTION = { live: "", lost: "connection lost, trying again", failing: "the service cannot answer now, trying again" };

function connected(state) {
  if (connection.dataset.state === state) return;
  connection.dataset.state = state;
  connection.textContent = CONNECTION[state];
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  if (link === null || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
  // The browser finds places within the view that is shown.
  const isPlace = link.hash !== "" && link.pathname === location.pathname && link.search === location.search;
  if (link.dataset.download !== undefined) {
    event.preventDefault();
    download(link);
  } else if (link.origin === location.origin && link.pathname.startsWith("/ui/") && !isPlace) {
    event.preventDefault();
    const address = link.pathname + link.search + link.hash;
    go(link.closest(".pager") === null ? address : keepOrder(address));
  }
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (event.defaultPrevented || form.method === "dialog") return;
  event.preventDefault();
  const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
  go(keepOrder(`${new URL(form.action).pathname}?${query}`));
});

// A step to another place of the same view is the browser's own.
window.addEventListener("popstate", () => {
  if (viewAddress() !== shown.address) open();
});
// The pictures of a view depend on the width of the window.
NARROW.addEventListener("change", () => {
  if (!shown.hasView) return;
  shown.etag = null;
  refresh(shown);
});
open(true);
