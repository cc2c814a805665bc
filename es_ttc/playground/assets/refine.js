/** What narrows a search and what its hits show: values and ranges of fields, shown fields, the order of columns. */

import { request } from "./api.js";
import { h, html } from "./lib.js";
import { filtersIn, matching, searchPath } from "./requests.js";
import { navigate } from "./state.js";
import { parsedJson } from "./text.js";
import { typed, useAnswer } from "./ui.js";

const VALUES = 10;
const MOST = 12;

/** @type {(params: URLSearchParams) => Filters} From the address. */
export function filtersOf(params) {
  const found = parsedJson(params.get("filter"));
  return found && typeof found === "object" && !Array.isArray(found) ? found : {};
}

/** @type {(params: URLSearchParams) => string[]} Names of further fields to show, from the address. */
export const shownOf = (params) => (params.get("show") ?? "").split(",").filter(Boolean);

/** @type {(query: Query) => Promise<Facet[]>} A facet counts the documents that the other filters leave. */
async function facetsOf(query) {
  const counted = query.index.others.filter((one) => one.counted);
  const aggs = counted.slice(0, MOST).map(({ kind, counted: field = "" }) => {
    const of = kind === "number" ? { stats: { field } } : { terms: { field, size: VALUES } };
    return [field, { filter: { bool: { filter: filtersIn(query.filters, field) } }, aggs: { of } }];
  });
  if (!aggs.length) return [];
  const body = { size: 0, query: matching(query), aggs: Object.fromEntries(aggs) };
  const { aggregations } = await request("POST", searchPath(query.index.name), body);
  return counted.slice(0, MOST).flatMap(({ name, kind, counted: field = "" }) => {
    const { buckets = [], min, max } = aggregations[field].of;
    const telling = kind === "number" ? min < max : buckets.length > 1 && buckets[0].doc_count > 1;
    return telling || query.filters[field] ? [{ name, field, kind, buckets, min, max }] : [];
  });
}

/** @param {{query: Query, params: URLSearchParams}} props */
export function Refine({ query, params }) {
  const { index } = query;
  const [filters, show] = [filtersOf(params), shownOf(params)]; // of the query only once it is answered
  const { value: facets } = useAnswer(() => facetsOf(query), [query]);
  const go = (/** @type {Record<string, string>} */ to) => navigate("search", { ...Object.fromEntries(params), ...to });
  const filter = (/** @type {string} */ field, /** @type {Filters[string] | undefined} */ wanted) => {
    const { [field]: _, ...others } = filters;
    const all = wanted === undefined ? others : { ...others, [field]: wanted };
    go({ filter: Object.keys(all).length ? JSON.stringify(all) : "" });
  };
  const others = index.others.filter(({ name }) => !index.fields.includes(name));
  const toggle = (/** @type {string} */ name) => go({ show: toggled(show, name).join() });
  const box = ({ name = "" }) => h(Box, { name, on: show.includes(name), change: () => toggle(name) });
  const sorted = params.get("order") === "moves";
  const sort = { type: "button", "aria-pressed": sorted, onClick: () => go({ order: sorted ? "" : "moves" }) };
  return html`<div class="refine" role="group" aria-label="Filters and fields">
    ${(facets ?? []).map((facet) => h(FacetMenu, { key: facet.field, facet, chosen: filters[facet.field], filter }))}
    ${Object.keys(filters).length > 0 && html`<button class="plain" onClick=${() => go({ filter: "" })}>Clear</button>`}
    <span class="space" />
    ${others.length > 0 && h(Menu, { name: "Fields", on: show.length }, others.map(box))}
    ${h("button", { ...sort, title: "Hits that rise most against the column on the left come first" }, "Gains first")}
  </div>`;
}

/** @type {<T>(all: T[], one: T) => T[]} */
const toggled = (all, one) => (all.includes(one) ? all.filter((other) => other !== one) : [...all, one]);

/** @param {{name: string, on: number, children?: Child}} props A list that opens below its name. */
function Menu({ name, on, children }) {
  return html`<details class=${on ? "menu on" : "menu"} name="menu">
    <summary>${name}${on > 0 && html` <b>${on}</b>`}</summary>
    <div>${children}</div>
  </details>`;
}

/** @param {{name: string, on: boolean, change: () => void, count?: number}} props */
const Box = ({ name, on, change, count }) =>
  html`<label
    ><input type="checkbox" checked=${on} onChange=${change} /> <span>${name}</span> <small>${count}</small></label
  >`;

/** @param {{facet: Facet, chosen?: Filters[string], filter: (field: string, wanted?: Filters[string]) => void}} props */
function FacetMenu({ facet: { name, field, kind, buckets, min, max }, chosen, filter }) {
  if (kind === "number") {
    const range = /** @type {Record<string, number>} */ (chosen ?? {});
    const bound = (/** @type {string} */ key, /** @type {number} */ at, /** @type {string} */ label) => {
      const change = (/** @type {string} */ text) => {
        const { [key]: _, ...other } = range;
        const wanted = text === "" ? other : { ...other, [key]: Number(text) };
        filter(field, Object.keys(wanted).length ? wanted : undefined);
      };
      const shown = { type: "number", step: "any", placeholder: String(at), value: range[key] ?? "" };
      return html`<label>${label} ${h("input", { ...shown, onChange: typed(change) })}</label>`;
    };
    const inputs = [bound("gte", min, "from"), bound("lte", max, "to")];
    return h(Menu, { name, on: Object.keys(range).length }, inputs);
  }
  const wanted = /** @type {string[]} */ (chosen ?? []);
  const values = new Map(wanted.map((value) => [value, 0]));
  for (const { key, key_as_string: text, doc_count: count } of buckets) values.set(text ?? String(key), count);
  const box = (/** @type {[string, number]} */ [value, count]) => {
    const change = () => {
      const all = toggled(wanted, value);
      filter(field, all.length ? all : undefined);
    };
    return h(Box, { name: value, on: wanted.includes(value), change, count });
  };
  return h(Menu, { name, on: wanted.length }, [...values].map(box));
}
