/** The hits of a column: rank, move, title, and the passage that matched. */

import { html } from "./lib.js";
import { slice, textOf } from "./text.js";

/**
 * @typedef {import("./state.js").IndexInfo} IndexInfo
 * @typedef {{text: string, match: boolean}} Part
 * @typedef {{field: string, parts: Part[]}} Snippet
 */

const BEFORE = 80;
const LENGTH = 260;
/** What the engine puts around the words of a fragment that match. */
const TAG = /<em>(.*?)<\/em>/gs;

/** @param {any} hit */
export const keyOf = (hit) => `${hit._index}\n${hit._id}`;

/**
 * @param {any} hit
 * @param {IndexInfo} index
 * @returns {string} What names a hit: its first field if the index has several, else its id.
 */
export function titleOf(hit, { fields }) {
  const [first, ...others] = fields;
  return (others.length && slice(textOf(hit._source, first), 0, 200)) || hit._id || "without an id";
}

/**
 * @param {any} hit
 * @param {IndexInfo} index
 * @returns {Snippet | null} The part of the hit's text to show; null if it has no text.
 */
function snippetOf(hit, { fields }) {
  const [passage] = hit._ttc?.passages ?? [];
  if (passage && !isTitle(passage.field, fields))
    return { field: passage.field, parts: around(textOf(hit._source, passage.field), passage) };
  const field = [...fields].reverse().find((name) => hit.highlight?.[name]);
  if (field) return { field, parts: tagged(hit.highlight[field][0]) };
  const body = [...fields].reverse().find((name) => textOf(hit._source, name));
  if (!body) return null;
  const text = textOf(hit._source, body);
  return { field: body, parts: [{ text: cut(text, 0, LENGTH), match: false }] };
}

/**
 * @param {string} field
 * @param {string[]} fields
 */
function isTitle(field, fields) {
  return fields.length > 1 && field === fields[0];
}

/**
 * @param {string} text
 * @param {{start: number, end: number}} passage
 * @returns {Part[]}
 */
function around(text, { start, end }) {
  const space = slice(text, Math.max(0, start - BEFORE), start).indexOf(" ");
  const from = start > BEFORE ? start - BEFORE + space + 1 : 0;
  const to = Math.max(end, from + LENGTH);
  return [
    { text: (from ? "… " : "") + slice(text, from, start), match: false },
    { text: slice(text, start, end), match: true },
    { text: cut(text, end, to), match: false },
  ].filter((part) => part.text);
}

/**
 * @param {string} text
 * @param {number} start
 * @param {number} end
 */
function cut(text, start, end) {
  return slice(text, start, end) + (slice(text, end, end + 1) ? " …" : "");
}

/**
 * @param {string} fragment
 * @returns {Part[]}
 */
function tagged(fragment) {
  return fragment
    .split(TAG)
    .map((text, place) => ({ text, match: place % 2 === 1 }))
    .filter((part) => part.text);
}

/** @param {{before: number | undefined, rank: number, left: string}} props */
function Move({ before, rank, left }) {
  if (!left) return null;
  if (before === undefined) return html`<span class="move new" title=${`not on the page of ${left}`}>new</span>`;
  const by = before - rank;
  if (!by) return html`<span class="move" title=${`the same rank by ${left}`}>=</span>`;
  const title = `rank ${before} by ${left}`;
  const direction = by > 0 ? "up" : "down";
  return html`<span class=${`move ${direction}`} title=${title}>
    <span aria-hidden="true">${by > 0 ? "▲" : "▼"}</span
    ><span class="visually-hidden">${direction} </span>${Math.abs(by)}
  </span>`;
}

/**
 * @param {object} props
 * @param {any} props.hit
 * @param {number} props.rank From 1.
 * @param {IndexInfo} props.index
 * @param {Map<string, number> | undefined} props.ranks The ranks of the column on the left.
 * @param {string} props.left Its method; empty if there is none.
 * @param {string} props.marked The hit that is pointed at, in whatever column.
 * @param {number} props.tabIndex
 * @param {(key: string) => void} props.mark
 * @param {() => void} props.open
 */
export function Hit({ hit, rank, index, ranks, left, marked, tabIndex, mark, open }) {
  const key = keyOf(hit);
  const snippet = snippetOf(hit, index);
  const title = titleOf(hit, index);
  const titleMatched = isTitle(hit._ttc?.passages?.[0]?.field, index.fields);
  return html`
    <li>
      <button
        type="button"
        class=${key === marked ? "hit marked" : "hit"}
        data-key=${key}
        data-rank=${rank}
        tabindex=${tabIndex}
        aria-haspopup="dialog"
        onClick=${open}
        onFocus=${() => mark(key)}
        onPointerEnter=${() => mark(key)}
        onPointerLeave=${() => mark("")}
      >
        <span class="line">
          <span class="rank">${rank}</span>
          <strong>${titleMatched ? html`<mark>${title}</mark>` : title}</strong>
          <${Move} before=${ranks?.get(key)} rank=${rank} left=${left} />
          <span class="score" title="score">${scoreOf(hit._score)}</span>
        </span>
        ${
          snippet &&
          html`<span class="snippet">
            ${snippet.field !== index.fields.at(-1) && html`<span class="field">${snippet.field}: </span>`}
            ${snippet.parts.map(({ text, match }) => (match ? html`<mark>${text}</mark>` : text))}
          </span>`
        }
      </button>
    </li>
  `;
}

/** @param {number | null} score */
function scoreOf(score) {
  return typeof score === "number" ? score.toPrecision(4) : "";
}
