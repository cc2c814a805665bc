/** The search view: a query, and two to four columns of methods side by side. */

import {
  ColumnEditor,
  FEWEST,
  MOST,
  another,
  columnOfDraft,
  columnsAsText,
  columnsOf,
  draftOf,
  sizeOf,
} from "./columns.js";
import { focusHit, useSlashKey } from "./keyboard.js";
import { html, useEffect, useState } from "./lib.js";
import { BM25 } from "./requests.js";
import { Results } from "./results.js";
import { indices, info, loaded, navigate, route } from "./state.js";

/** @typedef {import("./requests.js").Column} Column */

const SIZES = [5, 10, 20, 50];

/** @param {{index: string}} props */
export function Search({ index }) {
  const params = route.value.params;
  const query = params.get("q") ?? "";
  useSlashKey();
  return html`
    <${SearchForm} index=${index} params=${params} />
    ${
      index && query && loaded.value
        ? html`<${Results} index=${index} text=${query} params=${params} />`
        : html`<${Beginning} index=${index} />`
    }
  `;
}

/** @param {{index: string, params: URLSearchParams}} props */
function SearchForm({ index, params }) {
  const [text, setText] = useState(params.get("q") ?? "");
  const [size, setSize] = useState(sizeOf(params));
  const [drafts, setDrafts] = useState(columnsOf(params.get("columns")).map(draftOf));
  useEffect(() => {
    setText(params.get("q") ?? "");
    setSize(sizeOf(params));
    setDrafts(columnsOf(params.get("columns")).map(draftOf));
  }, [params]);
  const methods = [BM25, ...(info.value ? [...info.value.methods, ...info.value.rewriters] : [])];
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    const columns = drafts.map(columnOfDraft);
    if (!index || !text.trim() || columns.some((column) => column === null)) return;
    const asText = columnsAsText(/** @type {Column[]} */ (columns));
    navigate("search", { index, q: text.trim(), size: size === 10 ? "" : String(size), columns: asText });
  };
  const replace = (/** @type {number} */ place, /** @type {any} */ draft) =>
    setDrafts(drafts.map((one, other) => (other === place ? draft : one)));
  return html`
    <form class="search" role="search" onSubmit=${submit}>
      <div class="query">
        <input
          id="query"
          type="search"
          value=${text}
          aria-label="Query"
          placeholder="What are you looking for?"
          autocomplete="off"
          enterkeyhint="search"
          onInput=${(/** @type {any} */ event) => setText(event.target.value)}
          onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === "ArrowDown" && focusHit(event, 0, 0)}
        />
        <select
          aria-label="Hits in each column"
          value=${size}
          onChange=${(/** @type {any} */ event) => setSize(Number(event.target.value))}
        >
          ${[...new Set([...SIZES, size])]
            .sort((a, b) => a - b)
            .map((count) => html`<option key=${count} value=${count}>${count} hits</option>`)}
        </select>
        <button type="submit" class="primary">Search</button>
      </div>
      <details class="methods" open=${matchMedia("(width > 700px)").matches}>
        <summary>Methods: ${drafts.map(({ method }) => method).join(", ")}</summary>
        <div class="editors">
          ${drafts.map(
            (draft, place) =>
              html`<${ColumnEditor}
                key=${place}
                draft=${draft}
                place=${place}
                methods=${methods}
                change=${(/** @type {any} */ changed) => replace(place, changed)}
                remove=${drafts.length > FEWEST ? () => setDrafts(drafts.filter((_, other) => other !== place)) : null}
              />`,
          )}
          ${
            drafts.length < MOST &&
            html`<button type="button" onClick=${() => setDrafts([...drafts, another(drafts)])}>Add a column</button>`
          }
        </div>
      </details>
    </form>
  `;
}

/** @param {{index: string}} props */
function Beginning({ index }) {
  if (!loaded.value) return null;
  return html`
    <div class="beginning">
      ${
        !index &&
        html`<p>
          The engine shows no index with features of es-ttc. Type the name of one above, or make one:
          <code>es-ttc ingest NAME FILE</code>, or <code>es-ttc attach NAME</code> for an index that exists.
        </p>`
      }
      ${
        index &&
        html`<p>
            Type a query: each column ranks the same documents by another method, and lines show how they move.
            ${indices.value.length > 1 && ` ${indices.value.length} indices have features.`}
          </p>
          <dl class="keys">
            <dt><kbd>/</kbd></dt>
            <dd>to the query</dd>
            <dt><kbd>↓</kbd> <kbd>↑</kbd> <kbd>←</kbd> <kbd>→</kbd></dt>
            <dd>between hits and columns</dd>
            <dt><kbd>Enter</kbd></dt>
            <dd>why a hit ranks where it does</dd>
          </dl>`
      }
    </div>
  `;
}
