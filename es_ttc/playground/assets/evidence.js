/** What is shown when a hit is opened: why it stands where it does. */

import { HeatMap, shown } from "./heatmap.js";
import { html } from "./lib.js";
import { textOf } from "./text.js";
import { Walk } from "./walk.js";

const SIGNALS = {
  lexical: "words",
  dense: "dense",
  spectral: "spectral",
  late_interaction: "late interaction",
  sentences: "best sentence",
};
/** What stands elsewhere on the page, or is too long to be read. */
const LEFT_OUT = ["map", "passages"];

/**
 * @param {object} props
 * @param {any} props.hit The hit, with the method's details in `_ttc`.
 * @param {any} props.request The search's body.
 * @param {any} props.response The response that contains the hit.
 * @param {import("./state.js").IndexInfo} props.index
 */
export function Evidence({ hit, request, response, index }) {
  const detail = hit._ttc ?? {};
  const { method, params, rescore_query_weight: weight } = request.rescore?.ttc ?? {};
  const late = method === "maxsim" && params?.query !== "pooled";
  const rest = Object.entries(detail).filter(([name]) => !LEFT_OUT.includes(name));
  return html`
    <div class="evidence">
      <${Origin} hit=${hit} />
      ${detail.signals && html`<${Signals} signals=${detail.signals} method=${method} counts=${weight !== 0} />`}
      ${detail.coefficient !== undefined && html`<${Selection} hit=${hit} hits=${response.hits.hits} />`}
      ${detail.matched && html`<${Phrases} matched=${detail.matched} asked=${[response.ttc?.query ?? response.ttc].flat()} />`}
      ${response.ttc?.walk?.calls?.length > 0 && html`<${Walk} hit=${hit} walk=${response.ttc.walk} />`}
      ${
        detail.map
          ? html`<${HeatMap} hit=${hit} preferred=${late ? "late" : "spectral"} />`
          : html`<${Plain} hit=${hit} index=${index} why=${response.ttc?.map?.reason} />`
      }
      ${
        rest.length > 0 &&
        html`<details>
          <summary>As in the response</summary>
          <pre class="json" tabindex="0">${JSON.stringify(Object.fromEntries(rest), null, 2)}</pre>
        </details>`
      }
    </div>
  `;
}

/** @param {{hit: any}} props */
function Origin({ hit }) {
  const { first_pass_rank: rank, first_pass_score: score, stale, skipped } = hit._ttc ?? {};
  const said = [
    rank && `The engine's own rank: ${rank}${typeof score === "number" ? ` (score ${score.toPrecision(4)})` : ""}.`,
    rank === null && "The words did not find it: it joined by its vector, or through the graph.",
    stale && "Its features are of an earlier text.",
    skipped && `Its features are not used: ${skipped}.`,
  ].filter(Boolean);
  return said.length > 0 && html`<p class="origin">${said.join(" ")}</p>`;
}

/**
 * @param {object} props
 * @param {Record<string, {score: number | null, share: number}>} props.signals
 * @param {string} props.method
 * @param {boolean} props.counts Whether the ranking is made of them.
 */
function Signals({ signals, method, counts }) {
  const shares = Object.values(signals).flatMap(({ share }) => (share === undefined ? [] : [share]));
  if (!shares.length) return html`<p>${scoresOf(signals)}</p>`;
  const total = shares.reduce((sum, share) => sum + share, 0);
  const widest = Math.max(...shares.map(Math.abs), 1e-9);
  return html`<section>
    <h3>${counts ? "What each signal adds" : "What each signal would add to blend"}</h3>
    <table class="signals">
      <thead>
        <tr>
          <th scope="col">signal</th>
          <th scope="col">score</th>
          <td aria-hidden="true" />
          <th scope="col">share</th>
        </tr>
      </thead>
      <tbody>
        ${Object.entries(signals).map(
          ([name, { score, share }]) =>
            html`<tr key=${name}>
              <th scope="row">${SIGNALS[/** @type {keyof SIGNALS} */ (name)] ?? name}</th>
              <td>${score === null || score === undefined ? "–" : score.toPrecision(3)}</td>
              <td class="bars" aria-hidden="true"><${Bar} part=${(share ?? 0) / widest} /></td>
              <td>${signed(share ?? 0)}</td>
            </tr>`,
        )}
      </tbody>
      <tfoot>
        <tr>
          <th scope="row">together</th>
          <td />
          <td aria-hidden="true" />
          <td>${signed(total)}</td>
        </tr>
      </tfoot>
    </table>
    ${
      (method ?? "blend") === "blend" &&
      html`<p class="hint">Shares compare the document with the others of its window: 0 is an average one.</p>`
    }
  </section>`;
}

/**
 * @param {Record<string, {score: number | null}>} signals Of a method that does not add them up.
 * @returns {string}
 */
