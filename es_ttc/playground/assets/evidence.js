/** What is shown when a hit is opened: why it stands where it does. */

import { HeatMap } from "./heatmap.js";
import { h, html } from "./lib.js";
import { shown, signed, textOf } from "./text.js";
import { Table } from "./ui.js";

const SIGNALS = /** @type {Record<string, string>} */ ({
  lexical: "words",
  late_interaction: "late interaction",
  sentences: "best sentence",
});

/** @param {{hit: Hit, request: any, response: SearchResponse, index: IndexInfo}} props With details in the hit's `_ttc`. */
export function Evidence({ hit, request, response: { ttc }, index }) {
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
    ${coefficient !== undefined && h(Selection, { hit })}
    ${matched && h(Phrases, { matched, expansion: (ttc?.query ?? ttc)?.expansion ?? [] })}
    ${ttc?.strategy?.calls && h(WalkPath, { hit, walk: ttc.strategy, calls: ttc.strategy.calls })}
    ${map ? h(HeatMap, { hit, map, late }) : h(Plain, { hit, index, why: ttc?.map?.reason })}
    ${Object.keys(rest).length > 0 && details}
  </div>`;
}

/** @type {(detail: Detail) => string} */
function originOf({ first_pass_rank: rank, first_pass_score: score, signals, relevance, stale, skipped }) {
  const said = [
    rank && `The engine's own rank: ${rank}${typeof score === "number" ? ` (score ${score.toPrecision(4)})` : ""}.`,
    rank === null && "The words did not find it: it joined by its vector, or through the graph.",
    signals && typeof relevance === "number" && `Its relevance: ${shown(relevance)}.`,
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

/** @param {{hit: Hit}} props */
function Selection({ hit }) {
  const { coefficient = 0, relevance = 0, l1, redundant_with: redundant = [] } = hit._ttc ?? {};
  const others = redundant.map(({ id, contribution }) => `${id} (${shown(contribution)})`).join(", ");
  const said = coefficient
    ? `Selected, with coefficient ${coefficient.toPrecision(3)}; its cosine with the query is ${shown(relevance)}.`
    : `Not selected: ${others ? "others say the same" : `its cosine with the query, ${shown(relevance)}, adds less than ${l1?.toPrecision(3)}`}.`;
  return html`
    <h3>Its part in the selection</h3>
    <p>${said}</p>
    ${others && html`<p>Redundant with ${others} of its ${shown(relevance)}.</p>`}
  `;
}

/** @param {{hit: Hit, walk: Walk, calls: NonNullable<Walk["calls"]>}} props How a walk over the graph came to a hit. */
function WalkPath({ hit, walk, calls }) {
  const places = new Map(calls.map(({ _id: id }, place) => [id, place]));
  const path = [];
  for (let place = places.get(hit._id); place !== undefined; place = places.get(calls[place].from ?? ""))
    path.unshift(`${calls[place]._id} (judged as number ${place + 1})`);
  const said = path.length
    ? `Found by the first pass: ${path.join(", from there ")}.`
    : "This document was not judged: the budget was spent before its turn.";
  return html`<section class="walk">
    <h3>The walk</h3>
    <p>${said}</p>
    <p class="hint">${calls.length} documents judged by ${walk.reranker}.</p>
  </section>`;
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
