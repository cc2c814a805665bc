/** Columns: methods with their parameters, as they stand in the address and in forms. */

import { h, html } from "./lib.js";
import { BM25 } from "./requests.js";
import { info } from "./state.js";
import { parsedJson } from "./text.js";
import { Fault, PLAIN, Select, typed } from "./ui.js";

export const MOST = 4;
export const FEWEST = 2;
const DEFAULT = [BM25, "blend"];
/** The methods that fit most searches; the others are listed below "All methods". */
const FIVE = ["blend", "hybrid", "spectral", "maxsim", "dense"];

/** @type {(text: string | null) => Column[]} Two to four columns, from the address. */
export function columnsOf(text) {
  const found = parsedJson(text);
  const columns = (Array.isArray(found) ? found : []).flatMap(columnOf).slice(0, MOST);
  for (const method of DEFAULT) if (columns.length < FEWEST) columns.push({ method, params: {} });
  return columns;
}

/** @type {(params: URLSearchParams) => number} Hits of each column, from the address. */
export const sizeOf = (params) => Math.min(100, Math.max(1, Number(params.get("size")) || 10));

/** @type {(value: any) => Column[]} The column that a method's name or an object with `method` and `params` means. */
function columnOf(value) {
  const { method, params } = typeof value === "string" ? { method: value, params: {} } : (value ?? {});
  return typeof method === "string" ? [{ method, params: isObject(params) ? params : {} }] : [];
}

/** @type {(columns: Column[]) => string} The columns for the address; empty for the usual ones. */
export function columnsAsText(columns) {
  const short = columns.map((column) => (Object.keys(column.params).length ? column : column.method));
  const text = JSON.stringify(short);
  return text === JSON.stringify(DEFAULT) ? "" : text;
}

/** @type {(column: Column) => Draft} */
export function draftOf({ method, params }) {
  return { method, params: Object.keys(params).length ? JSON.stringify(params) : "" };
}

/** @type {(drafts: Draft[]) => Column[] | null} Null if the parameters of one are no JSON object. */
export function columnsOfDrafts(drafts) {
  const columns = drafts.flatMap(({ method, params }) => {
    const found = params.trim() ? parsedJson(params) : {};
    return isObject(found) ? [{ method, params: found }] : [];
  });
  return columns.length === drafts.length ? columns : null;
}

/** @type {(value: unknown) => boolean} */
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/**
 * The form of several columns.
 * @param {{what: string, drafts: Draft[], change: (drafts: Draft[]) => void, fewest: number, most: number}} props
 *   What one is called; how many there must and may be.
 */
export function ColumnEditors({ what, drafts, change, fewest, most }) {
  const add = () => {
    const method = FIVE.find((name) => drafts.every((draft) => draft.method !== name)) ?? "blend";
    change([...drafts, { method, params: "" }]);
  };
  const editor = (/** @type {Draft} */ draft, /** @type {number} */ place) => {
    const replace = (/** @type {Draft[]} */ ...by) => change(drafts.toSpliced(place, 1, ...by));
    const remove = drafts.length > fewest && (() => replace());
    return h(Editor, { key: place, what: `${what} ${place + 1}`, draft, change: replace, remove });
  };
  return html`<div class="editors">
    ${drafts.map(editor)} ${drafts.length < most && html`<button type="button" onClick=${add}>Add a ${what}</button>`}
  </div>`;
}

/** @param {{what: string, draft: Draft, change: (draft: Draft) => void, remove: (() => void) | false}} props */
function Editor({ what, draft: { method, params }, change, remove }) {
  const valid = columnsOfDrafts([{ method, params }]) !== null;
  const offered = [...(info.value?.methods ?? []), ...(info.value?.rewriters ?? [])];
  const named = (/** @type {string} */ chosen) => change({ method: chosen, params: "" });
  const options = [...new Set([BM25, ...FIVE, "", method, ...offered])].map((name) => [name, name || "All methods"]);
  const label = `Parameters of ${what}, as JSON`;
  const onInput = typed((text) => change({ method, params: text }));
  const given = { class: "params", placeholder: "parameters: {…}", value: params, ...PLAIN, onInput };
  return html`<fieldset class="column-editor">
    <legend class="visually-hidden">${what}</legend>
    ${h(Select, { label: `Method of ${what}`, value: method, options, change: named })}
    ${method !== BM25 && h("input", { ...given, "aria-label": label, "aria-invalid": !valid })}
    ${remove && html`<button type="button" class="plain" aria-label=${`Remove ${what}`} onClick=${remove}>✕</button>`}
    ${h(Fault, { text: !valid && 'A JSON object, as in {"alpha": 0.5}' })}
  </fieldset>`;
}
