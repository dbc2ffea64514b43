// The list of the newest events. It keeps a bounded number of them and draws at most a few times per second.

import { call } from "./api.js";

const KEPT = 2000;
const SHOWN = 200;
const EARLIER = 500;
const PAGE = 1000;

const CALLS = /^(rollout|proposer|call)\./;
const PROBLEMS = /(failed|rejected|waiting|unknown|altered|damaged|fallback|adjusted|deferred)/;
const KINDS = {
  all: () => true,
  calls: (event) => CALLS.test(event.type),
  decisions: (event) => !CALLS.test(event.type) && event.type !== "rollouts.requested",
  problems: (event) => PROBLEMS.test(event.type),
};

/** The feed of one run. It outlives the refreshes of its view. */
export class Feed {
  constructor(runId) {
    this.runId = runId;
    this.events = [];
    this.kind = "decisions";
    this.text = "";
    this.after = null;
    this.hasRead = false;
    this.isComplete = false;
    this.section = null;
    this.isDue = false;
  }

  /** Forgets the events, because the run is another one now. */
  forget() {
    this.events = [];
    this.after = null;
    this.isComplete = false;
    this.redraw();
  }

  /** Reads the events after the last known one; at first, the newest ones. Returns whether there are any. */
  async read(signal) {
    const path = `/runs/${encodeURIComponent(this.runId)}/events`;
    if (this.after === null) {
      const last = (await call(`${path}?limit=1`, { signal })).last_sequence ?? -1;
      this.after = Math.max(-1, last - EARLIER);
    }
    for (let hasNews = false; ; hasNews = true) {
      const page = await call(`${path}?limit=${PAGE}&after=${this.after}`, { signal });
      const last = page.last_sequence ?? -1;
      if (last < this.after) {
        // The run was deleted, and another one has its id.
        this.forget();
        await this.read(signal);
        return true;
      }
      this.isComplete = page.is_terminal && page.items.length < PAGE;
      this.hasRead = true;
      if (page.items.length === 0) {
        this.redraw();
        return hasNews;
      }
      if (last - this.after > KEPT) {
        // A page that was hidden for long needs only the events that it keeps.
        this.events = [];
        this.after = last - KEPT;
        continue;
      }
      this.after = page.next_after;
      this.add(page.items);
      if (page.items.length < PAGE) return true;
    }
  }

  /** Adds parsed events, in order. */
  add(events) {
    this.events.push(...events);
    if (this.events.length > KEPT) this.events.splice(0, this.events.length - KEPT);
    this.redraw();
  }

  /** Shows the feed in a section of the view. */
  attach(section) {
    this.section = section;
    const form = section.querySelector("form");
    form.elements.kind.value = this.kind;
    form.elements.text.value = this.text;
    const change = () => {
      this.kind = form.elements.kind.value;
      this.text = form.elements.text.value.toLowerCase();
      this.redraw();
    };
    form.addEventListener("input", change);
    form.addEventListener("submit", (event) => event.preventDefault());
    this.redraw();
  }

  redraw() {
    if (this.isDue || this.section === null) return;
    this.isDue = true;
    setTimeout(() => {
      this.isDue = false;
      if (this.section?.isConnected) this.draw();
    }, 250);
  }

  draw() {
    const wanted = KINDS[this.kind] ?? KINDS.all;
    const matches = (event) => wanted(event) &&
      (this.text === "" || event.message.toLowerCase().includes(this.text) || event.type.includes(this.text));
    const shown = [];
    for (let place = this.events.length - 1; place >= 0 && shown.length < SHOWN; place -= 1) {
      if (matches(this.events[place])) shown.push(this.events[place]);
    }
    const list = this.section.querySelector(".feed");
    list.replaceChildren(...shown.map(line));
    this.section.querySelector(".feed-note").textContent = this.note(shown.length);
  }

  /** Says how many events of which are shown, or why none is. */
  note(shown) {
    if (!this.hasRead) return "Reading the events.";
    if (this.events.length === 0) return "There are no events yet.";
    if (shown === 0) return "No event matches.";
    return `The newest ${shown} that match, of the last ${this.events.length} events. events.jsonl has all of them.`;
  }
}

function line(event) {
  const item = document.createElement("li");
  const at = document.createElement("span");
  at.className = "at";
  at.textContent = `${event.sequence_number} ${event.ts.slice(11, 19)}`;
  const text = document.createElement("span");
  text.textContent = visible(event.message);
  text.title = event.type;
  text.dir = "auto";
  item.append(at, text);
  return item;
}

/** Control characters except tab and line break, and characters without a width: those that change the direction of text, and tags. */
const HIDDEN = new RegExp("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\\u034f\\u061c\\u180e\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff"
  + "\\ufff9-\\ufffb\\u{e0000}-\\u{e0fff}]", "gu");

/** Returns a text in which these characters are visible signs, as in the views. */
function visible(text) {
  return text.replace(HIDDEN, (sign) => {
    const code = sign.codePointAt(0);
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    return `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
  });
}
