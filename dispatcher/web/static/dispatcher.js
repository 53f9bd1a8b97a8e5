// The dispatcher's page: its queues, what their gates wait for, who waits, and what became of requests.

import { figure, named, reason, status, words } from "./columns.js";
import { byId, make, makeMeter, setAttribute, setChildren, setCut, setMeter, setText } from "./dom.js";
import { clock, count, duration, number, percent } from "./format.js";
import { follow } from "./live.js";
import { Table } from "./table.js";

const ACTIVITIES = {
  unknown: ["Not known yet", "quiet"],
  away: ["Broker away", "bad"],
  waiting: ["Waits", "busy"],
  sending: ["Sends", "good"],
  idle: ["Idle", "quiet"],
};
const READ = [
  [false, "Not read", "bad"],
  [true, "Read", "good"],
  [null, "No metric", "quiet"],
];
const ORDER = Object.keys(ACTIVITIES);
const SPARK = { width: 120, height: 22, steps: 60 };

const sum = (rows, of) => rows.reduce((total, row) => total + (of(row) ?? 0), 0);
const waits = ({ totals }) => totals && totals.pending - totals.claimed;
const unsuccessful = ({ recent }) => recent.failed + recent.expired;
const queueName = words("Queue", (row) => row.queue ?? row.name, { create: () => make("span", { class: "name" }) });

const reading = (value) => number(value, value % 1 ? 3 : 0);

const queues = new Table(byId("queues"), {
  caption: "Queues",
  key: (row) => row.name,
  words: (row) => [row.name, row.target, ACTIVITIES[row.activity][0], row.waits_for].join(" "),
  filter: byId("filter"),
  more: byId("all-queues"),
  columns: [
    named("Queue", (row) => row.name, (row) => `to ${row.target}${row.front_door ? ", front door" : ""}`),
    status((row) => ORDER.indexOf(row.activity), (row) => ACTIVITIES[row.activity]),
    figure("Waiting", waits),
    {
      label: "In flight here",
      value: (row) => row.in_flight,
      numeric: true,
      title: "Requests of this process, of as many as the target has slots; all queues of the target share these",
      create: makeMeter,
      update: (cell, row) => {
        const { in_use, limit } = row.slots;
        setMeter(cell.firstElementChild, `${row.in_flight}/${limit}`, row.in_flight / limit, in_use >= limit ? "busy" : null);
        setAttribute(cell.firstElementChild, "title", `${in_use} of ${limit} slots are in use by all queues`);
      },
    },
    {
      label: "Budget",
      value: (row) => row.budget,
      numeric: true,
      title: "The share of the target that the gate lets this queue use now",
      create: makeMeter,
      update: (cell, row) => setMeter(cell.firstElementChild, percent(row.budget), row.budget),
    },
    figure("p95", (row) => row.latency.p95, duration, { title: "From an attempt to its answer" }),
    {
      label: "Lately",
      value: (row) => row.recent.succeeded + unsuccessful(row),
      numeric: true,
      title: "Requests that ended in each five seconds, the newest on the right; those without success are red",
      create: makeSpark,
      update: (cell, row) => setSpark(cell.firstElementChild, row),
    },
    {
      label: "Waits for",
      wide: true,
      value: (row) => row.waits_for,
      create: () => make("div", {}, make("span"), make("span", { class: "sub" })),
      update: (cell, row) => {
        const [reason, since] = cell.firstElementChild.children;
        const closed = row.waits_for ? row.closed_since : null;
        setText(reason, row.waits_for ?? "");
        setText(since, closed ? `closed since ${clock(closed)}` : "");
        setAttribute(cell, "data-label", row.waits_for ? "Waits for" : null);
      },
    },
  ],
});

const gates = new Table(byId("gates"), {
  caption: "Gates and what they read",
  key: (row) => `${row.queue} ${row.source}`,
  words: (row) => [row.queue, row.gate].join(" "),
  more: byId("all-gates"),
  columns: [
    queueName,
    named("Gate", (row) => row.gate, (row) => row.source ?? "", ["cut", "sub cut"], { long: true, title: "And what it reads" }),
    figure("Reads", (row) => row.value, reading),
    figure("Closes at", (row) => row.closes_at, reading),
    status(
      (row) => READ.findIndex(([available]) => available === row.available),
      (row) => READ.find(([available]) => available === row.available).slice(1),
    ),
    reason("Why not", (row) => row.reason),
  ],
});

const tenants = new Table(byId("tenants"), {
  caption: "Tenants that wait, in the order of their turns",
  key: (row) => `${row.queue} ${row.tenant}`,
  words: (row) => row.tenant,
  more: byId("all-tenants"),
  sort: 2,
  columns: [
    words("Tenant", (row) => row.tenant),
    queueName,
    figure("Turn", (row) => row.turn),
    {
      label: "Waiting",
      value: (row) => row.waiting,
      numeric: true,
      create: makeMeter,
      update: (cell, row) => setMeter(cell.firstElementChild, count(row.waiting), row.share),
    },
    figure("Deadline", (row) => row.earliest_deadline, untilThen, { title: "The earliest of its requests" }),
    figure("Weight", (row) => row.weight, (value) => number(value, value % 1 ? 2 : 0)),
    reason("Waits for", (row) => row.waits_for),
  ],
});

