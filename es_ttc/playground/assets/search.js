/** The search view: a query, and two to four columns of methods side by side. */

import { Evidence } from "./evidence.js";
import { ColumnEditor, FEWEST, MOST, another, columnOfDraft, columnsAsText, columnsOf, draftOf } from "./columns.js";
import { Dialog, RequestDialog } from "./dialogs.js";
import { Hit, keyOf, titleOf } from "./hits.js";
import { html, useEffect, useRef, useState } from "./lib.js";
import { Moves } from "./moves.js";
import { BM25, asCode, explain, search } from "./requests.js";
import { describe, indices, info, loaded, navigate, route } from "./state.js";
import { Took } from "./took.js";

/**
 * @typedef {import("./requests.js").Column} Column
 * @typedef {import("./requests.js").Answer} Answer
 * @typedef {Exclude<Answer, {error: string}>} Found
 * @typedef {import("./state.js").IndexInfo} IndexInfo
 * @typedef {{place: number, hit: any}} Opened
 */

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

/** The key `/` leads to the query, as on other search pages. */
function useSlashKey() {
  useEffect(() => {
    const listen = (/** @type {KeyboardEvent} */ event) => {
      const typing = /** @type {HTMLElement} */ (event.target).closest("input, select, textarea, dialog");
      if (event.key !== "/" || typing || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      document.getElementById("query")?.focus();
    };
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, []);
}

/** @param {URLSearchParams} params */
const sizeOf = (params) => Math.min(100, Math.max(1, Number(params.get("size")) || 10));

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

/**
 * The answers of the columns, each as soon as it is there.
 * @param {string} name
 * @param {string} text
 * @param {URLSearchParams} params
 * @returns {{index: IndexInfo | null, columns: Column[], answers: (Answer | undefined)[], error: string}}
 */
function useAnswers(name, text, params) {
  /** @type {ReturnType<typeof useAnswers>} */
  const nothing = { index: null, columns: columnsOf(params.get("columns")), answers: [], error: "" };
  const [state, setState] = useState(nothing);
  useEffect(() => {
    const abort = new AbortController();
    const rewriters = info.value?.rewriters ?? [];
    const run = async () => {
      const index = await describe(name);
      if (abort.signal.aborted) return;
      setState({ ...nothing, index });
      nothing.columns.forEach(async (column, place) => {
        const query = { index, text, size: sizeOf(params) };
        const answer = await search(column, query, rewriters, abort.signal).catch(() => undefined);
        if (abort.signal.aborted) return;
        setState((now) => ({ ...now, answers: Object.assign([...now.answers], { [place]: answer }) }));
      });
    };
    setState(nothing);
    run().catch((error) => setState({ ...nothing, error: error.message }));
    return () => abort.abort();
  }, [name, text, params]);
  return state;
}

/** @param {{index: string, text: string, params: URLSearchParams}} props */
function Results({ index: name, text, params }) {
  const { index, columns, answers, error } = useAnswers(name, text, params);
  const [marked, setMarked] = useState("");
  const [shown, setShown] = useState(1);
  const [opened, setOpened] = useState(/** @type {Opened | null} */ (null));
  const [code, setCode] = useState(/** @type {any} */ (null));
  const found = answers.map((answer) => (answer && "response" in answer ? answer : null));
  if (error) return html`<p class="error" role="alert">${error}</p>`;
  if (!index) return html`<p class="hint">Searching…</p>`;
  const ready = answers.filter(Boolean).length;
  return html`
    <p class="visually-hidden" role="status">${ready === columns.length ? "All columns are there." : "Searching…"}</p>
    <div class="switch" role="group" aria-label="Column shown">
      ${columns.map(
        ({ method }, place) =>
          html`<button key=${place} type="button" aria-pressed=${place === shown} onClick=${() => setShown(place)}>
            ${method}
          </button>`,
      )}
    </div>
    <div class="columns" data-count=${columns.length} onKeyDown=${moveFocus}>
      <${Moves} marked=${marked} drawn=${answers} />
      ${columns.map(
        (column, place) =>
          html`<${ColumnView}
            key=${place}
            column=${column}
            answer=${answers[place]}
            index=${index}
            left=${place ? { method: columns[place - 1].method, ranks: ranksOf(found[place - 1] ?? null) } : null}
            shown=${place === Math.min(shown, columns.length - 1)}
            marked=${marked}
            mark=${setMarked}
            open=${(/** @type {any} */ hit) => setOpened({ place, hit })}
            showRequest=${(/** @type {any} */ body) => setCode(asCode(index.name, body))}
          />`,
      )}
    </div>
    ${
      opened &&
      found[opened.place] &&
      html`<${OpenedHit}
        hit=${opened.hit}
        found=${found[opened.place]}
        index=${index}
        close=${() => setOpened(null)}
      />`
    }
    ${code && html`<${RequestDialog} code=${code} close=${() => setCode(null)} />`}
  `;
}

/**
 * @param {Found | null} found
 * @returns {Map<string, number>} The rank of each hit, from 1.
 */
function ranksOf(found) {
  return new Map(
    (found?.response.hits.hits ?? []).map((/** @type {any} */ hit, /** @type {number} */ place) => [
      keyOf(hit),
      place + 1,
    ]),
  );
}

/**
 * @param {object} props
 * @param {Column} props.column
 * @param {Answer | undefined} props.answer
 * @param {IndexInfo} props.index
 * @param {{method: string, ranks: Map<string, number>} | null} props.left The column on the left.
 * @param {boolean} props.shown Whether it is the one that a narrow screen shows.
 * @param {string} props.marked
 * @param {(key: string) => void} props.mark
 * @param {(hit: any) => void} props.open
 * @param {(body: any) => void} props.showRequest
 */
function ColumnView({ column, answer, index, left, shown, marked, mark, open, showRequest }) {
  const [active, setActive] = useState(0);
  const title = useRef(null);
  const found = answer && "response" in answer ? answer : null;
  const hits = found?.response.hits.hits ?? [];
  const parameters = JSON.stringify(column.params);
  return html`
    <section class=${shown ? "column shown" : "column"} aria-label=${column.method} aria-busy=${!answer}>
      <div class="head">
        <h2 ref=${title}>${column.method}</h2>
        ${parameters !== "{}" && html`<code title=${parameters}>${parameters}</code>`}
        ${found && html`<button type="button" class="plain" onClick=${() => showRequest(found.request)}>Request</button>`}
      </div>
      ${!answer && html`<p class="hint">Searching…</p>`}
      ${answer && "error" in answer && html`<p class="error" role="alert">${answer.error}</p>`}
      ${found && html`<${Took} response=${found.response} ms=${found.ms} /><${Notices} response=${found.response} />`}
      ${found && !hits.length && html`<p class="hint">No document was found.</p>`}
      <ol>
        ${hits.map(
          (/** @type {any} */ hit, /** @type {number} */ place) =>
            html`<${Hit}
              key=${keyOf(hit)}
              hit=${hit}
              rank=${place + 1}
              index=${index}
              ranks=${left?.ranks}
              left=${left?.method ?? ""}
              marked=${marked}
              tabIndex=${place === Math.min(active, hits.length - 1) ? 0 : -1}
              mark=${(/** @type {string} */ key) => {
                if (key) setActive(place);
                mark(key);
              }}
              open=${() => open(hit)}
            />`,
        )}
      </ol>
    </section>
  `;
}

/**
 * What a user must know of a response: that the method was not applied, or that a part is missing.
 * @param {{response: any}} props
 */
function Notices({ response }) {
  const { applied, reason, passages, candidates } = response.ttc ?? {};
  const said = [
    applied === false && `The engine's own ranking: ${reason ?? "the method was not applied"}`,
    passages?.reason && `No passages: ${passages.reason}`,
    candidates?.reason && `No documents joined by vector: ${candidates.reason}`,
    response.timed_out && "The engine stopped at its timeout: documents may be missing",
  ].filter(Boolean);
  return said.map((sentence) => html`<p key=${sentence} class="notice" role="note">${sentence}</p>`);
}

/** @param {{hit: any, found: Found, index: IndexInfo, close: () => void}} props */
function OpenedHit({ hit, found, index, close }) {
  const [answer, setAnswer] = useState(/** @type {Answer | null} */ (null));
  useEffect(() => {
    explain(index.name, found.request).then(setAnswer);
  }, [found]);
  const explained = answer && "response" in answer ? answer : found;
  const hits = explained.response.hits.hits;
  const same = hits.find((/** @type {any} */ one) => keyOf(one) === keyOf(hit)) ?? hit;
  return html`
    <${Dialog} title=${titleOf(hit, index)} kind="opened" close=${close}>
      ${answer && "error" in answer && html`<p class="error" role="alert">${answer.error}</p>`}
      ${
        answer
          ? html`<${Evidence} hit=${same} request=${explained.request} response=${explained.response} index=${index} />`
          : html`<p class="hint" role="status">Reading the evidence…</p>`
      }
    <//>
  `;
}

/**
 * Move the focus between hits by the arrow keys.
 * @param {KeyboardEvent} event
 */
function moveFocus(event) {
  const hit = /** @type {HTMLElement} */ (event.target).closest(".hit");
  if (!(hit instanceof HTMLElement)) return;
  const lists = visibleLists();
  const column = lists.findIndex((list) => list.contains(hit));
  const place = [...lists[column].querySelectorAll(".hit")].indexOf(hit);
  if (event.key === "ArrowDown") focusHit(event, column, place + 1);
  else if (event.key === "ArrowUp" && place > 0) focusHit(event, column, place - 1);
  else if (event.key === "ArrowUp") focusQuery(event);
  else if (event.key === "ArrowRight") focusHit(event, column + 1, place, hit.dataset.key);
  else if (event.key === "ArrowLeft") focusHit(event, column - 1, place, hit.dataset.key);
  else if (event.key === "Home") focusHit(event, column, 0);
  else if (event.key === "End") focusHit(event, column, Infinity);
}

function visibleLists() {
  const lists = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".columns ol"));
  return [...lists].filter((list) => list.offsetParent !== null && list.childElementCount > 0);
}

/**
 * @param {Event} event
 * @param {number} column Among those that show hits.
 * @param {number} place The last one is taken for a greater one.
 * @param {string} [key] A hit that is preferred to that place.
 */
function focusHit(event, column, place, key) {
  const hits = /** @type {HTMLElement[]} */ ([...(visibleLists()[column]?.querySelectorAll(".hit") ?? [])]);
  const chosen = hits.find((hit) => key && hit.dataset.key === key) ?? hits[Math.min(place, hits.length - 1)];
  if (!chosen) return;
  event.preventDefault();
  chosen.focus();
}

/** @param {Event} event */
function focusQuery(event) {
  event.preventDefault();
  document.getElementById("query")?.focus();
}
