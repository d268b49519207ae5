const DATA = JSON.parse(document.getElementById("data").textContent);
const { scores, episodes } = DATA;
const byId = new Map(episodes.map((episode) => [episode.id, episode]));
const arms = scores.arms.map((arm) => arm.arm);
const tasks = [...new Set(scores.tasks.map((row) => row.task))];
const armColor = (arm) => `var(--arm-${arms.indexOf(arm) % 8})`;
const state = { interval: "wilson", denominator: "without", task: "", arm: "", outcome: "", open: null };
const $ = (id) => document.getElementById(id);
const OUTCOMES = { success: "success", failure: "failure", finished: "finished: low to high return of its task", error: "error", other: "not counted" };
const filmed = new Set([...DATA.videos_beside, ...[...document.querySelectorAll("script.video")].map((script) => script.id.replace("video-", ""))]);
const worldsOf = new Map(tasks.map((task) => [task, [...new Set(scores.tasks.filter((row) => row.task === task).flatMap((row) => row.worlds))].sort()]));
const manyWorlds = new Set([...worldsOf.values()].flat()).size > 1;
const placed = (task) => (manyWorlds ? `${task} · ${worldsOf.get(task).join(", ")}` : task);
const kind = (episode) => (episode.outcome in OUTCOMES ? episode.outcome : "other");

/* ---- results ---- */

const groups = DATA.groups.map((group) => ({
  ...group,
  rows: scores.arms.filter((row) => group.arms.includes(row.arm)),
  pairs: scores.pairs.filter((pair) => group.pairs.some(([a, b]) => pair.a === a && pair.b === b)),
  tasks: tasks.filter((task) => scores.tasks.some((row) => row.task === task && group.arms.includes(row.arm))),
}));
const byRate = groups.some((group) => group.measure === "success");
const byReturn = groups.some((group) => group.measure === "return");
/* What of a group may be taken together: all of it, or, where returns are compared, one task each. */
const partsOf = (group) =>
  group.measure === "success" || group.tasks.length < 2 ? [{ ...group, task: null }]
    : group.tasks.map((task) => ({ ...group, task, rows: scores.tasks.filter((row) => row.task === task && group.arms.includes(row.arm)), pairs: group.pairs.filter((p) => p.task === task) }));
const MOST_PARTS = 6;
const groupTitle = (group, what) => (group.measure === "success" ? what[0] : what[1]) + (groups.length > 1 && group.without_success.length ? ` · ${group.without_success.join(", ")}` : "");

