/** Why a document is where it is in a column, or is not there. */

import { request } from "./api.js";
import { h, html, useState } from "./lib.js";
import { Dialog, Fault, PLAIN, Table, typed } from "./ui.js";

/** @param {{index: string, search: any, close: () => void}} props The index's name, the body of the column's search. */
export function WhyDialog({ index, search, close }) {
  const [id, setId] = useState("");
  const [state, setState] = useState({ told: /** @type {Why | null} */ (null), error: "" });
  const ask = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const body = { index, id, search };
    await request("POST", "/_ttc/explain", body).then(
      (told) => setState({ told, error: "" }),
      ({ message }) => setState({ told: null, error: message }),
    );
  };
  const content = html`
    <form onSubmit=${ask}>
      <label>
        Id of a document
        <input type="text" required value=${id} onInput=${typed(setId)} ...${PLAIN} />
      </label>
      <div class="actions"><button type="submit" class="primary">Explain</button></div>
    </form>
    ${h(Fault, { text: state.error })}
    <div role="status">${state.told && h(Told, state.told)}</div>
  `;
  return h(Dialog, { title: "Why is a document not here?", kind: "code", close }, content);
}

/** @param {Why} props */
function Told({ reasons, signals, found }) {
  const rows = Object.entries(signals).map(([name, { score, rank }]) => ({
    key: name,
    cells: [name, score?.toPrecision(4) ?? "none", rank ?? "–"],
  }));
  const head = ["signal", "score", `rank of ${found}`];
  return html`
    <ul>
      ${reasons.map((sentence) => html`<li key=${sentence}>${sentence}</li>`)}
    </ul>
    ${rows.length > 0 && h(Table, { kind: "signals", head, rows })}
  `;
}
