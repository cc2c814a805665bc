/** Texts of documents. Passages count code points, JavaScript counts UTF-16 units. */

const SURROGATE = /[\ud800-\udfff]/;

/**
 * @param {Record<string, any> | undefined} source A hit's `_source`.
 * @param {string} field Its name, with dots for what is inside objects.
 * @returns {string} The field's text, several values joined by a space; empty if it has none.
 */
export function textOf(source, field) {
  return flat(valueOf(source, field)).join(" ");
}

/**
 * @param {string} text
 * @param {number} start In code points.
 * @param {number} [end]
 * @returns {string}
 */
export function slice(text, start, end) {
  return SURROGATE.test(text) ? [...text].slice(start, end).join("") : text.slice(start, end);
}

/**
 * @param {any} value
 * @param {string} path
 * @returns {any}
 */
function valueOf(value, path) {
  if (value === null || typeof value !== "object") return undefined;
  if (path in value) return value[path];
  for (let dot = path.indexOf("."); dot > 0; dot = path.indexOf(".", dot + 1)) {
    const found = valueOf(value[path.slice(0, dot)], path.slice(dot + 1));
    if (found !== undefined) return found;
  }
  return Array.isArray(value) ? value.map((one) => valueOf(one, path)) : undefined;
}

/**
 * @param {any} value
 * @returns {string[]}
 */
function flat(value) {
  if (Array.isArray(value)) return value.flatMap(flat);
  return value === null || value === undefined || typeof value === "object" || value === "" ? [] : [String(value)];
}