const counts = (row) => (state.denominator === "with" ? row.with_errors : row);
const errorsOf = (row) => (row.errors ? `${row.errors} error${row.errors > 1 ? "s" : ""}${row.policy_errors ? ` (${row.policy_errors === row.errors ? "the" : `${row.policy_errors} the`} policy's)` : ""}` : "");

/* What a row of scores says of an arm: its success rate, or its mean return where no success is defined. */
function entryOf(row, arm) {
  const entry = row.measure === "success" ? rateEntry(row) : returnEntry(row);
  return { name: arm, color: armColor(arm), ...entry, tip: `${arm}: ${entry.tip}` };
}

function rateEntry(row) {
  const c = counts(row);
  if (c.rate === null) return { estimate: null, interval: null, label: "–", detail: "none counted", tip: "no counted episode" };
  const [low, high] = c[state.interval].map((v) => percent(v, c.n));
  const errors = errorsOf(row) && `, ${errorsOf(row)}`;
  return { estimate: c.rate, interval: c[state.interval], label: percent(c.rate, c.n), detail: `${c.successes}/${c.n}${errors}`, tip: `${c.successes} of ${c.n}: ${percent(c.rate, c.n)}, interval ${low} to ${high}${errors}` };
}

function returnEntry(row) {
  const mean = row.return, errors = errorsOf(row) && `, ${errorsOf(row)}`;
  if (!mean) return { estimate: null, interval: null, label: "–", detail: `none counted${errors}`, tip: "no counted episode" };
  const [label, ...ends] = quantities(mean.mean, mean.interval);
  const episodes = `${row.n} episode${row.n === 1 ? "" : "s"}${errors}`;
  return { estimate: mean.mean, interval: mean.interval, label, detail: ends.length ? ends.join(" to ") : episodes, tip: `mean return ${label}${ends.length ? `, interval ${ends.join(" to ")}` : ""}, ${episodes}` };
}

const boundsOf = (row) => row.newcombe ?? row.interval;
const differenceOf = (row) => (row.newcombe ? [row.difference, ...row.newcombe].map((v) => points(v, row.n)) : quantities(row.difference, row.interval, true));
const CONTESTED = "the interval leaves out 0, but the test, which decides, shows no difference";

function pairEntry(p) {
  const [label, ...ends] = differenceOf(p), bounds = boundsOf(p), success = p.measure === "success";
  const how = success ? `both ${p.both}, only ${p.a} ${p.only_a}, only ${p.b} ${p.only_b}, neither ${p.neither}` : "mean difference of returns";
  const interval = ends.length ? `; interval ${ends.join(" to ")}${success ? " points" : ""}` : "; too few pairs for an interval";
  return {
    name: `${p.a} − ${p.b}`, estimate: p.difference, interval: bounds, color: "var(--ink)",
    label: success ? `${label} points` : label, detail: `p = ${pValue(p.p_holm)}${p.contested ? " †" : ""}`,
    tip: `${p.n} shared starts: ${how}${interval}${p.contested ? `; ${CONTESTED}` : ""}`,
  };
}

/* All pairs where they are few; otherwise those of the best arm. */
function shownPairs(group) {
  if (group.pairs.length <= 6) return group.pairs;
  const value = (row) => (group.measure === "success" ? row.rate : row.return?.mean) ?? -Infinity;
  const best = [...group.rows].sort((a, b) => value(b) - value(a))[0].arm;
  return group.pairs.filter((p) => p.a === best || p.b === best).slice(0, 12);
}

const nameWidth = (names, width) => Math.min(0.36 * width, 18 + 7.2 * Math.max(...names.map((name) => name.length)));
const part = (title, ...content) => html("div", { class: "part" }, html("figcaption", {}, title), ...content);

function drawOverall() {
  const width = Math.max(280, $("overall").clientWidth);
  const rates = { low: 0, high: 1, format: (values) => values.map((t) => `${Math.round(100 * t)} %`) };
  const title = (part, what) => (part.task === null ? groupTitle(part, what) : `${what[1]} · ${placed(part.task)}`);
  const drawn = groups.flatMap((group) => {
    const all = partsOf(group), most = all.slice(0, MOST_PARTS);
    return [...most, ...(all.length > most.length ? [{ more: all.length - most.length }] : [])];
  });
  $("overall").replaceChildren(...drawn.map((group) => {
    if (group.more) return html("p", { class: "note" }, `${group.more} more tasks are in the table below.`);
    const rows = group.rows.map((row) => entryOf(row, row.arm)), single = group.tasks.length === 1 && group.measure === "return";
    const axis = group.measure === "success" ? rates : span(rows);
    return part(single ? `Mean return · ${placed(group.tasks[0])}` : title(group, ["Success rate, all tasks", "Mean return"]), whiskers(rows, { width, nameWidth: nameWidth(group.arms, width), ...axis }));
  }));
  const parts = drawn.filter((group) => group.pairs?.length).map((group) => {
    const shown = shownPairs(group), entries = shown.map(pairEntry), success = group.measure === "success";
    const edge = Math.max(...entries.flatMap((entry) => [entry.estimate, ...(entry.interval ?? [])].map(Math.abs)));
    const bound = success ? Math.min(1, Math.ceil(Math.max(0.1, edge) * 10) / 10) : edge * 1.08 || 1;
    const signed = (value, text) => (value > 0 ? "+" : "") + text;
    const format = (values) => (success ? values.map((t) => minus(String(Math.round(100 * t)))) : axisNumbers(values)).map((text, i) => signed(values[i], text));
    const plot = whiskers(entries, { width, nameWidth: nameWidth(entries.map((entry) => entry.name), width), low: -bound, high: bound, format, zero: 0 });
    const note = shown.some((p) => p.contested) ? html("p", { class: "note" }, `† ${CONTESTED}.`) : null;
    return part(title(group, ["Paired difference in success rate", "Paired difference in return"]), plot, ...[note].filter(Boolean));
  });
  $("pairs-figure").hidden = !parts.length;
  $("pairs").replaceChildren(...parts);
}

function drawTasks() {
  $("results-title").textContent = !byReturn ? "Success by task" : !byRate ? "Mean return by task" : "Success and mean return by task";
  $("rate-controls").hidden = !byRate;
  $("tasks").replaceChildren(...groups.map((group) => html("div", { class: "part" }, ...(groups.length > 1 ? [html("h3", {}, groupTitle(group, ["Success rate", "Mean return"]))] : []), taskTable(group))));
  $("arm-legend").replaceChildren(...arms.map((arm) => html("span", {}, html("i", { style: `background:${armColor(arm)}` }), arm)));
}

function taskTable(group) {
  const success = group.measure === "success", apart = partsOf(group).length > 1;
  const pair = new Set(group.pairs.map((p) => `${p.a}\n${p.b}`)).size === 1 ? group.pairs[0] : null;
  const cells = new Map(scores.tasks.map((row) => [`${row.task}\n${row.arm}`, row]));
  const differences = new Map(pair ? group.pairs.flatMap((p) => p.tasks.map((row) => [row.task, row])) : []);
  const wide = group.arms.length <= 4;
  const told = group.tasks.flatMap((task) => group.arms.map((arm) => cells.get(`${task}\n${arm}`)).filter(Boolean)).concat(apart ? [] : group.rows).map((row) => entryOf(row, row.arm));
  const detailWidth = 8 + textWidth(told.map((entry) => entry.detail));
  const numbers = { labelWidth: detailWidth + 12 + textWidth(told.map((entry) => entry.label), 7.6), detailWidth };
  const size = wide ? { width: 320, labelWidth: 0 } : { width: innerWidth <= 720 ? 330 : 640, ...numbers };
  const plotClass = wide ? "plot" : "plot main";
  const head = html("tr", {}, html("th", {}, "Task"), html("th", { class: plotClass }, success ? rateAxis(size) : ""));
  if (wide) for (const arm of group.arms) head.append(html("th", { class: "number" }, arm));
  if (pair) head.append(html("th", { class: "number" }, `${pair.a} − ${pair.b}${success ? " [points]" : ""}`));
  const line = (name, rowOf, difference, total) => {
    const found = new Map(group.arms.map((arm) => [arm, rowOf(arm)]).filter(([, row]) => row).map(([arm, row]) => [arm, entryOf(row, arm)]));
    const tr = html("tr", total ? { class: "total" } : { "data-task": name }, html("td", {}, name, manyWorlds && !total ? html("small", {}, worldsOf.get(name).join(", ")) : null));
    const entries = [...found.values()];
    tr.append(html("td", { class: plotClass }, rowCell(entries, success ? size : { ...size, ...span(entries) })));
    if (wide)
      for (const arm of group.arms) {
        const text = found.get(arm) ?? { label: "–", detail: "" };
        tr.append(html("td", { class: "number", "data-arm": arm, "data-label": arm }, html("span", { class: "rate" }, text.label), html("small", {}, text.detail)));
      }
    if (pair) {
      const [label, ...ends] = difference ? differenceOf(difference) : ["–"];
      const star = difference?.contested ? " †" : "";
      const tip = star ? { "data-tip": CONTESTED } : {};
      tr.append(html("td", { class: "number", "data-label": success ? "difference [points]" : "difference", ...tip }, html("span", {}, label), html("small", {}, ends.join(" to ") + star)));
    }
    return tr;
  };
  const body = html("tbody", {}, ...group.tasks.map((task) => line(task, (arm) => cells.get(`${task}\n${arm}`), differences.get(task), false)));
  if (!apart && group.tasks.length > 1) body.append(line("All tasks", (arm) => scores.arms.find((row) => row.arm === arm), pair, true));
  return html("div", { class: "table" }, html("table", {}, html("thead", {}, head), body));
}

/* ---- episodes ---- */

const starts = new Map();
for (const episode of episodes) {
  const key = `${episode.task}\n${episode.column}`;
  if (!starts.has(key)) starts.set(key, []);
  starts.get(key).push(episode);
}
const sharing = (episode) => starts.get(`${episode.task}\n${episode.column}`);
const differs = (episode) => {
  const found = new Set(sharing(episode).map((other) => other.outcome).filter((o) => o === "success" || o === "failure"));
  return found.size > 1;
};

function passes(episode) {
  if (state.task && episode.task !== state.task) return false;
  if (state.arm && episode.arm !== state.arm) return false;
  if (!state.outcome) return true;
  return state.outcome === "differs" ? differs(episode) : episode.outcome === state.outcome;
}

function drawGrid() {
  const blocks = [], most = episodes.reduce((top, episode) => Math.max(top, episode.column + 1), 1);
  const small = most > 30;
  const room = $("grid").clientWidth - (innerWidth <= 720 ? 30 : 206);
  const perStrip = most <= 15 && innerWidth > 720 ? 15 : Math.max(5, Math.floor(room / (small ? 15 : 23)));
  for (const task of tasks) {
    if (state.task && task !== state.task) continue;
    const here = episodes.filter((episode) => episode.task === task);
    const columns = 1 + Math.max(...here.map((episode) => episode.column));
    const cells = new Map(here.map((episode) => [`${episode.arm}\n${episode.column}`, episode]));
    const playing = new Set(here.map((episode) => episode.arm));
    const strip = (from) => arms.filter((arm) => playing.has(arm) && (!state.arm || arm === state.arm)).map((arm) => {
      const row = [];
      for (let column = from; column < Math.min(columns, from + perStrip); column += 1) {
        const episode = cells.get(`${arm}\n${column}`);
        row.push(episode ? cell(episode) : html("span", { class: "cell none" }));
      }
      return html("div", { class: "arm-row" }, html("span", { title: arm }, arm), html("div", { class: "cells" }, ...row));
    });
    const strips = [];
    for (let from = 0; from < columns; from += perStrip) strips.push(html("div", { class: "strip" }, ...strip(from)));
    blocks.push(html("div", { class: "task" }, html("h3", {}, task, html("span", {}, `${manyWorlds ? `${worldsOf.get(task).join(", ")} · ` : ""}${columns} start${columns > 1 ? "s" : ""}`)), ...strips));
  }
  $("grid").replaceChildren(html("div", { class: `tasks${most <= 15 ? " two" : ""}${small ? " small" : ""}${episodes.length > 8000 ? " many" : ""}` }, ...blocks));
  const shown = episodes.filter(passes).length;
  $("shown-count").textContent = `${shown} of ${episodes.length} episodes match the filter.`;
}

/* How high the return of an episode without success is among those of its task and world, from 0 to 1. */
const ranges = new Map();
const place = (episode) => `${episode.task}\n${episode.world}`;
for (const episode of episodes) {
  if (episode.outcome !== "finished" || episode.return === null) continue;
  const [low, high] = ranges.get(place(episode)) ?? [Infinity, -Infinity];
  ranges.set(place(episode), [Math.min(low, episode.return), Math.max(high, episode.return)]);
}
function level(episode) {
  const [low, high] = ranges.get(place(episode)) ?? [0, 0];
  return high > low && episode.return !== null ? (episode.return - low) / (high - low) : 0.5;
}

function cell(episode) {
  const dim = passes(episode) ? "" : " dim", finished = episode.outcome === "finished";
  const text = `${episode.arm}: ${episode.outcome}` + (finished ? `, return ${brief(episode.return)}` : "") + (episode.length ? `, ${episode.length} steps` : "") + (filmed.has(episode.id) ? ", has a video" : "");
  return html("button", {
    ...(finished ? { style: `--level: ${level(episode).toFixed(3)}` } : {}),
    type: "button", class: `cell ${kind(episode)}${dim}${filmed.has(episode.id) ? " filmed" : ""}`, "data-id": episode.id, "data-tip": text, "aria-label": `${episode.task}, ${text}`,
    "aria-current": String(state.open === episode.id), onclick: () => open(episode.id),
  });
}

/* Returns task by task, as those of other tasks have another scale; lengths of all tasks together. */
function drawStrips() {
  const counted = episodes.filter((e) => ["success", "failure", "finished"].includes(e.outcome) && passes(e));
  const dots = (names, field, here, meanOf) => names.filter((arm) => !state.arm || arm === state.arm).map((arm) => {
    const mean = state.outcome ? null : meanOf(arm);
    return {
      name: arm, color: armColor(arm), mean: mean ? mean.mean : null, interval: mean ? mean.interval : null,
      tip: mean ? `${arm}: mean ${brief(mean.mean)}` + (mean.interval ? `, interval ${mean.interval.map(brief).join(" to ")}` : "") : "",
      values: here.filter((e) => e.arm === arm && e[field] !== null).map((e) => ({ value: e[field], filled: e.outcome === "success", id: e.id, tip: `${e.task}: ${brief(e[field])} (${e.outcome})` })),
    };
  });
  $("filled-note").hidden = !byRate;
  const chosen = state.task ? [state.task] : tasks, shown = chosen.slice(0, MOST_PARTS);
  const width = Math.max(280, Math.min($("strips").clientWidth, $("strips").clientWidth > 860 ? $("strips").clientWidth / 2 - 8 : Infinity) - 42);
  const size = { width, nameWidth: nameWidth(arms, width), onpick: open };
  const figure = (title, plot) => html("figure", {}, html("figcaption", {}, title), plot);
  const returns = shown.map((task) => {
    const rows = scores.tasks.filter((row) => row.task === task);
    const names = arms.filter((arm) => rows.some((row) => row.arm === arm));
    return figure(`Return${tasks.length > 1 ? ` · ${placed(task)}` : ""}`, strips(dots(names, "return", counted.filter((e) => e.task === task), (arm) => rows.find((row) => row.arm === arm).return), size));
  });
  const lengths = dots(arms, "length", counted, (arm) => (state.task ? scores.tasks.find((row) => row.task === state.task && row.arm === arm) : scores.arms.find((row) => row.arm === arm))?.length);
  $("strips").replaceChildren(...returns, figure(`Length [steps]${tasks.length > 1 && !state.task ? " · all tasks" : ""}`, strips(lengths, size)));
  $("more-tasks").hidden = chosen.length === shown.length;
  $("more-tasks").textContent = `The first ${shown.length} of ${chosen.length} tasks; choose another above.`;
}

/* ---- the episode panel ---- */

let videoUrls = [];

function releaseVideos() {
  for (const url of videoUrls) URL.revokeObjectURL(url);
  videoUrls = [];
}

function videoOf(id) {
  const stored = $(`video-${id}`);
  let source = DATA.videos_beside.includes(id) ? `${DATA.videos_at}/${id}.mp4` : null;
  if (stored) {
    const bytes = Uint8Array.from(atob(stored.textContent), (c) => c.charCodeAt(0));
    source = URL.createObjectURL(new Blob([bytes], { type: "video/mp4" }));
    videoUrls.push(source);
  }
  if (!source) return null;
  const video = html("video", { src: source, controls: "", playsinline: "", preload: "auto", loop: "" });
  video.muted = true;
  video.autoplay = !matchMedia("(prefers-reduced-motion: reduce)").matches;
  return video;
}

/* A run beside the unperturbed one of the same start and noise, each with its video; none if neither has one. */
function sideBySide(...runs) {
  const videos = runs.map(({ episode }) => videoOf(episode.id));
  if (!videos.some(Boolean)) return null;
  return html("div", { class: "twins" }, ...runs.map(({ name, episode }, i) =>
    html("figure", {}, videos[i] ?? html("div", { class: "missing" }, "not filmed"), html("figcaption", {}, html("i", { class: kind(episode) }), `${name}: ${episode.outcome}`))));
}

function open(id) {
  const episode = byId.get(id);
  if (!episode) return;
  state.open = id;
  const panel = $("panel"), curveData = DATA.curves[id], reason = DATA.reasons[episode.reason];
  releaseVideos();
  const related = relatives(id), twin = related?.nominal;
  const video = twin ? sideBySide({ name: "as it is", episode: twin }, { name: related.name, episode }) : videoOf(id);
  panel.classList.toggle("wide", Boolean(twin && video));
  const rows = [
    ["Steps", episode.length ?? "–"], ["Return", brief(episode.return)],
    ...(episode.outcome === "finished" ? [] : [["Goal reached", episode.success_step === null ? "never" : `after step ${episode.success_step + 1}`]]),
    ["Start", episode.start], ["Noise seed", episode.seed], ["Rollout", html("span", { class: "mono" }, id)],
  ];
  const others = (related?.others ?? sharing(episode).map((other) => ({ name: other.arm, episode: other }))).filter((other) => other.episode.id !== id);
  const content = [
    html("header", {}, html("span", { class: `badge ${kind(episode)}` }, episode.outcome),
      html("button", { type: "button", class: "quiet", "aria-label": "Previous episode", onclick: () => step(-1) }, "←"),
      html("button", { type: "button", class: "quiet", "aria-label": "Next episode", onclick: () => step(1) }, "→"),
      html("button", { type: "button", class: "quiet", "aria-label": "Close", id: "close-panel", onclick: close }, "✕")),
    html("h3", {}, `${episode.arm} · ${episode.task}`),
    html("p", { class: "instruction" }, episode.instruction || "(no instruction)"),
    video ?? (episode.length ? html("p", { class: "note" }, "No video of this episode. To film N successes and N failures of each task and policy: ", html("code", {}, "simeval report RUN --videos N"), ", RUN being the run's folder.") : null),
    curveData ? html("div", {}, html("figcaption", {}, episode.outcome === "finished" ? "Reward by step" : "Reward by step; the goal holds where shaded"), curve(curveData, episode.length))
      : episode.length ? html("p", { class: "note" }, `Reward curves of the first ${DATA.curve_limit} episodes are in this page; this one is in the trace.`) : null,
    reason ? html("pre", {}, reason) : null,
    html("dl", {}, ...rows.flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, value instanceof Node ? value : String(value))])),
    others.length ? html("div", { class: "others" }, "Same start and noise: ", ...others.map((other) => html("button", { type: "button", onclick: () => open(other.episode.id) }, html("i", { class: kind(other.episode) }), other.name))) : null,
  ];
  panel.replaceChildren(...content.filter(Boolean));
  $("tip").hidden = true;
  inPlace(id, () => {
    panel.hidden = false;
    document.body.classList.add("has-panel");
  });
  panel.scrollTop = 0;
  for (const button of document.querySelectorAll(".cell[data-id]")) button.setAttribute("aria-current", String(button.dataset.id === id));
  history.replaceState(null, "", `#episode=${id}`);
}

