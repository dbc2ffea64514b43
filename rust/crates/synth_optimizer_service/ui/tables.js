// Tables whose columns sort, and times that say how long ago they were.

let order = null;

/** Adds sorting to the tables of a view. The chosen order survives a refresh. */
export function connectTables(view) {
  for (const table of view.querySelectorAll("table[data-sortable]")) {
    const heads = [...table.querySelectorAll("thead th")];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      button.addEventListener("click", () => {
        order = order?.column === column ? { column, down: !order.down } : { column, down: column > 1 };
        sort(table, heads);
      });
      head.replaceChildren(button);
    });
    if (order !== null) sort(table, heads);
  }
}

function sort(table, heads) {
  const { column, down } = order;
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
