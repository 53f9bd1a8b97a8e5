// The list of decisions; one that is opened shows each candidate with its scores. docs/decisions.md has the fields.

import { byId, make, setAttribute, setChildren, setShare, setStatus, setText } from "./dom.js";
import { clock, count, duration, number, percent, UNKNOWN } from "./format.js";

const CANDIDATES = 10;
const PARTS = 6;
const BARS = 3;
const SCORE_DIGITS = 4; // scores of idle endpoints are near to each other
const LEAST_WAIT = 0.0005; // seconds: what the live list rounds to nothing

const TONES = { sent: "quiet", answering: "good", done: "good", cancelled: "quiet", refused: "bad", evicted: "bad", abandoned: "quiet" };

export function decisionList() {
  const list = byId("decisions");
  const search = byId("decisions-search");
  const hold = byId("decisions-hold");
  let held = false;
  let found = null;
  let latest = null;

  const setHeld = (wanted) => {
    held = wanted;
    setAttribute(hold, "aria-pressed", held);
    if (!held && found === null && latest) draw(latest);
  };

  function draw(said) {
    byId("decisions-empty").hidden = said !== null && said.decisions.length > 0;
    list.hidden = said === null;
    if (said === null) {
      setText(byId("decisions-empty"), "Decisions are not recorded: the picker was started with --decisions 0.");
      return;
    }
    drawKey(said.decisions);
    setChildren(list, said.decisions, { key: (one) => one.sequence, create: (one) => makeRow(one, setHeld), update: updateRow });
  }

  function drawKey(rows) {
    const names = rows.find((one) => one.scores?.scorers.length)?.scores.scorers ?? [];
    byId("decisions-key").hidden = names.length < 2;
    setChildren(byId("decisions-key"), names, {
      key: (name) => name,
      create: (name) => make("li", { "data-part": (names.indexOf(name) % PARTS) + 1 }, name),
      update: () => {},
    });
  }

  async function find() {
    const id = byId("decisions-id").value.trim();
    const slow = byId("decisions-slow").value;
    const query = new URLSearchParams({ limit: 25, candidates: BARS });
    if (id) query.set("request_id", id);
    if (slow) query.set("slow", slow);
    found = id || slow ? `${id} ${slow}` : null;
    if (found === null) {
      setText(byId("decisions-empty"), "No request was decided yet.");
      if (latest) draw(latest);
      return;
    }
    const asked = found;
    const said = await getJson(`debug/decisions?${query}`);
    if (asked !== found) return;
    setText(byId("decisions-empty"), said.error ?? "No recorded decision fits.");
    draw({ decisions: (said.decisions ?? []).reverse().map(inShort) });
  }

  hold.addEventListener("click", () => setHeld(!held));
  search.addEventListener("submit", (event) => {
    event.preventDefault();
    find();
  });
  byId("decisions-id").addEventListener("search", find);
  byId("decisions-id").addEventListener("change", find);
  byId("decisions-slow").addEventListener("change", find);

  return {
    show(said) {
      latest = said;
      setText(byId("decisions-note"), said ? `${count(said.recorded)} so far, the last ${count(said.capacity)} are kept` : "");
      if (!held && found === null) draw(said);
    },
  };
}

async function getJson(path) {
  try {
    const answer = await fetch(path);
    return await answer.json();
  } catch {
    return { error: "The picker did not answer." };
  }
}

// A whole decision of /debug/decisions as the live list has it.
function inShort(whole) {
  const profile = whole.profiles.find(({ name }) => name === whole.profile);
  const scorers = profile?.scorers ?? [];
  const best = (profile?.candidates ?? []).slice(0, BARS);
  return {
    sequence: whole.sequence,
    at: Date.parse(whole.time) / 1000 + (whole.waited ?? 0),
    id: whole.request.id,
    model: whole.request.model,
    choice: whole.choice?.id ?? null,
    endpoints: whole.endpoints,
    waited: whole.waited,
    state: whole.outcome.state,
    status: whole.outcome.status,
    time_to_headers: whole.outcome.time_to_headers,
    refusal: whole.refusal?.message ?? null,
    scores: {
      scorers: scorers.map(({ name }) => name),
      weights: scorers.map(({ weight }) => weight),
      best: best.map((one) => ({ id: one.id, chosen: one.chosen, scores: scorers.map(({ name }) => one.scores[name]) })),
    },
  };
}

