/** The dialogs over a search: an opened hit, and a request as code. */

import { html, useEffect, useRef, useState } from "./lib.js";

/**
 * @param {object} props
 * @param {string} props.title
 * @param {string} props.kind Its class.
 * @param {() => void} props.close
 * @param {unknown} [props.children]
 */
export function Dialog({ title, kind, close, children }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => dialog.current?.showModal(), []);
  return html`
    <dialog
      ref=${dialog}
      class=${kind}
      aria-labelledby="dialog-title"
      onClose=${close}
      onClick=${(/** @type {Event} */ event) => event.target === dialog.current && close()}
    >
      <div class="content">
        <div class="title">
          <h2 id="dialog-title">${title}</h2>
          <button type="button" class="plain" aria-label="Close" onClick=${close}>✕</button>
        </div>
        ${children}
      </div>
    </dialog>
  `;
}

/** @param {{code: [string, string][], close: () => void}} props */
export function RequestDialog({ code, close }) {
  const [chosen, setChosen] = useState(0);
  const [copied, setCopied] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(code[chosen][1]);
      setCopied("Copied");
    } catch {
      setCopied("This browser copies nothing here: select the text");
    }
  };
  return html`
    <${Dialog} title="The request" kind="code" close=${close}>
      <div class="actions">
        ${code.map(
          ([name], place) =>
            html`<button
              key=${name}
              type="button"
              aria-pressed=${place === chosen}
              onClick=${() => {
                setChosen(place);
                setCopied("");
              }}
            >
              ${name}
            </button>`,
        )}
        <button type="button" class="primary" onClick=${copy}>Copy</button>
        <span role="status" class="hint">${copied}</span>
      </div>
      <pre class="json" tabindex="0">${code[chosen][1]}</pre>
    <//>
  `;
}
