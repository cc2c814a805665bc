/** The walk of gar, slidegar and rgs over the neighbour graph: which documents were judged, when, reached from which. */

import { h, html } from "./lib.js";
import { shown } from "./text.js";

const WIDTH = 720;
const NARROWEST = 6; // between two dots
const WIDEST = 16;
const ROW = 46;
const MARGIN = 16;
const LEFT = 84;

/** @type {(calls: NonNullable<Walk["calls"]>) => WalkStep[]} In the order of judging. */
function stepsOf(calls) {
  const places = new Map(calls.map(({ _id: id }, place) => [id, place]));
  /** @type {WalkStep[]} */
  const steps = [];
  for (const { _id: id, from: source = "", score = null } of calls) {
    const place = places.get(source) ?? -1;
    const from = place < steps.length ? place : -1;
    steps.push({ id, from, depth: from < 0 ? 0 : steps[from].depth + 1, score });
  }
  return steps;
}

/** @type {(steps: WalkStep[], place: number) => number[]} The places from the first pass to this one. */
const pathTo = (steps, place) => (place < 0 ? [] : [...pathTo(steps, steps[place].from), place]);

/** @param {{hit: Hit, walk: Walk, calls: NonNullable<Walk["calls"]>}} props */
export function WalkTree({ hit, walk, calls }) {
  const steps = stepsOf(calls);
  const place = steps.findIndex(({ id }) => id === hit._id);
  const path = pathTo(steps, place);
  const outside = steps.filter(({ depth }) => depth > 0).length;
  return html`<section class="walk">
    <h3>The walk</h3>
    <p>${said(steps, path)}</p>
    <p class="hint">
      ${steps.length} documents judged by ${walk.reranker}, ${outside} of them reached through the graph. Each dot is
      one, in the order of judging from left to right; a line leads to it from the document whose neighbour it is.
    </p>
    ${h(Tree, { steps, path })}
  </section>`;
}

/** @type {(steps: WalkStep[], path: number[]) => string} */
function said(steps, path) {
  if (!path.length) return "This document was not judged: the budget was spent before its turn.";
  const names = path.map((place) => `${steps[place].id} (judged ${ordinal(place + 1)})`);
  return `Found by the first pass: ${names.join(", from there ")}.`;
}

/** @type {(number: number) => string} */
function ordinal(number) {
  const last = number % 100;
  return `${number}${last > 10 && last < 14 ? "th" : (["th", "st", "nd", "rd"][number % 10] ?? "th")}`;
}

/** @param {{steps: WalkStep[], path: number[]}} props */
function Tree({ steps, path }) {
  const depth = Math.max(...steps.map((one) => one.depth));
  const between = Math.min(WIDEST, Math.max(NARROWEST, (WIDTH - LEFT - MARGIN) / steps.length));
  const width = LEFT + MARGIN + steps.length * between;
  const height = 2 * MARGIN + depth * ROW;
  const x = (/** @type {number} */ place) => LEFT + place * between;
  const y = (/** @type {number} */ place) => MARGIN + steps[place].depth * ROW;
  const scores = steps.flatMap(({ score }) => score ?? []);
  const [low, high] = [Math.min(...scores), Math.max(...scores)];
  const on = new Set(path);
  const edge = (/** @type {number} */ place) => {
    const [x1, y1, x2, y2] = [x(steps[place].from), y(steps[place].from), x(place), y(place)];
    const curve = `M${x1} ${y1}C${x1} ${y1 + ROW / 2} ${x2} ${y2 - ROW / 2} ${x2} ${y2}`;
    return html`<path key=${`edge ${place}`} class=${on.has(place) ? "edge on" : "edge"} d=${curve} />`;
  };
  const dot = (/** @type {number} */ place) => {
    const { id, score } = steps[place];
    const strength = score === null || high === low ? 0.6 : 0.2 + (0.8 * (score - low)) / (high - low);
    const look = { class: on.has(place) ? "on" : undefined, "fill-opacity": on.has(place) ? 1 : strength };
    const title = `${place + 1}. ${id}${score === null ? "" : `, ${shown(score)}`}`;
    const r = place === path.at(-1) ? 6 : 3.6;
    return h("circle", { key: place, ...look, cx: x(place), cy: y(place), r }, h("title", null, title));
  };
  const label = (/** @type {number} */ level) => {
    const name = level ? `${level} step${level > 1 ? "s" : ""}` : "first pass";
    return html`<text key=${name} x="0" y=${MARGIN + level * ROW + 4}>${name}</text>`;
  };
  const inOrder = [...steps.keys()].sort((one, other) => Number(on.has(one)) - Number(on.has(other)));
  const labels = Array.from({ length: depth + 1 }, (_, level) => label(level));
  return html`<div class="scrolled" tabindex="0" role="region" aria-label="The walk as a tree">
    <svg width=${width} height=${height} role="img" aria-label="Tree of the judged documents">
      ${labels} ${inOrder.filter((place) => steps[place].from >= 0).map(edge)} ${inOrder.map(dot)}
    </svg>
  </div>`;
}
