/** Where in a hit's text its evidence lies: the cosines of `_ttc.map` as a heat map over the text. */

import { html, useId, useMemo, useRef, useState } from "./lib.js";
import { slice, textOf } from "./text.js";

/**
 * @typedef {{low: number, high: number, rows: number[][], elsewhere: number[]}} Matrix
 *   Cosines, a row for each scale or query token; of the special tokens each row's greatest, -1 where there are none.
 * @typedef {{field: string, start: number, end: number, score: number}} Passage
 * @typedef {{name: string | null, label: string, about: string, greatest: number, special?: boolean}} Row
 * @typedef {{matrix: Matrix, rows: Row[], everything: string}} Part
 */

const DIGITS = 2;

/**
 * @param {{low: number, high: number, values: string, elsewhere?: number[]}} part
 * @param {number} columns
 * @returns {Matrix}
 */
function decoded({ low, high, values, elsewhere }, columns) {
  const bytes = Uint8Array.from(atob(values), (one) => one.charCodeAt(0));
  const rows = Array.from({ length: bytes.length / columns }, (_, row) =>
    Array.from(bytes.subarray(row * columns, (row + 1) * columns), (byte) => low + (byte / 255) * (high - low)),
  );
  return { low, high, rows, elsewhere: elsewhere ?? rows.map(() => -1) };
}

/**
 * @param {any} map
 * @returns {Record<string, Part>} By name, in the order in which they are offered.
 */
function partsOf(map) {
  const columns = map.tokens.start.length;
  /** @type {Record<string, Part>} */
  const parts = {};
  if (map.spectral) {
    const matrix = decoded(map.spectral, columns);
    const rows = map.spectral.scales.map((/** @type {number | "mean"} */ scale, /** @type {number} */ place) => ({
      name: String(scale),
      label: `scale ${scale}`,
      about: aboutScale(scale),
      greatest: greatestOf(matrix, place),
    }));
    parts.spectral = { matrix, rows, everything: "the greatest of all scales" };
  }
  if (map.late) {
    const matrix = decoded(map.late, columns);
    const rows = map.late.query_tokens.map((/** @type {string | null} */ token, /** @type {number} */ place) => ({
      name: token,
      label: token === null ? "special token of the query" : `“${token}”`,
      about: matrix.elsewhere[place] > Math.max(...matrix.rows[place]) ? "nearest to a special token" : "",
      greatest: greatestOf(matrix, place),
      special: token === null,
    }));
    parts.late = { matrix, rows, everything: "the greatest of all words of the query" };
  }
  return parts;
}

/** @param {number | "mean"} scale */
function aboutScale(scale) {
  if (scale === "mean") return "the whole text";
  return scale === 1 ? "single tokens" : `about ${2 * scale - 1} tokens wide`;
}

/**
 * @param {Matrix} matrix
 * @param {number} row
 */
const greatestOf = (matrix, row) => Math.max(matrix.elsewhere[row], ...matrix.rows[row]);

/**
 * @param {Part} part
 * @returns {number[]} The greatest of each column; special tokens of the query, which are near to any, do not count.
 */
function overRows({ matrix, rows }) {
  const words = matrix.rows.filter((_, place) => !rows[place].special);
  const counted = words.length ? words : matrix.rows;
  return counted[0].map((_, column) => Math.max(...counted.map((row) => row[column])));
}

/** @param {number} cosine */
export const shown = (cosine) => cosine.toFixed(DIGITS);

/**
 * @param {object} props
 * @param {any} props.hit A hit with `_ttc.map`.
 * @param {string} props.preferred The part that is shown first: `spectral` or `late`.
 */
export function HeatMap({ hit, preferred }) {
  const map = hit._ttc.map;
  const parts = useMemo(() => partsOf(map), [map]);
  const names = Object.keys(parts);
  const [wanted, setWanted] = useState(preferred);
  const [row, setRow] = useState(-1);
  const [passage, setPassage] = useState(/** @type {Passage | null} */ (null));
  const text = useRef(/** @type {HTMLElement | null} */ (null));
  const part = parts[wanted] ?? parts[names[0]];
  const values = row < 0 ? overRows(part) : part.matrix.rows[row];
  const choose = (/** @type {string} */ name) => {
    setWanted(name);
    setRow(-1);
  };
  const scrollTo = (/** @type {string} */ mark) =>
    text.current?.querySelector(mark)?.scrollIntoView({ block: "center" });
  const showPassage = (/** @type {Passage} */ one) => {
    setPassage(one === passage ? null : one);
    requestAnimationFrame(() => scrollTo(".chosen"));
  };
  const passages = hit._ttc.passages ?? [];
  return html`
    <section class="heat" aria-label="Where the evidence lies">
      <div class="controls">
        ${names.length > 1 && html`<${Choice} names=${names} chosen=${part === parts.late ? "late" : "spectral"} choose=${choose} />`}
        ${part === parts.late ? html`<${Tokens} part=${part} row=${row} setRow=${setRow} />` : html`<${Scales} part=${part} row=${row} setRow=${setRow} />`}
        <${Legend} part=${part} row=${row} values=${values} show=${() => scrollTo(".peak")} />
      </div>
      ${passages.length > 0 && html`<${Passages} hit=${hit} passages=${passages} chosen=${passage} show=${showPassage} />`}
      <div ref=${text}>
        ${map.fields.map((/** @type {string} */ field, /** @type {number} */ ordinal) => {
          const inside = passage?.field === field ? passage : null;
          return html`<${Field}
            key=${field}
            hit=${hit}
            ordinal=${ordinal}
            part=${part}
            values=${values}
            passage=${inside}
          />`;
        })}
      </div>
      ${map.tokens_per_cell > 1 && html`<p class="hint">A long text: each stretch is ${map.tokens_per_cell} tokens, with the greatest of their cosines.</p>`}
    </section>
  `;
}