/* Change the layout without moving the episode's cell on the screen. */
function inPlace(id, change) {
  const button = document.querySelector(`.cell[data-id="${id}"]`);
  const before = button?.getBoundingClientRect().top;
  change();
  if (!button) return;
  scrollBy(0, button.getBoundingClientRect().top - before);
  button.scrollIntoView({ block: "nearest" });
}

function close() {
  const id = state.open;
  state.open = null;
  inPlace(id, () => {
    $("panel").hidden = true;
    document.body.classList.remove("has-panel");
  });
  $("panel").replaceChildren();
  history.replaceState(null, "", location.pathname + location.search);
  const button = document.querySelector(`.cell[data-id="${id}"]`);
  if (button) {
    button.setAttribute("aria-current", "false");
    button.focus({ preventScroll: true });
  }
}

function step(direction) {
  const list = [...document.querySelectorAll(".cell[data-id]:not(.dim)")].map((button) => button.dataset.id);
  const at = list.indexOf(state.open);
  if (list.length) open(list[(at + direction + list.length) % list.length]);
}

/* ---- the rest ---- */

function drawFacts() {
  const r = scores.requested, policies = new Set(scores.arms.map((arm) => arm.policy));
  const facts = [[r.counted ?? 0, "episodes counted"], [tasks.length, tasks.length === 1 ? "task" : "tasks"], [policies.size, policies.size === 1 ? "policy" : "policies"]];
  if (r.error) facts.push([r.error, r.error === 1 ? "error" : "errors"]);
  const rest = ["solved at reset", "dropped", "pending", "repeated"].reduce((sum, name) => sum + (r[name] ?? 0), 0);
  if (rest) facts.push([rest, "more not counted"]);
  if (r.branches) facts.push([r.branches, "branches, scored apart"]);
  $("facts").replaceChildren(...facts.map(([value, name]) => html("li", {}, html("b", {}, String(value)), ` ${name}`)));
}

