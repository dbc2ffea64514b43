// Tables whose columns sort, and times that say how long ago they were.

/** Adds sorting to the tables of a view. The order is a part of the address: `?sort=cost`, or `?sort=-cost` from the highest. */
export function connectTables(view) {
  for (const table of view.querySelectorAll("table[data-sortable]")) {
    const heads = [...table.querySelectorAll("thead th")];
    heads.forEach((head, column) => {
      if (head.dataset.unsorted !== undefined) return;
      const name = head.textContent;
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = name;
      button.addEventListener("click", () => {
        const order = currentOrder();
        const down = order?.name === name ? !order.down : column > 1;
        history.replaceState(null, "", withOrder(location.href, `${down ? "-" : ""}${name}`));
        sort(table, heads);
      });
      head.replaceChildren(button);
    });
    sort(table, heads);
  }
}

/** Returns an address of the page with the order of the current one. */
export function keepOrder(address) {
  const order = new URLSearchParams(location.search).get("sort");
  return order === null ? address : withOrder(address, order);
}

function withOrder(address, order) {
  const changed = new URL(address, location.href);
  changed.searchParams.set("sort", order);
  return changed.pathname + changed.search + changed.hash;
}

function currentOrder() {
  const order = new URLSearchParams(location.search).get("sort");
  return order === null ? null : { name: order.replace(/^-/, ""), down: order.startsWith("-") };
}

function sort(table, heads) {
  const order = currentOrder();
  const column = heads.findIndex((head) => head.textContent === order?.name && head.dataset.unsorted === undefined);
  if (column < 0) return;
  const { down } = order;
  heads.forEach((head, place) => {
    if (place === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  });
  const body = table.tBodies[0];
  const value = (row) => {
    const cell = row.cells[column];
    return cell?.dataset.sort ?? cell?.textContent ?? "";
  };
  const compare = (left, right) => {
    const [one, other] = [value(left), value(right)];
    if (one === "" || other === "") return one === other ? 0 : one === "" ? 1 : -1;
    const numbers = [Number(one), Number(other)];
    const found = numbers.some(Number.isNaN) ? one.localeCompare(other) : numbers[0] - numbers[1];
    return down ? -found : found;
  };
  body.append(...[...body.rows].sort(compare));
}

const UNITS = [["day", 86_400], ["hour", 3600], ["minute", 60], ["second", 1]];
const words = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "short" });

/** Writes how long ago each time of a view was. The exact time is its tooltip. */
export function refreshTimes(view) {
  const now = Date.now();
  for (const element of view.querySelectorAll("time[datetime]")) {
    const seconds = Math.round((Date.parse(element.dateTime) - now) / 1000);
    if (Number.isNaN(seconds)) continue;
    element.title = element.dateTime;
    const [unit, size] = UNITS.find(([, size]) => Math.abs(seconds) >= size) ?? UNITS.at(-1);
    const text = words.format(Math.trunc(seconds / size), unit);
    if (element.textContent !== text) element.textContent = text;
  }
}
