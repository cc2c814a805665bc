/** How the pooled methods stand, and what tuning would choose: read again after every few judgements. */

import { judgements } from "./judgements.js";
import { html, useEffect, useState } from "./lib.js";

/**
 * @typedef {{method: string, "ndcg@10": number, low: number, high: number, "unjudged@10": number}} Method
 * @typedef {{weights: Record<string, number> | null, gain: number, low: number, high: number, clear: boolean,
 *   queries: number}} Tuned
 * @typedef {{judged_queries: number, methods: Method[], clear: boolean, best: string | null, tuned: Tuned | null,
 *   why: string}} Stands
 */

/** Judgements after which the figures are computed again. */
const EVERY = 10;

/**
 * @param {object} props
 * @param {string} props.index
 * @param {number} props.graded Judgements since the page was opened.
 */
export function Standing({ index, graded }) {
  const [stands, setStands] = useState(/** @type {Stands | null} */ (null));
  const [error, setError] = useState("");
  const round = Math.floor(graded / EVERY);
  const read = async () => {
    const { body, error } = await judgements("GET", index, "/standing");
    setError(error);
    if (!error) setStands(body);
  };
  useEffect(() => {
    read();
  }, [round]);

  return html`
    <section class="standing" aria-label="How the methods stand">
      <h2>How the methods stand</h2>
      ${error && html`<p class="error" role="alert">${error}</p>`}
      ${stands && stands.methods.length > 0 && html`<${Methods} stands=${stands} />`}
      ${stands && !stands.methods.length && html`<p class="hint">Judge some documents to see it.</p>`}
      ${stands && html`<${Choice} index=${index} stands=${stands} />`}
      <p class="hint">
        Computed again after every ${EVERY} judgements.${" "}
        <button type="button" class="plain" onClick=${read}>Now</button>
      </p>
    </section>
  `;
}

/** @param {{stands: Stands}} props */
function Methods({ stands }) {
  const low = Math.max(0, Math.min(...stands.methods.map((one) => one.low)) - 0.05);
  const high = Math.min(1, Math.max(...stands.methods.map((one) => one.high)) + 0.05);
  const at = (/** @type {number} */ value) => `${(100 * (value - low)) / (high - low || 1)}%`;
  const best = stands.methods[0].method;
  return html`
    <table>
      <caption>
        nDCG@10 of ${stands.judged_queries} judged queries, with 95% intervals
      </caption>
      <thead>
        <tr>
          <th scope="col">method</th>
          <th scope="col"><span class="visually-hidden">interval</span></th>
          <th scope="col">nDCG</th>
          <th scope="col" title="share of the first ten documents that nobody judged">unjudged</th>
        </tr>
      </thead>
      <tbody>
        ${stands.methods.map(
          (one) => html`
            <tr key=${one.method}>
              <th scope="row">${one.method}</th>
              <td class="interval">
                <svg role="img" aria-label=${`${one.low.toFixed(3)} to ${one.high.toFixed(3)}`}>
                  <line x1=${at(one.low)} x2=${at(one.high)} y1="50%" y2="50%" />
                  <circle cx=${at(one["ndcg@10"])} cy="50%" r="4" />
                </svg>
              </td>
              <td>${one["ndcg@10"].toFixed(3)}</td>
              <td>${Math.round(100 * one["unjudged@10"])}%</td>
            </tr>
          `,
        )}
      </tbody>
    </table>
    <p class=${stands.clear ? "verdict clear" : "verdict"}>
      ${
        stands.clear
          ? `${best} is clearly better than each other method.`
          : `${best} is ahead, and not clearly yet: judge more queries.`
      }
    </p>
  `;
}

/** @param {{index: string, stands: Stands}} props */
function Choice({ index, stands }) {
  const [error, setError] = useState("");
  const { tuned, why } = stands;
  if (!tuned) return html`<p class="hint">Tuning chooses nothing yet: ${why}.</p>`;

  const download = async () => {
    const { body, error } = await judgements("GET", index, "/tuned");
    setError(error);
    if (!error) save(`blend-${index}.json`, JSON.stringify(body, null, 2));
  };
  const signed = (/** @type {number} */ value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;
  return html`
    <h3>What tuning would choose</h3>
    ${
      tuned.weights
        ? html`<dl class="weights">
            ${Object.entries(tuned.weights).map(
              ([name, weight]) =>
                html`<div key=${name}>
                  <dt>${name.replaceAll("_", " ")}</dt>
                  <dd>${weight.toFixed(2)}</dd>
                </div>`,
            )}
          </dl>`
        : html`<p>Blend's default weights.</p>`
    }
    <p>
      ${signed(tuned.gain)} nDCG@10 (${signed(tuned.low)} to ${signed(tuned.high)}), each query with weights that other
      queries chose. ${!tuned.clear && "No clear gain yet: keep the default weights."}
    </p>
    ${
      tuned.weights &&
      html`<button type="button" class=${tuned.clear ? "primary" : "plain"} onClick=${download}>
        ${tuned.clear ? "Download for serve --tuned" : "Download all the same"}
      </button>`
    }
    ${error && html`<p class="error" role="alert">${error}</p>`}
  `;
}

/**
 * @param {string} name
 * @param {string} content
 */
function save(name, content) {
  const address = URL.createObjectURL(new Blob([content], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000); // the browser may still read it
}
