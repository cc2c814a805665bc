/** The page: header, views by address, and the dialog for credentials. */

import { asking, signOut, signedIn } from "./api.js";
import { Judging } from "./judging.js";
import { h, html, render, useEffect, useState } from "./lib.js";
import { Search } from "./search.js";
import { SignIn } from "./signin.js";
import { indices, info, linkTo, load, loaded, navigate, retry, route, trouble } from "./state.js";
import { PLAIN, Select, typed } from "./ui.js";

/** No index can have this name. */
const OTHER = " ";

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
  const tab = (/** @type {string} */ name, /** @type {string} */ label) =>
    h("a", { href: linkTo(name, params), "aria-current": name === view ? "page" : undefined }, label);
  return html`
    <header>
      <span class="name">es-ttc</span>
      <nav aria-label="Views">${tab("search", "Search")} ${tab("judge", "Judge")}</nav>
      ${loaded.value && h(IndexPicker, { key: index, view, index })}
      <span class="about">${info.value && `${info.value.version}, ${engineOf(info.value)}`}</span>
      ${signedIn.value && html`<button class="plain" onClick=${signOut}>Sign out</button>`}
    </header>
  `;
}

/** @type {(about: Info) => string} */
function engineOf({ engine: { product, version = "" } }) {
  if (!product) return "no engine";
  return `${product === "opensearch" ? "OpenSearch" : "Elasticsearch"} ${version}`.trim();
}

/**
 * Indices with features are listed; any other name can be typed: an alias, a pattern, an index without features.
 * @param {{view: string, index: string}} props
 */
function IndexPicker({ view, index }) {
  const [typing, setTyping] = useState(!indices.value.length);
  const change = (/** @type {string} */ name) => {
    setTyping(name === OTHER);
    const chosen = name.trim();
    if (chosen && chosen !== index) navigate(view, { ...Object.fromEntries(route.value.params), index: chosen });
  };
  const label = "Index";
  const options = [...new Set([...indices.value.map(({ name }) => name), index])].map((name) => [name]);
  const list = () => h(Select, { label, value: index, options: [...options, [OTHER, "another name…"]], change });
  const placeholder = "name, alias or pattern";
  const field = () =>
    h("input", { "aria-label": label, placeholder, ...PLAIN, autofocus: true, onChange: typed(change) });
  return html`<label class="picker"><span>${label}</span> ${typing ? field() : list()}</label>`;
}

const place = /** @type {HTMLElement} */ (document.getElementById("app"));
place.textContent = "";
render(h(App, null), place);