function drawDrops() {
  if (!scores.not_counted.length) {
    $("drops").replaceChildren(html("p", { class: "note" }, scores.unfinished ?? "Every rollout that was requested is counted."));
    return;
  }
  const most = 200, by = new Map();
  for (const row of scores.not_counted) by.set(row.reason, (by.get(row.reason) ?? 0) + 1);
  const counts = [...by].map(([reason, n]) => `${n} ${reason}`).join(", ");
  const rows = scores.not_counted.slice(0, most).map((row) => html("tr", {}, html("td", {}, row.reason), html("td", {}, row.task), html("td", {}, row.arm), html("td", {}, row.detail),
    html("td", { class: "mono" }, byId.has(row.id) ? html("a", { href: `#episode=${row.id}`, onclick: (event) => { event.preventDefault(); open(row.id); } }, row.id) : row.id)));
  const head = html("tr", {}, ...["Reason", "Task", "Policy", "Detail", "Rollout"].map((name) => html("th", {}, name)));
  $("drops").replaceChildren(html("p", { class: "note" }, `${counts}.`), html("div", { class: "table" }, html("table", {}, html("thead", {}, head), html("tbody", {}, ...rows))));
  if (scores.unfinished) $("drops").prepend(html("p", { class: "note" }, scores.unfinished));
  if (scores.not_counted.length > most) $("drops").append(html("p", { class: "note" }, `… and ${scores.not_counted.length - most} more, in scores.json.`));
}

