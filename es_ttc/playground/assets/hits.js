/** The hits of a column: rank, move, title, and the passages that matched. */

import { h, html, signal } from "./lib.js";
import { slice, textOf } from "./text.js";

const LENGTH = 260;
/** What stands around the words of a fragment that match. */
const TAG = /<em>(.*?)<\/em>/gs;

/** The hit that is pointed at, in whatever column. */
export const marked = signal("");

/** @type {(hit: Hit) => string} */
export const keyOf = (hit) => `${hit._index}\n${hit._id}`;

/** @type {(hit: Hit, index: IndexInfo) => string} What names a hit: its title if its index has one, else its id. */
export function titleOf(hit, { fields, titles }) {
  const title = fields.slice(0, titles).find((name) => textOf(hit._source, name));
  return (title && fields.length > 1 && slice(textOf(hit._source, title), 0, 200)) || hit._id || "without an id";
}

/** @type {(hit: Hit, index: IndexInfo) => {field: string, parts: string[]} | null} Every second part is a match. */
function snippetOf(hit, { fields }) {
  const backwards = fields.toReversed();
  const matched = backwards.find((name) => hit.highlight?.[name]);
  if (matched) return { field: matched, parts: (hit.highlight?.[matched] ?? []).join(" … ").split(TAG) };
  const field = backwards.find((name) => textOf(hit._source, name));
  if (!field) return null;
  const text = textOf(hit._source, field);
  return { field, parts: [slice(text, 0, LENGTH) + (text.length > LENGTH ? " …" : "")] };
}

/** @param {{before: number | undefined, rank: number, left: string}} props Its rank in the column on the left. */
function Move({ before, rank, left }) {
  if (before === undefined) return html`<span class="move new" title=${`not on the page of ${left}`}>new</span>`;
  if (before === rank) return html`<span class="move" title=${`the same rank by ${left}`}>=</span>`;
  const [direction, sign] = before > rank ? ["up", "▲"] : ["down", "▼"];
  return html`<span class=${`move ${direction}`} title=${`rank ${before} by ${left}`}>
    <span aria-hidden="true">${sign}</span><span class="visually-hidden">${direction} </span>${Math.abs(before - rank)}
  </span>`;
}

/**
 * @param {{hit: Hit, rank: number, query: Query, left: LeftColumn | null, tabIndex: number, activate: () => void,
 *   open: () => void}} props
 */
export function HitButton({ hit, rank, query: { index, show }, left, tabIndex, activate, open }) {
  const key = keyOf(hit);
  const snippet = snippetOf(hit, index);
  const shown = show.flatMap((name) => {
    const text = textOf(hit._source, name);
    return text ? [html`<span key=${name}><i>${name}</i> ${slice(text, 0, 80)}</span>`] : [];
  });
  const mark = () => {
    activate();
    marked.value = key;
  };
  const onPointerLeave = () => (marked.value = "");
  const acts = { onClick: open, onFocus: mark, onPointerEnter: mark, onPointerLeave };
  const data = { "data-key": key, "data-rank": rank, "aria-haspopup": "dialog", tabIndex };
  return html`<li>
    <button class=${key === marked.value ? "hit marked" : "hit"} ...${data} ...${acts}>
      <span class="line">
        <span class="rank">${rank}</span>
        <strong>${titleOf(hit, index)}</strong>
        ${left && h(Move, { before: left.ranks.get(key), rank, left: left.method })}
        <span class="score" title="score">${hit._score?.toPrecision(4)}</span>
      </span>
      ${
        snippet &&
        html`<span class="snippet">
          ${snippet.field !== index.fields.at(-1) && html`<span class="field">${snippet.field}: </span>`}
          ${snippet.parts.map((text, place) => (text && place % 2 ? html`<mark>${text}</mark>` : text))}
        </span>`
      }
      ${shown.length > 0 && html`<span class="values">${shown}</span>`}
    </button>
  </li>`;
}