/** @param {{names: string[], chosen: string, choose: (name: string) => void}} props */
function Choice({ names, chosen, choose }) {
  const labels = { spectral: "Spectral", late: "Late interaction" };
  return html`<div class="choice" role="group" aria-label="Evidence">
    ${names.map(
      (name) =>
        html`<button key=${name} type="button" aria-pressed=${name === chosen} onClick=${() => choose(name)}>
          ${labels[/** @type {"spectral" | "late"} */ (name)]}
        </button>`,
    )}
  </div>`;
}

/** @param {{part: Part, row: number, setRow: (row: number) => void}} props */
function Scales({ part, row, setRow }) {
  const id = useId();
  const said = row < 0 ? part.everything : `${part.rows[row].label}: ${part.rows[row].about}`;
  return html`<div class="scales">
    <label for=${id}>Scale</label>
    <input
      id=${id}
      type="range"
      min="-1"
      max=${part.rows.length - 1}
      step="1"
      value=${row}
      aria-valuetext=${said}
      onInput=${(/** @type {any} */ event) => setRow(Number(event.target.value))}
    />
    <output for=${id}>${said}</output>
  </div>`;
}

/** @param {{part: Part, row: number, setRow: (row: number) => void}} props */
function Tokens({ part, row, setRow }) {
  const chip = (/** @type {number} */ place, /** @type {string | null} */ name, /** @type {string} */ label) =>
    html`<button
      key=${place}
      type="button"
      class="chip"
      aria-pressed=${row === place}
      title=${label}
      onClick=${() => setRow(place)}
    >
      ${name ?? html`<span aria-hidden="true">◦</span><span class="visually-hidden">special token</span>`}${" "}
      ${place >= 0 && html`<small>${shown(part.rows[place].greatest)}</small>`}
    </button>`;
  const labelOf = (/** @type {Row} */ one) =>
    [`${one.label}, greatest cosine ${shown(one.greatest)}`, one.about].filter(Boolean).join(", ");
  return html`<div class="tokens" role="group" aria-label="Query token">
    ${chip(-1, "all", part.everything)} ${part.rows.map((one, place) => chip(place, one.name, labelOf(one)))}
  </div>`;
}

/** @param {{part: Part, row: number, values: number[], show: () => void}} props */
function Legend({ part, row, values, show }) {
  const { matrix } = part;
  const inText = Math.max(...values);
  const elsewhere = row < 0 ? Math.max(...matrix.elsewhere) : matrix.elsewhere[row];
  return html`<p class="legend">
    <span>cosine ${shown(paleBelow(matrix))}</span><span class="ramp" aria-hidden="true" /><span
      >${shown(matrix.high)}</span
    >
    <button type="button" class="plain" onClick=${show}>greatest in the text: ${shown(inText)}</button>
    ${elsewhere > inText && html`<span class="hint">at a special token ${shown(elsewhere)}</span>`}
  </p>`;
}

/**
 * @param {Matrix} matrix
 * @returns {number} The cosine up to which text is left white: half of all lie below it.
 */
function paleBelow({ rows }) {
  const sorted = rows.flat().sort((one, other) => one - other);
  return sorted[Math.floor(sorted.length / 2)];
}

/**
 * @param {object} props
 * @param {any} props.hit
 * @param {number} props.ordinal Of the field.
 * @param {Part} props.part
 * @param {number[]} props.values The cosine of each column.
 * @param {Passage | null} props.passage The chosen one, if it is of this field.
 */
function Field({ hit, ordinal, part, values, passage }) {
  const { fields, tokens } = hit._ttc.map;
  const text = textOf(hit._source, fields[ordinal]);
  const places = /** @type {number[]} */ (tokens.field).flatMap((one, place) => (one === ordinal ? [place] : []));
  if (!text || !places.length) return null;
  const points = [...text];
  const pale = paleBelow(part.matrix);
  const width = part.matrix.high - pale || 1;
  const peak = values.indexOf(Math.max(...values));
  let end = 0;
  const pieces = places.map((place) => {
    const start = Math.max(end, tokens.start[place]);
    const before = points.slice(end, start).join("");
    end = Math.max(start, tokens.end[place]);
    const level = Math.max(0, (values[place] - pale) / width);
    const chosen = passage !== null && tokens.start[place] >= passage.start && tokens.start[place] < passage.end;
    return html`${before}<span
        class=${["cell", chosen && "chosen", place === peak && "peak"].filter(Boolean).join(" ")}
        style=${{ "--level": level.toFixed(3) }}
        title=${shown(values[place])}
        >${points.slice(start, end).join("")}</span
      >`;
  });
  return html`
    <h3 class="field">${fields[ordinal]}</h3>
    <p class="text">${pieces}${points.slice(end).join("")}</p>
  `;
}

/**
 * @param {object} props
 * @param {any} props.hit
 * @param {Passage[]} props.passages
 * @param {Passage | null} props.chosen
 * @param {(passage: Passage) => void} props.show
 */
function Passages({ hit, passages, chosen, show }) {
  return html`<ol class="passages" aria-label="Passages that match best">
    ${passages.map(
      (passage) =>
        html`<li key=${`${passage.field} ${passage.start}`}>
          <button type="button" aria-pressed=${passage === chosen} onClick=${() => show(passage)}>
            <small>${shown(passage.score)}</small>
            ${slice(textOf(hit._source, passage.field), passage.start, passage.end)}
          </button>
        </li>`,
    )}
  </ol>`;
}
