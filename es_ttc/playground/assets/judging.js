/** The tab in which results are judged. */

import { html } from "./lib.js";

/**
 * @param {object} props
 * @param {string} props.index The chosen index; may be empty.
 */
export function Judging({ index }) {
  return html`<p>Judging${index && ` of ${index}`}</p>`;
}
