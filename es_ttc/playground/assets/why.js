/** Why a document is where it is in a column, or is not there. */

import { request } from "./api.js";
import { keyOf, titleOf } from "./hits.js";
import { h, html, useState } from "./lib.js";
import { Dialog, Fault, Field, PLAIN, Table, useAnswer } from "./ui.js";

/** @param {{found: Found, others: Hit[], index: IndexInfo, close: () => void}} props Hits of all columns, to choose from. */
export function WhyDialog({ found, others, index, close }) {
  const [id, setId] = useState("");
  const ask = async () =>
    id ? request("POST", "/_ttc/explain", { index: index.name, id, search: found.request }) : null;
  const { value: why, error } = useAnswer(ask, [id]);
  const submit = (/** @type {any} */ event) => {
    event.preventDefault();
    setId(event.target.elements.id.value.trim());
  };
  const here = new Set(found.response.hits.hits.map(keyOf));
  const absent = new Map(others.flatMap((hit) => (here.has(keyOf(hit)) ? [] : [[hit._id, titleOf(hit, index)]])));
  const options = [...absent].map(([name, title]) => html`<option key=${name} value=${name}>${title}</option>`);
  const field = { label: "Id of a document", name: "id", list: "absent", required: true, ...PLAIN };
  const content = html`
    <form onSubmit=${submit}>
      ${h(Field, field)} <datalist id="absent">${options}</datalist>
      <button class="primary">Explain</button>
    </form>
    ${h(Fault, { text: error })}
    <div class="evidence" role="status">
      ${!error && id && (why?.id === id ? h(Places, { why, request: found.request }) : "Searching…")}
    </div>
  `;
  return h(Dialog, { title: "Why is a document not on page one?", kind: "why", close }, content);
}

/** @param {{why: Why, request: any}} props The document's ranks on a logarithmic scale, of which page one is marked. */
function Places({ why: { reasons, signals, rank, found, first_pass_rank: first }, request: { size: page, rescore } }) {
  const last = Math.max(found, first ?? 0, page + 1);
  const at = (/** @type {number} */ place) => `${(100 * Math.log(place)) / Math.log(last)}%`;
  const ranks = Object.entries(signals).map(([name, one]) => ({ name: name.replaceAll("_", " "), rank: one.rank }));
  const rows = [{ name: rescore.ttc.method, rank }, { name: "the query alone", rank: first }, ...ranks].map((one) => {
    const dot = one.rank && html`<circle cx=${at(one.rank)} cy="50%" r="4" />`;
    const track = html`<td class="interval">
      <svg aria-hidden="true">
        <line x2=${at(page)} y1="50%" y2="50%" />
        <line class="rest" x1=${at(page)} x2="100%" y1="50%" y2="50%" />
        ${dot}
      </svg>
    </td>`;
    return { key: one.name, cells: [one.name, track, one.rank ?? "–"] };
  });
  return html`
    <ul>
      ${reasons.map((sentence) => html`<li key=${sentence}>${sentence}</li>`)}
    </ul>
    ${h(Table, { kind: "signals", head: ["ranked by", `1 to ${last}`, "rank"], rows })}
    <p class="hint">The strong part of a line is page one.</p>
  `;
}
