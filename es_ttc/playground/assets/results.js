/** The results of a search: columns, an opened hit, a request as code. */

import { RequestDialog } from "./code.js";
import { columnsOf, sizeOf } from "./columns.js";
import { Evidence } from "./evidence.js";
import { HitButton, keyOf, titleOf } from "./hits.js";
import { moveFocus } from "./keyboard.js";
import { h, html, useEffect, useState } from "./lib.js";
import { Moves } from "./moves.js";
import { Refine, filtersOf, shownOf } from "./refine.js";
import { explain, search } from "./requests.js";
import { describe } from "./state.js";
import { Took } from "./took.js";
import { Choices, Dialog, Fault, useAnswer } from "./ui.js";
import { WhyDialog } from "./why.js";

/**
 * @typedef {{query: Query | null, columns: Column[], answers: (Answer | undefined)[], error: string}} Searched
 * @type {(name: string, text: string, params: URLSearchParams) => Searched} Each answer as soon as it is there.
 */
function useSearches(name, text, params) {
  /** @type {Searched} */
  const nothing = { query: null, columns: columnsOf(params.get("columns")), answers: [], error: "" };
  const [state, setState] = useState(nothing);
  useEffect(() => {
    const abort = new AbortController();
    const change = (/** @type {(now: Searched) => Searched} */ to) => abort.signal.aborted || setState(to);
    const answered = (/** @type {number} */ place, /** @type {Answer} */ answer) =>
      change((now) => ({ ...now, answers: Object.assign([...now.answers], { [place]: answer }) }));
    setState(({ query }) => ({ ...nothing, query })); // filters stay open meanwhile
    describe(name)
      .then((index) => {
        const query = { index, text, size: sizeOf(params), filters: filtersOf(params), show: shownOf(params) };
        change(() => ({ ...nothing, query }));
        nothing.columns.forEach((column, place) =>
          search(column, query, abort.signal).then(
            (found) => answered(place, { found, error: "" }),
            ({ message }) => answered(place, { found: null, error: message }),
          ),
        );
      })
      .catch(({ message }) => change(() => ({ ...nothing, error: message })));
    return () => abort.abort();
  }, [name, text, params]);
  return state;
}

/** @param {{name: string, text: string, params: URLSearchParams}} props The index's name, the query, the address. */
export function Results({ name, text, params }) {
  const { query, columns, answers, error } = useSearches(name, text, params);
  const [chosen, choose] = useState(columns.length);
  const [opened, open] = useState(/** @type {Opened | null} */ (null));
  if (error) return h(Fault, { text: error });
  if (!query) return html`<p class="hint">Searching…</p>`;
  const { index } = query;
  const shown = Math.min(chosen, columns.length - 1);
  const ready = answers.filter(Boolean).length === columns.length;
  const methods = columns.map(({ method }) => method);
  const others = answers.flatMap((answer) => answer?.found?.response.hits.hits ?? []);
  const close = () => open(null);
  return html`
    <p class="visually-hidden" role="status">${ready ? "All columns are there." : "Searching…"}</p>
    ${h(Refine, { query, params })}
    ${h(Choices, { label: "Column shown", kind: "switch", names: methods, chosen: shown, choose })}
    <div class="columns" data-count=${columns.length} onKeyDown=${moveFocus}>
      ${h(Moves, { drawn: answers })}
      ${columns.map((column, place) => {
        const left = place ? { method: methods[place - 1], ranks: ranksOf(answers[place - 1]) } : null;
        const sorted = params.get("order") === "moves";
        const given = { column, query, answer: answers[place], left, sorted, shown: place === shown, open };
        return h(ColumnView, { key: place, ...given });
      })}
    </div>
    ${opened?.hit && h(OpenedHit, { found: opened.found, hit: opened.hit, index, close })}
    ${opened?.why && h(WhyDialog, { found: opened.found, others, index, close })}
    ${opened && !opened.hit && !opened.why && h(RequestDialog, { index: index.name, body: opened.found.request, close })}
  `;
}

