// Builds and changes the page. Text from elsewhere is always textContent, never markup.

import { UNKNOWN } from "./format.js";

// make("p", {class: "empty"}, "text", otherNode); an attribute that is null or undefined is left out.
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) setAttribute(node, name, value);
  node.append(...children);
  return node;
}

export function setText(node, text) {
  const wanted = String(text);
  const only = node.firstChild;
  if (only instanceof Text && only === node.lastChild) {
    if (only.data !== wanted) only.data = wanted;
  } else if (node.textContent !== wanted) node.textContent = wanted;
}

export function setAttribute(node, name, value) {
  if (value === null || value === undefined) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

// Text that is cut where there is no room for it, and whole in its title.
export const makeCut = () => make("span", { class: "cut" });

export function setCut(node, text) {
  setText(node, text ?? UNKNOWN);
  setAttribute(node, "title", text);
}

// Makes the children of `parent` those of `items`, in their order. Nodes stay with their key, so focus and selection do.
export function setChildren(parent, items, { key, create, update }) {
  const old = parent.nodesByKey ?? new Map();
  const names = items.map(key);
  const wanted = new Set(names);
  for (const [name, node] of old) if (!wanted.has(name)) node.remove();
  const kept = new Map();
  let next = parent.firstElementChild;
  for (const [at, item] of items.entries()) {
    const name = names[at];
    const node = old.get(name) ?? create(item);
    update(node, item);
    kept.set(name, node);
    if (node === next) next = next.nextElementSibling;
    else parent.insertBefore(node, next);
  }
  parent.nodesByKey = kept;
}

// A bar for a share from 0 to 1, and the text beside it.
export function makeMeter() {
  return make("span", { class: "meter" }, make("span"), make("span", { class: "track", "aria-hidden": "true" }, make("span")));
}

export function setMeter(node, text, share, tone = null) {
  const [label, track] = node.children;
  setText(label, text);
  setAttribute(label, "class", share === null ? "unknown" : null);
  setAttribute(track, "data-tone", tone);
  setShare(track.firstElementChild, share ?? 0);
}

// The width of a bar. By the object model: the page's policy allows no style attributes.
export function setShare(node, share) {
  const wanted = Math.min(1, Math.max(0, share)).toFixed(4);
  if (node.style.getPropertyValue("--share") !== wanted) node.style.setProperty("--share", wanted);
}

// A word with a dot. `tone`: good, busy, bad or quiet.
export function setStatus(node, word, tone) {
  setAttribute(node, "class", "status");
  setAttribute(node, "data-tone", tone);
  setText(node, word);
}

export const byId = (id) => document.getElementById(id);
