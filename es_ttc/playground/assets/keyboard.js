/** The keys of the search view. */

import { useEffect } from "./lib.js";

/** The key `/` leads to the query, as on other search pages. */
export function useSlashKey() {
  useEffect(() => {
    const listen = (/** @type {KeyboardEvent} */ event) => {
      const typing = /** @type {HTMLElement} */ (event.target).closest("input, select, textarea, dialog");
      if (event.key !== "/" || typing || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      document.getElementById("query")?.focus();
    };
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, []);
}

/**
 * Move the focus between hits by the arrow keys.
 * @param {KeyboardEvent} event
 */
export function moveFocus(event) {
  const hit = /** @type {HTMLElement} */ (event.target).closest(".hit");
  if (!(hit instanceof HTMLElement)) return;
  const lists = visibleLists();
  const column = lists.findIndex((list) => list.contains(hit));
  const place = [...lists[column].querySelectorAll(".hit")].indexOf(hit);
  if (event.key === "ArrowDown") focusHit(event, column, place + 1);
  else if (event.key === "ArrowUp" && place > 0) focusHit(event, column, place - 1);
  else if (event.key === "ArrowUp") focusQuery(event);
  else if (event.key === "ArrowRight") focusHit(event, column + 1, place, hit.dataset.key);
  else if (event.key === "ArrowLeft") focusHit(event, column - 1, place, hit.dataset.key);
  else if (event.key === "Home") focusHit(event, column, 0);
  else if (event.key === "End") focusHit(event, column, Infinity);
}

function visibleLists() {
  const lists = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".columns ol"));
  return [...lists].filter((list) => list.offsetParent !== null && list.childElementCount > 0);
}

/**
 * @param {Event} event
 * @param {number} column Among those that show hits.
 * @param {number} place The last one is taken for a greater one.
 * @param {string} [key] A hit that is preferred to that place.
 */
export function focusHit(event, column, place, key) {
  const hits = /** @type {HTMLElement[]} */ ([...(visibleLists()[column]?.querySelectorAll(".hit") ?? [])]);
  const chosen = hits.find((hit) => key && hit.dataset.key === key) ?? hits[Math.min(place, hits.length - 1)];
  if (!chosen) return;
  event.preventDefault();
  chosen.focus();
}

/** @param {Event} event */
function focusQuery(event) {
  event.preventDefault();
  document.getElementById("query")?.focus();
}