/** @type {(answer: Answer | undefined) => Map<string, number>} The rank of each hit, from 1. */
function ranksOf(answer) {
  return new Map(answer?.found?.response.hits.hits.map((hit, place) => [keyOf(hit), place + 1]));
}

/**
 * @param {{column: Column, answer: Answer | undefined, query: Query, left: LeftColumn | null, sorted: boolean,
 *   shown: boolean, open: (opened: Opened) => void}} props Whether its hits are sorted by their gain
 *   in ranks, whether a narrow screen shows it; opens a dialog.
 */
function ColumnView({ column: { method, params }, answer, query, left, sorted, shown, open }) {
  const [active, setActive] = useState(0);
  const found = answer?.found;
  const hits = found?.response.hits.hits ?? [];
  const ranked = hits.map((hit, place) => ({ hit, rank: place + 1, before: left?.ranks.get(keyOf(hit)) }));
  const gain = (/** @type {Ranked} */ { rank, before = hits.length + 1 }) => before - rank;
  const ordered = sorted && left ? ranked.toSorted((one, other) => gain(other) - gain(one)) : ranked;
  const filters = Object.keys(query.filters).length > 0 && " Fewer filters may find more.";
  const parameters = JSON.stringify(params);
  const button = (/** @type {Ranked} */ { hit, rank }, /** @type {number} */ place) => {
    const tabIndex = place === Math.min(active, hits.length - 1) ? 0 : -1;
    const acts = { activate: () => setActive(place), open: () => found && open({ found, hit }) };
    return h(HitButton, { key: keyOf(hit), hit, rank, query, left, tabIndex, ...acts });
  };
  return html`
    <section class=${shown ? "column shown" : "column"} aria-label=${method} aria-busy=${!answer}>
      <div class="head">
        <h2>${method}</h2>
        ${parameters !== "{}" && html`<code title=${parameters}>${parameters}</code>`}
        ${found?.request.rescore && html`<button class="plain" onClick=${() => open({ found, why: true })}>Why not?</button>`}
        ${found && html`<button class="plain" onClick=${() => open({ found })}>Request</button>`}
      </div>
      ${!answer && html`<p class="hint">Searching…</p>`} ${h(Fault, { text: answer?.error })}
      ${found && [h(Took, found), h(Notices, found)]}
      ${found && !hits.length && html`<p class="empty">No document was found.${filters}</p>`}
      <ol>
        ${ordered.map(button)}
      </ol>
    </section>
  `;
}

/** @param {{response: SearchResponse}} props What a user must know: the method was not applied, a part is missing. */
function Notices({ response: { ttc, timed_out: late } }) {
  const said = [
    ttc?.applied === false && `The engine's own ranking: ${ttc.reason ?? "the method was not applied"}`,
    Boolean(ttc?.queued) && `${ttc?.queued} documents have no features yet and wait to be encoded`,
    ttc?.passages?.reason && `No passages: ${ttc.passages.reason}`,
    ttc?.candidates?.reason && `No documents joined by vector: ${ttc.candidates.reason}`,
    late && "The engine stopped at its timeout: documents may be missing",
  ];
  return said.filter(Boolean).map((sentence) => html`<p key=${sentence} class="notice" role="note">${sentence}</p>`);
}

/** @param {{hit: Hit, found: Found, index: IndexInfo, close: () => void}} props */
function OpenedHit({ hit, found, index, close }) {
  const { value, error } = useAnswer(() => explain(index.name, found.request), [found]);
  const { request, response } = value ?? found;
  const same = response.hits.hits.find((one) => keyOf(one) === keyOf(hit)) ?? hit;
  const content = !value && !error && html`<p class="hint" role="status">Reading the evidence…</p>`;
  return h(
    Dialog,
    { title: titleOf(hit, index), kind: "opened", close },
    h(Fault, { text: error }),
    content || h(Evidence, { hit: same, request, response, index }),
  );
}
