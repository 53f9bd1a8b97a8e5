// The picker's page. What the events carry is written down in docs/pages.md.

import { figure } from "./columns.js";
import { byId, make, makeMeter, setAttribute, setChildren, setCut, setMeter, setText } from "./dom.js";
import { bytes, count, duration, number, percent, UNKNOWN } from "./format.js";
import { decisionList } from "./decisions.js";
import { showEvents } from "./events.js";
import { follow } from "./live.js";
import { poolTable, STATUSES } from "./pool.js";
import { Table } from "./table.js";

let members = null;
const pool = poolTable();
const decisions = decisionList();

function tile(id, figure, note = null, tone = null) {
  const [, value, said] = byId(id).children;
  setText(value, figure);
  if (note !== null) setText(said, note);
  setAttribute(byId(id), "data-tone", tone);
}

function sum(column) {
  const known = column.filter((value) => value !== null);
  return known.length ? known.reduce((total, value) => total + value, 0) : null;
}

// What ends a request in flight, by `outcomes.by` of the status.
const NOTES = { access_log: "until their answers end", ext_proc: "until Envoy's streams for them end" };
let ended = "";

function showStatus(status) {
  ended = NOTES[status.outcomes?.by] ?? "sent and not ended";
  setAttribute(byId("tile-inflight"), "title", status.outcomes?.in_flight_until ? `Until ${status.outcomes.in_flight_until}` : null);
  setCut(byId("identity"), status.name ?? "");
  const problems = [];
  if (!status.serving && status.reason) problems.push(`The picker takes no requests: ${status.reason}.`);
  if (status.watch && status.watch.state !== "synced") {
    problems.push(`Discovery is ${status.watch.state}: ${status.watch.reason || "no reason given"}. The last known workers stay.`);
  }
  const lost = Object.entries(status.peers?.missing ?? {}).map(([address, why]) => `${address} (${why})`);
  if (lost.length) problems.push(`Other pickers that do not tell what they send: ${lost.join(", ")}.`);
  if (status.config?.problem) problems.push(`The configuration file is not in force: ${status.config.problem}`);
  byId("notice").hidden = !problems.length;
  setText(byId("notice"), problems.join(" "));
}

function showLoad(load) {
  if (!members || members.version !== load.version) return;
  const total = members.endpoints.length;
  const ready = load.status.filter((status) => STATUSES[status]?.usable).length;
  const away = total - ready;
  tile("tile-endpoints", `${count(ready)}`, away ? `of ${count(total)}` : total ? "all of them" : "none is there", ready < total ? "busy" : total ? null : "bad");
  tile("tile-saturation", number(load.saturation), null, load.saturation >= 1 ? "bad" : load.saturation >= 0.8 ? "busy" : null);
  tile("tile-picks", number(load.picks_per_second, load.picks_per_second < 10 ? 1 : 0), load.window >= 1 ? `over ${duration(load.window)}` : "");
  const ofPeers = sum(load.peer_inflight);
  tile("tile-inflight", count(sum(load.inflight)), ofPeers ? `${count(ofPeers)} of other pickers` : ended);
  tile("tile-waiting", count(sum(load.waiting)));
  const usage = load.kv_usage.filter((value) => value !== null);
  tile("tile-kv", usage.length ? percent(sum(usage) / usage.length) : UNKNOWN);
  byId("pool-empty").hidden = total > 0;
  setText(byId("pool-note"), total ? `picks and prefix hits over ${duration(load.window)}` : "");
  pool.show(members.endpoints, load);
}

function showAbsent({ count: many, workers }) {
  const [summary, list] = byId("absent").children;
  byId("absent").hidden = !many;
  setText(summary, `${count(many)} ${many === 1 ? "worker is" : "workers are"} known and get${many === 1 ? "s" : ""} no requests`);
  const more = many > workers.length ? [{ id: "", why: `and ${count(many - workers.length)} more` }] : [];
  setChildren(list, [...workers, ...more], {
    key: (one) => one.id,
    create: () => make("li", {}, make("b"), " ", make("span", { class: "why" })),
    update: (node, one) => {
      setText(node.children[0], one.id);
      setText(node.children[1], one.why);
    },
  });
}

