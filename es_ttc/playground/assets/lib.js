/** The libraries, under the names by which the page uses them. Types of data are in `../types.d.ts`. */

import htm from "./vendor/htm.js";
import { h } from "./vendor/preact.js";

export { h, render } from "./vendor/preact.js";
export { useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
export { batch, signal } from "./vendor/signals.js";

/** Markup. Texts in a template become text nodes, never markup. Components are made by `h`, which checks their props. */
export const html = htm.bind(h);
