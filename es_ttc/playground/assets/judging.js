/** The tab in which results are judged: pools of documents, their grades, and how the methods stand. */

import { Grader } from "./grader.js";
import { judgements } from "./judgements.js";
import { html, useEffect, useState } from "./lib.js";
import { PoolMaker } from "./pooling.js";
import { Standing } from "./standing.js";
import { linkTo, route } from "./state.js";

/**
 * @typedef {{id: string, text: string, methods: string[], pooled: number, judged: number, unjudged: number,
 *   by: Record<string, number>}} Pooled A query and its pool.
 * @typedef {{queries: Pooled[], judges: Record<string, {source: string, judgements: number}>,
 *   agreement: {pairs: {judges: string[], both: number, equal: number, kappa: number | null}[],
 *   documents: number, alpha: number | null}}} Overview
 */

const NAME = "es-ttc.judge";

/** @param {{index: string}} props The chosen index; may be empty. */
export function Judging({ index }) {
  if (!index) return html`<p class="hint">Name an index above to judge what searches of it find.</p>`;
  return html`<${OfIndex} key=${index} index=${index} />`;
}

/** @param {{index: string}} props */
function OfIndex({ index }) {
  const [judge, setJudge] = useState(() => localStorage.getItem(NAME) ?? "");
  const [overview, setOverview] = useState(/** @type {Overview | null} */ (null));
  const [error, setError] = useState("");
  const [graded, setGraded] = useState(0);

  const load = async () => {
    const { body, error } = await judgements("GET", index);
    if (!error) setOverview(body);
    setError(error);
  };
  useEffect(() => {
    load();
  }, []);

  /** @param {string} name */
  const named = (name) => {
    localStorage.setItem(NAME, name);
    setJudge(name);
  };
  /**
   * @param {string} query
   * @param {number} more
   */
  const count = (query, more) => {
    setGraded((before) => before + 1);
    setOverview(
      (before) =>
        before && {
          ...before,
          queries: counted(before.queries, query, judge, more),
        },
    );
  };

  if (error)
    return html`<p class="error" role="alert">${error} <button type="button" onClick=${load}>Try again</button></p>`;
  if (!overview) return html`<p class="hint" role="status">Reading judgements…</p>`;
  const queries = overview.queries.filter((one) => one.pooled);
  const current = queryOf(queries, route.value.params.get("query"), judge);
  return html`
    <div class="judging">
      <h1 class="visually-hidden">Judge ${index}</h1>
      <aside aria-label="Queries and methods">
        <${Judge} judge=${judge} named=${named} />
        <${PoolMaker} index=${index} open=${!queries.length} done=${load} />
        ${
          queries.length > 0 &&
          html`<${Queries} index=${index} queries=${queries} judge=${judge} current=${current?.id ?? ""} />
            <${Standing} index=${index} graded=${graded} />
            <${Agreement} overview=${overview} />`
        }
      </aside>
      <section class="grading" aria-label="Documents to judge">
        ${
          queries.length === 0 &&
          html`<p class="hint">
            Nothing is pooled yet. Give some queries: their best documents by each method become a pool, in an order
            that does not show which method found what.
          </p>`
        }
        ${queries.length > 0 && !judge && html`<p class="hint">Give your name to begin: grades are kept by judge.</p>`}
        ${
          judge &&
          current &&
          html`<${Grader}
            key=${`${judge}\n${current.id}`}
            index=${index}
            query=${current}
            judge=${judge}
            count=${count}
            next=${nextQuery(index, queries, current.id, judge)}
          />`
        }
      </section>
    </div>
  `;
}

/**
 * @param {Pooled[]} queries
 * @param {string} query
 * @param {string} judge
 * @param {number} more
 * @returns {Pooled[]} The queries with so many more grades of a judge.
 */
function counted(queries, query, judge, more) {
  return queries.map((one) =>
    one.id === query ? { ...one, by: { ...one.by, [judge]: (one.by[judge] ?? 0) + more } } : one,
  );
}

/**
 * @param {Pooled} query
 * @param {string} judge
 */
const isDone = (query, judge) => (query.by[judge] ?? 0) >= query.pooled;

/**
 * @param {Pooled[]} queries
 * @param {string | null} asked
 * @param {string} judge
 * @returns {Pooled | undefined} The query of the address, else the first that the judge has not finished.
 */
function queryOf(queries, asked, judge) {
  return queries.find((one) => one.id === asked) ?? queries.find((one) => !isDone(one, judge)) ?? queries[0];
}

/**
 * @param {string} index
 * @param {Pooled[]} queries
 * @param {string} current
 * @param {string} judge
 * @returns {string} A link to the next query that the judge has not finished; empty if there is none.
 */
function nextQuery(index, queries, current, judge) {
  const place = queries.findIndex((one) => one.id === current);
  const others = [...queries.slice(place + 1), ...queries.slice(0, place)];
  const next = others.find((one) => !isDone(one, judge));
  return next ? linkTo("judge", { index, query: next.id }) : "";
}

/** @param {{judge: string, named: (name: string) => void}} props */
function Judge({ judge, named }) {
  return html`
    <label class="judge">
      Your name
      <input
        value=${judge}
        maxlength="100"
        autocomplete="nickname"
        placeholder="as a judge"
        onChange=${(/** @type {any} */ event) => named(event.target.value.trim())}
      />
    </label>
  `;
}

/** @param {{index: string, queries: Pooled[], judge: string, current: string}} props */
function Queries({ index, queries, judge, current }) {
  const pooled = queries.reduce((sum, one) => sum + one.pooled, 0);
  const mine = queries.reduce((sum, one) => sum + (one.by[judge] ?? 0), 0);
  return html`
    <details class="queries" open>
      <summary>${queries.length} queries, ${judge ? `${pooled - mine} left to judge` : `${pooled} documents`}</summary>
      <progress max=${pooled} value=${mine} aria-label="Judged documents of all"></progress>
      <ol>
        ${queries.map(
          (one) => html`
            <li key=${one.id}>
              <a
                href=${linkTo("judge", { index, query: one.id })}
                aria-current=${one.id === current ? "true" : undefined}
              >
                <span class="text">${one.text}</span>
                <span class=${isDone(one, judge) ? "count done" : "count"}>${one.by[judge] ?? 0} of ${one.pooled}</span>
              </a>
            </li>
          `,
        )}
      </ol>
    </details>
  `;
}

/** @param {{overview: Overview}} props */
function Agreement({ overview }) {
  const { pairs, alpha } = overview.agreement;
  if (!pairs.length) return null;
  return html`
    <details class="agreement">
      <summary>Agreement of judges</summary>
      ${pairs.map(
        ({ judges, both, equal, kappa }) => html`
          <p>
            ${judges.join(" and ")}: ${both} documents, ${Math.round(100 * equal)}% equal, kappa
            ${" "}${kappa === null ? "undefined" : kappa.toFixed(2)}
          </p>
        `,
      )}
      <p class="hint">
        Cohen's kappa with linear weights.
        ${alpha !== null && ` All judges: Krippendorff's alpha ${alpha.toFixed(2)} (ordinal).`}
      </p>
    </details>
  `;
}
