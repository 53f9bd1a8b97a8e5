// A table of many rows: sorted by its headings, filtered by words, and shown in parts, so that a browser keeps up with it.

import { make, setAttribute, setChildren, setText } from "./dom.js";
import { count } from "./format.js";

const PART = 50;

// `columns`: {label, value: row => what it is sorted by, create: () => node (default: none), update: (cell, row), numeric, wide, long, optional}
// A wide column takes the room that is left; a long one has a line of its own on a phone; an
// optional one is hidden while no row has a value for it. The first is the row's heading.
// `key` and `words`: what identifies a row, and what the filter looks in.
// `filter` and `more`, where given: the search field, and the button that goes on, alone in its paragraph.
export class Table {
  constructor(table, { columns, key, words, caption, sort = 0, descending = false, filter = null, more = null }) {
    Object.assign(this, { columns, key, words, sort, descending, filter, more });
    this.rows = [];
    this.first = 0;
    this.headings = columns.map((column, at) => this.heading(column, at));
    this.body = make("tbody");
    const head = make("thead", {}, make("tr", {}, ...this.headings));
    table.replaceChildren(make("caption", { class: "hidden-label" }, caption), head, this.body);
    filter?.addEventListener("input", () => this.go(0));
    if (more) this.makePager(more);
  }

  makePager(more) {
    this.back = make("button", { type: "button" }, "Previous");
    this.place = make("span", { class: "aside" });
    more.textContent = "Next";
    more.parentElement.replaceChildren(this.back, more, this.place);
    this.back.addEventListener("click", () => this.go(this.first - PART));
    more.addEventListener("click", () => this.go(this.first + PART));
  }

  go(first) {
    this.first = first;
    this.draw();
  }

  heading(column, at) {
    const button = make("button", { type: "button", title: column.title }, column.label);
    button.addEventListener("click", () => {
      this.descending = this.sort === at ? !this.descending : Boolean(column.numeric);
      this.sort = at;
      this.go(0);
    });
    return make("th", { scope: "col", class: column.numeric ? "num" : null }, button);
  }

  show(rows) {
    this.rows = rows;
    this.draw();
  }

  draw() {
    const found = this.sorted(this.filtered());
    const last = this.more ? Math.max(0, Math.ceil(found.length / PART) - 1) * PART : 0;
    this.first = Math.max(0, Math.min(this.first, last));
    const shown = this.more ? found.slice(this.first, this.first + PART) : found;
    this.headings.forEach((heading, at) => {
      const order = at === this.sort ? (this.descending ? "descending" : "ascending") : null;
      setAttribute(heading, "aria-sort", order);
    });
    const hidden = this.columns.map((column) => Boolean(column.optional) && this.rows.every((row) => column.value(row) === null));
    this.headings.forEach((heading, at) => (heading.hidden = hidden[at]));
    setChildren(this.body, shown, {
      key: this.key,
      create: () => this.createRow(),
      update: (node, row) => this.columns.forEach((column, at) => {
        node.children[at].hidden = hidden[at];
        column.update(node.children[at], row);
      }),
    });
    if (this.more) {
      this.more.parentElement.hidden = found.length <= PART;
      this.back.disabled = this.first === 0;
      this.more.disabled = this.first === last;
      setText(this.place, `${count(this.first + 1)} to ${count(this.first + shown.length)} of ${count(found.length)}`);
    }
  }

  createRow() {
    const cells = this.columns.map((column, at) => {
      const kinds = { num: column.numeric, wide: column.wide, long: column.long };
      const name = Object.keys(kinds).filter((kind) => kinds[kind]).join(" ") || null;
      const cell = at ? make("td", { class: name, "data-label": column.label }) : make("th", { scope: "row", class: name });
      if (column.create) cell.append(column.create());
      return cell;
    });
    return make("tr", {}, ...cells);
  }

  filtered() {
    const wanted = (this.filter?.value ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    if (!wanted.length) return this.rows;
    return this.rows.filter((row) => {
      const said = this.words(row).toLowerCase();
      return wanted.every((word) => said.includes(word));
    });
  }

  // What is not known comes last, in either order; rows that are equal keep the order they came in.
  sorted(rows) {
    const { value } = this.columns[this.sort];
    const sign = this.descending ? -1 : 1;
    return rows
      .map((row) => [value(row) ?? null, row])
      .sort(([a], [b]) => (a === null || b === null ? (a === null) - (b === null) : sign * compare(a, b)))
      .map(([, row]) => row);
  }
}

const ORDER = new Intl.Collator("en", { numeric: true });

function compare(a, b) {
  return typeof a === "string" ? ORDER.compare(a, b) : a - b;
}
