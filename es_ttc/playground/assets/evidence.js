/** What is shown when a hit is opened. */

import { html } from "./lib.js";

/**
 * @param {object} props
 * @param {any} props.hit The hit, with the method's details in `_ttc`.
 * @param {any} props.request The search's body.
 * @param {any} props.response The response that contains the hit.
 * @param {import("./state.js").IndexInfo} props.index
 */
export function Evidence({ hit, index }) {
  const source = hit._source ?? {};
  return html`
    ${index.fields.map((field) => source[field] && html`<p key=${field} class="text">${String(source[field])}</p>`)}
    ${hit._ttc && html`<pre class="json">${JSON.stringify(hit._ttc, null, 2)}</pre>`}
  `;
}
