// Columns that several pages have; table.js says what a column is. `more`: its further properties.

import { make, makeCut, setAttribute, setCut, setStatus, setText } from "./dom.js";
import { count } from "./format.js";

// A number, quiet where it is not known.
export const figure = (label, value, show = count, more = {}) => ({
  label,
  value,
  numeric: true,
  update: (cell, row) => {
    setText(cell, show(value(row)));
    cell.classList.toggle("unknown", (value(row) ?? null) === null);
  },
  ...more,
});

// Words that may be long.
export const words = (label, value, more = {}) => ({
  label,
  value,
  long: true,
  create: makeCut,
  update: (cell, row) => setCut(cell.firstElementChild, value(row)),
  ...more,
});

// A name, and a line about it below. `classes`: of both.
export const named = (label, value, about, classes = ["name", "sub"], more = {}) => ({
  label,
  value,
  create: () => make("div", {}, ...classes.map((name) => make("span", { class: name }))),
  update: (cell, row) => {
    const [name, below] = cell.firstElementChild.children;
    setCut(name, value(row));
    setCut(below, about(row));
  },
  ...more,
});

// `look`: row => [word, tone]; `value`: what it is sorted by.
export const status = (value, look) => ({
  label: "Status",
  value,
  create: () => make("span"),
  update: (cell, row) => setStatus(cell.firstElementChild, ...look(row)),
});

// Why something is so, if there is a reason.
export const reason = (label, value) => ({
  label,
  value,
  wide: true,
  update: (cell, row) => {
    setText(cell, value(row) ?? "");
    setAttribute(cell, "data-label", value(row) ? label : null);
  },
});
