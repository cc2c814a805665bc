/** The dialog that asks for credentials. */

import { html, useEffect, useRef, useState } from "./lib.js";

/**
 * @typedef {import("./api.js").Asking} Asking
 */

/** @param {{asking: Asking}} props */
export function SignIn({ asking }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const [kind, setKind] = useState("password");
  useEffect(() => {
    dialog.current?.showModal();
  }, [asking]);
  const submit = (/** @type {any} */ event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    asking.answer(credentialsOf(kind, (name) => String(form.get(name) ?? ""), asking.gateway));
  };
  return html`
    <dialog
      ref=${dialog}
      class="signin"
      aria-labelledby="signin-title"
      onCancel=${(/** @type {Event} */ event) => {
        event.preventDefault();
        asking.answer(null);
      }}
    >
      <form onSubmit=${submit}>
        <h2 id="signin-title">${asking.gateway ? "The gateway asks for its token" : "The engine asks who you are"}</h2>
        ${asking.again && html`<p class="error" role="alert">These credentials were refused.</p>`}
        ${
          asking.gateway
            ? html`<${Field} label="Token of the gateway" name="token" type="password" autofocus />`
            : html`<${Engine} kind=${kind} setKind=${setKind} />`
        }
        <p class="hint">Kept in this page's memory only: gone when it is closed or loaded again.</p>
        <div class="actions">
          <button type="button" onClick=${() => asking.answer(null)}>Cancel</button>
          <button type="submit" class="primary">Sign in</button>
        </div>
      </form>
    </dialog>
  `;
}

/** @param {{kind: string, setKind: (kind: string) => void}} props */
function Engine({ kind, setKind }) {
  return html`
    <label>
      <span>By</span>
      <select value=${kind} onChange=${(/** @type {any} */ event) => setKind(event.target.value)}>
        <option value="password">user name and password</option>
        <option value="ApiKey">API key</option>
        <option value="Bearer">bearer token</option>
      </select>
    </label>
    ${
      kind === "password"
        ? html`<${Field} label="User name" name="user" type="text" autofocus />
            <${Field} label="Password" name="password" type="password" />`
        : html`<${Field} label=${kind === "ApiKey" ? "API key, encoded" : "Token"} name="secret" type="password" />`
    }
  `;
}

/** @param {{label: string, name: string, type: string, autofocus?: boolean}} props */
function Field({ label, name, type, autofocus }) {
  return html`
    <label>
      <span>${label}</span>
      <input name=${name} type=${type} required autofocus=${autofocus} autocomplete="off" spellcheck=${false} />
    </label>
  `;
}

/**
 * @param {string} kind
 * @param {(name: string) => string} field
 * @param {boolean} gateway
 * @returns {Partial<import("./api.js").Credentials>} Those that were asked for; the others stay as they are.
 */
function credentialsOf(kind, field, gateway) {
  if (gateway) return { token: field("token") };
  if (kind !== "password") return { authorization: `${kind} ${field("secret")}` };
  const bytes = new TextEncoder().encode(`${field("user")}:${field("password")}`);
  return { authorization: `Basic ${btoa(String.fromCharCode(...bytes))}` };
}
