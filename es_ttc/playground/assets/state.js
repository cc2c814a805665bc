/** What the page's parts share: the address, the gateway, and its indices. */

import { reasonOf, request } from "./api.js";
import { batch, signal } from "./lib.js";

/**
 * @typedef {{view: string, params: URLSearchParams}} Route
 *   A view, and what it shows: `#/search?index=articles&q=cats`.
 * @typedef {{name: string, fields: string[], tokens: boolean}} IndexInfo
 *   An index with features: its encoded text fields, and whether its tokens have vectors.
 * @typedef {{methods: string[], rewriters: string[], version: string, engine: {product: string | null, version?: string}}} Info
 */

const VIEWS = ["search", "judge"];

/** @returns {Route} */
function parsedHash() {
  const [, view = "", query = ""] = /^#\/([a-z]*)\??(.*)$/s.exec(location.hash) ?? [];
  return { view: VIEWS.includes(view) ? view : "search", params: new URLSearchParams(query) };
}

export const route = signal(parsedHash());
export const info = signal(/** @type {Info | null} */ (null));
export const indices = signal(/** @type {IndexInfo[]} */ ([]));

/** Whether the gateway has been asked what it offers. */
export const loaded = signal(false);

/** Why the gateway or its indices cannot be read; empty if they can. */
export const trouble = signal("");

addEventListener("hashchange", () => {
  route.value = parsedHash();
});

/**
 * @param {string} view
 * @param {Record<string, string>} params Empty values are left out.
 * @returns {string} A link to a view.
 */
export function linkTo(view, params) {
  const given = Object.entries(params).filter(([, value]) => value !== "");
  return `#/${view}?${new URLSearchParams(given)}`;
}

/**
 * Show a view, and put it into the address.
 * @param {string} view
 * @param {Record<string, string>} params
 */
export function navigate(view, params) {
  const link = linkTo(view, params);
  if (link === location.hash)
    route.value = parsedHash(); // the same again: search once more
  else location.hash = link;
}

/** Read what the gateway offers, and which indices it can rank. */
export async function load() {
  const [about, mappings] = await Promise.all([request("GET", "/_ttc/"), request("GET", `/_mapping?${FEATURES}`)]);
  const failed = [about, mappings].find((reply) => reply.status !== 200);
  batch(() => {
    if (about.status === 200) info.value = about.body;
    if (mappings.status === 200) indices.value = withFeatures(mappings.body);
    trouble.value = failed ? reasonOf(failed) : "";
    loaded.value = true;
  });
}

/** Read it again, and show the view again. */
export async function retry() {
  await load();
  route.value = parsedHash();
}

const META = "*.mappings._meta.ttc";
const FEATURES = new URLSearchParams({
  filter_path: ["text_fields", "tokens", "source"].map((key) => `${META}.${key}`).join(),
  expand_wildcards: "open,hidden", // side indices of attached features are hidden
});

/**
 * @param {Record<string, any>} mappings
 * @returns {IndexInfo[]}
 */
function withFeatures(mappings) {
  /** @type {Map<string, IndexInfo>} */
  const found = new Map();
  for (const [index, { mappings: mapping }] of Object.entries(mappings)) {
    const { text_fields: fields, tokens, source } = mapping._meta.ttc;
    const name = source ?? index;
    if (fields) found.set(name, { name, fields, tokens: tokens !== "none" });
  }
  return [...found.values()].sort((a, b) => a.name.localeCompare(b.name));
}

/**
 * @param {string} index A name, alias or pattern.
 * @returns {Promise<IndexInfo>} Its text fields, of features or else of its mapping.
 * @throws {Error} The mapping cannot be read, or has no text field.
 */
export async function describe(index) {
  const known = indices.value.find((one) => one.name === index);
  if (known) return known;
  const reply = await request("GET", `/${encodeURIComponent(index)}/_mapping`);
  if (reply.status !== 200) throw new Error(reasonOf(reply));
  const mappings = Object.values(reply.body).map((one) => one.mappings);
  const meta = mappings.map((one) => one?._meta?.ttc).find((one) => one?.text_fields);
  if (meta) return { name: index, fields: meta.text_fields, tokens: meta.tokens !== "none" };
  const fields = new Set(mappings.flatMap((one) => textFields(one?.properties ?? {})));
  if (!fields.size) throw new Error(`index [${index}] has no text field to search`);
  return { name: index, fields: [...fields], tokens: false };
}

/**
 * @param {Record<string, any>} properties
 * @returns {string[]}
 */
function textFields(properties) {
  return Object.entries(properties).flatMap(([name, field]) => (field.type === "text" ? [name] : []));
}
