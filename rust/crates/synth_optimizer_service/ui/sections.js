// Shows a view again: replaces the sections that changed. What the reader opened, typed or focused stays.

/** Each shown section as the service sent it, before the page changed it. */
const originals = new WeakMap();

/** Remembers a section as the service sent it, unless it is known. */
export function rememberSection(section) {
  if (!originals.has(section)) originals.set(section, section.outerHTML);
}

/** Replaces the sections of a view that changed. `prepare` is called with each new one. */
export function replaceSections(before, view, prepare) {
  const keyOf = (section, place) => section.id || `section-${place}`;
  const known = new Map([...before.children].map((section, place) => [keyOf(section, place), section]));
  const focusAgain = keepFocus();
  const fresh = [];
  const sections = [...view.children].map((section, place) => {
    const old = known.get(keyOf(section, place));
    known.delete(keyOf(section, place));
    rememberSection(section);
    if (old !== undefined && (originals.get(old) === originals.get(section) || old.dataset.events !== undefined)) return old;
    fresh.push(section);
    if (old !== undefined) {
      keepState(old, section);
      old.replaceWith(section);
    }
    return section;
  });
  for (const gone of known.values()) gone.remove();
  // Sections that stay are not moved: one that moves loses its focus and its scroll position.
  let next = before.firstElementChild;
  for (const section of sections) {
    if (section === next) next = next.nextElementSibling;
    else before.insertBefore(section, next);
  }
  fresh.forEach(prepare);
  focusAgain();
}

/** Copies what the reader opened and typed. */
function keepState(old, section) {
  const fresh = [...section.querySelectorAll("details")];
  [...old.querySelectorAll("details")].forEach((details, place) => {
    if (fresh[place]) fresh[place].open = details.open;
  });
  const scrolls = [...section.querySelectorAll(".scroll, .feed, pre, .diff")];
  [...old.querySelectorAll(".scroll, .feed, pre, .diff")].forEach((box, place) => {
    const [left, top] = [box.scrollLeft, box.scrollTop];
    if (scrolls[place] && (left || top)) requestAnimationFrame(() => scrolls[place].scrollTo(left, top));
  });
  const inputs = [...section.querySelectorAll("input, select, textarea")];
  [...old.querySelectorAll("input, select, textarea")].forEach((input, place) => {
    if (inputs[place]?.name === input.name) inputs[place].value = input.value;
  });
}

/** Returns a function that gives the focus back to the same place, if its section was replaced. */
function keepFocus() {
  const active = document.activeElement;
  const section = active?.closest("#view > .view > [id]");
  if (!section) return () => {};
  const selector = selectorOf(active);
  const place = [...section.querySelectorAll(selector)].indexOf(active);
  return () => {
    if (active.isConnected) return;
    const same = document.getElementById(section.id)?.querySelectorAll(selector) ?? [];
    (same[place] ?? same[0])?.focus({ preventScroll: true });
  };
}

/** The attributes that identify an element over all refreshes. Others, such as scroll boxes, are identified by their order. */
const MARKS = ["data-row", "data-candidate", "data-action", "href", "name"];

function selectorOf(element) {
  const marks = MARKS.filter((name) => element.hasAttribute(name));
  return element.localName + marks.map((name) => `[${name}="${CSS.escape(element.getAttribute(name))}"]`).join("");
}
