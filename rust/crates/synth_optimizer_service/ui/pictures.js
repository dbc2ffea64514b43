// Pictures that answer to the mouse and the keyboard: candidates of the lineage, and cells of the heat map.

/** Makes the candidates and cells of a view selectable. `go` receives the address of what was selected. */
export function connect(view, runPath, go) {
  for (const picture of view.querySelectorAll("svg.synth-picture")) {
    const items = [...picture.querySelectorAll("[data-candidate]")];
    if (items.length === 0) continue;
    // A cell of a heat map has its address with it.
    const address = (item) => item.dataset.href ?? `${runPath}/candidates/${encodeURIComponent(item.dataset.candidate)}`;
    // One stop for the tab key; the arrow keys move within the picture. In a report, which has no script, nothing is a stop.
    let [stop] = items;
    for (const item of items) {
      item.setAttribute("role", "link");
      item.setAttribute("aria-label", item.querySelector(":scope > title")?.textContent ?? item.dataset.candidate);
      item.setAttribute("tabindex", item === stop ? "0" : "-1");
    }
    picture.addEventListener("focusin", (event) => {
      const item = event.target.closest("[data-candidate]");
      if (item === null) return;
      stop.setAttribute("tabindex", "-1");
      item.setAttribute("tabindex", "0");
      stop = item;
    });
    picture.addEventListener("click", (event) => {
      const item = event.target.closest("[data-candidate]");
      if (item !== null) go(address(item));
    });
    picture.addEventListener("keydown", (event) => {
      const item = event.target.closest("[data-candidate]");
      if (item === null) return;
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        go(address(item));
        return;
      }
      const next = neighbour(items, item, event.key);
      if (next === null) return;
      event.preventDefault();
      next.focus();
    });
  }
}

/** Returns the nearest item in the direction of an arrow key. */
function neighbour(items, from, key) {
  const directions = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const direction = directions[key];
  if (direction === undefined) return null;
  const middle = (item) => {
    const box = item.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  };
  const [x, y] = middle(from);
  let best = null;
  let least = Infinity;
  for (const item of items) {
    const [itemX, itemY] = middle(item);
    const along = (itemX - x) * direction[0] + (itemY - y) * direction[1];
    const aside = Math.abs((itemX - x) * direction[1]) + Math.abs((itemY - y) * direction[0]);
    if (item === from || along < 1) continue;
    const distance = along + 3 * aside;
    if (distance < least) [best, least] = [item, distance];
  }
  return best;
}
