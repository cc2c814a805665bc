/** The requests of a column: bodies of `_search`, and the same as commands and programs. */

import { gatewayAddress, reasonOf, request } from "./api.js";

/**
 * @typedef {{method: string, params: Record<string, unknown>}} Column
 * @typedef {import("./state.js").IndexInfo} IndexInfo
 * @typedef {{index: IndexInfo, text: string, size: number}} Query
 * @typedef {{request: any, response: any, ms: number} | {error: string}} Answer
 */

export const BM25 = "bm25";

const WINDOW = 100;
const TIMEOUT = "10s"; // the first search of an index reads all its features
const REWRITING = "60s"; // may ask a language model

/**
 * @param {Query} query
 * @returns {object} The query of the first pass, as the commands of es-ttc send it.
 */
function matching({ text, index }) {
  if (index.fields.length === 1) return { match: { [index.fields[0]]: text } };
  return { multi_match: { query: text, fields: index.fields, tie_breaker: 0.5 } };
}

/**
 * @param {Column} column
 * @returns {object} The part of a section that is the same in each hook.
 */
function sectionOf({ method, params }) {
  return Object.keys(params).length ? { method, params } : { method };
}

/**
 * @param {Column} column
 * @param {Query} query
 * @param {string[]} rewriters Methods of the `query` hook; all others but bm25 are of `rescore`.
 * @returns {any} The body of a column's search.
 */
export function searchBody(column, query, rewriters) {
  const { index, text, size } = query;
  const page = { size, _source: index.fields };
  if (column.method === BM25) return { query: matching(query), ...page, highlight: highlightOf(index) };
  if (rewriters.includes(column.method)) {
    const params = { text_fields: index.fields, ...column.params };
    const ttc = { query_text: text, ...sectionOf({ ...column, params }), timeout: REWRITING };
    return { query: { ttc }, ...page };
  }
  const ttc = { ...sectionOf(column), timeout: TIMEOUT, ...(index.tokens && { passages: 1 }) };
  return { query: matching(query), ...page, rescore: { window_size: Math.max(WINDOW, size), ttc } };
}

/** @param {IndexInfo} index */
function highlightOf({ fields }) {
  return { fields: Object.fromEntries(fields.map((field) => [field, { number_of_fragments: 1 }])) };
}

/**
 * @param {any} body
 * @param {string | boolean} detail
 * @returns {any} The same search with details; where nothing reranks, by a rescorer that leaves the ranking as it is.
 */
function withDetail(body, detail) {
  const { highlight: _, ...rest } = body;
  const ranked = rest.query.ttc ? { ...rest, query: { ttc: { ...rest.query.ttc, detail: true } } } : rest;
  const unweighted = { method: "blend", candidates: { knn: 0 }, score_mode: "total", rescore_query_weight: 0 };
  const { ttc, window_size } = rest.rescore ?? { ttc: unweighted, window_size: rest.size };
  return { ...ranked, rescore: { window_size, ttc: { ...ttc, detail } } };
}

/**
 * Search by one column.
 * @param {Column} column
 * @param {Query} query
 * @param {string[]} rewriters
 * @param {AbortSignal} abort
 * @returns {Promise<Answer>}
 */
export async function search(column, query, rewriters, abort) {
  const body = searchBody(column, query, rewriters);
  const { highlight, ...plain } = body; // the engine may refuse to highlight a long text
  return firstAccepted(query.index.name, highlight ? [body, plain] : [body], abort);
}

/**
 * Search again, with all that explains the hits of the page.
 * @param {string} index
 * @param {any} body The column's body.
 * @returns {Promise<Answer>}
 */
export function explain(index, body) {
  return firstAccepted(index, [withDetail(body, "map"), withDetail(body, true), body]);
}

/**
 * @param {string} index
 * @param {any[]} bodies Each is tried if the one before is refused as invalid.
 * @param {AbortSignal} [abort]
 * @returns {Promise<Answer>} That of the first accepted body, or why the first one was refused.
 */
async function firstAccepted(index, bodies, abort) {
  let error = "";
  for (const body of bodies) {
    const reply = await request("POST", pathOf(index), body, abort);
    if (reply.status === 200) return { request: body, response: reply.body, ms: reply.ms };
    error ||= reasonOf(reply);
    if (reply.status !== 400) break;
  }
  return { error };
}

/** @param {string} index */
function pathOf(index) {
  return `/${encodeURIComponent(index)}/_search`;
}

/**
 * @param {string} index
 * @param {any} body
 * @returns {[string, string][]} The request in several languages, each with its name.
 */
export function asCode(index, body) {
  const json = JSON.stringify(body, null, 2);
  const address = gatewayAddress();
  const quoted = `'${json.replaceAll("'", `'\\''`)}'`;
  const curl = `curl -s '${address}${pathOf(index)}?pretty' -H 'content-type: application/json' -d ${quoted}`;
  return [
    ["curl", curl],
    ["Python, elasticsearch", python("Elasticsearch", "elasticsearch", index, body)],
    ["Python, opensearch-py", python("OpenSearch", "opensearchpy", index, body)],
    ["JSON", json],
  ];
}

/**
 * @param {string} client
 * @param {string} module
 * @param {string} index
 * @param {any} body
 */
function python(client, module, index, body) {
  return [
    `from ${module} import ${client}`,
    "",
    `client = ${client}(${literal(gatewayAddress(), 0)})`,
    `body = ${literal(body, 0)}`,
    `response = client.search(index=${literal(index, 0)}, body=body)`,
    `for hit in response["hits"]["hits"]:`,
    `    print(hit["_score"], hit["_id"])`,
  ].join("\n");
}

/**
 * @param {any} value
 * @param {number} depth
 * @returns {string} The value as Python writes it.
 */
function literal(value, depth) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = "    ".repeat(depth + 1);
  const lines = Array.isArray(value)
    ? value.map((one) => literal(one, depth + 1))
    : Object.entries(value).map(([key, one]) => `${JSON.stringify(key)}: ${literal(one, depth + 1)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const short = `${open}${lines.join(", ")}${close}`;
  if (short.length < 80 && !short.includes("\n")) return short;
  return `${open}\n${lines.map((line) => `${inner}${line},\n`).join("")}${"    ".repeat(depth)}${close}`;
}
