/** The walk of gar, slidegar and rgs over the neighbour graph: which documents were judged, when, reached from which. */

import { html } from "./lib.js";
import { shown } from "./heatmap.js";

/**
 * @typedef {{id: string, from: number, depth: number, score: number | null}} Judged
 *   A judged document: place of the one that led to it, -1 for one of the first pass; steps from there.
 */

const WIDTH = 720;
const NARROWEST = 6; // between two dots
const WIDEST = 16;
const ROW = 46;
const MARGIN = 16;
const LEFT = 84;

/**
 * @param {any[]} calls
 * @returns {Judged[]} In the order of judging.
 */
function judgedOf(calls) {
  /** @type {Map<string, number>} */
  const places = new Map(calls.map(({ _id: id }, place) => [id, place]));
  /** @type {Judged[]} */
  const judged = [];
  for (const { _id: id, from, score } of calls) {
    const source = from === undefined ? -1 : (places.get(from) ?? -1);
    const known = source >= 0 && source < judged.length ? source : -1;
    judged.push({ id, from: known, depth: known < 0 ? 0 : judged[known].depth + 1, score: score ?? null });
  }
  return judged;
}

/**
 * @param {Judged[]} judged
 * @param {number} place
 * @returns {number[]} The places from the first pass to this one.
 */
function pathTo(judged, place) {
  return place < 0 ? [] : [...pathTo(judged, judged[place].from), place];
}

/** @param {{hit: any, walk: any}} props */
export function Walk({ hit, walk }) {
  const judged = judgedOf(walk.calls);
  const path = pathTo(
    judged,
    judged.findIndex(({ id }) => id === hit._id),
  );
  const outside = judged.filter(({ depth }) => depth > 0).length;
  return html`
    <section class="walk">
      <h3>The walk</h3>
      <p>${said(hit, judged, path)}</p>
      <p class="hint">
        ${judged.length} documents judged by ${walk.reranker}, ${outside} of them reached through the graph. Each dot is
        one, in the order of judging from left to right; a line leads to it from the document whose neighbour it is.
      </p>
      <${Tree} judged=${judged} path=${path} />
    </section>
  `;
}

/**
 * @param {any} hit
 * @param {Judged[]} judged
 * @param {number[]} path
 */
function said(hit, judged, path) {
  if (!path.length) return "This document was not judged: the budget was spent before its turn.";
  const [first, ...others] = path.map((place) => `${judged[place].id} (judged ${ordinal(place + 1)})`);
  if (!others.length) return `${hit._id} was found by the first pass, and judged ${ordinal(path[0] + 1)}.`;
  return `Found by the first pass: ${first}, from there ${others.join(", from there ")}.`;
}

/** @param {number} number */
function ordinal(number) {
  const last = number % 100;
  const ending = last > 10 && last < 14 ? "th" : (["th", "st", "nd", "rd"][number % 10] ?? "th");
  return `${number}${ending}`;
}

/** @param {{judged: Judged[], path: number[]}} props */
function Tree({ judged, path }) {
  const depth = Math.max(...judged.map((one) => one.depth));
  const step = Math.min(WIDEST, Math.max(NARROWEST, (WIDTH - LEFT - MARGIN) / judged.length));
  const width = LEFT + MARGIN + judged.length * step;
  const height = 2 * MARGIN + depth * ROW;
  const x = (/** @type {number} */ place) => LEFT + place * step;
  const y = (/** @type {number} */ place) => MARGIN + judged[place].depth * ROW;
  const scores = judged.flatMap(({ score }) => (score === null ? [] : [score]));
  const [low, high] = [Math.min(...scores), Math.max(...scores)];
  const strength = (/** @type {number | null} */ score) =>
    score === null || high === low ? 0.6 : 0.2 + (0.8 * (score - low)) / (high - low);
  const on = new Set(path);
  const edge = (/** @type {number} */ place) => {
    const [x1, y1, x2, y2] = [x(judged[place].from), y(judged[place].from), x(place), y(place)];
    const marked = on.has(place) ? "edge on" : "edge";
    return html`<path
      key=${`e${place}`}
      class=${marked}
      d=${`M${x1} ${y1}C${x1} ${y1 + ROW / 2} ${x2} ${y2 - ROW / 2} ${x2} ${y2}`}
    />`;
  };
  const inOrder = judged.map((_, place) => place).sort((one, other) => Number(on.has(one)) - Number(on.has(other)));
  return html`<div class="scrolled" tabindex="0" role="region" aria-label="The walk as a tree">
    <svg
      width=${width}
      height=${height}
      viewBox=${`0 0 ${width} ${height}`}
      role="img"
      aria-label="Tree of the judged documents"
    >
      ${Array.from({ length: depth + 1 }, (_, level) => html`<text key=${level} x="0" y=${MARGIN + level * ROW + 4}>${level ? `${level} step${level > 1 ? "s" : ""}` : "first pass"}</text>`)}
      ${inOrder.filter((place) => judged[place].from >= 0).map(edge)}
      ${inOrder.map((place) => {
        const { id, score } = judged[place];
        const last = place === path.at(-1);
        return html`<circle
          key=${place}
          class=${on.has(place) ? "on" : undefined}
          cx=${x(place)}
          cy=${y(place)}
          r=${last ? 6 : 3.6}
          fill-opacity=${on.has(place) ? 1 : strength(score)}
          ><title>${`${place + 1}. ${id}${score === null ? "" : `, ${shown(score)}`}`}</title></circle
        >`;
      })}
    </svg>
  </div>`;
}