function makeRow(decision, setHeld) {
  const detail = make("div", { class: "detail", id: `decision-${decision.sequence}` });
  detail.hidden = true;
  const button = make(
    "button",
    { type: "button", class: "decision", "aria-expanded": "false", "aria-controls": detail.id },
    make("span", { class: "when" }),
    make("span", { class: "what" }, make("span", { class: "cut mono" }), make("span", { class: "sub cut" })),
    make("span", { class: "where" }, make("span", { class: "cut" }), make("span", { class: "sub cut" })),
    make("span", { class: "bars" }),
    make("span", { class: "end" }, make("span"), make("span", { class: "sub" })),
  );
  button.addEventListener("click", async () => {
    const open = detail.hidden;
    detail.hidden = !open;
    setAttribute(button, "aria-expanded", open);
    if (!open) return;
    setHeld(true);
    const query = new URLSearchParams({ after: decision.sequence - 1, limit: 1, candidates: CANDIDATES });
    const said = await getJson(`debug/decisions?${query}`);
    const [whole] = said.decisions ?? [];
    if (whole?.sequence === decision.sequence) {
      updateRow(button.parentElement, inShort(whole));
      detail.replaceChildren(...describe(whole));
    } else detail.replaceChildren(make("p", { class: "empty" }, said.error ?? "This decision is no longer kept."));
  });
  return make("li", {}, button, detail);
}

function updateRow(node, decision) {
  const [when, what, where, bars, end] = node.firstChild.children;
  setText(when, clock(decision.at));
  setText(what.children[0], decision.id || "no id");
  setText(what.children[1], decision.model || "no model");
  setText(where.children[0], decision.choice ?? "nowhere");
  setText(where.children[1], decision.choice ? `of ${count(decision.endpoints)} endpoint${decision.endpoints === 1 ? "" : "s"}` : decision.refusal ?? "its client left");
  drawBars(bars, decision.scores);
  const [state, note] = end.children;
  const failed = decision.status >= 500 ? "bad" : decision.status >= 400 ? "busy" : null;
  const took = decision.time_to_headers === null ? "" : ` in ${duration(decision.time_to_headers)}`;
  setStatus(state, `${decision.status ?? decision.state}${took}`, failed ?? TONES[decision.state] ?? "quiet");
  setText(note, decision.waited >= LEAST_WAIT ? `waited ${duration(decision.waited)}` : "");
}

function drawBars(node, scores) {
  const best = scores?.best ?? [];
  const words = best.map((one) => `${one.id} ${number(totalOf(scores.weights, one.scores), SCORE_DIGITS)}`).join(", ");
  setAttribute(node, "title", words || null);
  setChildren(node, best, {
    key: (one) => one.id,
    create: () => make("span", { class: "stack", "aria-hidden": "true" }),
    update: (stack, one) => {
      setAttribute(stack, "data-chosen", one.chosen);
      drawStack(stack, scores.weights, one.scores);
    },
  });
}

const totalOf = (weights, scores) => scores.reduce((total, score, at) => total + weights[at] * (score ?? 0), 0);

// The parts of a sum of weights times scores; the whole width is the most that it can be.
function drawStack(stack, weights, scores) {
  const most = weights.reduce((total, weight) => total + Math.max(weight, 0), 0) || 1;
  setChildren(stack, scores.map((score, at) => ({ at, share: Math.max(0, weights[at] * (score ?? 0)) / most })), {
    key: ({ at }) => at,
    create: ({ at }) => make("span", { "data-part": (at % PARTS) + 1 }),
    update: (part, { share }) => setShare(part, share),
  });
}

function describe(whole) {
  const { request, outcome } = whole;
  const facts = [
    ["Request", request.id],
    ["Path", request.path],
    ["Model", request.asked_model ? `${request.model}, asked for as ${request.asked_model}` : request.model],
    ["Prompt", `${count(request.prompt_tokens)} tokens, ${request.streaming ? "streamed" : "not streamed"}`],
    ["Priority", `${request.priority}${request.objective ? ` (${request.objective})` : ""}`],
    ["Flow", request.fairness_id],
    ["Fallbacks", whole.fallbacks.map(({ id }) => id).join(", ")],
    ["Stages", whole.stages],
    ...Object.entries(whole.helpers).map(([role, group]) => [role, group.map(({ id }) => id).join(", ")]),
    ["Refused", whole.refusal && `${whole.refusal.code}: ${whole.refusal.message}`],
    ["Served by", outcome.served_by && `${outcome.served_by}${outcome.attempts ? `, attempt ${outcome.attempts}` : ""}`],
    ["Ended", outcome.ended_by && `${outcome.ended_by === "reset" ? "the proxy closed its stream" : outcome.ended_by}, after ${duration(outcome.seconds)}`],
  ];
  const known = facts.filter(([, value]) => value);
  return [
    make("dl", { class: "facts" }, ...known.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))),
    ...(whole.whole ? [] : [make("p", { class: "sub" }, "Kept without its candidates and their scores: of each second, the first five picks have them.")]),
    ...leftOut(whole.left_out, "Before scoring"),
    ...whole.profiles.flatMap((profile) => describeProfile(profile, whole)),
  ];
}

