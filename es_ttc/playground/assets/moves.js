/** Lines between the places of a document in neighbouring columns. */

import { marked } from "./hits.js";
import { html, useLayoutEffect, useRef, useState } from "./lib.js";

/** @param {{drawn: unknown}} props Changes when the columns do, its siblings, behind which the lines are drawn. */
export function Moves({ drawn }) {
  const place = useRef(/** @type {SVGSVGElement | null} */ (null));
  const [lines, setLines] = useState(/** @type {MoveLine[]} */ ([]));
  useLayoutEffect(() => {
    const parent = place.current?.parentElement;
    if (!parent) return undefined;
    const observer = new ResizeObserver(() => setLines(linesOf(parent)));
    for (const element of [parent, ...parent.querySelectorAll("ol")]) observer.observe(element);
    return () => observer.disconnect();
  }, [drawn]);
  const drawnLine = (/** @type {MoveLine} */ { key, path, move }) =>
    html`<path key=${path} d=${path} class=${key === marked.value ? `${move} marked` : move} data-key=${key} />`;
  return html`<svg ref=${place} class="moves" aria-hidden="true">${lines.map(drawnLine)}</svg>`;
}

/** @type {(parent: HTMLElement) => MoveLine[]} */
function linesOf(parent) {
  const origin = parent.getBoundingClientRect();
  const columns = [...parent.querySelectorAll("ol")].map((list) => placesOf(list, origin));
  return columns.slice(1).flatMap((right, number) =>
    [...columns[number]].flatMap(([key, from]) => {
      const to = right.get(key);
      return to && to.left > from.right ? [{ key, path: curve(from, to), move: moveOf(from.rank, to.rank) }] : [];
    }),
  );
}

/** @type {(list: HTMLElement, origin: DOMRect) => Map<string, MovePlace>} */
function placesOf(list, origin) {
  const hits = /** @type {NodeListOf<HTMLElement>} */ (list.querySelectorAll(".hit"));
  const shown = list.offsetParent === null ? [] : [...hits]; // a narrow screen shows one column
  return new Map(
    shown.map((hit) => {
      const { left, right, top } = hit.getBoundingClientRect();
      const y = top - origin.top + 19; // the middle of a hit's first line
      const place = { left: left - origin.left, right: right - origin.left, y, rank: Number(hit.dataset.rank) };
      return [hit.dataset.key ?? "", place];
    }),
  );
}

/** @type {(from: number, to: number) => string} */
const moveOf = (from, to) => (to < from ? "up" : to > from ? "down" : "same");

/** @type {(from: MovePlace, to: MovePlace) => string} */
function curve(from, to) {
  const middle = (from.right + to.left) / 2;
  return `M${from.right},${from.y} C${middle},${from.y} ${middle},${to.y} ${to.left},${to.y}`;
}
