/** Lines between the places of a document in neighbouring columns. */

import { html, useLayoutEffect, useRef, useState } from "./lib.js";

/**
 * @typedef {{key: string, path: string, move: "up" | "down" | "same"}} Line
 */

/**
 * Drawn behind the columns, which are the other children of the same parent.
 * @param {{marked: string, drawn: unknown}} props The marked hit, and a value that changes when the columns do.
 */
export function Moves({ marked, drawn }) {
  const place = useRef(/** @type {SVGSVGElement | null} */ (null));
  const [lines, setLines] = useState(/** @type {Line[]} */ ([]));
  useLayoutEffect(() => {
    const parent = place.current?.parentElement;
    if (!parent) return undefined;
    const draw = () => setLines(linesOf(parent));
    const observer = new ResizeObserver(draw);
    for (const element of [parent, ...parent.querySelectorAll("ol")]) observer.observe(element);
    return () => observer.disconnect();
  }, [drawn]);
  return html`
    <svg ref=${place} class="moves" aria-hidden="true">
      ${lines.map(
        ({ key, path, move }) =>
          html`<path key=${path} d=${path} class=${key === marked ? `${move} marked` : move} data-key=${key} />`,
      )}
    </svg>
  `;
}

/**
 * @param {HTMLElement} parent
 * @returns {Line[]}
 */
function linesOf(parent) {
  const origin = parent.getBoundingClientRect();
  const columns = [...parent.querySelectorAll("ol")].map((list) => new Map(placesOf(list, origin)));
  /** @type {Line[]} */
  const lines = [];
  for (const [number, left] of columns.slice(0, -1).entries()) {
    for (const [key, from] of left) {
      const to = columns[number + 1].get(key);
      if (to && to.left > from.right) lines.push({ key, path: curve(from, to), move: moveOf(from.rank, to.rank) });
    }
  }
  return lines;
}

/**
 * @typedef {{left: number, right: number, y: number, rank: number}} Place
 * @param {HTMLElement} list
 * @param {DOMRect} origin
 * @returns {[string, Place][]}
 */
function placesOf(list, origin) {
  const hits = /** @type {NodeListOf<HTMLElement>} */ (list.querySelectorAll(".hit"));
  if (list.offsetParent === null) return []; // a narrow screen shows one column
  return [...hits].map((hit) => {
    const { left, right, top } = hit.getBoundingClientRect();
    const y = top - origin.top + 19; // the middle of a hit's first line
    const place = { left: left - origin.left, right: right - origin.left, y, rank: Number(hit.dataset.rank) };
    return [hit.dataset.key ?? "", place];
  });
}

/**
 * @param {number} from
 * @param {number} to
 */
function moveOf(from, to) {
  return to < from ? "up" : to > from ? "down" : "same";
}

/**
 * @param {Place} from
 * @param {Place} to
 */
function curve(from, to) {
  const middle = (from.right + to.left) / 2;
  return `M${from.right},${from.y} C${middle},${from.y} ${middle},${to.y} ${to.left},${to.y}`;
}
