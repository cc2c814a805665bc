/** Requests to the gateway, with the credentials of whoever uses the page; they are kept in memory only. */

import { signal } from "./lib.js";

/**
 * @typedef {{status: number, body: any, ms: number}} Reply
 *   Status 0 if nothing answered; `body` is the parsed JSON, or an error in the engines' form.
 * @typedef {{authorization: string, token: string}} Credentials
 *   The value of the `Authorization` header, and the gateway's own token; each may be empty.
 * @typedef {{gateway: boolean, again: boolean, answer: (given: Partial<Credentials> | null) => void}} Asking
 *   The credentials are asked for: by the gateway itself or by the engine, and whether wrong ones were given before.
 */

/** The gateway's address, whatever path a proxy serves it at. */
const ROOT = new URL("../../", document.baseURI);

/** @type {Credentials} */
let credentials = { authorization: "", token: "" };

/** What the dialog asks for; null if nothing is asked. */
export const asking = signal(/** @type {Asking | null} */ (null));

/** Whether credentials are kept. */
export const signedIn = signal(false);

/** @type {Promise<boolean> | null} */
let pending = null;

/**
 * Send a request below the gateway's root, and ask for credentials when they are refused.
 * @param {string} method
 * @param {string} path As in `/index/_search`, with encoded names.
 * @param {unknown} [body] What is sent as JSON.
 * @param {AbortSignal} [abort]
 * @returns {Promise<Reply>}
 */
export async function request(method, path, body, abort) {
  for (;;) {
    const used = credentials;
    const { reply, realm } = await send(method, path, body, abort);
    if (reply.status !== 401) return reply;
    if (credentials !== used) continue; // another request has asked for them meanwhile
    const gateway = realm.includes('realm="es-ttc"');
    pending ??= ask(gateway, gateway ? used.token !== "" : used.authorization !== "");
    if (!(await pending)) return reply;
  }
}

/** Forget the credentials. */
export function signOut() {
  credentials = { authorization: "", token: "" };
  signedIn.value = false;
}

/** @returns {string} The gateway's address as a user would type it, without a slash at its end. */
export function gatewayAddress() {
  return ROOT.href.replace(/\/$/, "");
}

/**
 * @param {Reply} reply
 * @returns {string} Why a request failed, in one sentence.
 */
export function reasonOf(reply) {
  const error = reply.body?.error;
  const cause = error?.root_cause?.[0]?.reason ?? error?.reason ?? error;
  return typeof cause === "string" && cause ? cause : `status ${reply.status}`;
}

/**
 * @param {boolean} gateway
 * @param {boolean} again
 * @returns {Promise<boolean>} Whether credentials were given.
 */
function ask(gateway, again) {
  return new Promise((resolve) => {
    asking.value = {
      gateway,
      again,
      answer: (given) => {
        asking.value = null;
        pending = null;
        if (given) credentials = { ...credentials, ...given };
        signedIn.value = credentials.authorization !== "" || credentials.token !== "";
        resolve(given !== null);
      },
    };
  });
}

/**
 * @param {string} method
 * @param {string} path
 * @param {unknown} body
 * @param {AbortSignal} [abort]
 * @returns {Promise<{reply: Reply, realm: string}>}
 */
async function send(method, path, body, abort) {
  /** @type {Record<string, string>} */
  const headers = { accept: "application/json" };
  if (credentials.authorization) headers.authorization = credentials.authorization;
  if (credentials.token && path.startsWith("/_ttc/")) headers["x-ttc-token"] = credentials.token;
  if (body !== undefined) headers["content-type"] = "application/json";
  const began = performance.now();
  try {
    const response = await fetch(new URL(path.slice(1), ROOT), {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "omit", // the browser's own dialog would keep the password
      signal: abort,
    });
    const text = await response.text();
    const reply = { status: response.status, body: parsed(text, response.status), ms: performance.now() - began };
    return { reply, realm: response.headers.get("www-authenticate") ?? "" };
  } catch (error) {
    if (abort?.aborted) throw error;
    const reason = "the gateway does not answer: it is stopped, or the connection is lost";
    return { reply: { status: 0, body: { error: { reason } }, ms: performance.now() - began }, realm: "" };
  }
}

/**
 * @param {string} text
 * @param {number} status
 * @returns {any}
 */
function parsed(text, status) {
  try {
    return JSON.parse(text);
  } catch {
    return { error: { reason: text.slice(0, 300) || `an empty answer with status ${status}` } };
  }
}
