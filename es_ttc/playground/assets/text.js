/** Texts of documents, numbers, JSON. Passages count code points, JavaScript counts UTF-16 units. */

/** @type {(source: Source | null | undefined, field: string) => string} A field's text; several values are joined. */
export const textOf = (source, field) => flat(valueOf(source, field)).join(" ");

/** @type {(text: string, start: number, end?: number) => string} A part of a text; places are in code points. */
export const slice = (text, start, end) => [...text].slice(start, end).join("");

/** @type {(cosine: number) => string} */
export const shown = (cosine) => cosine.toFixed(2);

/** @type {(value: number, digits: number) => string} */
export const signed = (value, digits) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;

/** @type {(text: string | null) => any} The value that a text holds as JSON; undefined if it holds none. */
export function parsedJson(text) {
  try {
    return JSON.parse(text ?? "");
  } catch {
    return undefined;
  }
}

/** @type {(value: any, path: string) => unknown} The value at a path with dots, whose keys may hold dots too. */
function valueOf(value, path) {
  if (value === null || typeof value !== "object") return undefined;
  if (path in value) return value[path];
  for (let dot = path.indexOf("."); dot > 0; dot = path.indexOf(".", dot + 1)) {
    const found = valueOf(value[path.slice(0, dot)], path.slice(dot + 1));
    if (found !== undefined) return found;
  }
  return Array.isArray(value) ? value.map((one) => valueOf(one, path)) : undefined;
}

/** @type {(value: unknown) => string[]} */
function flat(value) {
  if (Array.isArray(value)) return value.flatMap(flat);
  return value === null || value === undefined || typeof value === "object" || value === "" ? [] : [String(value)];
}
