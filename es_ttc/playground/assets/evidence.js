/** What is shown when a hit is opened: why it stands where it does. */

import { HeatMap } from "./heatmap.js";
import { h, html } from "./lib.js";
import { shown, signed, textOf } from "./text.js";
import { Table } from "./ui.js";
import { WalkTree } from "./walk.js";

const SIGNALS = /** @type {Record<string, string>} */ ({
  lexical: "words",
  late_interaction: "late interaction",
  sentences: "best sentence",
});

/** @param {{hit: Hit, request: any, response: SearchResponse, index: IndexInfo}} props With details in the hit's `_ttc`. */
export function Evidence({ hit, request, response: { hits, ttc }, index }) {
  const { map, passages: _, ...rest } = hit._ttc ?? {};
  const { signals, matched, coefficient } = rest;
  const { method = "blend", params, rescore_query_weight: weight } = request.rescore?.ttc ?? {};
  const late = method === "maxsim" && params?.query !== "pooled";
  const details = html`<details>
    <summary>As in the response</summary>
    <pre class="json" tabindex="0">${JSON.stringify(rest, null, 2)}</pre>
  </details>`;
  return html`<div class="evidence">
    <p>${originOf(rest)}</p>
    ${signals && h(Signals, { signals, method, counts: weight !== 0 })}
    ${coefficient !== undefined && h(Selection, { hit, hits: hits.hits })}
    ${matched && h(Phrases, { matched, expansion: (ttc?.query ?? ttc)?.expansion ?? [] })}
    ${ttc?.walk?.calls && h(WalkTree, { hit, walk: ttc.walk, calls: ttc.walk.calls })}
    ${map ? h(HeatMap, { hit, map, late }) : h(Plain, { hit, index, why: ttc?.map?.reason })}
    ${Object.keys(rest).length > 0 && details}
  </div>`;
}

/** @type {(detail: Detail) => string} */
function originOf({ first_pass_rank: rank, first_pass_score: score, stale, skipped }) {
  const said = [
    rank && `The engine's own rank: ${rank}${typeof score === "number" ? ` (score ${score.toPrecision(4)})` : ""}.`,
    rank === null && "The words did not find it: it joined by its vector, or through the graph.",
    stale && "Its features are of an earlier text.",
    skipped && `Its features are not used: ${skipped}.`,
  ];
  return said.filter(Boolean).join(" ");
}

/** @param {{signals: NonNullable<Detail["signals"]>, method: string, counts: boolean}} props Whether they rank the hit. */
function Signals({ signals, method, counts }) {
  const named = Object.entries(signals).map(([name, { score, share }]) => {
    return { name: SIGNALS[name] ?? name, score: score?.toPrecision(3) ?? "–", share };
  });
  const shares = named.flatMap(({ share }) => share ?? []);
  if (!shares.length) return html`<p>Signals: ${named.map(({ name, score }) => `${name} ${score}`).join(", ")}.</p>`;
  const widest = Math.max(...shares.map(Math.abs), 1e-9);
  const rows = named.map(({ name, score, share = 0 }) => {
    const style = { [share < 0 ? "right" : "left"]: "50%", width: `${(50 * Math.abs(share)) / widest}%` };
    const bars = html`<td class="bars"><i class=${share < 0 ? "less" : "more"} style=${style} /></td>`;
    return { key: name, cells: [name, score, bars, signed(share, 2)] };
  });
  const total = shares.reduce((sum, share) => sum + share, 0);
  const foot = ["together", "", "", signed(total, 2)];
  const hint = "Shares compare the document with the others of its window: 0 is an average one.";
  return html`
    <h3>${counts ? "What each signal adds" : "What each signal would add to blend"}</h3>
    ${h(Table, { kind: "signals", head: ["signal", "score", "", "share"], rows, foot })}
    ${method === "blend" && html`<p class="hint">${hint}</p>`}
  `;
}

/** @param {{hit: Hit, hits: Hit[]}} props The opened document, among those of the page. */
function Selection({ hit, hits }) {
  const { coefficient = 0, relevance = 0, l1, redundant_with: redundant = [] } = hit._ttc ?? {};
  const others = redundant.map(({ id, contribution }) => `${id} (${shown(contribution)})`).join(", ");
  const said = coefficient
    ? `Selected, with coefficient ${coefficient.toPrecision(3)}; its cosine with the query is ${shown(relevance)}.`
    : `Not selected: ${others ? "others say the same" : `its cosine with the query, ${shown(relevance)}, adds less than ${l1?.toPrecision(3)}`}.`;
  return html`
    <h3>Its part in the selection</h3>
    <p>${said}</p>
    ${others && html`<p>Redundant with ${others} of its ${shown(relevance)}.</p>`} ${h(Similarities, { hit, hits })}
  `;
}

/** @param {{hit: Hit, hits: Hit[]}} props The chosen documents of the page and the opened one, each with the others. */
function Similarities({ hit, hits }) {
  const listed = hits.filter(
    ({ _id: id, _ttc: detail }) => detail?.similarities && (detail.coefficient || id === hit._id),
  );
  if (listed.length < 2) return null;
  const between = (/** @type {Hit} */ one, /** @type {Hit} */ other) =>
    one === other ? 1 : one._ttc?.similarities?.find(({ id }) => id === other._id)?.similarity;
  const cell = (/** @type {Hit} */ one, /** @type {Hit} */ other) => {
    const cosine = between(one, other) ?? between(other, one);
    if (cosine === undefined) return "";
    return html`<td class="cell" style=${{ "--level": Math.max(0, cosine) ** 2 }}>${shown(cosine)}</td>`;
  };
  const rows = listed.map((one, place) => {
    const name = html`<span>${place + 1}</span> ${one._id}`;
    const cells = [name, one._ttc?.coefficient?.toPrecision(2), ...listed.map((other) => cell(one, other))];
    return { key: one._id, on: one === hit, cells };
  });
  const head = ["", "coeff.", ...listed.map(({ _id: title }, place) => h("span", { title }, place + 1))];
  const caption = "Cosines of the selected documents on this page with each other";
  return html`<div class="scrolled" tabindex="0" role="region" aria-label="Similarities of the selected documents">
    ${h(Table, { kind: "matrix", caption, head, rows })}
  </div>`;
}

/** @param {{matched: string[], expansion: Expansion[]}} props Of the words that were added, those that match. */
function Phrases({ matched, expansion }) {
  const missing = expansion.filter(({ term }) => !matched.includes(term));
  const found = (/** @type {string} */ term) => {
    const count = expansion.find((one) => one.term === term)?.documents;
    return html`<li key=${term}><mark>${term}</mark> ${count !== undefined && html`<small>in ${count}</small>`}</li>`;
  };
  return html`
    <h3>Phrases that match</h3>
    <ul class="phrases">
      ${matched.map(found)} ${missing.map(({ term }) => html`<li key=${term} class="missing">${term}</li>`)}
    </ul>
    ${missing.length > 0 && html`<p class="hint">Crossed out: searched for too, and not in this document.</p>`}
  `;
}

/** @param {{hit: Hit, index: IndexInfo, why: string | undefined}} props The text, where there is no heat map of it. */
function Plain({ hit, index, why = "this document has no token vectors" }) {
  const fields = index.fields.filter((field) => textOf(hit._source, field));
  return html`
    ${index.tokens && html`<p class="notice" role="note">No heat map: ${why}</p>`}
    ${fields.map((field) => [h("h3", { class: "field" }, field), h("p", { class: "text" }, textOf(hit._source, field))])}
  `;
}
