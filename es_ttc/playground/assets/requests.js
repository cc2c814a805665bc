/** The requests of a column: bodies of `_search`, and what they answer. */

import { Refused, request } from "./api.js";
import { info } from "./state.js";

export const BM25 = "bm25";

const WINDOW = 100;
const FRAGMENTS = 2;
const PASSAGES = 3;
const TIMEOUT = "10s"; // the first search of an index reads all its features
const REWRITING = "60s"; // may ask a language model

/** @type {(query: Query) => object} The query of the first pass, as the commands of es-ttc send it. */
export function matching({ text, index: { fields } }) {
  if (fields.length === 1) return { match: { [fields[0]]: text } };
  return { multi_match: { query: text, fields, tie_breaker: 0.5 } };
}

/** @type {(filters: Filters, except?: string) => object[]} The engine's clauses of all filters but a field's. */
export function filtersIn(filters, except) {
  const others = Object.entries(filters).filter(([field]) => field !== except);
  return others.map(([field, wanted]) => ({ [Array.isArray(wanted) ? "terms" : "range"]: { [field]: wanted } }));
}

/** @type {(query: any, filters: Filters) => any} */
function filtered(query, filters) {
  const filter = filtersIn(filters);
  return filter.length ? { bool: { must: [query], filter } } : query;
}

/** @type {(body: any) => any} The section of a query that is rewritten. */
const rewriting = ({ query }) => query.ttc ?? query.bool?.must[0].ttc;

/** @type {(column: Column, query: Query) => any} The body of a column's search. */
export function searchBody({ method, params }, query) {
  const { index, text, size, filters, show } = query;
  const page = { size, _source: [...index.fields, ...show] };
  if (info.value?.rewriters.includes(method)) {
    const given = { text_fields: index.fields, ...params };
    const ttc = { query_text: text, method, params: given, timeout: REWRITING };
    return { query: filtered({ ttc }, filters), ...page };
  }
  const first = { query: filtered(matching(query), filters), ...page };
  if (method === BM25) return { ...first, highlight: highlighted(index, {}) };
  const given = Object.keys(params).length ? { params } : {};
  const rescore = { window_size: Math.max(WINDOW, size), ttc: { method, ...given, timeout: TIMEOUT } };
  return { ...first, rescore, ...(index.tokens && { highlight: highlighted(index, { type: "ttc" }) }) };
}

/** @type {(index: IndexInfo, options: object) => object} The best fragments of each field. */
function highlighted({ fields }, options) {
  const of = fields.map((field) => [field, { ...options, number_of_fragments: FRAGMENTS }]);
  return { fields: Object.fromEntries(of) };
}

/** @type {(column: Column, query: Query) => any} The same for a run of ids, which must be the method's own. */
export function runBody(column, query) {
  const { highlight: _, ...body } = searchBody(column, query);
  const section = body.rescore?.ttc ?? rewriting(body);
  if (section) section.on_error = "fail";
  return { ...body, _source: false };
}

/** @type {(column: Column, query: Query, abort: AbortSignal) => Promise<Found>} Search by one column. */
export function search(column, query, abort) {
  const body = searchBody(column, query);
  const { highlight, ...plain } = body; // refused for a long text, or where an index lacks what it needs
  return firstAccepted(query.index.name, highlight ? [body, plain] : [body], abort);
}

/** @type {(index: string, body: any) => Promise<Found>} Search again, with all that explains the hits of the page. */
export function explain(index, body) {
  return firstAccepted(index, [withDetail(body, "map"), withDetail(body, true), body]);
}

/** @type {(body: any, detail: "map" | true) => any} The same search with details; the ranking stays what it is. */
function withDetail(searched, detail) {
  const { highlight: _, ...body } = structuredClone(searched);
  const rewritten = rewriting(body);
  if (rewritten) rewritten.detail = true;
  const unweighted = { method: "blend", candidates: { knn: 0 }, score_mode: "total", rescore_query_weight: 0 };
  const { ttc, window_size } = body.rescore ?? { ttc: unweighted, window_size: body.size };
  const passages = detail === "map" && { passages: PASSAGES };
  return { ...body, rescore: { window_size, ttc: { ...ttc, detail, ...passages } } };
}

/**
 * Each body is tried if the one before is refused as invalid; it throws why the first one is not accepted.
 * @type {(index: string, bodies: any[], abort?: AbortSignal) => Promise<Found>}
 */
async function firstAccepted(index, bodies, abort) {
  let fault;
  for (const body of bodies) {
    const began = performance.now();
    try {
      const response = await request("POST", searchPath(index), body, abort);
      return { request: body, response, ms: performance.now() - began };
    } catch (error) {
      fault ??= error;
      if (!(error instanceof Refused && error.status === 400)) break;
    }
  }
  throw fault;
}

/** @type {(index: string) => string} */
export const searchPath = (index) => `/${encodeURIComponent(index)}/_search`;
