/** Where the time of a search went. */

import { h, html } from "./lib.js";

/** @type {(response: SearchResponse) => [string, number][]} Stages with their milliseconds. */
function stagesOf(response) {
  const took = { ...response.ttc?.took };
  const sum = Object.values(took).reduce((one, other) => one + other, 0);
  took.first_pass ??= Math.max(0, response.took - sum); // without a window the rest is the engine's search
  return Object.entries(took).filter(([, part]) => part > 0);
}

/** @type {(ms: number) => string} */
const shownMs = (ms) => ms.toFixed(ms < 10 ? 1 : 0);

/** @param {{response: SearchResponse, ms: number}} props */
export function Took({ response, ms }) {
  const stages = stagesOf(response);
  const parts = stages.map(([name, part]) => `${name.replaceAll("_", " ")} ${shownMs(part)}`).join(", ");
  const title = `Milliseconds, some of them at the same time: ${parts}. ${shownMs(ms)} until the answer was here.`;
  return html`<p class="took" title=${title}>
    <span class="visually-hidden">${title}</span>
    <span class="bar" aria-hidden="true"
      >${stages.map(([, part], place) => h("i", { style: { flexGrow: part, "--place": place % 5 } }))}</span
    >
    <span>${shownMs(response.took)} ms</span>
  </p>`;
}
