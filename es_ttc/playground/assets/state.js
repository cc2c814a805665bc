/** What the page's parts share: the address, what the gateway offers, and its indices. */

import { request } from "./api.js";
import { batch, signal } from "./lib.js";

const VIEWS = ["search", "judge"];
const META = "*.mappings._meta.ttc";
const FEATURES = new URLSearchParams({
  filter_path: ["text_fields", "tokens", "source"].map((key) => `${META}.${key}`).join(),
  expand_wildcards: "open,hidden", // side indices of attached features are hidden
});

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

/** @type {(mappings: Record<string, any>) => IndexInfo[]} */
function withFeatures(mappings) {
  const found = Object.entries(mappings).flatMap(([index, { mappings: mapping }]) => {
    const { text_fields: fields, tokens, source } = mapping._meta.ttc;
    const name = source ?? index;
    return fields ? [{ name, fields, tokens: tokens !== "none" }] : [];
  });
  const byName = new Map(found.map((one) => [one.name, one]));
  return [...byName.values()].sort((a, b) => a.name.localeCompare(b.name));
}

/** @type {(index: string) => Promise<IndexInfo>} Text fields of an index, alias or pattern; it throws if there are none. */
export async function describe(index) {
  const known = indices.value.find((one) => one.name === index);
  if (known) return known;
  const answer = await request("GET", `/${encodeURIComponent(index)}/_mapping`);
  const mappings = Object.values(answer).map((one) => one.mappings);
  const meta = mappings.map((one) => one?._meta?.ttc).find((one) => one?.text_fields);
  if (meta) return { name: index, fields: meta.text_fields, tokens: meta.tokens !== "none" };
  const properties = mappings.flatMap((one) => Object.entries(one?.properties ?? {}));
  const fields = new Set(properties.flatMap(([name, field]) => (field.type === "text" ? [name] : [])));
  if (!fields.size) throw new Error(`index [${index}] has no text field to search`);
  return { name: index, fields: [...fields], tokens: false };
}
