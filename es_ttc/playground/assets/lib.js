/** The libraries, under the names by which the page uses them. */

import htm from "./vendor/htm.js";
import { h } from "./vendor/preact.js";

export { Fragment, createElement, render } from "./vendor/preact.js";
export { useCallback, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
export { batch, computed, effect, signal, useComputed, useSignal, useSignalEffect } from "./vendor/signals.js";

/** Texts in a template become text nodes, never markup. */
export const html = htm.bind(h);
