/** The search view: a query, and two to four columns of methods side by side. */

import { ColumnEditors, FEWEST, MOST, columnsAsText, columnsOf, columnsOfDrafts, draftOf, sizeOf } from "./columns.js";
import { focusHit, useSlashKey } from "./keyboard.js";
import { h, html, useEffect, useState } from "./lib.js";
import { Results } from "./results.js";
import { indices, info, loaded, navigate, route } from "./state.js";
import { PLAIN, Select, typed } from "./ui.js";

const SIZES = [5, 10, 20, 50];

/** @param {{index: string}} props */
export function Search({ index }) {
  const params = route.value.params;
  const query = params.get("q") ?? "";
  useSlashKey();
  const results = query && h(Results, { name: index, text: query, params });
  return [h(SearchForm, { index, params }), loaded.value && ((index && results) || h(Beginning, { index }))];
}

/** @param {{index: string, params: URLSearchParams}} props */
function SearchForm({ index, params }) {
  const given = () => ({
    text: params.get("q") ?? "",
    size: sizeOf(params),
    drafts: columnsOf(params.get("columns")).map(draftOf),
  });
  const [form, setForm] = useState(given);
  const change = (/** @type {Partial<typeof form>} */ changed) => setForm({ ...form, ...changed });
  useEffect(() => setForm(given()), [params]);
  const { text, size, drafts } = form;
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    const columns = columnsOfDrafts(drafts);
    if (!index || !text.trim() || !columns) return;
    const shortSize = size === 10 ? "" : String(size);
    const kept = Object.fromEntries(["filter", "show", "order"].map((name) => [name, params.get(name) ?? ""]));
    navigate("search", { index, q: text.trim(), size: shortSize, columns: columnsAsText(columns), ...kept });
  };
  const sizes = [...new Set([...SIZES, size])].sort((a, b) => a - b).map((count) => [String(count), `${count} hits`]);
  const sized = (/** @type {string} */ count) => change({ size: Number(count) });
  const onInput = typed((changed) => change({ text: changed }));
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => event.key === "ArrowDown" && focusHit(event, 0, 0);
  const field = { id: "query", type: "search", "aria-label": "Query", placeholder: "What are you looking for?" };
  const changed = (/** @type {Draft[]} */ all) => change({ drafts: all });
  return html`
    <form class="search" role="search" onSubmit=${submit}>
      <div class="query">
        ${h("input", { ...field, value: text, ...PLAIN, enterkeyhint: "search", onInput, onKeyDown })}
        ${h(Select, { label: "Hits in each column", value: String(size), options: sizes, change: sized })}
        <button class="primary">Search</button>
      </div>
      <details class="methods" open=${matchMedia("(width > 700px)").matches}>
        <summary>Methods: ${drafts.map(({ method }) => method).join(", ")}</summary>
        ${h(ColumnEditors, { what: "column", drafts, change: changed, fewest: FEWEST, most: MOST })}
      </details>
    </form>
  `;
}

/** @type {() => string} How much is encoded on demand so far; empty where nothing is. */
function encodedOnDemand() {
  const status = info.value?.on_demand;
  if (!status?.index_documents) return "";
  const share = Math.round((100 * status.encoded_documents) / status.index_documents);
  return `${share} % of the documents on demand are encoded; ${status.complete_windows} of the last ${status.windows} windows were complete.`;
}

/** @param {{index: string}} props */
function Beginning({ index }) {
  if (!index)
    return html`<p class="beginning">
      The engine shows no index with features of es-ttc. Type the name of one above, or make one:
      <code>es-ttc ingest NAME FILE</code>, or <code>es-ttc attach NAME</code> for an index that exists.
    </p>`;
  return html`
    <p class="beginning">
      Type a query: each column ranks the same documents by another method, and lines show how they move.
      ${indices.value.length > 1 && ` ${indices.value.length} indices have features.`} ${encodedOnDemand()} Keys:
      <kbd>/</kbd> to the query, <kbd>↓</kbd> <kbd>↑</kbd> <kbd>←</kbd> <kbd>→</kbd> between hits and columns,
      <kbd>Enter</kbd> opens a hit.
    </p>
  `;
}
