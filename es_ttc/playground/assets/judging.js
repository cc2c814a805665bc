/** The tab in which results are judged: pools of documents, their grades, and how the methods stand. */

import { request } from "./api.js";
import { Grader } from "./grader.js";
import { h, html, useEffect, useState } from "./lib.js";
import { PoolMaker } from "./pooling.js";
import { Standing } from "./standing.js";
import { linkTo, route } from "./state.js";
import { Fault, typed, useAnswer } from "./ui.js";

const NAME = "es-ttc.judge";

/** @type {(index: string) => string} */
export const judgementsPath = (index) => `/_ttc/judgements/${encodeURIComponent(index)}`;

/** @param {{index: string}} props The chosen index; may be empty. */
export function Judging({ index }) {
  if (!index) return html`<p class="hint">Name an index above to judge what searches of it find.</p>`;
  return h(OfIndex, { key: index, index });
}

/** @param {{index: string}} props */
function OfIndex({ index }) {
  const [judge, setJudge] = useState(() => localStorage.getItem(NAME) ?? "");
  const [graded, setGraded] = useState(0);
  const [queries, setQueries] = useState(/** @type {Pooled[]} */ ([]));
  const ask = /** @type {() => Promise<Overview>} */ (() => request("GET", judgementsPath(index)));
  const { value: overview, error, again } = useAnswer(ask, []);
  useEffect(() => setQueries(overview?.queries.filter((one) => one.pooled) ?? []), [overview]);

  const named = (/** @type {string} */ name) => {
    localStorage.setItem(NAME, name.trim());
    setJudge(name.trim());
  };
  const count = (/** @type {string} */ query, /** @type {number} */ more) => {
    setGraded((before) => before + 1);
    const by = (/** @type {Pooled} */ one) => ({ ...one.by, [judge]: gradesOf(one, judge) + more });
    setQueries((all) => all.map((one) => (one.id === query ? { ...one, by: by(one) } : one)));
  };

  if (error) return h(Fault, { text: error }, html`<button onClick=${again}>Try again</button>`);
  if (!overview) return html`<p class="hint" role="status">Reading judgements…</p>`;
  const asked = route.value.params.get("query");
  const query = queries.find((one) => one.id === asked) ?? queries.find((one) => !isDone(one, judge)) ?? queries[0];
  const key = `${judge}\n${query?.id}`;
  const field = { value: judge, maxlength: 100, autocomplete: "nickname", placeholder: "as a judge" };
  const empty = `Nothing is pooled yet. Give some queries: their best documents by each method become a pool, in an order
    that does not show which method found what.`;
  return html`<div class="judging">
    <h1 class="visually-hidden">Judge ${index}</h1>
    <aside aria-label="Queries and methods">
      <label class="judge">Your name ${h("input", { ...field, onChange: typed(named) })}</label>
      ${h(PoolMaker, { index, open: !query, done: again })}
      ${query && [h(Queries, { index, queries, judge, query }), h(Standing, { index, graded })]}
    </aside>
    <section class="grading" aria-label="Documents to judge">
      ${!query && html`<p class="hint">${empty}</p>`}
      ${query && !judge && html`<p class="hint">Give your name to begin: grades are kept by judge.</p>`}
      ${query && judge && h(Grader, { key, index, query, judge, count, next: nextQuery(index, queries, query, judge) })}
    </section>
  </div>`;
}

/** @type {(query: Pooled, judge: string) => number} */
const gradesOf = (query, judge) => query.by[judge] ?? 0;

/** @type {(query: Pooled, judge: string) => boolean} */
const isDone = (query, judge) => gradesOf(query, judge) >= query.pooled;

/** @type {(index: string, queries: Pooled[], current: Pooled, judge: string) => string} Empty if none is unfinished. */
function nextQuery(index, queries, current, judge) {
  const place = queries.indexOf(current);
  const next = [...queries.slice(place + 1), ...queries.slice(0, place)].find((one) => !isDone(one, judge));
  return next ? linkTo("judge", { index, query: next.id }) : "";
}

/** @param {{index: string, queries: Pooled[], judge: string, query: Pooled}} props */
function Queries({ index, queries, judge, query }) {
  const pooled = queries.reduce((sum, one) => sum + one.pooled, 0);
  const mine = queries.reduce((sum, one) => sum + gradesOf(one, judge), 0);
  const link = (/** @type {Pooled} */ one) => {
    const props = { href: linkTo("judge", { index, query: one.id }), "aria-current": one === query || undefined };
    const kind = isDone(one, judge) ? "count done" : "count";
    const count = h("span", { class: kind }, `${gradesOf(one, judge)} of ${one.pooled}`);
    return h("li", { key: one.id }, h("a", props, html`<span class="text">${one.text}</span> ${count}`));
  };
  return html`<details class="queries" open>
    <summary>${queries.length} queries, ${judge ? `${pooled - mine} left to judge` : `${pooled} documents`}</summary>
    <progress max=${pooled} value=${mine} aria-label="Judged documents of all"></progress>
    <ol>
      ${queries.map(link)}
    </ol>
  </details>`;
}
