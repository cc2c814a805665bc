/** The columns of a search: their methods, as they stand in the address and in the form. */

import { html } from "./lib.js";
import { BM25 } from "./requests.js";

/**
 * @typedef {import("./requests.js").Column} Column
 * @typedef {{method: string, params: string}} Draft A column as it is typed.
 */

export const MOST = 4;
export const FEWEST = 2;
const DEFAULT = [BM25, "blend"];
/** Offered first when a column is added. */
const NEXT = ["hybrid", "spectral", "maxsim"];

/**
 * @param {string | null} text From the address.
 * @returns {Column[]} Two to four columns.
 */
export function columnsOf(text) {
  const columns = (text ? parsed(text) : []).slice(0, MOST);
  for (const method of DEFAULT) if (columns.length < FEWEST) columns.push({ method, params: {} });
  return columns;
}

/**
 * @param {URLSearchParams} params Of the address.
 * @returns {number} Hits of each column.
 */
export const sizeOf = (params) => Math.min(100, Math.max(1, Number(params.get("size")) || 10));

/**
 * @param {string} text
 * @returns {Column[]}
 */
function parsed(text) {
  try {
    const found = JSON.parse(text);
    return Array.isArray(found) ? found.flatMap(columnOf) : [];
  } catch {
    return [];
  }
}

/**
 * @param {any} value A method's name, or an object with `method` and `params`.
 * @returns {Column[]} The column; none if it is no such value.
 */
function columnOf(value) {
  if (typeof value === "string") return [{ method: value, params: {} }];
  if (typeof value?.method !== "string") return [];
  return [{ method: value.method, params: isObject(value.params) ? value.params : {} }];
}

/**
 * @param {Column[]} columns
 * @returns {string} The columns for the address; empty for the usual ones.
 */
export function columnsAsText(columns) {
  const short = columns.map(({ method, params }) => (Object.keys(params).length ? { method, params } : method));
  return JSON.stringify(short) === JSON.stringify(DEFAULT) ? "" : JSON.stringify(short);
}

/**
 * @param {Column} column
 * @returns {Draft}
 */
export function draftOf({ method, params }) {
  return { method, params: Object.keys(params).length ? JSON.stringify(params) : "" };
}

/**
 * @param {Draft} draft
 * @returns {Column | null} Null if the parameters are no JSON object.
 */
export function columnOfDraft({ method, params }) {
  if (!params.trim()) return { method, params: {} };
  try {
    const found = JSON.parse(params);
    return isObject(found) ? { method, params: found } : null;
  } catch {
    return null;
  }
}

/**
 * @param {Draft[]} drafts
 * @returns {Draft} A further column, by a method that none has yet.
 */
export function another(drafts) {
  const method = NEXT.find((name) => drafts.every((draft) => draft.method !== name)) ?? "blend";
  return { method, params: "" };
}

/** @param {unknown} value */
function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

/**
 * @param {object} props
 * @param {Draft} props.draft
 * @param {number} props.place From 0.
 * @param {string[]} props.methods
 * @param {(draft: Draft) => void} props.change
 * @param {(() => void) | null} props.remove Null if it cannot be removed.
 */
export function ColumnEditor({ draft, place, methods, change, remove }) {
  const valid = columnOfDraft(draft) !== null;
  const known = methods.includes(draft.method) ? methods : [draft.method, ...methods];
  const fault = `params-${place}-fault`;
  return html`
    <fieldset class="column-editor">
      <legend class="visually-hidden">Column ${place + 1}</legend>
      <select
        aria-label=${`Method of column ${place + 1}`}
        value=${draft.method}
        onChange=${(/** @type {any} */ event) => change({ method: event.target.value, params: "" })}
      >
        ${known.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
      </select>
      ${
        draft.method !== BM25 &&
        html`<input
          class="params"
          aria-label=${`Parameters of column ${place + 1}, as JSON`}
          placeholder="parameters: {…}"
          value=${draft.params}
          spellcheck=${false}
          autocomplete="off"
          aria-invalid=${!valid}
          aria-describedby=${valid ? undefined : fault}
          onInput=${(/** @type {any} */ event) => change({ ...draft, params: event.target.value })}
        />`
      }
      ${
        remove &&
        html`<button type="button" class="plain" aria-label=${`Remove column ${place + 1}`} onClick=${remove}>
          ✕
        </button>`
      }
      ${!valid && html`<p class="error" id=${fault} role="alert">A JSON object, as in {"alpha": 0.5}</p>`}
    </fieldset>
  `;
}
