/** The page: header, views by address, and the dialog for credentials. */

import { asking, signOut, signedIn } from "./api.js";
import { Judging } from "./judging.js";
import { h, html, render, useEffect } from "./lib.js";
import { Search } from "./search.js";
import { SignIn } from "./signin.js";
import { indices, info, linkTo, load, loaded, navigate, retry, route, trouble } from "./state.js";
import { PLAIN, typed } from "./ui.js";

function App() {
  useEffect(() => void load(), []);
  const { view, params } = route.value;
  const index = params.get("index") || indices.value[0]?.name || "";
  const again = html`<button onClick=${retry}>Try again</button>`;
  return html`
    ${h(Header, { view, index })}
    ${trouble.value && html`<p class="trouble" role="alert">${trouble.value} ${again}</p>`}
    <main id="main" tabindex="-1">${h(view === "judge" ? Judging : Search, { index })}</main>
    ${asking.value && h(SignIn, { asking: asking.value })}
  `;
}

/** @param {{view: string, index: string}} props */
function Header({ view, index }) {
  const params = { ...Object.fromEntries(route.value.params), index };
  const { version, engine } = info.value ?? {};
  const about = [version, engine?.product ?? "no engine", engine?.version].filter(Boolean).join(" ");
  const tab = (/** @type {string} */ name, /** @type {string} */ label) =>
    h("a", { href: linkTo(name, params), "aria-current": name === view ? "page" : undefined }, label);
  return html`
    <header>
      <span class="name">es-ttc</span>
      <nav aria-label="Views">${tab("search", "Search")} ${tab("judge", "Judge")}</nav>
      ${loaded.value && h(IndexPicker, { key: index, view, index })}
      <span class="about">${version && about}</span>
      ${signedIn.value && html`<button class="plain" onClick=${signOut}>Sign out</button>`}
    </header>
  `;
}

/** @param {{view: string, index: string}} props Indices with features are listed; any other name can be typed. */
function IndexPicker({ view, index }) {
  const change = (/** @type {string} */ name) => {
    const { filter: _, show: __, ...params } = Object.fromEntries(route.value.params);
    if (name.trim() && name.trim() !== index) navigate(view, { ...params, index: name.trim() });
  };
  const field = { list: "indices", value: index, placeholder: "name, alias or pattern", ...PLAIN };
  const onFocus = (/** @type {any} */ event) => event.target.select();
  return html`<label class="picker"
      ><span>Index</span> ${h("input", { ...field, onFocus, onChange: typed(change) })}</label
    >
    <datalist id="indices">${indices.value.map(({ name }) => html`<option key=${name} value=${name} />`)}</datalist>`;
}

const place = /** @type {HTMLElement} */ (document.getElementById("app"));
place.textContent = "";
render(h(App, null), place);