function drawMethod() {
  const level = `${100 * scores.rule.confidence} %`;
  const left = scores.pairs.map((p) => [p, Object.entries(p.left_out).map(([reason, n]) => `${reason}: ${n}`)]).filter(([, reasons]) => reasons.length);
  const reasons = new Map();
  for (const [p, why] of left) reasons.set(why.join(", "), [...(reasons.get(why.join(", ")) ?? []), p]);
  const unpaired = [...reasons].map(([why, pairs]) => `${why} (${pairs.length === 1 ? `${pairs[0].a} and ${pairs[0].b}` : `in each of ${pairs.length} pairs`})`);
  const holds = scores.arms.filter((arm) => arm.over_tasks && (DATA.general || arm.condition === "nominal"));
  const tests = [];
  if (byRate) tests.push("success by the exact McNemar test, with Newcombe's paired score interval (method 10), which is approximate");
  if (byReturn) tests.push("mean returns by the sign-flip permutation test, with the interval of that test");
  const entries = [
    ["Rule", scores.rule.name],
    ["Success", scores.rule.success],
    ["Denominator", scores.rule.denominator + (byRate ? "; with errors as failures, these and errors" : "")],
    ["Source", "every number is recomputed from the rewards and successes in the HDF5 trace, and checked against the index"],
    ...(byRate ? [["One rate", `Wilson score and Clopper–Pearson exact intervals, ${level}`]] : []),
    ["Two policies", `episodes that share start and noise are paired: ${tests.join("; ")}; Holm's correction over ${scores.pairs.length || "no"} pair${scores.pairs.length === 1 ? "" : "s"}. The test decides whether a difference is shown`],
    ["Means", `Student's t interval, ${level}, over counted episodes`],
    ...(left.length ? [["Starts not paired", unpaired.join("; ") + (scores.fidelity.length ? ". Starts that were run in a model alone are among them" : "")]] : []),
    ...holds.map((arm) => [`Over tasks, ${arm.arm}`, `${percent(arm.over_tasks.mean, arm.n)} mean of ${arm.over_tasks.tasks} tasks; ${arm.over_tasks.interval.map((v) => percent(v, arm.n)).join(" to ")} expected for other tasks like these (bootstrap over tasks; too narrow below ten tasks)`]),
    ["Videos", DATA.videos_beside.length ? `${document.querySelectorAll("script.video").length} in this page; ${DATA.videos_beside.length} beyond its limit of ${DATA.embed_mib} MiB are in videos/ beside it` : `${document.querySelectorAll("script.video").length} in this page`],
  ];
  $("rules").replaceChildren(html("dl", {}, ...entries.flatMap(([name, text]) => [html("dt", {}, name), html("dd", {}, text)])));
  const names = Object.keys(scores.arms[0]?.under_other_rules ?? {});
  const head = html("tr", {}, html("th", {}, "Policy"), ...names.map((name) => html("th", { class: "number" }, name)));
  $("other-rules-part").hidden = !byRate || !names.length;
  const rows = scores.arms.filter((arm) => arm.measure === "success" && (DATA.general || arm.condition === "nominal")).map((arm) => html("tr", {}, html("td", {}, arm.arm), ...names.map((name) => html("td", { class: "number" }, arm.under_other_rules[name] === null ? "–" : percent(arm.under_other_rules[name], arm.n)))));
  const note = scores.fidelity.length ? "All episodes of a policy in a world count here: in the models, those from further starts too. The rates above are of the starts that all worlds share, and differ for that reason." : null;
  $("other-rules").replaceChildren(...(note ? [html("p", { class: "note" }, note)] : []), html("div", { class: "table" }, html("table", {}, html("thead", {}, head), html("tbody", {}, ...rows))));
  const sections = Object.entries(DATA.provenance.sections).filter(([, values]) => Object.keys(values).length);
  $("provenance").replaceChildren(...sections.map(([name, values]) => html("figure", {}, html("figcaption", {}, name), settings(values))));
  $("config").querySelector("pre").textContent = JSON.stringify(DATA.provenance.config, null, 2);
}

