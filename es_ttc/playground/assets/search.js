/** The search view (first version). */

import { reasonOf, request } from "./api.js";
import { Evidence } from "./evidence.js";
import { html, useEffect, useState } from "./lib.js";
import { describe, navigate, route } from "./state.js";

/** @param {{index: string}} props */
export function Search({ index }) {
  const query = route.value.params.get("q") ?? "";
  const [answer, setAnswer] = useState(/** @type {any} */ (null));
  useEffect(() => {
    if (query && index) run(index, query).then(setAnswer);
  }, [index, query]);
  const submit = (/** @type {any} */ event) => {
    event.preventDefault();
    navigate("search", { index, q: event.target.q.value });
  };
  return html`
    <form onSubmit=${submit}>
      <input name="q" value=${query} aria-label="Query" />
      <button type="submit">Search</button>
    </form>
    ${answer?.error && html`<p class="error">${answer.error}</p>`}
    ${answer?.response?.hits?.hits.map(
      (/** @type {any} */ hit) => html`<${Evidence} key=${hit._id} hit=${hit} ...${answer} />`,
    )}
  `;
}

/**
 * @param {string} name
 * @param {string} text
 */
async function run(name, text) {
  const index = await describe(name);
  const body = {
    query: { multi_match: { query: text, fields: index.fields } },
    rescore: { window_size: 100, ttc: { method: "blend", passages: 1, detail: true } },
    _source: index.fields,
  };
  const reply = await request("POST", `/${encodeURIComponent(name)}/_search`, body);
  return reply.status === 200 ? { index, request: body, response: reply.body } : { error: reasonOf(reply) };
}
