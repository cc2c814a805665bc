/** The results of a search: columns, an opened hit, a request as code. */

import { MOST, columnsOf, sizeOf } from "./columns.js";
import { Dialog, RequestDialog } from "./dialogs.js";
import { Evidence } from "./evidence.js";
import { Hit, keyOf, titleOf } from "./hits.js";
import { moveFocus } from "./keyboard.js";
import { html, useEffect, useState } from "./lib.js";
import { Moves } from "./moves.js";
import { asCode, explain, search } from "./requests.js";
import { describe, info } from "./state.js";
import { Took } from "./took.js";

/**
 * @typedef {import("./requests.js").Column} Column
 * @typedef {import("./requests.js").Answer} Answer
 * @typedef {Exclude<Answer, {error: string}>} Found
 * @typedef {import("./state.js").IndexInfo} IndexInfo
 * @typedef {{place: number, hit: any}} Opened
 */

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
export function Results({ index: name, text, params }) {
  const { index, columns, answers, error } = useAnswers(name, text, params);
  const [marked, setMarked] = useState("");
  const [chosen, setShown] = useState(MOST);
  const shown = Math.min(chosen, columns.length - 1);
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
            shown=${place === shown}
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
  const found = answer && "response" in answer ? answer : null;
  const hits = found?.response.hits.hits ?? [];
  const parameters = JSON.stringify(column.params);
  return html`
    <section class=${shown ? "column shown" : "column"} aria-label=${column.method} aria-busy=${!answer}>
      <div class="head">
        <h2>${column.method}</h2>
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
