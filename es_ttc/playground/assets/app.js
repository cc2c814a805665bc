/** The page: header, views by address, and the dialog for credentials. */

import { asking, signOut, signedIn } from "./api.js";
import { Judging } from "./judging.js";
import { html, render, useEffect, useState } from "./lib.js";
import { Search } from "./search.js";
import { SignIn } from "./signin.js";
import { indices, info, linkTo, load, loaded, navigate, retry, route, trouble } from "./state.js";

/** @type {[string, string][]} */
const TABS = [
  ["search", "Search"],
  ["judge", "Judge"],
];

/** No index can have this name. */
const OTHER = " ";

function App() {
  useEffect(() => {
    load();
  }, []);
  const { view, params } = route.value;
  const index = params.get("index") || indices.value[0]?.name || "";
  return html`
    <${Header} view=${view} index=${index} />
    ${trouble.value && html`<p class="trouble" role="alert">${trouble.value} <${Retry} /></p>`}
    <main id="main" tabindex="-1">
      ${view === "judge" ? html`<${Judging} index=${index} />` : html`<${Search} index=${index} />`}
    </main>
    ${asking.value && html`<${SignIn} asking=${asking.value} />`}
  `;
}

/** @param {{view: string, index: string}} props */
function Header({ view, index }) {
  const params = Object.fromEntries(route.value.params);
  const about = info.value;
  return html`
    <header>
      <span class="name">es-ttc</span>
      <nav aria-label="Views">
        ${TABS.map(([name, label]) => {
          const current = name === view ? "page" : undefined;
          return html`<a key=${name} href=${linkTo(name, { ...params, index })} aria-current=${current}>${label}</a>`;
        })}
      </nav>
      <${IndexPicker} key=${index} view=${view} index=${index} />
      <span class="about">
        ${about && `${about.version}${about.engine.product ? `, ${productOf(about.engine)}` : ", no engine"}`}
      </span>
      ${signedIn.value && html`<button type="button" class="plain" onClick=${signOut}>Sign out</button>`}
    </header>
  `;
}

/** @param {{product: string | null, version?: string}} engine */
function productOf({ product, version = "" }) {
  return `${product === "opensearch" ? "OpenSearch" : "Elasticsearch"} ${version}`.trim();
}

/**
 * Indices with features are listed; any other name can be typed: an alias, a pattern, an index without features.
 * @param {{view: string, index: string}} props
 */
function IndexPicker({ view, index }) {
  const [typing, setTyping] = useState(false);
  const names = indices.value.map(({ name }) => name);
  const choose = (/** @type {string} */ name) => {
    setTyping(name === OTHER);
    if (name && name !== OTHER && name !== index) {
      navigate(view, { ...Object.fromEntries(route.value.params), index: name });
    }
  };
  if (!loaded.value) return null;
  if (typing || !names.length) {
    return html`
      <label class="picker">
        <span>Index</span>
        <input
          aria-label="Index"
          value=${typing ? "" : index}
          autofocus=${typing}
          placeholder="name, alias or pattern"
          autocomplete="off"
          spellcheck=${false}
          onChange=${(/** @type {any} */ event) => choose(event.target.value.trim())}
        />
      </label>
    `;
  }
  return html`
    <label class="picker">
      <span>Index</span>
      <select aria-label="Index" value=${index} onChange=${(/** @type {any} */ event) => choose(event.target.value)}>
        ${[...new Set([...names, index])].map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
        <option value=${OTHER}>another name…</option>
      </select>
    </label>
  `;
}

function Retry() {
  return html`<button type="button" onClick=${retry}>Try again</button>`;
}

const place = /** @type {HTMLElement} */ (document.getElementById("app"));
place.textContent = "";
render(html`<${App} />`, place);
