/** The form that makes pools: the searches of several queries by several methods, and what they found, sent at once. */

import { reasonOf, request } from "./api.js";
import { judgements } from "./judgements.js";
import { html, useState } from "./lib.js";
import { searchBody } from "./requests.js";
import { describe, info } from "./state.js";

const METHODS = ["blend", "hybrid", "bm25"];
const FURTHER = ["spectral", "maxsim", "nnn", "mmr"];
/** Documents of each run that the pool keeps. */
const KEPT = 100;
/** Queries that are sent together. */
const TOGETHER = 10;

/**
 * @param {object} props
 * @param {string} props.index
 * @param {boolean} props.open Whether the form shows at first.
 * @param {() => void} props.done Told when pools are made.
 */
export function PoolMaker({ index, open, done }) {
  const [text, setText] = useState("");
  const [chosen, setChosen] = useState(METHODS);
  const [depth, setDepth] = useState(5);
  const [progress, setProgress] = useState("");
  const [error, setError] = useState("");
  const offered = [...METHODS, ...FURTHER.filter((name) => info.value?.methods.includes(name))];

  /** @param {Event} event */
  async function submit(event) {
    event.preventDefault();
    const texts = [
      ...new Set(
        text
          .split("\n")
          .map((line) => line.trim())
          .filter(Boolean),
      ),
    ];
    setError("");
    try {
      const notes = await pool(index, texts, chosen, depth, setProgress);
      setText("");
      setError(notes);
      done();
    } catch (problem) {
      setError(/** @type {Error} */ (problem).message);
    }
    setProgress("");
  }

  /** @param {string} name */
  const toggle = (name) => setChosen(chosen.includes(name) ? chosen.filter((one) => one !== name) : [...chosen, name]);

  return html`
    <details class="pool" open=${open}>
      <summary>Pool queries</summary>
      <form onSubmit=${submit}>
        <label>
          Queries, one a line
          <textarea
            rows="5"
            required
            value=${text}
            onInput=${(/** @type {any} */ event) => setText(event.target.value)}
          ></textarea>
        </label>
        <fieldset>
          <legend>Methods</legend>
          ${offered.map(
            (name) => html`
              <label key=${name} class="choice">
                <input type="checkbox" checked=${chosen.includes(name)} onChange=${() => toggle(name)} />
                ${name}
              </label>
            `,
          )}
        </fieldset>
        <label>
          Documents of each method
          <input
            type="number"
            min="1"
            max="100"
            value=${depth}
            onInput=${(/** @type {any} */ event) => setDepth(Number(event.target.value))}
          />
        </label>
        <div class="actions">
          <button type="submit" class="primary" disabled=${Boolean(progress) || !chosen.length}>Pool</button>
          <span class="hint" role="status">${progress}</span>
        </div>
        ${error && html`<p class="error" role="alert">${error}</p>`}
      </form>
    </details>
  `;
}

/**
 * @param {string} name
 * @param {string[]} texts
 * @param {string[]} methods
 * @param {number} depth
 * @param {(progress: string) => void} report
 * @returns {Promise<string>} What the server remarks; empty for nothing.
 * @throws {Error} A search or the pooling failed.
 */
async function pool(name, texts, methods, depth, report) {
  const index = await describe(name);
  let note = "";
  for (let from = 0; from < texts.length; from += TOGETHER) {
    const queries = [];
    for (const text of texts.slice(from, from + TOGETHER)) {
      report(`query ${from + queries.length + 1} of ${texts.length}`);
      queries.push({
        text,
        runs: await Promise.all(methods.map((method) => run(method, index, text))),
      });
    }
    const body = {
      queries,
      methods: methods.map((method) => ({ method })),
      depth,
    };
    const made = await judgements("POST", name, "/pool", body);
    if (made.error) throw new Error(made.error);
    note = made.body.note;
  }
  return note;
}

/**
 * @param {string} method
 * @param {import("./state.js").IndexInfo} index
 * @param {string} text
 * @returns {Promise<string[]>} The documents that a method finds, best first.
 */
async function run(method, index, text) {
  const { highlight: _, ...body } = searchBody({ method, params: {} }, { index, text, size: KEPT }, []);
  if (body.rescore) {
    const { passages: __, ...section } = body.rescore.ttc;
    body.rescore.ttc = { ...section, on_error: "fail" };
  }
  const reply = await request("POST", `/${encodeURIComponent(index.name)}/_search`, { ...body, _source: false });
  if (reply.status !== 200) throw new Error(`${method}: ${reasonOf(reply)}`);
  return reply.body.hits.hits.map((/** @type {any} */ hit) => hit._id);
}
