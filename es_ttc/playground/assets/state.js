/** What the page's parts share: the address, what the gateway offers, and its indices. */

import { request } from "./api.js";
import { batch, signal } from "./lib.js";

const VIEWS = ["search", "judge"];
const META = "*.mappings._meta.ttc";
const FEATURES = new URLSearchParams({
  filter_path: ["text_fields", "tokens", "source"].map((key) => `${META}.${key}`).join(),
  expand_wildcards: "open,hidden", // side indices of attached features are hidden
});

/** Numeric types of fields. */
const NUMBER = /^(byte|short|integer|(unsigned_)?long|(half_|scaled_)?float|double)$/;

export const route = signal(parsedHash());
export const info = signal(/** @type {Info | null} */ (null));
export const indices = signal(/** @type {{name: string, meta: any}[]} */ ([]));

/** Whether the gateway has been asked what it offers. */
export const loaded = signal(false);

/** Why the gateway or its indices cannot be read; empty if they can. */
export const trouble = signal("");

addEventListener("hashchange", () => {
  route.value = parsedHash();
});

/** @type {() => Route} */
function parsedHash() {
  const [, view = "", query = ""] = /^#\/([a-z]*)\??(.*)$/s.exec(location.hash) ?? [];
  return { view: VIEWS.includes(view) ? view : "search", params: new URLSearchParams(query) };
}

/** @type {(view: string, params: Record<string, string>) => string} A link to a view; empty values are left out. */
export function linkTo(view, params) {
  const given = Object.entries(params).filter(([, value]) => value !== "");
  return `#/${view}?${new URLSearchParams(given)}`;
}

/** @type {(view: string, params: Record<string, string>) => void} Show a view, and put it into the address. */
export function navigate(view, params) {
  const link = linkTo(view, params);
  if (link !== location.hash) location.hash = link;
  else route.value = parsedHash(); // the same again: search once more
}

/** Read what the gateway offers, and which indices it can rank. */
export async function load() {
  const asked = [request("GET", "/_ttc/"), request("GET", `/_mapping?${FEATURES}`)];
  const [about, mappings] = await Promise.allSettled(asked);
  batch(() => {
    if (about.status === "fulfilled") info.value = about.value;
    if (mappings.status === "fulfilled") indices.value = withFeatures(mappings.value);
    const failed = [about, mappings].find((one) => one.status === "rejected");
    trouble.value = failed?.reason.message ?? "";
    loaded.value = true;
  });
}

/** Read it again, and show the view again. */
export async function retry() {
  await load();
  route.value = parsedHash();
}

/** @type {(mappings: Record<string, any>) => {name: string, meta: any}[]} */
function withFeatures(mappings) {
  const found = Object.entries(mappings).flatMap(([index, { mappings: mapping }]) => {
    const meta = mapping._meta.ttc;
    return meta.text_fields ? [{ name: meta.source ?? index, meta }] : [];
  });
  const byName = new Map(found.map((one) => [one.name, one]));
  return [...byName.values()].sort((a, b) => a.name.localeCompare(b.name));
}

/** @type {(index: string) => Promise<IndexInfo>} Fields of an index, alias or pattern; it throws if none has text. */
export async function describe(index) {
  const answer = await request("GET", `/${encodeURIComponent(index)}/_mapping`);
  const mappings = Object.values(answer).map((one) => one.mappings);
  const known = indices.value.filter((one) => one.name === index || one.name in answer); // several by an alias
  const own = mappings.flatMap((one) => (one?._meta?.ttc?.text_fields ? [one._meta.ttc] : []));
  const metas = known.length ? known.map(({ meta }) => meta) : own;
  const titles = new Set(metas.map((meta) => meta.text_fields[0]));
  const others = [
    ...new Map(mappings.flatMap((one) => fieldsOf(one?.properties)).map((one) => [one.name, one])).values(),
  ];
  const texts = others.flatMap(({ name, kind }) => (kind === "text" ? [name] : []));
  const fields = metas.length ? [...new Set([...titles, ...metas.flatMap((meta) => meta.text_fields)])] : texts;
  if (!fields.length) throw new Error(`index [${index}] has no text field to search`);
  const tokens = metas.some((meta) => meta.tokens !== "none");
  return { name: index, fields, titles: titles.size || 1, others, tokens };
}

/** @type {(properties: Record<string, any> | undefined, path?: string) => IndexField[]} The index's own fields. */
function fieldsOf(properties = {}, path = "") {
  return Object.entries(properties).flatMap(([key, { type, properties: inner, fields: also = {} }]) => {
    const name = `${path}${key}`;
    if (name === "ttc" || type === "nested") return [];
    if (inner) return fieldsOf(inner, `${name}.`);
    const [label = ""] = Object.entries(also).find(([, one]) => one.type === "keyword") ?? [];
    const counted = { text: label && `${name}.${label}`, keyword: name, boolean: name }[/** @type {string} */ (type)];
    return [NUMBER.test(type) ? { name, kind: "number", counted: name } : { name, kind: type, counted }];
  });
}
