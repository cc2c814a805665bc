/** The documents of one query, graded one after the other by key or click. */

import { judgements } from "./judgements.js";
import { html, useEffect, useRef, useState } from "./lib.js";
import { describe } from "./state.js";
import { textOf } from "./text.js";

/**
 * @typedef {{id: string, grade: number | null, source: Record<string, any> | null}} Judged
 */

const GRADES = ["not relevant", "on the topic", "answers in part", "answers it"];
/** Saves wait for each other, so that the last grade of a document is the one that stays. */
let saving = Promise.resolve();

/**
 * @param {object} props
 * @param {string} props.index
 * @param {import("./judging.js").Pooled} props.query
 * @param {string} props.judge
 * @param {(query: string, more: number) => void} props.count Told by how many the judge's grades have grown.
 * @param {string} props.next A link to the next unfinished query; empty if there is none.
 */
export function Grader({ index, query, judge, count, next }) {
  const [documents, setDocuments] = useState(/** @type {Judged[]} */ ([]));
  const [fields, setFields] = useState(/** @type {string[]} */ ([]));
  const [place, setPlace] = useState(0);
  const [error, setError] = useState("");
  const [pending, setPending] = useState(0);
  const [steps, setSteps] = useState(/** @type {{place: number, before: number | null}[]} */ ([]));
  const card = useRef(/** @type {HTMLElement | null} */ (null));
  const area = useRef(/** @type {HTMLElement | null} */ (null));

  useEffect(() => {
    read();
  }, []);
  useEffect(() => {
    if (card.current) card.current.scrollTop = 0;
    if (documents.length) area.current?.focus({ preventScroll: true });
  }, [place, documents.length]);

  async function read() {
    const path = `/queries/${encodeURIComponent(query.id)}?${new URLSearchParams({ judge })}`;
    const [found, about] = await Promise.all([judgements("GET", index, path), describe(index).catch(() => null)]);
    if (found.error) return setError(found.error);
    setFields(about?.fields ?? []);
    setPlace(Math.max(0, firstUngraded(found.body.documents, 0)));
    setDocuments(found.body.documents);
  }

  /**
   * @param {number} at
   * @param {number | null} grade Null takes it back.
   */
  function set(at, grade) {
    const { id, grade: before } = documents[at];
    const changed = (/** @type {number | null} */ to) =>
      setDocuments((all) => all.map((one) => (one.id === id ? { ...one, grade: to } : one)));
    changed(grade);
    setPending((before) => before + 1);
    saving = saving.then(async () => {
      const body = {
        judge,
        judgements: [{ query: query.id, document: id, grade }],
      };
      const { error } = await judgements("POST", index, "", body);
      setError(error && `not saved: ${error}`);
      setPending((before) => before - 1);
      if (error) changed(before);
      else count(query.id, Number(grade !== null) - Number(before !== null));
    });
  }

  /** @param {number} grade */
  function give(grade) {
    setSteps([...steps, { place, before: documents[place].grade }]);
    set(place, grade);
    const following = documents.map((one, at) => (at === place ? { ...one, grade } : one));
    const left = firstUngraded(following, place + 1);
    if (left >= 0) setPlace(left);
  }

  function undo() {
    const last = steps.at(-1);
    if (!last) return;
    setSteps(steps.slice(0, -1));
    set(last.place, last.before);
    setPlace(last.place);
  }

  const move = (/** @type {number} */ by) => setPlace((place + by + documents.length) % documents.length);

  /** @param {KeyboardEvent} event */
  function pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !documents.length) return;
    const actions = {
      u: undo,
      Backspace: undo,
      n: () => unjudged(),
      ArrowRight: () => move(1),
      ArrowLeft: () => move(-1),
    };
    const grade = ["0", "1", "2", "3"].indexOf(event.key);
    const action = grade >= 0 ? () => give(grade) : /** @type {Record<string, () => void>} */ (actions)[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  function unjudged() {
    const left = firstUngraded(documents, place + 1);
    if (left >= 0) setPlace(left);
  }

  const left = documents.filter((one) => one.grade === null).length;
  const current = documents[place];
  return html`
    <div class="grader" ref=${area} tabindex="-1" onKeyDown=${pressed}>
      <h2>${query.text}</h2>
      <p class="hint" role="status">
        ${documents.length ? `${documents.length - left} of ${documents.length} judged, ${left} left` : !error && "Reading…"}
        ${pending > 0 && ", saving…"}
      </p>
      ${error && html`<p class="error" role="alert">${error}</p>`}
      ${
        current &&
        html`
          <ol class="places" aria-label="Documents of the pool">
            ${documents.map(
              (one, at) => html`
                <li key=${one.id}>
                  <button
                    type="button"
                    class=${one.grade === null ? "place" : `place grade-${one.grade}`}
                    aria-current=${at === place ? "true" : undefined}
                    aria-label=${`Document ${at + 1}, ${one.grade === null ? "not judged" : `grade ${one.grade}`}`}
                    onClick=${() => setPlace(at)}
                  >
                    ${one.grade ?? "·"}
                  </button>
                </li>
              `,
            )}
          </ol>
          <article class="card" ref=${card} tabindex="0" aria-label=${`Document ${place + 1} of ${documents.length}`}>
            <${Content} document=${current} fields=${fields} />
          </article>
          <div class="grades" role="group" aria-label="Grade">
            ${GRADES.map(
              (label, grade) => html`
                <button
                  key=${grade}
                  type="button"
                  class=${`grade grade-${grade}`}
                  aria-pressed=${current.grade === grade}
                  aria-keyshortcuts=${grade}
                  onClick=${() => give(grade)}
                >
                  <kbd>${grade}</kbd> ${label}
                </button>
              `,
            )}
          </div>
          <div class="actions">
            <button type="button" class="plain" disabled=${!steps.length} onClick=${undo}><kbd>u</kbd> undo</button>
            <button type="button" class="plain" onClick=${() => move(-1)}><kbd>←</kbd> back</button>
            <button type="button" class="plain" onClick=${() => move(1)}><kbd>→</kbd> on</button>
            <button type="button" class="plain" disabled=${!left} onClick=${unjudged}>
              <kbd>n</kbd> next unjudged
            </button>
            ${!left && (next ? html`<a class="next" href=${next}>Next query</a>` : html`<strong>All queries are judged.</strong>`)}
          </div>
        `
      }
    </div>
  `;
}

/**
 * @param {object} props
 * @param {Judged} props.document
 * @param {string[]} props.fields The index's text fields.
 */
function Content({ document, fields }) {
  const { source } = document;
  if (!source) return html`<p class="hint">Document ${document.id} is gone from the index: go on to the next.</p>`;
  const known = fields.filter((field) => textOf(source, field));
  if (!known.length) return html`<p class="hint">Document ${document.id} has no text.</p>`;
  const [first, ...others] = known;
  if (!others.length)
    return html`<h3>${document.id}</h3>
      <p>${textOf(source, first)}</p>`;
  return html`<h3>${textOf(source, first)}</h3>
    ${others.map((field) => html`<p key=${field}>${textOf(source, field)}</p>`)}`;
}

/**
 * @param {Judged[]} documents
 * @param {number} from
 * @returns {number} Place of the next document without a grade, from the beginning again; -1 if all have one.
 */
function firstUngraded(documents, from) {
  const later = documents.findIndex((one, at) => at >= from && one.grade === null);
  return later >= 0 ? later : documents.findIndex((one) => one.grade === null);
}
