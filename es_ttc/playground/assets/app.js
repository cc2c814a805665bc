/** The page: header, views by address, and the dialog for credentials. */

import { asking, signOut, signedIn } from "./api.js";
import { Judging } from "./judging.js";
import { html, render, useEffect, useState } from "./lib.js";
import { Search } from "./search.js";
import { SignIn } from "./signin.js";
import { indices, info, linkTo, load, navigate, retry, route, trouble } from "./state.js";

/** @type {[string, string][]} */
const TABS = [
  ["search", "Search"],
  ["judge", "Judge"],
];

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
 * Any name can be typed: an alias, a pattern, an index that may not be listed.
 * @param {{view: string, index: string}} props
 */
function IndexPicker({ view, index }) {
  const [text, setText] = useState(index);
  const choose = (/** @type {string} */ name) => {
    const params = Object.fromEntries(route.value.params);
    if (name && name !== index) navigate(view, { ...params, index: name });
  };
  return html`
    <label class="picker">
      <span>Index</span>
      <input
        list="indices"
        value=${text}
        placeholder=${indices.value.length ? "" : "name of an index"}
        autocomplete="off"
        spellcheck=${false}
        onInput=${(/** @type {any} */ event) => setText(event.target.value)}
        onChange=${(/** @type {any} */ event) => choose(event.target.value.trim())}
      />
      <datalist id="indices">${indices.value.map(({ name }) => html`<option key=${name} value=${name} />`)}</datalist>
    </label>
  `;
}

function Retry() {
  return html`<button type="button" onClick=${retry}>Try again</button>`;
}

const place = /** @type {HTMLElement} */ (document.getElementById("app"));
place.textContent = "";
render(html`<${App} />`, place);
