// Requests to the service. The token is asked for once and kept in memory only.

let token = null;
let asking = null;

/** An error answer of the service. */
export class ServiceError extends Error {
  constructor(status, body) {
    const error = body?.error ?? {};
    super(error.message ?? `the service answered with status ${status}`);
    this.status = status;
    this.code = error.code ?? "";
    this.hint = error.hint ?? "";
    this.fields = error.field_errors ?? [];
    this.state = error.state ?? null;
  }
}

/** Says in words why a request failed. */
export function reasonOf(problem) {
  return problem instanceof ServiceError ? problem.message : "The service does not answer.";
}

/** Returns whether the reader gave a token. */
export function hasToken() {
  return token !== null;
}

/**
 * Sends a request. Asks for the token if the service wants one; if the reader gives none, the refusal is the answer.
 * Network failures are thrown as TypeError.
 */
export async function send(path, options = {}) {
  for (;;) {
    const headers = new Headers(options.headers);
    if (token !== null) headers.set("Authorization", `Bearer ${token}`);
    const answer = await fetch(path, { ...options, headers, cache: "no-store" });
    if (answer.status !== 401 || !(await askToken(token !== null))) return answer;
  }
}

/** Sends a request and returns its JSON document. */
export async function call(path, { method = "GET", body, headers, signal } = {}) {
  const options = { method, headers: { ...headers }, signal };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  const answer = await send(path, options);
  const text = await answer.text();
  if (!answer.ok) throw errorOf(answer.status, text);
  return text === "" ? null : parse(text);
}

/** Returns the error of a refused request from the text of its answer. */
export function errorOf(status, text) {
  return new ServiceError(status, parse(text));
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Asks for the token. Requests that need it at the same time share one question. Returns whether there is an answer. */
function askToken(wasWrong) {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById("token-dialog");
    const form = dialog.querySelector("form");
    form.querySelector("[role=alert]").textContent = wasWrong ? "The service does not accept this token." : "";
    // The escape key leaves the value of the button as it is.
    dialog.returnValue = "";
    dialog.addEventListener("close", () => {
      const isGiven = dialog.returnValue === "given";
      if (isGiven) token = form.elements.token.value.trim();
      form.reset();
      asking = null;
      resolve(isGiven);
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}
