/** What several views are made of. */

import { h, html, useEffect, useId, useRef, useState } from "./lib.js";

/** Of fields whose text is no prose. */
export const PLAIN = { autocomplete: "off", spellcheck: false };

/** @type {(take: (value: string) => void) => (event: Event) => void} A handler that takes a control's value. */
export const typed = (take) => (event) => take(/** @type {HTMLInputElement} */ (event.target).value);

/**
 * @template T
 * @param {() => Promise<T>} ask
 * @param {unknown[]} on It is asked anew when one of these changes.
 * @returns {{value: T | null, error: string, again: () => void}} The latest answer, and why there is no newer one.
 */
export function useAnswer(ask, on) {
  const [state, setState] = useState({ value: /** @type {T | null} */ (null), error: "" });
  const latest = useRef(0);
  const again = async () => {
    const turn = ++latest.current;
    const change = await ask().then(
      (value) => ({ value, error: "" }),
      ({ message }) => ({ error: message }),
    );
    if (turn === latest.current) setState((now) => ({ ...now, ...change }));
  };
  useEffect(() => void again(), on);
  return { ...state, again };
}

/** @param {{text: string | false | undefined, children?: Child}} props Why something failed; empty if it did not. */
export function Fault({ text, children }) {
  return text ? html`<p class="error" role="alert">${text} ${children}</p>` : null;
}

/** @param {Record<string, unknown> & {label: string}} props An input below its label. */
export const Field = ({ label, ...given }) => html`<label><span>${label}</span> ${h("input", given)}</label>`;

/** @param {{label: string, value: string, options: string[][], change: (value: string) => void}} props "" is a heading. */
export function Select({ label, value, options, change }) {
  const all = options.map(([id, text = id]) => html`<option key=${id} value=${id} disabled=${!id}>${text}</option>`);
  return html`<select aria-label=${label} value=${value} onChange=${typed(change)}>
    ${all}
  </select>`;
}

/** @param {{label: string, kind: string, names: Child[], chosen: number, choose: (place: number) => void}} props */
export function Choices({ label, kind, names, chosen, choose }) {
  const button = (/** @type {Child} */ name, /** @type {number} */ place) => {
    const act = () => choose(place);
    return html`<button key=${place} type="button" aria-pressed=${place === chosen} onClick=${act}>${name}</button>`;
  };
  return html`<div class=${kind} role="group" aria-label=${label}>${names.map(button)}</div>`;
}

/**
 * A table whose rows begin with what they are about. What is no `td` itself is put into one.
 * @param {{kind?: string, caption?: Child, head?: Child[], rows: TableRow[], foot?: Child[]}} props
 * @typedef {{key: string, cells: Child[]}} TableRow
 */
export function Table({ kind, caption, head, rows, foot }) {
  const row = (/** @type {TableRow} */ { key, cells: [first, ...others] }) =>
    html`<tr key=${key}>
      <th scope="row">${first}</th>
      ${others.map((cell) => (isCell(cell) ? cell : h("td", null, cell)))}
    </tr>`;
  const names = head?.map((name) => (name ? h("th", { scope: "col" }, name) : h("td", null)));
  return html`<table class=${kind}>
    ${caption && h("caption", null, caption)} ${names && h("thead", null, h("tr", null, names))}
    <tbody>
      ${rows.map(row)}
    </tbody>
    ${foot && h("tfoot", null, row({ key: "foot", cells: foot }))}
  </table>`;
}

/** @type {(child: any) => boolean} */
const isCell = (child) => child?.type === "td";

/** @param {{title: string, kind: string, close: () => void, closedby?: string, children?: Child}} props */
export function Dialog({ title, kind, close, closedby = "any", children }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const id = useId();
  useEffect(() => dialog.current?.showModal(), []);
  return html`<dialog ref=${dialog} class=${kind} aria-labelledby=${id} closedby=${closedby} onClose=${close}>
    <div class="content">
      <div class="title">
        <h2 id=${id}>${title}</h2>
        <button type="button" class="plain" aria-label="Close" onClick=${close}>✕</button>
      </div>
      ${children}
    </div>
  </dialog>`;
}
