/** Where the time of a search went. */

import { html } from "./lib.js";

/** The stages in the order in which they begin, in words. */
const STAGES = [
  ["template", "the template"],
  ["rewrite", "rewriting the query"],
  ["retrieve", "searching by vectors"],
  ["first_pass", "the engine's search"],
  ["candidates", "nearest documents"],
  ["encode", "encoding the query"],
  ["features", "reading features"],
  ["graph", "reading neighbours"],
  ["rerank", "the reranker"],
  ["score", "scoring"],
  ["map", "evidence"],
  ["passages", "passages"],
];

/**
 * @param {any} response
 * @returns {{name: string, label: string, ms: number}[]}
 */
function stagesOf(response) {
  const took = { ...response.ttc?.took };
  const sum = Object.values(took).reduce((one, other) => one + other, 0);
  took.first_pass ??= Math.max(0, response.took - sum); // without a window the rest is the engine's search
  const known = STAGES.map(([name]) => name);
  return Object.keys(took)
    .sort((a, b) => rank(known, a) - rank(known, b))
    .filter((name) => took[name] > 0)
    .map((name) => ({ name, label: STAGES[known.indexOf(name)]?.[1] ?? name, ms: took[name] }));
}

/**
 * @param {string[]} known
 * @param {string} name
 */
function rank(known, name) {
  return known.includes(name) ? known.indexOf(name) : known.length;
}

/** @param {number} ms */
const shown = (ms) => (ms < 10 ? ms.toFixed(1) : ms.toFixed(0));

/** @param {{response: any, ms: number}} props */
export function Took({ response, ms }) {
  const stages = stagesOf(response);
  const total = stages.reduce((sum, stage) => sum + stage.ms, 0);
  return html`
    <details class="took">
      <summary>
        <span class="visually-hidden">Time: </span>
        <span class="bar" aria-hidden="true">
          ${stages.map(
            ({ name, ms: part }, place) =>
              html`<i key=${name} data-series=${place % 6} style=${{ flexGrow: part / total }} />`,
          )}
        </span>
        <span>${shown(response.took)} ms</span>
      </summary>
      <table>
        <caption>
          Milliseconds; some stages overlap. ${shown(ms)} until the answer was here.
        </caption>
        <tbody>
          ${stages.map(
            ({ name, label, ms: part }, place) =>
              html`<tr key=${name}>
                <th scope="row"><i data-series=${place % 6} aria-hidden="true" />${label}</th>
                <td>${shown(part)}</td>
              </tr>`,
          )}
        </tbody>
      </table>
    </details>
  `;
}
