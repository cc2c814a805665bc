/** Requests about the judgements of an index. */

import { reasonOf, request } from "./api.js";

/**
 * @param {string} method
 * @param {string} index
 * @param {string} rest Path below the judgements of the index.
 * @param {unknown} [body]
 * @returns {Promise<{body: any, error: string}>} The answer, or why there is none.
 */
export async function judgements(method, index, rest = "", body) {
  const reply = await request(method, `/_ttc/judgements/${encodeURIComponent(index)}${rest}`, body);
  return {
    body: reply.body,
    error: reply.status === 200 ? "" : reasonOf(reply),
  };
}
