// The page of `discovery serve`: who is there, who is not and why, and what happened.

import { figure, named, reason, status, words } from "./columns.js";
import { byId, setAttribute, setCut, setText } from "./dom.js";
import { showEvents } from "./events.js";
import { count, duration } from "./format.js";
import { follow } from "./live.js";
import { Table } from "./table.js";

// What somebody should look at comes first.
const STATES = {
  unreachable: ["Unreachable", "bad"],
  pending: ["No metadata", "busy"],
  absent: ["Absent", "quiet"],
  not_ready: ["Not ready", "busy"],
  draining: ["Draining", "busy"],
  ready: ["Ready", "good"],
};
const ORDER = Object.keys(STATES);
const EVENTS = {
  added: ["came", "good"],
  updated: ["changed", "quiet"],
  removed: ["is no instance any more", "quiet"],
  registered: ["registered", "busy"],
  left: ["left", "quiet"],
  degraded: ["The source is out of reach", "bad"],
  synced: ["The source answers again", "good"],
};
// What an instance changed to.
const TONES = { unreachable: "bad", "reachable again": "good" };
const REASONS = {
  deleted: "it is gone",
  not_ready: "it is not ready",
  terminating: "it drains",
  replaced: "another process took its place",
};

let state = null;

const table = new Table(byId("workers"), {
  caption: "Workers, those that get no requests first",
  key: (row) => row.id,
  words: (row) => [row.id, STATES[row.state][0], row.url, row.model, row.zone, row.node, row.reason, ...Object.entries(row.labels ?? {}).flat()].join(" "),
  sort: 1,
  filter: byId("filter"),
  more: byId("all-workers"),
  columns: [
    named("Worker", (row) => row.id, (row) => row.url?.replace("http://", "") ?? "", ["name", "sub mono"]),
    status((row) => ORDER.indexOf(row.state), (row) => STATES[row.state]),
    figure("For", (row) => row.since && -row.since, (since) => duration(age(since && -since)), {
      title: "How long it has been so, as far as this program saw",
    }),
    words("Zone", (row) => row.zone ?? null, { optional: true, long: false }),
    words("Model", (row) => row.model),
    reason("Why", (row) => row.reason),
  ],
});

follow({
  component: (found) => {
    state = found;
    draw();
  },
  events: showChanges,
});
setInterval(() => state && !document.hidden && drawAges(), 1000);

function draw() {
  const { counts, source } = state;
  setCut(byId("identity"), `${state.namespace}/${state.component} in ${source.url}`);
  for (const name of ["ready", "unreachable", "draining", "absent"]) setText(byId(name), count(counts[name]));
  setText(byId("starting"), count(counts.not_ready + counts.pending));
  setAttribute(byId("ready-tile"), "data-tone", counts.ready ? null : "bad");
  setAttribute(byId("unreachable-tile"), "data-tone", counts.unreachable ? "bad" : null);
  drawSource(source);
  setText(byId("left-off"), state.left_off ? `${count(state.left_off)} more are not shown` : "");
  setText(byId("no-workers"), sentence(state.remarks.join("; ")) || "Nobody is registered here.");
  byId("no-workers").hidden = state.candidates.length > 0;
  drawAges();
}

function drawSource(source) {
  const away = source.state === "degraded";
  setText(byId("source-state"), away ? "Away" : "In sync");
  setAttribute(byId("source-tile"), "data-tone", away ? "bad" : null);
  byId("source").hidden = !away;
  if (away) setText(byId("source"), `The source of truth is out of reach, so this may be out of date: ${source.reason}`);
}

// Ages grow without news.
function drawAges() {
  setText(byId("source-since"), `for ${duration(age(state.source.since))}`);
  table.show(state.candidates);
}

function showChanges(events) {
  byId("no-events").hidden = events.length > 0;
  showEvents(byId("events"), events, ({ time, id, event, reason, detail }) => {
    const [what, tone] = EVENTS[event];
    return { at: time, id, what, tone: TONES[detail?.split(", ")[0]] ?? tone, why: detail ?? REASONS[reason] };
  });
}

function sentence(text) {
  return text && `${text[0].toUpperCase()}${text.slice(1)}.`;
}

function age(since) {
  return since === null ? null : Math.max(0, Date.now() / 1000 - since);
}
