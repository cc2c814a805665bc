/** Requests to the gateway, with the credentials of whoever uses the page; they are kept in memory only. */

import { signal } from "./lib.js";
import { parsedJson } from "./text.js";

/** The gateway's address, whatever path a proxy serves it at. */
const ROOT = new URL("../../", document.baseURI);

/** The gateway's address as a user would type it, without a slash at its end. */
export const GATEWAY = ROOT.href.replace(/\/$/, "");

/** What the dialog asks for; null if nothing is asked. */
export const asking = signal(/** @type {Asking | null} */ (null));

/** Whether credentials are kept. */
export const signedIn = signal(false);

const NONE = { authorization: "", token: "" };
/** @type {Credentials} */
let credentials = NONE;
/** @type {Promise<boolean> | null} */
let pending = null;

/** Why a request failed, in one sentence; the status is 0 if nothing answered. */
export class Refused extends Error {
  constructor(/** @type {number} */ status, /** @type {string} */ reason) {
    super(reason);
    this.status = status;
  }
}

/**
 * Send a request to a path with encoded names, and ask for credentials when they are refused.
 * @type {(method: string, path: string, body?: unknown, abort?: AbortSignal) => Promise<any>}
 *   The parsed answer of status 200; any other is thrown as `Refused`.
 */
export async function request(method, path, body, abort) {
  for (;;) {
    const used = credentials;
    const { response, text } = await send(method, path, body, abort);
    const answer = parsedJson(text);
    if (response.status === 200 && answer !== undefined) return answer;
    const refused = new Refused(response.status, reasonOf(answer, text, response.status));
    if (response.status !== 401) throw refused;
    if (credentials !== used) continue; // another request has asked for them meanwhile
    const gateway = response.headers.get("www-authenticate")?.includes('realm="es-ttc"') ?? false;
    pending ??= ask(gateway, (gateway ? used.token : used.authorization) !== "");
    if (!(await pending)) throw refused;
  }
}

/** Forget the credentials. */
export function signOut() {
  credentials = NONE;
  signedIn.value = false;
}

/** @type {(gateway: boolean, again: boolean) => Promise<boolean>} Whether credentials were given. */
function ask(gateway, again) {
  return new Promise((resolve) => {
    const answer = (/** @type {Partial<Credentials> | null} */ given) => {
      asking.value = null;
      pending = null;
      if (given) credentials = { ...credentials, ...given };
      signedIn.value = credentials.authorization !== "" || credentials.token !== "";
      resolve(given !== null);
    };
    asking.value = { gateway, again, answer };
  });
}

/** @type {(method: string, path: string, body: unknown, abort?: AbortSignal) => Promise<{response: Response, text: string}>} */
async function send(method, path, body, abort) {
  const headers = new Headers({ accept: "application/json" });
  if (credentials.authorization) headers.set("authorization", credentials.authorization);
  if (credentials.token && path.startsWith("/_ttc/")) headers.set("x-ttc-token", credentials.token);
  if (body !== undefined) headers.set("content-type", "application/json");
  try {
    const response = await fetch(new URL(path.slice(1), ROOT), {
      method,
      headers,
      body: JSON.stringify(body),
      credentials: "omit", // the browser's own dialog would keep the password
      signal: abort,
    });
    return { response, text: await response.text() };
  } catch (error) {
    if (abort?.aborted) throw error;
    throw new Refused(0, "the gateway does not answer: it is stopped, or the connection is lost");
  }
}

/** @type {(answer: any, text: string, status: number) => string} */
function reasonOf(answer, text, status) {
  if (answer === undefined) return text.slice(0, 300) || `an empty answer with status ${status}`;
  const cause = answer.error?.root_cause?.[0]?.reason ?? answer.error?.reason ?? answer.error;
  return typeof cause === "string" && cause ? cause : `status ${status}`;
}