function leftOut(groups, title) {
  if (!groups.length) return [];
  const said = groups.map(({ by, count: many, endpoints }) => {
    const names = endpoints.map(({ id }) => id).join(", ");
    return make("li", {}, make("b", {}, `${by} left out ${count(many)}: `), names, many > endpoints.length ? ", …" : "");
  });
  return [make("h3", {}, title), make("ul", { class: "left-out" }, ...said)];
}

function describeProfile(profile, whole) {
  const several = whole.profiles.length > 1;
  const { scorers, candidates } = profile;
  const weights = scorers.map(({ weight }) => weight);
  const plain = (label) => make("th", { scope: "col", class: "num" }, label);
  const head = [
    make("th", { scope: "col" }, "Endpoint"),
    make("th", { scope: "col" }, "Score"),
    ...scorers.map(({ name, weight }, at) => make("th", { scope: "col", class: "num part", "data-part": (at % PARTS) + 1 }, `${name} × ${weight}`)),
    plain("In flight"), plain("Running"), plain("Waiting"), plain("KV cache"), plain("Age"),
  ];
  const rows = candidates.map((one) => {
    const stack = make("span", { class: "stack", "aria-hidden": "true" });
    const scores = scorers.map(({ name }) => one.scores[name]);
    drawStack(stack, weights, scores);
    const marks = [
      one.chosen === 1 ? "the choice" : one.chosen ? `fallback ${one.chosen - 1}` : null,
      one.stale ? "stale" : null,
      one.late ? "late" : null,
      one.peer_inflight ? `${count(one.peer_inflight)} in flight of other pickers` : null,
    ];
    const cell = (text, label) => make("td", { class: "num", "data-label": label }, text);
    return make(
      "tr", { "data-chosen": one.chosen },
      make("th", { scope: "row" }, make("span", { class: "cut" }, one.id), make("span", { class: "sub" }, marks.filter(Boolean).join(", ") || one.destination)),
      make("td", { class: "wide", "data-label": "Total" }, make("span", { class: "score" }, number(one.total, SCORE_DIGITS), stack)),
      ...scores.map((score, at) => cell(number(score, SCORE_DIGITS), `${scorers[at].name} × ${scorers[at].weight}`)),
      cell(count(one.inflight), "In flight"), cell(count(one.running), "Running"), cell(count(one.waiting), "Waiting"),
      cell(percent(one.kv_usage), "KV cache"), cell(one.age === null ? UNKNOWN : duration(one.age), "Age"),
    );
  });
  const title = several ? `Profile ${profile.name}` : "Candidates";
  const shown = profile.scored > rows.length ? `, the best ${rows.length} of ${count(profile.scored)}` : "";
  const table = make("table", { class: "grid cards" }, make("caption", { class: "hidden-label" }, title), make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
  const verdicts = profile.verdicts.map(({ by, given, kept }) => `${by} kept ${count(kept)} of ${count(given)}`);
  return [
    ...(verdicts.length ? [make("p", { class: "sub" }, `Filters: ${verdicts.join("; ")}.`)] : []),
    ...leftOut(profile.left_out, `Left out by ${several ? profile.name : "filters"}`),
    make("h3", {}, `${title}${shown}`, make("span", { class: "aside" }, ` by ${profile.picker}`)),
    make("div", { class: "scroll" }, table),
    ...(profile.tie ? [make("p", { class: "sub" }, describeTie(profile.tie))] : []),
    ...(profile.without_what_is_learnt ? [make("p", { class: "sub" }, describeUnlearnt(profile))] : []),
  ];
}

function describeUnlearnt({ candidates, without_what_is_learnt: { id, destination } }) {
  const same = candidates.some((one) => one.chosen === 1 && one.destination === destination);
  return same ? "Without what is learnt of workers the choice would be the same." : `Without what is learnt of workers it would have gone to ${id}.`;
}

function describeTie({ endpoints, fewest_in_flight: fewest, broken_by }) {
  const tie = `A tie: ${count(endpoints)} endpoints were equally good`;
  if (broken_by === "inflight") return `${tie}; of these the choice had the fewest requests in flight.`;
  const among = fewest === endpoints ? "all with as many requests in flight" : `${count(fewest)} of them with the fewest requests in flight`;
  return `${tie}, ${among}; chance chose.`;
}
