// What happened, newest first.

import { make, setChildren, setStatus } from "./dom.js";
import { clock } from "./format.js";

// `describe`: event => {at, what, tone} and, where there are such, {id, why, address}; `at` in seconds since the epoch.
export function showEvents(list, events, describe) {
  setChildren(list, events, {
    key: (event) => event.sequence,
    create: (event) => makeEvent(describe(event)),
    update: () => {},
  });
}

function makeEvent({ at, id, what, tone, why, address }) {
  const said = make("span");
  setStatus(said, what, tone);
  const line = make("p", {}, said);
  if (id) line.prepend(make("b", { title: address }, id), " ");
  if (why) line.append(" ", make("span", { class: "why" }, why));
  return make("li", {}, make("time", { datetime: new Date(at * 1000).toISOString() }, clock(at)), line);
}
