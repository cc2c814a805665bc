/** Where the time of a search went. */

import { h, html } from "./lib.js";
import { Table } from "./ui.js";

/** The stages in the order in which they begin, in words. */
const STAGES = /** @type {Record<string, string>} */ ({
  template: "the template",
  rewrite: "rewriting the query",
  retrieve: "searching by vectors",
  first_pass: "the engine's search",
  candidates: "nearest documents",
  encode: "encoding the query",
  features: "reading features",
  graph: "reading neighbours",
  rerank: "the reranker",
  score: "scoring",
  map: "evidence",
  passages: "passages",
});

/** @type {(response: SearchResponse) => [string, number][]} Stages with their milliseconds. */
function stagesOf(response) {
  const took = { ...response.ttc?.took };
  const sum = Object.values(took).reduce((one, other) => one + other, 0);
  took.first_pass ??= Math.max(0, response.took - sum); // without a window the rest is the engine's search
  const inOrder = new Set([...Object.keys(STAGES), ...Object.keys(took)]);
  return [...inOrder].flatMap((name) => (took[name] > 0 ? [[name, took[name]]] : []));
}

/** @type {(ms: number) => string} */
const shownMs = (ms) => ms.toFixed(ms < 10 ? 1 : 0);

/** @param {{response: SearchResponse, ms: number}} props */
export function Took({ response, ms }) {
  const stages = stagesOf(response);
  const series = (/** @type {number} */ place, style = {}) => h("i", { "data-series": place % 6, style });
  const rows = stages.map(([name, part], place) => {
    return { key: name, cells: [[series(place), STAGES[name] ?? name], shownMs(part)] };
  });
  return html`
    <details class="took">
      <summary>
        <span class="visually-hidden">Time: </span>
        <span class="bar">${stages.map(([, part], place) => series(place, { flexGrow: part }))}</span>
        <span>${shownMs(response.took)} ms</span>
      </summary>
      ${h(Table, { caption: `Milliseconds; some stages overlap. ${shownMs(ms)} until the answer was here.`, rows })}
    </details>
  `;
}
