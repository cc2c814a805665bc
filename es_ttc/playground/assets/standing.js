/** How the pooled methods stand, and what tuning would choose: read again after every few judgements. */

import { request } from "./api.js";
import { judgementsPath } from "./judging.js";
import { h, html } from "./lib.js";
import { signed } from "./text.js";
import { Fault, Table, useAnswer } from "./ui.js";

/** Judgements after which the figures are computed again. */
const EVERY = 10;

/** @param {{index: string, graded: number}} props Judgements since the page was opened. */
export function Standing({ index, graded }) {
  const ask = /** @type {() => Promise<Stands>} */ (() => request("GET", `${judgementsPath(index)}/standing`));
  const { value: stands, error, again } = useAnswer(ask, [Math.floor(graded / EVERY)]);
  const judged = stands && stands.methods.length > 0;
  return html`<section class="standing" aria-label="How the methods stand">
    <h2>How the methods stand</h2>
    ${h(Fault, { text: error })} ${stands && h(LeftOut, stands)} ${judged && h(Methods, stands)}
    ${stands && !judged && html`<p class="hint">Judge some documents to see it.</p>`}
    ${stands?.tuned && h(Tuned, { index, ...stands.tuned })}
    ${stands && !stands.tuned && html`<p class="hint">Tuning chooses nothing yet: ${stands.why}.</p>`}
    <p class="hint">
      Computed again after every ${EVERY} judgements. <button class="plain" onClick=${again}>Now</button>
    </p>
  </section>`;
}

/** @param {Stands} props */
function LeftOut({ unreadable }) {
  const [first] = unreadable;
  return (
    first &&
    html`<p class="notice" role="note">
      ${unreadable.length} records of ttc-judgements and ttc-signals are none of es-ttc and are left out, such as${" "}
      <code>${first}</code>: delete them.
    </p>`
  );
}

/** @param {Stands} props */
function Methods({ methods, judged_queries: queries, clear }) {
  const from = Math.max(0, Math.min(...methods.map(({ low }) => low)) - 0.05);
  const to = Math.min(1, Math.max(...methods.map(({ high }) => high)) + 0.05);
  const at = (/** @type {number} */ value) => `${(100 * (value - from)) / (to - from || 1)}%`;
  const rows = methods.map(({ method, low, high, "ndcg@10": ndcg, "unjudged@10": unjudged }) => {
    const interval = html`<td class="interval">
      <svg role="img" aria-label=${`${low.toFixed(3)} to ${high.toFixed(3)}`}>
        <line x1=${at(low)} x2=${at(high)} y1="50%" y2="50%" />
        <circle cx=${at(ndcg)} cy="50%" r="4" />
      </svg>
    </td>`;
    return { key: method, cells: [method, interval, ndcg.toFixed(3), `${Math.round(100 * unjudged)}%`] };
  });
  const unjudged = h("span", { title: "share of the first ten documents that nobody judged" }, "unjudged");
  const caption = `nDCG@10 of ${queries} judged queries, with 95% intervals`;
  const [{ method: best }] = methods;
  const verdict = clear
    ? "is clearly better than each other method."
    : "is ahead, and not clearly yet: judge more queries.";
  return html`
    ${h(Table, { caption, head: ["method", "", "nDCG", unjudged], rows })}
    <p class=${clear ? "verdict clear" : "verdict"}>${best} ${verdict}</p>
  `;
}

/** @param {{index: string} & NonNullable<Stands["tuned"]>} props */
function Tuned({ index, weights, gain, low, high, clear }) {
  const named = Object.entries(weights ?? {}).map(([name, one]) => `${name.replaceAll("_", " ")} ${one.toFixed(2)}`);
  return html`
    <h3>What tuning would choose</h3>
    <p>${weights ? `Weights of blend: ${named.join(", ")}.` : "Blend's default weights."}</p>
    <p>
      ${signed(gain, 3)} nDCG@10 (${signed(low, 3)} to ${signed(high, 3)}), each query with weights that other queries
      chose. ${!clear && "No clear gain yet: keep the default weights."}
    </p>
    ${clear && html`<p><code>es-ttc tune --judgements ${index} --method blend --out blend.json</code> writes them.</p>`}
  `;
}
