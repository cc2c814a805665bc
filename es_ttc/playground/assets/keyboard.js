/** The keys of the search view. */

import { useEffect } from "./lib.js";

/** The key `/` leads to the query, as on other search pages. */
export function useSlashKey() {
  useEffect(() => {
    const listen = (/** @type {KeyboardEvent} */ event) => {
      const typing = /** @type {HTMLElement} */ (event.target).closest("input, select, textarea, dialog");
      if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) focusOn(event, queryField());
    };
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, []);
}

/** @type {(event: KeyboardEvent) => void} Move the focus between hits by the arrow keys. */
export function moveFocus(event) {
  const hit = /** @type {HTMLElement} */ (event.target).closest(".hit");
  if (!(hit instanceof HTMLElement)) return;
  const lists = visibleLists();
  const column = lists.findIndex((list) => list.contains(hit));
  const place = hitsOf(lists[column]).indexOf(hit);
  if (event.key === "ArrowDown") focusHit(event, column, place + 1);
  else if (event.key === "ArrowUp" && place > 0) focusHit(event, column, place - 1);
  else if (event.key === "ArrowUp") focusOn(event, queryField());
  else if (event.key === "ArrowRight") focusHit(event, column + 1, place, hit.dataset.key);
  else if (event.key === "ArrowLeft") focusHit(event, column - 1, place, hit.dataset.key);
  else if (event.key === "Home") focusHit(event, column, 0);
  else if (event.key === "End") focusHit(event, column, Infinity);
}

/** @type {(event: Event, column: number, place: number, key?: string) => void} The hit with the key is preferred. */
export function focusHit(event, column, place, key) {
  const hits = hitsOf(visibleLists()[column]);
  focusOn(event, hits.find((hit) => key && hit.dataset.key === key) ?? hits[Math.min(place, hits.length - 1)]);
}

const queryField = () => document.getElementById("query");

/** @type {(event: Event, element: HTMLElement | null | undefined) => void} */
function focusOn(event, element) {
  if (!element) return;
  event.preventDefault();
  element.focus();
}

/** @type {() => HTMLElement[]} */
function visibleLists() {
  const lists = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".columns ol"));
  return [...lists].filter((list) => list.offsetParent !== null && list.childElementCount > 0);
}

/** @type {(list: HTMLElement | undefined) => HTMLElement[]} */
const hitsOf = (list) => [.../** @type {NodeListOf<HTMLElement>} */ (list?.querySelectorAll(".hit") ?? [])];