const queueTable = new Table(byId("queues"), {
  caption: "What waits at each priority",
  key: (band) => band.priority,
  words: () => "",
  descending: true,
  columns: [
    {
      label: "Priority", value: (band) => band.priority, create: () => make("span", {}, make("span"), make("span", { class: "sub cut" })),
      update: (cell, band) => {
        const [priority, flows] = cell.firstChild.children;
        const longest = band.longest.map(({ flow, waiting }) => `${flow} ${count(waiting)}`).join(", ");
        setText(priority, band.priority);
        setText(flows, longest);
        setAttribute(flows, "title", longest ? `Flows that wait: ${longest}` : null);
      },
    },
    {
      label: "Waiting", numeric: true, value: (band) => band.waiting, create: makeMeter,
      update: (cell, band) => setMeter(cell.firstChild, count(band.waiting), band.waiting / band.max_requests, band.waiting >= band.max_requests ? "bad" : null),
    },
    figure("Oldest", (band) => band.oldest, duration),
    figure("Size", (band) => band.bytes, bytes),
    figure("Ceiling", (band) => band.ceiling, number, { title: "Its requests go while the saturation is below this" }),
  ],
});

function showQueues(queues) {
  const bands = queues?.priorities ?? [];
  byId("queues-empty").hidden = bands.length > 0;
  setText(byId("queues-empty"), queues === null
    ? "Flow control is off: a request goes at once, or is refused while the pool is saturated."
    : "No request has come yet.");
  if (bands.length) queueTable.show(bands);
  tile("tile-queued", queues === null ? UNKNOWN : count(sum(bands.map((band) => band.waiting)) ?? 0), queues === null ? "flow control is off" : "in the picker");
}

// What the first byte of an answer waits for, by the names of docs/routing.md.
const COSTS = {
  fixed: "Each request",
  thousand_tokens_missing: "1,000 tokens of its prompt that the worker does not hold",
  thousand_tokens_ahead: "1,000 tokens of other prompts that are ahead of it",
  request_there: "A request that is there already",
  request_beyond_room: "A request there for which the worker has no room",
  second_under_way: "Less for a second in which it computed what is ahead",
};
const learntTable = new Table(byId("learnt"), {
  caption: "What the first byte of an answer waits for, on the average worker",
  key: (row) => row.name,
  words: () => "",
  columns: [
    { label: "Each adds", value: (row) => row.at, create: () => make("span"), update: (cell, row) => setText(cell.firstChild, COSTS[row.name] ?? row.name) },
    figure("Seconds", (row) => row.seconds, (seconds) => number(seconds, 4)),
    figure("±", (row) => row.spread, (spread) => number(spread, 4), { title: "The standard error" }),
  ],
});

function showLearnt(learnt) {
  byId("learnt-panel").hidden = learnt === null;
  if (learnt === null) return;
  const rows = Object.entries(learnt.seconds ?? {}).map(([name, [seconds, spread]], at) => ({ name, seconds, spread, at }));
  byId("learnt-empty").hidden = rows.length > 0;
  const wrong = learnt.median_error === null ? "" : `; the last predictions were wrong by ${percent(learnt.median_error)} (median)`;
  const others = learnt.peers ? `, and by ${count(learnt.peers)} other pickers` : "";
  setText(byId("learnt-note"), rows.length ? `learnt of ${count(learnt.answers)} answers${others}${wrong}` : "");
  learntTable.show(rows);
}

const TONES = { came: "good", back: "good", went: "quiet", late: "busy", "on trial": "busy", avoided: "busy", unreachable: "bad", ejected: "bad" };

function showHappened(events) {
  byId("events-empty").hidden = events.length > 0;
  showEvents(byId("events"), events, (event) => ({ ...event, tone: TONES[event.what] ?? "quiet" }));
}

follow({
  status: showStatus,
  members: (said) => { members = said; },
  load: showLoad,
  absent: showAbsent,
  learnt: showLearnt,
  queues: showQueues,
  decisions: decisions.show,
  events: showHappened,
});
