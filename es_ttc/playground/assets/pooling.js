/** The form that makes pools: the searches of several queries by several methods, and what they found, sent at once. */

import { request } from "./api.js";
import { ColumnEditors, columnsOf, columnsOfDrafts, draftOf } from "./columns.js";
import { judgementsPath } from "./judging.js";
import { h, html, useState } from "./lib.js";
import { runBody, searchPath } from "./requests.js";
import { describe, route } from "./state.js";
import { Fault, Field, typed } from "./ui.js";

/** What is pooled where the address names no columns. */
const METHODS = JSON.stringify(["blend", "hybrid", "bm25"]);
/** The most that a pool takes. */
const MOST = 8;
/** Documents of each run that the pool keeps. */
const KEPT = 100;
/** Queries that are sent together. */
const TOGETHER = 10;

/** @param {{index: string, open: boolean, done: () => void}} props Told when pools are made. */
export function PoolMaker({ index, open, done }) {
  const [text, setText] = useState("");
  const [drafts, setDrafts] = useState(() => columnsOf(route.value.params.get("columns") || METHODS).map(draftOf));
  const [depth, setDepth] = useState("5");
  const [progress, setProgress] = useState("");
  const [error, setError] = useState("");
  const number = { type: "number", min: 1, max: 100 };

  /** @param {Event} event */
  async function submit(event) {
    event.preventDefault();
    const columns = columnsOfDrafts(drafts);
    const texts = new Set(text.split("\n").map((line) => line.trim()));
    texts.delete("");
    if (!columns || !texts.size) return;
    setError("");
    try {
      const note = await pool(index, [...texts], columns, Number(depth), setProgress);
      setText("");
      setError(note);
      done();
    } catch (problem) {
      setError(/** @type {Error} */ (problem).message);
    }
    setProgress("");
  }

  return html`
    <details class="pool" open=${open}>
      <summary>Pool queries</summary>
      <form onSubmit=${submit}>
        <label>
          Queries, one a line
          <textarea rows="5" required value=${text} onInput=${typed(setText)}></textarea>
        </label>
        <fieldset>
          <legend>Methods</legend>
          ${h(ColumnEditors, { what: "run", drafts, change: setDrafts, fewest: 1, most: MOST })}
        </fieldset>
        ${h(Field, { label: "Documents of each method", ...number, value: depth, onInput: typed(setDepth) })}
        <div class="actions">
          <button type="submit" class="primary" disabled=${Boolean(progress)}>Pool</button>
          <span class="hint" role="status">${progress}</span>
        </div>
        ${h(Fault, { text: error })}
      </form>
    </details>
  `;
}

/**
 * What the server remarks; empty for nothing. It throws if a search or the pooling fails.
 * @type {(name: string, texts: string[], methods: Column[], depth: number, report: (progress: string) => void) =>
 *   Promise<string>}
 */
async function pool(name, texts, methods, depth, report) {
  const index = await describe(name);
  let note = "";
  for (let from = 0; from < texts.length; from += TOGETHER) {
    const queries = [];
    for (const text of texts.slice(from, from + TOGETHER)) {
      report(`query ${from + queries.length + 1} of ${texts.length}`);
      queries.push({ text, runs: await Promise.all(methods.map((method) => run(method, index, text))) });
    }
    const made = await request("POST", `${judgementsPath(name)}/pool`, { queries, methods, depth });
    note = made.note;
  }
  return note;
}

/** @type {(column: Column, index: IndexInfo, text: string) => Promise<string[]>} The documents found, best first. */
async function run(column, index, text) {
  const body = runBody(column, { index, text, size: KEPT, filters: {}, show: [] });
  try {
    const response = /** @type {SearchResponse} */ (await request("POST", searchPath(index.name), body));
    return response.hits.hits.map((hit) => hit._id);
  } catch (problem) {
    throw new Error(`${column.method}: ${/** @type {Error} */ (problem).message}`);
  }
}
