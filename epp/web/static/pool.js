// The table of endpoints.

import { figure, named } from "./columns.js";
import { byId, make, makeMeter, setAttribute, setMeter, setStatus, setText } from "./dom.js";
import { count, duration, number, percent, UNKNOWN } from "./format.js";
import { Table } from "./table.js";

// By number, as epp/web/pool_view.py counts them. `usable`: requests go there.
export const STATUSES = [
  { word: "Ready", tone: "good", usable: true, title: "Its numbers are fresh" },
  { word: "No numbers", tone: "quiet", usable: true, title: "Its metrics page was not read yet" },
  { word: "Stale", tone: "busy", usable: true, title: "Its numbers are old: it ranks behind others" },
  { word: "No page", tone: "good", usable: true, title: "It has no metrics page: only its requests in flight count" },
  { word: "Late", tone: "busy", usable: false, title: "Its metrics page does not come: others are preferred" },
  { word: "Unreachable", tone: "bad", usable: false, title: "It does not answer, or says that it is not ready" },
  { word: "On trial", tone: "busy", usable: true, title: "It gets one request at a time until it answers one" },
  { word: "Avoided", tone: "busy", usable: false, title: "Its requests wait while others are answered" },
  { word: "Ejected", tone: "bad", usable: false, title: "Its requests failed: it gets none for a while" },
];

const numeric = (label, name, format, title) => figure(label, (row) => row[name], format, { title });

const meter = (label, name, title, tone = () => null) => ({
  label, title, numeric: true,
  value: (row) => row[name],
  create: makeMeter,
  update: (cell, row) => setMeter(cell.firstChild, percent(row[name], name === "share" ? 1 : 0), row[name], tone(row[name])),
});

export function poolTable() {
  const table = new Table(byId("pool"), {
    caption: "The endpoints of the pool",
    filter: byId("pool-filter"),
    more: byId("pool-more"),
    key: (row) => row.key,
    words: (row) => `${row.id} ${row.destination} ${row.about} ${row.status.word}`,
    columns: [
      named("Endpoint", (row) => row.id, (row) => row.about, ["cut", "sub cut"]),
      {
        label: "Status", value: (row) => -row.code, create: () => make("span"),
        update: (cell, row) => {
          setStatus(cell.firstChild, row.status.word, row.status.tone);
          setAttribute(cell.firstChild, "title", row.status.title);
        },
      },
      numeric("In flight", "inflight", count, "Requests that this picker and its peers sent and that have not ended; what ends one stands below the figure above"),
      numeric("Running", "running", count, "As the worker's metrics page says"),
      numeric("Waiting", "waiting", count, "As the worker's metrics page says"),
      meter("KV cache", "kv_usage", "As the worker's metrics page says", (share) => (share >= 0.95 ? "bad" : share >= 0.8 ? "busy" : null)),
      meter("Picks", "share", "Its share of the picks of the last minutes"),
      numeric("Prefix hits", "hits", (share) => percent(share), "The share of its prompts that it was believed to hold in its cache"),
      {
        label: "Cache known by", value: (row) => row.cache, optional: true,
        update: (cell, row) => {
          setText(cell, row.cache ?? UNKNOWN);
          cell.classList.toggle("unknown", row.cache === null);
          setAttribute(cell, "title", row.confidence === null ? "It publishes no events: estimated" : `Its events are believed to ${percent(row.confidence)}`);
        },
      },
      {
        ...numeric("Slowness", "slowness", (slowness) => number(slowness), "How many times longer it takes than the worker in the middle of its pool, as learnt"),
        optional: true,
        update: (cell, row) => {
          setText(cell, number(row.slowness));
          cell.classList.toggle("unknown", row.slowness === null);
          setAttribute(cell, "title", row.counter === null ? null : `Its counter of prompt tokens tells of: ${row.counter}`);
        },
      },
      numeric("Age", "age", duration, "Of its numbers"),
    ],
  });
  return {
    show: (endpoints, load) => table.show(endpoints.map((endpoint, at) => row(endpoint, load, at))),
  };
}

function row(endpoint, load, at) {
  const { models, more_models: more } = endpoint;
  const served = models.join(", ") + (more ? ` and ${more} more` : "");
  return {
    key: endpoint.key,
    id: endpoint.id,
    destination: endpoint.destination,
    about: [endpoint.destination, endpoint.engine, served, endpoint.zone].filter(Boolean).join(" · "),
    code: load.status[at],
    status: STATUSES[load.status[at]] ?? { word: "Unknown", tone: "quiet", usable: false },
    inflight: load.inflight[at],
    running: load.running[at],
    waiting: load.waiting[at],
    kv_usage: load.kv_usage[at],
    share: load.share[at],
    hits: load.hits[at],
    cache: load.cache?.[at] ?? null,
    confidence: load.confidence?.[at] ?? null,
    slowness: load.slowness?.[at] ?? null,
    counter: load.counter?.[at] ?? null,
    age: load.age[at],
  };
}