const results = new Table(byId("results"), {
  caption: "Results over all dispatchers, since each queue began",
  key: (row) => row.name,
  words: (row) => row.name,
  more: byId("all-results"),
  columns: [
    queueName,
    ...["submitted", "succeeded", "failed", "expired", "cancelled", "dropped", "retries", "redelivered", "dead_letters"].map((name) =>
      figure(name[0].toUpperCase() + name.slice(1).replace("_", " "), (row) => row.totals?.[name]),
    ),
  ],
});

follow({ queues: show });

function show(found) {
  const rows = found.queues;
  SPARK.steps = found.recent.steps;
  const known = rows.filter((row) => row.totals);
  setCut(byId("identity"), `${rows.length} ${rows.length === 1 ? "queue" : "queues"} to ${[...new Set(rows.map((row) => row.target))].join(", ")}`);
  setText(byId("problem"), `Not ready: ${found.problem}`);
  byId("problem").hidden = !found.problem;
  showTiles(rows, known);
  for (const node of document.getElementsByClassName("span")) setText(node, duration(found.recent.seconds));
  queues.show(rows);
  gates.show(found.gates);
  tenants.show(turns(found.tenants));
  results.show(rows);
  byId("no-queues").hidden = rows.length > 0;
  setText(byId("no-tenants"), known.length === rows.length ? "Nobody waits." : "Not known: the broker does not say who waits.");
  byId("no-tenants").hidden = found.tenants.length > 0;
}

function showTiles(rows, known) {
  const total = (name) => (known.length ? sum(known, (row) => row.totals[name]) : null);
  setText(byId("waiting"), count(known.length ? sum(known, waits) : null));
  setText(byId("delayed"), total("delayed") ? `${count(total("delayed"))} of them for another attempt` : "over all queues");
  setText(byId("in-flight"), count(total("claimed")));
  setText(byId("succeeded"), count(sum(rows, (row) => row.recent.succeeded)));
  setText(byId("failed"), count(sum(rows, unsuccessful)));
  setAttribute(byId("failed-tile"), "data-tone", sum(rows, unsuccessful) ? "bad" : null);
  setText(byId("shed"), count(sum(rows, (row) => row.recent.shed)));
  setText(byId("letters"), count(total("dead_letters")));
  setAttribute(byId("letters-tile"), "data-tone", total("dead_letters") ? "busy" : null);
}

// Each tenant with its place in its queue, and its share of all that waits there.
function turns(found) {
  const places = new Map();
  const waiting = new Map();
  for (const row of found) waiting.set(row.queue, (waiting.get(row.queue) ?? 0) + row.waiting);
  return found.map((row) => {
    const turn = (places.get(row.queue) ?? 0) + 1;
    places.set(row.queue, turn);
    return { ...row, turn, share: row.waiting / (waiting.get(row.queue) || 1) };
  });
}

function untilThen(deadline) {
  if (deadline === null) return duration(null);
  const left = deadline - Date.now() / 1000;
  return left > 0 ? `in ${duration(left)}` : "over";
}

function makeSpark() {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const { width, height } = SPARK;
  for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}`, role: "img" })) svg.setAttribute(name, value);
  return svg;
}

function setSpark(svg, { steps, recent }) {
  const most = Math.max(1, ...steps.map(([good, bad]) => good + bad));
  const wide = SPARK.width / SPARK.steps;
  const first = SPARK.steps - steps.length;
  const bars = steps.flatMap(([good, bad], at) => {
    const high = (value) => (value / most) * (SPARK.height - 1);
    const x = (first + at) * wide;
    return [
      { key: `${at} good`, x, y: SPARK.height - high(good), height: high(good), fill: "var(--accent)" },
      { key: `${at} bad`, x, y: SPARK.height - high(good) - high(bad), height: high(bad), fill: "var(--bad)" },
    ];
  });
  svg.setAttribute("aria-label", `${recent.succeeded} succeeded, ${recent.failed + recent.expired} did not`);
  setChildren(svg, [{ key: "ground", x: 0, y: SPARK.height - 1, height: 1, fill: "var(--line)", width: SPARK.width }, ...bars], {
    key: (bar) => bar.key,
    create: () => document.createElementNS("http://www.w3.org/2000/svg", "rect"),
    update: (node, bar) => {
      for (const name of ["x", "y", "height", "fill"]) setAttribute(node, name, bar[name]);
      setAttribute(node, "width", bar.width ?? wide - 0.5);
    },
  });
}
