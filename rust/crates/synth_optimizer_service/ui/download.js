// Downloads of the files of a run.

import { errorOf, hasToken, reasonOf, send } from "./api.js";

/** Downloads a file. The browser does it by itself unless it needs the token. */
export async function download(link) {
  const name = link.pathname.split("/").at(-1);
  const save = (href) => Object.assign(document.createElement("a"), { href, download: name }).click();
  let answer;
  try {
    answer = await send(link.pathname, { method: hasToken() ? "GET" : "HEAD" });
    if (!answer.ok) throw errorOf(answer.status, await answer.text());
    if (hasToken()) {
      // The browser keeps a large blob on disk.
      const address = URL.createObjectURL(await answer.blob());
      save(address);
      setTimeout(() => URL.revokeObjectURL(address), 10_000);
    } else {
      save(link.href);
    }
    noteOf(link).textContent = "";
  } catch (problem) {
    noteOf(link).textContent = reasonOf(problem);
  }
}

/** Returns the place below a link that says what went wrong. */
function noteOf(link) {
  if (!link.nextElementSibling?.matches(".note")) {
    const note = Object.assign(document.createElement("div"), { className: "note bad" });
    note.setAttribute("role", "status");
    link.after(note);
  }
  return link.nextElementSibling;
}
