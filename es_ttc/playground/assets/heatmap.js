/** Where in a hit's text its evidence lies: the cosines of `_ttc.map` as a heat map over the text. */

import { h, html, useMemo, useRef, useState } from "./lib.js";
import { shown, slice, textOf } from "./text.js";
import { Choices } from "./ui.js";

/** @type {(map: EvidenceMap) => EvidencePart[]} In the order in which they are offered. */
function partsOf({ tokens, spectral, late }) {
  const columns = tokens.start.length;
  const parts = [];
  if (spectral) {
    const named = spectral.scales.map((scale) => ({
      name: `${scale}`,
      label: `scale ${scale}`,
      about: aboutScale(scale),
    }));
    parts.push({ title: "Scales", everything: "the greatest of all scales", ...decoded(spectral, columns, named) });
  }
  if (late) {
    const everything = "the greatest of all words of the query";
    const special = { name: SPECIAL, label: "special token of the query", about: "", special: true };
    const named = late.query_tokens.map((name) => (name !== null ? { name, label: `“${name}”`, about: "" } : special));
    parts.push({ title: "Query tokens", everything, ...decoded(late, columns, named) });
  }
  return parts;
}

const SPECIAL = html`<span aria-hidden="true">◦</span><span class="visually-hidden">special token</span>`;

/** @type {(scale: number | "mean") => string} */
function aboutScale(scale) {
  if (scale === "mean") return "the whole text";
  return scale === 1 ? "single tokens" : `about ${2 * scale - 1} tokens wide`;
}

/** @type {(cosines: Cosines, columns: number, named: EvidenceName[]) => Pick<EvidencePart, "rows" | "high" | "pale">} */
function decoded({ low, high, values, elsewhere }, columns, named) {
  const bytes = Uint8Array.from(atob(values), (one) => one.charCodeAt(0));
  const all = Array.from(bytes, (byte) => low + (byte / 255) * (high - low));
  const rows = named.map((one, place) => {
    const cosines = all.slice(place * columns, (place + 1) * columns);
    const special = elsewhere?.[place] ?? -1;
    const inText = Math.max(...cosines);
    const about = special > inText ? "nearest to a special token" : one.about;
    return { ...one, about, cosines, elsewhere: special, greatest: Math.max(special, inText) };
  });
  return { rows, high, pale: all.sort((one, other) => one - other)[Math.floor(all.length / 2)] };
}

/** @type {(rows: EvidenceRow[]) => number[]} The greatest of each column; special tokens, near to any, don't count. */
function overRows(rows) {
  const words = rows.filter(({ special }) => !special);
  const counted = words.length ? words : rows;
  return counted[0].cosines.map((_, column) => Math.max(...counted.map(({ cosines }) => cosines[column])));
}

/** @param {{hit: Hit, map: EvidenceMap, late: boolean}} props Whether late interaction is shown first. */
export function HeatMap({ hit, map, late }) {
  const parts = useMemo(() => partsOf(map), [map]);
  const [wanted, setWanted] = useState(Number(late));
  const [row, setRow] = useState(-1);
  const [place, setPlace] = useState(-1);
  const text = useRef(/** @type {HTMLElement | null} */ (null));
  const passages = hit._ttc?.passages ?? [];
  const chosen = Math.min(wanted, parts.length - 1);
  const part = parts[chosen];
  const values = row < 0 ? overRows(part.rows) : part.rows[row].cosines;
  const choose = (/** @type {number} */ one) => {
    setWanted(one);
    setRow(-1);
  };
  const scrollTo = (/** @type {string} */ kind) =>
    text.current?.querySelector(kind)?.scrollIntoView({ block: "center" });
  const showPassage = (/** @type {number} */ one) => {
    setPlace(one === place ? -1 : one);
    requestAnimationFrame(() => scrollTo(".chosen"));
  };
  const kinds = { label: "Evidence", kind: "choice", names: parts.map(({ title }) => title), chosen, choose };
  const found = passages.map(({ field, start, end, score }) => {
    return html`<small>${shown(score)}</small> ${slice(textOf(hit._source, field), start, end)}`;
  });
  const label = "Passages that match best";
  const stretch = `each stretch is ${map.tokens_per_cell} tokens, with the greatest of their cosines`;
  return html`<section class="heat" aria-label="Where the evidence lies">
    <div class="controls">
      ${parts.length > 1 && h(Choices, kinds)} ${h(Rows, { part, row, setRow })}
      ${h(Legend, { part, row, values, show: () => scrollTo(".peak") })}
    </div>
    ${found.length > 0 && h(Choices, { label, kind: "passages", names: found, chosen: place, choose: showPassage })}
    <div ref=${text}>
      ${map.fields.map((_, ordinal) => h(Field, { hit, map, ordinal, part, values, passage: passages[place] }))}
    </div>
    ${map.tokens_per_cell > 1 && html`<p class="hint">A long text: ${stretch}.</p>`}
  </section>`;
}

/** @param {{part: EvidencePart, row: number, setRow: (row: number) => void}} props */
function Rows({ part: { title, rows, everything }, row, setRow }) {
  const chips = rows.map(({ name, label, greatest, about }) => {
    const hint = [`${label}, greatest cosine ${shown(greatest)}`, about].filter(Boolean).join(", ");
    return html`<span title=${hint}>${name} <small>${shown(greatest)}</small></span>`;
  });
  const names = [h("span", { title: everything }, "all"), ...chips];
  const choose = (/** @type {number} */ place) => setRow(place - 1);
  return h(Choices, { label: title, kind: "tokens", names, chosen: row + 1, choose });
}

/** @param {{part: EvidencePart, row: number, values: number[], show: () => void}} props */
function Legend({ part: { rows, pale, high }, row, values, show }) {
  const inText = Math.max(...values);
  const elsewhere = row < 0 ? Math.max(...rows.map((one) => one.elsewhere)) : rows[row].elsewhere;
  return html`<p class="legend">
    <span>cosine ${shown(pale)}</span><span class="ramp" /><span>${shown(high)}</span>
    <button class="plain" onClick=${show}>greatest in the text: ${shown(inText)}</button>
    ${elsewhere > inText && html`<span class="hint">at a special token ${shown(elsewhere)}</span>`}
  </p>`;
}

/**
 * A field's text, each token with its colour.
 * @param {{hit: Hit, map: EvidenceMap, ordinal: number, part: EvidencePart, values: number[],
 *   passage: Passage | undefined}} props
 *   The field's ordinal, the cosine of each column, the chosen passage of whatever field.
 */
function Field({ hit, map: { fields, tokens }, ordinal, part, values, passage }) {
  const field = fields[ordinal];
  const points = [...textOf(hit._source, field)];
  const places = tokens.field.flatMap((one, place) => (one === ordinal ? [place] : []));
  if (!points.length || !places.length) return null;
  const peak = values.indexOf(Math.max(...values));
  let end = 0;
  const pieces = places.map((place) => {
    const from = tokens.start[place];
    const start = Math.max(end, from);
    const before = points.slice(end, start).join("");
    end = Math.max(start, tokens.end[place]);
    const level = Math.max(0, (values[place] - part.pale) / (part.high - part.pale || 1));
    const chosen = passage?.field === field && from >= passage.start && from < passage.end;
    const marks = ["cell", chosen && "chosen", place === peak && "peak"].filter(Boolean).join(" ");
    const props = { class: marks, style: { "--level": level.toFixed(3) }, title: shown(values[place]) };
    return [before, h("span", props, points.slice(start, end).join(""))];
  });
  return [h("h3", { class: "field" }, field), h("p", { class: "text" }, pieces, points.slice(end).join(""))];
}