/* Settings as a list of names and values; settings within settings as a list within. */
function settings(values) {
  return html("dl", {}, ...Object.entries(values).flatMap(([key, value]) => [html("dt", {}, key), html("dd", {}, ...plain(value))]));
}

function plain(value) {
  if (Array.isArray(value)) return [value.every((item) => item === null || typeof item !== "object") ? value.join(", ") : JSON.stringify(value)];
  if (value !== null && typeof value === "object") return [settings(value)];
  const [, words, configured] = /^(.*?) ?(\{".*\})$/.exec(value) ?? [];
  try {
    return configured ? [words, settings(JSON.parse(configured))] : [String(value)];
  } catch {
    return [String(value)];
  }
}

/* ---- wiring ---- */

function segments(id, field, redraw) {
  $(id).addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    for (const other of $(id).children) other.setAttribute("aria-pressed", String(other === button));
    state[field] = button.dataset.value;
    redraw();
  });
}

const results = () => {
  if (DATA.general) { drawOverall(); drawTasks(); }
  if (MATCHED.length) drawMatched();
};
const selection = () => { if (DATA.general) { drawGrid(); drawStrips(); } };
let drawnWidth = document.querySelector("main").clientWidth;
new ResizeObserver(() => {
  const width = document.querySelector("main").clientWidth;
  if (Math.abs(width - drawnWidth) < 8) return;
  drawnWidth = width;
  results();
  selection();
}).observe(document.querySelector("main"));
segments("interval", "interval", results);
segments("denominator", "denominator", results);
segments("filter-outcome", "outcome", selection);
for (const [id, field, values] of [["filter-task", "task", tasks], ["filter-arm", "arm", arms]]) {
  $(id).append(...values.map((value) => html("option", { value }, field === "task" ? placed(value) : value)));
  $(id).addEventListener("change", (event) => { state[field] = event.target.value; selection(); });
}
const used = (name) => (name === "finished" ? byReturn : byRate || !["success", "failure", "differs"].includes(name));
for (const button of $("filter-outcome").children) button.hidden = !used(button.dataset.value);
$("outcome-legend").append(...Object.entries(OUTCOMES).filter(([name]) => used(name)).map(([name, text]) => html("span", {}, html("i", { class: name === "finished" ? "scale" : `square ${name}` }), text)));
if (filmed.size) $("outcome-legend").append(html("span", {}, html("i", { class: "square success filmed" }), "has a video: click to watch"));

const theme = (name) => { document.documentElement.dataset.theme = name; };
theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
$("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));

document.addEventListener("keydown", (event) => {
  if (state.open === null || event.target.closest("select, video")) return;
  if (event.key === "Escape") close();
  if (event.key === "ArrowRight") step(1);
  if (event.key === "ArrowLeft") step(-1);
});
document.addEventListener("pointermove", (event) => {
  const target = event.target.closest("[data-tip]");
  const tip = $("tip");
  tip.hidden = !target || !target.dataset.tip;
  if (tip.hidden) return;
  tip.textContent = target.dataset.tip;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18}px`;
});
