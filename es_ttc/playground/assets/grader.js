/** The documents of one query, graded one after the other by key or click. */

import { request } from "./api.js";
import { judgementsPath } from "./judging.js";
import { h, html, useEffect, useRef, useState } from "./lib.js";
import { describe } from "./state.js";
import { textOf } from "./text.js";
import { Fault } from "./ui.js";

const GRADES = ["not relevant", "on the topic", "answers in part", "answers it"];
/** Saves wait for each other, so that the last grade of a document is the one that stays. */
let saving = Promise.resolve();

/**
 * `count` is told by how many the judge's grades have grown; `next` links to an unfinished query, or is empty.
 * @param {{index: string, query: Pooled, judge: string, count: (query: string, more: number) => void, next: string}} props
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
    read().catch(({ message }) => setError(message));
  }, []);
  useEffect(() => {
    if (card.current) card.current.scrollTop = 0;
    if (documents.length) area.current?.focus({ preventScroll: true });
  }, [place, documents.length]);

  async function read() {
    const path = `${judgementsPath(index)}/queries/${encodeURIComponent(query.id)}?${new URLSearchParams({ judge })}`;
    const [found, about] = await Promise.all([request("GET", path), describe(index).catch(() => null)]);
    setFields(about?.fields ?? []);
    setPlace(Math.max(0, firstUngraded(found.documents, 0)));
    setDocuments(found.documents);
  }

  /** @type {(at: number, grade: number | null) => void} Grade a document; null takes its grade back. */
  function set(at, grade) {
    const { id, grade: before } = documents[at];
    const change = (/** @type {number | null} */ to) =>
      setDocuments((all) => all.map((one) => (one.id === id ? { ...one, grade: to } : one)));
    change(grade);
    setPending((waiting) => waiting + 1);
    saving = saving.then(async () => {
      try {
        const judgements = [{ query: query.id, document: id, grade }];
        await request("POST", judgementsPath(index), { judge, judgements });
        setError("");
        count(query.id, Number(grade !== null) - Number(before !== null));
      } catch (problem) {
        setError(`not saved: ${/** @type {Error} */ (problem).message}`);
        change(before);
      }
      setPending((waiting) => waiting - 1);
    });
  }

  /** @type {(grade: number) => void} */
  function give(grade) {
    setSteps([...steps, { place, before: documents[place].grade }]);
    set(place, grade);
    toUngraded(documents.with(place, { ...documents[place], grade }));
  }

  function undo() {
    const last = steps.at(-1);
    if (!last) return;
    setSteps(steps.slice(0, -1));
    set(last.place, last.before);
    setPlace(last.place);
  }

  const move = (/** @type {number} */ by) => setPlace((place + by + documents.length) % documents.length);
  const toUngraded = (all = documents) => {
    const left = firstUngraded(all, place + 1);
    if (left >= 0) setPlace(left);
  };

  /** @type {Record<string, () => void>} */
  const actions = {
    u: undo,
    Backspace: undo,
    n: () => toUngraded(),
    ArrowRight: () => move(1),
    ArrowLeft: () => move(-1),
  };
  GRADES.forEach((_, grade) => (actions[grade] = () => give(grade)));
  const pressed = (/** @type {KeyboardEvent} */ event) => {
    const action = actions[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey || !documents.length) return;
    event.preventDefault();
    action();
  };

  const left = documents.filter((one) => one.grade === null).length;
  const progress = `${documents.length - left} of ${documents.length} judged, ${left} left`;
  const current = documents[place];
  const keyed = (/** @type {string} */ key, /** @type {string} */ shown, /** @type {string} */ label, given = {}) =>
    html`<button class="plain" onClick=${actions[key]} ...${given}><kbd>${shown}</kbd> ${label}</button>`;
  const grade = (/** @type {string} */ label, /** @type {number} */ at) =>
    keyed(`${at}`, `${at}`, label, { class: "grade", "aria-pressed": current.grade === at, "aria-keyshortcuts": at });
  const content = () => html`
    ${h(Places, { documents, place, setPlace })}
    <article class="card" ref=${card} tabindex="0" aria-label=${`Document ${place + 1} of ${documents.length}`}>
      ${h(Content, { ...current, fields })}
    </article>
    <div class="grades" role="group" aria-label="Grade">${GRADES.map(grade)}</div>
    <div class="actions">
      ${keyed("u", "u", "undo", { disabled: !steps.length })} ${keyed("ArrowLeft", "←", "back")}
      ${keyed("ArrowRight", "→", "on")} ${keyed("n", "n", "next unjudged", { disabled: !left })}
      ${!left && next && html`<a class="next" href=${next}>Next query</a>`}
      ${!left && !next && html`<strong>All queries are judged.</strong>`}
    </div>
  `;
  return html`<div class="grader" ref=${area} tabindex="-1" onKeyDown=${pressed}>
    <h2>${query.text}</h2>
    <p class="hint" role="status">${current ? progress : !error && "Reading…"}${pending > 0 && ", saving…"}</p>
    ${h(Fault, { text: error })} ${current && content()}
  </div>`;
}

/** @param {{documents: Judged[], place: number, setPlace: (place: number) => void}} props */
function Places({ documents, place, setPlace }) {
  const button = (/** @type {Judged} */ { id, grade }, /** @type {number} */ at) => {
    const label = `Document ${at + 1}, ${grade === null ? "not judged" : `grade ${grade}`}`;
    const props = { class: `place grade-${grade}`, "aria-current": at === place || undefined, "aria-label": label };
    return h("li", { key: id }, h("button", { ...props, onClick: () => setPlace(at) }, grade ?? "·"));
  };
  return html`<ol class="places" aria-label="Documents of the pool">
    ${documents.map(button)}
  </ol>`;
}

/** @param {Judged & {fields: string[]}} props A document, and the index's text fields. */
function Content({ id, source, fields }) {
  if (!source) return html`<p class="hint">Document ${id} is gone from the index: go on to the next.</p>`;
  const texts = fields.map((field) => textOf(source, field)).filter(Boolean);
  if (!texts.length) return html`<p class="hint">Document ${id} has no text.</p>`;
  const [title, ...others] = texts.length > 1 ? texts : [id, ...texts];
  return [h("h3", null, title), others.map((text) => h("p", null, text))];
}

/** @type {(documents: Judged[], from: number) => number} From there on, then from the beginning; -1 if all have one. */
function firstUngraded(documents, from) {
  const later = documents.findIndex((one, at) => at >= from && one.grade === null);
  return later >= 0 ? later : documents.findIndex((one) => one.grade === null);
}
