/** The dialog that asks for credentials. */

import { h, html, useState } from "./lib.js";
import { Dialog, Fault, Field, PLAIN, Select } from "./ui.js";

const KINDS = [
  ["Basic", "user name and password"],
  ["ApiKey", "API key"],
  ["Bearer", "bearer token"],
];
/** @type {Record<string, string>} */
const SECRETS = { Basic: "Password", ApiKey: "API key, encoded", Bearer: "Token" };

/** @param {{asking: Asking}} props */
export function SignIn({ asking: { gateway, again, answer } }) {
  const [kind, change] = useState("Basic");
  const submit = (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
    const [user, secret] = ["user", "secret"].map((name) => String(form.get(name) ?? ""));
    answer(
      gateway ? { token: secret } : { authorization: `${kind} ${kind === "Basic" ? basic(user, secret) : secret}` },
    );
  };
  const title = gateway ? "The gateway asks for its token" : "The engine asks who you are";
  const close = () => answer(null);
  const given = { required: true, autofocus: true, ...PLAIN };
  const by = h(Select, { label: "By", value: kind, options: KINDS, change });
  const form = html`<form onSubmit=${submit}>
    ${h(Fault, { text: again && "These credentials were refused." })}
    ${!gateway && html`<label><span>By</span> ${by}</label>`}
    ${!gateway && kind === "Basic" && h(Field, { label: "User name", name: "user", type: "text", ...given })}
    ${h(Field, { label: gateway ? "Token of the gateway" : SECRETS[kind], name: "secret", type: "password", ...given })}
    <p class="hint">Kept in this page's memory only: gone when it is closed or loaded again.</p>
    <div class="actions">
      <button type="button" onClick=${close}>Cancel</button>
      <button class="primary">Sign in</button>
    </div>
  </form>`;
  return h(Dialog, { title, kind: "signin", close, closedby: "closerequest" }, form);
}

/** @type {(user: string, password: string) => string} In UTF-8, as both engines read them. */
const basic = (user, password) => btoa(String.fromCharCode(...new TextEncoder().encode(`${user}:${password}`)));