function scoresOf(signals) {
  const shownScores = Object.entries(signals).map(([name, { score }]) => {
    const label = SIGNALS[/** @type {keyof SIGNALS} */ (name)] ?? name;
    return `${label} ${typeof score === "number" ? score.toPrecision(3) : "–"}`;
  });
  return `Signals: ${shownScores.join(", ")}.`;
}

/** @param {{part: number}} props From -1 to 1. */
function Bar({ part }) {
  const width = `${Math.abs(part) * 50}%`;
  const place = part < 0 ? { right: "50%", width } : { left: "50%", width };
  return html`<i class=${part < 0 ? "less" : "more"} style=${place} />`;
}

/** @param {number} value */
const signed = (value) => `${value < 0 ? "−" : "+"}${shown(Math.abs(value))}`;

/**
 * The chosen documents of the page and the opened one, with their similarities.
 * @param {{hit: any, hits: any[]}} props
 */
function Selection({ hit, hits }) {
  const { coefficient, relevance, l1, redundant_with: redundant } = hit._ttc;
  const listed = hits.filter((one) => one._ttc?.similarities && (one._ttc.coefficient > 0 || one._id === hit._id));
  const known = new Map(
    listed.flatMap((one) =>
      one._ttc.similarities.map((/** @type {any} */ other) => [`${one._id}\n${other.id}`, other.similarity]),
    ),
  );
  const between = (/** @type {any} */ one, /** @type {any} */ other) =>
    one === other ? 1 : (known.get(`${one._id}\n${other._id}`) ?? known.get(`${other._id}\n${one._id}`));
  return html`<section>
    <h3>Its part in the selection</h3>
    <p>
      ${
        coefficient > 0
          ? `Selected, with coefficient ${coefficient.toPrecision(3)}; its cosine with the query is ${shown(relevance)}.`
          : `Not selected: ${redundant?.length ? "others say the same" : `its cosine with the query, ${shown(relevance)}, adds less than ${l1}`}.`
      }
    </p>
    ${
      redundant?.length > 0 &&
      html`<p>
        Redundant with ${redundant.map((/** @type {any} */ one) => `${one.id} (${shown(one.contribution)})`).join(", ")}
        of its ${` ${shown(relevance)}`}.
      </p>`
    }
    ${
      listed.length > 1 &&
      html`<div class="scrolled" tabindex="0" role="region" aria-label="Similarities of the selected documents">
        <table class="matrix">
          <caption>
            Cosines of the selected documents on this page with each other
          </caption>
          <thead>
            <tr>
              <td />
              <th scope="col">coeff.</th>
              ${listed.map((one, place) => html`<th key=${one._id} scope="col" title=${one._id}>${place + 1}</th>`)}
            </tr>
          </thead>
          <tbody>
            ${listed.map(
              (one, place) =>
                html`<tr key=${one._id} class=${one._id === hit._id ? "on" : undefined}>
                  <th scope="row"><span>${place + 1}</span> ${one._id}</th>
                  <td>${one._ttc.coefficient.toPrecision(2)}</td>
                  ${listed.map((other) => html`<${Similarity} key=${other._id} cosine=${between(one, other)} />`)}
                </tr>`,
            )}
          </tbody>
        </table>
      </div>`
    }
  </section>`;
}

/** @param {{cosine: number | undefined}} props */
function Similarity({ cosine }) {
  if (cosine === undefined) return html`<td />`;
  return html`<td class="cell" style=${{ "--level": Math.max(0, cosine) ** 2 }}>${shown(cosine)}</td>`;
}

/** @param {{matched: string[], asked: any[]}} props */
function Phrases({ matched, asked }) {
  const expansion = asked.flatMap((one) => one?.expansion ?? []);
  const missing = expansion.filter(({ term }) => !matched.includes(term));
  const documents = new Map(expansion.map(({ term, documents: count }) => [term, count]));
  return html`<section>
    <h3>Phrases that match</h3>
    <ul class="phrases">
      ${matched.map(
        (term) =>
          html`<li key=${term}>
            <mark>${term}</mark> ${documents.get(term) !== undefined && html`<small>in ${documents.get(term)}</small>`}
          </li>`,
      )}
      ${missing.map(({ term }) => html`<li key=${term} class="missing">${term}</li>`)}
    </ul>
    ${missing.length > 0 && html`<p class="hint">Crossed out: searched for too, and not in this document.</p>`}
  </section>`;
}

/** @param {{hit: any, index: import("./state.js").IndexInfo, why: string | undefined}} props */
function Plain({ hit, index, why }) {
  const without = index.tokens ? why || "this document has no token vectors" : "";
  return html`
    ${without && html`<p class="notice" role="note">No heat map: ${without}</p>`}
    ${index.fields.map((field) => {
      const text = textOf(hit._source, field);
      return (
        text &&
        html`<h3 key=${`${field} name`} class="field">${field}</h3>
          <p key=${field} class="text">${text}</p>`
      );
    })}
  `;
}
