/* A matched study: success against severity, what changes when axes act, and every instance. */

const MATCHED = scores.matched;
const picked = { study: 0, rank: MATCHED.length ? MATCHED[0].severities.length - 1 : 0, task: "", kind: "" };
const SIGNIFICANT = 0.05;
const studyColor = (index) => `var(--arm-${index % 8})`;
const studyName = (study) => (new Set([...MATCHED, ...scores.recovery].map((s) => s.world)).size > 1 ? `${study.policy} · ${study.world}` : study.policy);
const study = () => MATCHED[picked.study];
const axisRow = (s, axis, rank) => s.rows.find((row) => row.axis === axis && row.rank === rank);
const allRow = (s, rank) => s.combinations.find((row) => row.all && row.rank === rank);
const share = (rate) => (rate.rate === null ? "–" : percent(rate.rate, rate.n));
const ends = (interval, text) => (interval ? interval.map(text).join(" to ") : "no interval");
const signed = (value, n) => (value === null ? "–" : points(value, n));

/* ---- success against severity ---- */

function severityNumbers(s) {
  const numbers = s.severities.map(Number);
  return numbers.some(Number.isNaN) ? s.severities.map((_, i) => i + 1) : numbers;
}

/* Points of one line: as it is at 0, then one a severity. */
function alongSeverity(s, read) {
  const at = severityNumbers(s);
  const start = { x: 0, ...s.nominal, hollow: true, tip: `as it is: ${share(s.nominal)} of ${s.nominal.n}` };
  return [start, ...s.severities.map((name, rank) => ({ x: at[rank], ...read(rank, name) }))].filter((p) => p.rate !== null && p.rate !== undefined);
}

function axisPoint(s, axis, rank, name) {
  const row = axisRow(s, axis, rank);
  if (!row || row.success.rate === null) return {};
  const change = row.difference === null ? "" : `; ${signed(row.difference, row.n)} points (${ends(row.interval, (v) => points(v, row.n))}), p = ${pValue(row.p_holm)}; ${row.configurations} perturbation${row.configurations === 1 ? "" : "s"} drawn${row.over_configurations ? `, others like these: ${ends(row.over_configurations, (v) => percent(v, 1))}` : ""}`;
  return { ...row.success, hollow: row.p_holm >= SIGNIFICANT, tip: `${studyName(s)}, ${axis} at severity ${name}: ${share(row.success)} of ${row.success.n}${change}` };
}

function allPoint(s, rank, name) {
  const row = allRow(s, rank);
  if (!row || row.success.rate === null) return {};
  const loss = row.against_nominal;
  return { ...row.success, hollow: loss.difference === null || loss.p_holm >= SIGNIFICANT, tip: `${studyName(s)}, all at once at severity ${name}: ${share(row.success)} of ${row.success.n}; ${loss.difference === null ? "" : `${signed(loss.difference, loss.n)} points (${ends(loss.interval, (v) => points(v, 1))}), p = ${pValue(loss.p_holm)}; `}${share(row.conj)} survive each alone` };
}

/* lines = [{points: [{x, rate, interval, hollow, tip}], color, dash, band}] on one scale of 0 to 100 %. */
function severityPlot(lines, s, width) {
  const height = 168, left = 40, bottom = height - 24, top = 8;
  const at = [0, ...severityNumbers(s)], names = ["0", ...s.severities];
  const x = (v) => left + 10 + (v / Math.max(...at)) * (width - left - 24), y = (v) => bottom - v * (bottom - top);
  const plot = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  for (const v of [0, 0.5, 1]) {
    plot.append(svg("line", { class: "rule", x1: left, x2: width, y1: y(v), y2: y(v) }));
    plot.append(svg("text", { x: left - 7, y: y(v) + 4, "text-anchor": "end" }, `${100 * v} %`));
  }
  at.forEach((v, i) => plot.append(svg("text", { x: x(v), y: height - 6, "text-anchor": "middle" }, names[i].replace("level ", "L"))));
  for (const line of lines) {
    const nominal = line.points.find((p) => p.x === 0);
    if (line.band && nominal) plot.append(svg("line", { class: "zero", x1: x(0), x2: width, y1: y(nominal.rate), y2: y(nominal.rate) }));
    const banded = line.band ? line.points.filter((p) => p.interval) : [];
    if (banded.length > 1) {
      const edge = [...banded.map((p) => [p.x, p.interval[1]]), ...banded.map((p) => [p.x, p.interval[0]]).reverse()];
      plot.append(svg("polygon", { points: edge.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" "), fill: line.color, opacity: 0.13 }));
    }
    const path = line.points.map((p) => `${x(p.x).toFixed(1)},${y(p.rate).toFixed(1)}`).join(" ");
    plot.append(svg("polyline", { points: path, fill: "none", stroke: line.color, "stroke-width": line.dash ? 1.6 : 2.2, "stroke-dasharray": line.dash ?? "", "stroke-linejoin": "round", "stroke-linecap": "round" }));
  }
  for (const line of lines.filter((l) => !l.dash))
    for (const p of line.points) plot.append(svg("circle", { cx: x(p.x), cy: y(p.rate), r: 4.2, fill: p.hollow ? "var(--card)" : line.color, stroke: line.color, "stroke-width": 2, "data-tip": p.tip ?? "", class: "point" }));
  return plot;
}

function drawSeverity() {
  const box = $("severity-panels"), axes = [...new Set(MATCHED.flatMap((s) => s.axes))], first = MATCHED[0];
  const columns = Math.max(1, Math.min(4, Math.floor((box.clientWidth + 14) / 250)));
  const width = Math.max(180, (box.clientWidth - 14 * (columns - 1)) / columns - 34);
  const last = first.severities.length - 1;
  const wide = Math.min(2, columns);
  const panel = (title, note, lines, whole = false) =>
    html("figure", whole ? { class: "whole", style: `grid-column: span ${wide}` } : {}, html("figcaption", {}, html("b", {}, title), note), severityPlot(lines, first, whole ? wide * (width + 48) - 48 : width));
  const panels = axes.map((axis) => {
    const lines = MATCHED.map((s, i) => ({ color: studyColor(i), band: true, points: alongSeverity(s, (rank, name) => axisPoint(s, axis, rank, name)) }));
    const row = axisRow(study(), axis, last);
    const lost = row && row.difference !== null ? html("span", { class: row.p_holm < SIGNIFICANT && row.difference < 0 ? "loss" : "" }, `${signed(row.difference, row.n)} points`) : "";
    return panel(axis, lost, lines);
  });
  if (MATCHED.some((s) => allRow(s, last))) {
    const lines = MATCHED.flatMap((s, i) => {
      const dashed = (dash, read) => ({ color: MATCHED.length > 1 ? studyColor(i) : "var(--soft)", dash, points: alongSeverity(s, (rank) => (allRow(s, rank) ? { rate: read(allRow(s, rank)) } : {})) });
      return [{ color: studyColor(i), band: true, points: alongSeverity(s, (rank, name) => allPoint(s, rank, name)) }, dashed("6 4", (row) => row.conj.rate), dashed("1.5 4", (row) => row.indep.estimate)];
    });
    panels.push(panel(`all ${first.axes.length} at once`, html("span", { class: "keys" }, "– – survive each alone   ·· if independent"), lines, true));
  }
  box.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
  box.replaceChildren(...panels);
  $("severity-legend").replaceChildren(
    ...MATCHED.map((s, i) => html("span", {}, html("i", { style: `background:${studyColor(i)}` }), studyName(s))),
    html("span", {}, html("i", { class: "ring" }), `hollow: no difference shown (p ≥ ${SIGNIFICANT} after Holm)`),
  );
}

/* ---- what changes ---- */

function matrix(cells, rows, columns, small = false) {
  const total = cells.flat().reduce((sum, cell) => sum + cell.count, 0);
  const head = html("tr", {}, html("th", {}), ...columns.map((name) => html("th", {}, name)));
  const body = cells.map((line, i) => html("tr", {}, html("th", {}, rows[i]), ...line.map((cell) => {
    const strength = total ? Math.round(10 + 70 * (cell.count / total)) : 0;
    return html("td", { class: cell.kind, style: `--strength:${cell.count ? strength : 4}%`, "data-tip": cell.tip ?? "" }, html("b", {}, String(cell.count)),
      html("small", {}, total ? percent(cell.count / total, total) : "–"), cell.name && !small ? html("span", {}, cell.name) : null);
  })));
  return html("table", { class: small ? "matrix small" : "matrix" }, head, ...body);
}

function drawTogether() {
  const s = study(), row = allRow(s, picked.rank), severity = s.severities[picked.rank];
  $("at-once").replaceChildren(...(row && row.n ? [atOnce(s, row, severity)] : []));
  $("transitions").replaceChildren(...s.axes.map((axis) => axisRow(s, axis, picked.rank)).filter((r) => r && r.n).map((r) => transition(r)));
  drawPairs(s);
  drawByTask(s);
}

function atOnce(s, row, severity) {
  const b = row.emergent.count, c = row.compensated.count, both = row.conj.count - b, n = row.n;
  const figure = html("figure", { class: "big" }, html("figcaption", {}, html("b", {}, `From each alone to all ${row.axes.length} at once, severity ${severity}`), html("span", {}, `${n} instances`)),
    matrix([[{ count: both, kind: "good", name: "survive either way" }, { count: b, kind: "emergent", name: "emergent failures" }],
      [{ count: c, kind: "compensated", name: "compensated successes" }, { count: n - both - b - c, kind: "neither", name: "fail either way" }]],
    ["survives each alone", "some single fails"], ["all at once: succeeds", "all at once: fails"]));
  const net = row.interaction, rate = (r) => [share(r), r.interval ? ends(r.interval, (v) => percent(v, 1)) : ""];
  const bootstrap = (e) => (e.estimate === null ? ["–", ""] : [`${points(e.estimate, n)} points`, e.interval ? ends(e.interval, (v) => points(v, 1)) : "no interval"]);
  const given = row.given_nominal;
  const lines = [
    ["Succeed all at once", ...rate(row.sim), "S_sim"],
    ["Survive each alone", ...rate(row.conj), "S_conj: every one of the same perturbations alone leaves it a success"],
    ["If axes were independent", percent(row.indep.estimate, n), row.indep.interval ? ends(row.indep.interval, (v) => percent(v, 1)) : "", "S_indep: the product of the rates of single axes"],
    ["Outcome changed", ...rate(row.change), "(b + c) / N"],
    ["Net effect", `${signed(net.difference, n)} points`, `${ends(net.interval, (v) => points(v, 1))}; p = ${pValue(net.p_holm)}`, `(c − b) / N, ${net.test}`, net.p_holm < SIGNIFICANT ? "strong" : ""],
    ["Failures no single shows", ...rate(row.hidden), "hidden fraction: b / failures all at once"],
    ["Dependence of the axes", ...bootstrap(row.dependence), "S_conj − S_indep"],
    ["Together, from independence", ...bootstrap(row.total), "S_sim − S_indep = dependence + net effect"],
  ];
  for (const replication of row.by_replication) {
    const flips = s.replications.find((r) => r.stream === replication.stream).flips;
    const over = row.excess.find((e) => e.stream === replication.stream);
    lines.push([`Fresh ${replication.stream} noise flips`, share(flips), flips.interval ? ends(flips.interval, (v) => percent(v, 1)) : "", `nominal run again, of ${flips.n}; ${row.axes.length} + 1 such runs would change up to ${percent(replication.change, n)} of outcomes`]);
    lines.push(["… changed beyond that", ...bootstrap(over), "outcome change less the flips of one replication"]);
  }
  if (given.n) lines.push(["Of nominal successes", `${share(given.change)} changed`, `${given.emergent.count} emergent, ${given.compensated.count} compensated of ${given.n}`, "the same, where the unperturbed run succeeded"]);
  const table = html("table", { class: "numbers" }, ...lines.map(([name, value, detail, tip, strong]) => html("tr", { "data-tip": tip }, html("td", {}, name), html("td", { class: `number ${strong ?? ""}` }, value), html("td", {}, html("small", {}, detail)))));
  const left = Object.entries(row.left_out).map(([reason, count]) => `${count} ${reason}`);
  const errors = row.with_errors.n > n ? `; with errors as failures ${row.with_errors.emergent.count} emergent and ${row.with_errors.compensated.count} compensated of ${row.with_errors.n}` : "";
  return html("div", { class: "duo" }, figure, html("figure", {}, table, left.length ? html("p", { class: "note" }, `Instances left out: ${left.join(", ")}${errors}.`) : null));
}

function transition(row) {
  const both = row.kept.count, neither = row.n - both - row.lost - row.gained;
  const tip = (what) => `${row.axis}: ${what}`;
  const star = row.p_holm < SIGNIFICANT && row.difference < 0;
  return html("figure", {}, html("figcaption", {}, html("b", {}, row.axis), html("span", { class: star ? "loss" : "", "data-tip": `p = ${pValue(row.p_holm)} after Holm; outcomes changed: ${share(row.changed)}` }, `${signed(row.difference, row.n)} points`)),
    matrix([[{ count: both, kind: "good", tip: tip("success kept") }, { count: row.lost, kind: "emergent", tip: tip("success lost") }],
      [{ count: row.gained, kind: "compensated", tip: tip("success gained") }, { count: neither, kind: "neither", tip: tip("fails either way") }]],
    ["was ✓", "was ✗"], ["now ✓", "now ✗"], true));
}

/* Outcome change of every two axes at once. */
function drawPairs(s) {
  const rows = s.combinations.filter((row) => row.axes.length === 2 && !row.all && row.rank === picked.rank && row.n);
  if (!rows.length) return $("axis-pairs").replaceChildren();
  const found = new Map(rows.flatMap((row) => [[row.axes.join("\n"), row], [[...row.axes].reverse().join("\n"), row]]));
  const top = Math.max(...rows.map((row) => row.change.rate), 0.01);
  const head = html("tr", {}, html("th", {}), ...s.axes.map((axis) => html("th", {}, axis)));
  const body = s.axes.map((a, i) => html("tr", {}, html("th", {}, a), ...s.axes.map((b, j) => {
    const row = found.get(`${a}\n${b}`);
    if (!row || j > i) return html("td", { class: "blank" });
    const net = row.interaction, mark = net.p_holm < SIGNIFICANT ? " *" : "";
    const tip = `${a} and ${b}: ${share(row.success)} succeed; ${row.emergent.count} emergent, ${row.compensated.count} compensated of ${row.n}; net ${signed(net.difference, row.n)} points, p = ${pValue(net.p_holm)}`;
    return html("td", { style: `--strength:${Math.round(6 + 60 * (row.change.rate / top))}%`, class: "heat", "data-tip": tip }, share(row.change) + mark);
  })));
  $("axis-pairs").replaceChildren(html("h3", {}, "Outcome changed by every two axes at once"), html("div", { class: "table" }, html("table", { class: "heatmap" }, head, ...body)), html("p", { class: "note" }, `* the net effect shows (p < ${SIGNIFICANT} after Holm over all pairs and severities).`));
}

function drawByTask(s) {
  const columns = [["as it is", s.nominal], ...s.axes.map((axis) => [axis, axisRow(s, axis, picked.rank)]), [`all ${s.axes.length}`, allRow(s, picked.rank)]].filter(([, row]) => row);
  const head = html("tr", {}, html("th", {}, "Task"), ...columns.map(([name]) => html("th", {}, name)));
  const rated = (rate, extra = "") => (rate && rate.rate !== null
    ? html("td", { class: `heat rate ${extra}`, style: `--level:${(100 * rate.rate).toFixed(0)}%`, "data-tip": `${rate.count} of ${rate.n}: ${share(rate)}, interval ${ends(rate.interval, (v) => percent(v, rate.n))}` }, percent(rate.rate, 1))
    : html("td", { class: "heat" }, "–"));
  const body = s.tasks.map((task) => html("tr", { "data-task": task }, html("th", {}, task), ...columns.map(([, row]) => rated(row.tasks[task]))));
  const total = html("tr", { class: "total" }, html("th", {}, "All tasks"), ...columns.map(([, row]) => rated(row.success ?? row)));
  $("by-task").replaceChildren(html("div", { class: "table" }, html("table", { class: "heatmap" }, head, ...body, ...(s.tasks.length > 1 ? [total] : []))));
}

/* ---- every instance ---- */

const succeeded = (place) => place >= 0 && episodes[place].outcome === "success";
const counted = (place) => place >= 0 && ["success", "failure"].includes(episodes[place].outcome);

/* What happened to an instance: its cells are nominal, each axis alone, all at once. */
function kindOf(cells) {
  const [nominal, ...rest] = cells, last = rest.pop();
  const whole = cells.every(counted), survives = rest.every(succeeded);
  if (whole && survives && !succeeded(last)) return "emergent";
  if (whole && !survives && succeeded(last)) return "compensated";
  return cells.filter(counted).some((place) => succeeded(place) !== succeeded(nominal)) ? "changed" : "same";
}
const KINDS = ["emergent", "compensated", "changed", "same"];

const columnOf = new Map();
DATA.matched.forEach((ranks, index) => ranks.forEach((columns, rank) => columns.forEach((cells) => cells.forEach((place, row) => {
  if (place >= 0 && !(row === 0 && columnOf.has(place))) columnOf.set(place, { study: index, rank, cells });
}))));
/* The column that a cell was opened in: a start's unperturbed run stands in several. */
let openColumn = null;

const rowNames = (s) => ["as it is", ...s.axes, `all ${s.axes.length} at once`];

/* The other runs of an instance, and the unperturbed one to play beside it. */
function relatives(id) {
  const place = episodes.findIndex((episode) => episode.id === id);
  const column = openColumn?.cells.includes(place) ? openColumn : columnOf.get(place);
  if (!column) return null;
  const names = rowNames(MATCHED[column.study]);
  const others = column.cells.map((other, row) => ({ name: names[row], episode: episodes[other] })).filter((other) => other.episode);
  return { name: names[column.cells.indexOf(place)], nominal: column.cells[0] >= 0 && column.cells[0] !== place ? episodes[column.cells[0]] : null, others };
}

function drawInstances() {
  const s = study(), names = rowNames(s), every = DATA.matched[picked.study][picked.rank] ?? [];
  const of = (cells) => cells.find((place) => place >= 0);
  const pattern = (cells) => KINDS.indexOf(kindOf(cells)) + cells.map((place) => (succeeded(place) ? 0 : 1)).join("");
  const shown = every.filter((cells) => (!picked.task || episodes[of(cells)].task === picked.task) && (!picked.kind || kindOf(cells) === picked.kind || (picked.kind === "changed" && kindOf(cells) !== "same")))
    .map((cells) => ({ cells, kind: kindOf(cells), order: pattern(cells) })).sort((a, b) => (a.order < b.order ? -1 : a.order > b.order ? 1 : 0));
  const rows = names.map((name, row) => ({ name, row })).filter(({ row }) => every.some((cells) => cells[row] >= 0));
  const room = $("instance-grid").clientWidth - (innerWidth <= 720 ? 30 : 206), big = shown.length <= 40 && innerWidth > 720;
  const pitch = big ? Math.min(23, Math.max(15, Math.floor(room / Math.max(1, shown.length)))) : 15;
  const most = Math.max(5, Math.floor(room / pitch)), strips = [];
  const per = Math.ceil(shown.length / Math.max(1, Math.ceil(shown.length / most)));
  for (let from = 0; from < shown.length; from += per) {
    const part = shown.slice(from, from + per);
    const marks = html("div", { class: "arm-row flags" }, html("span", {}), html("div", { class: "cells" }, ...part.map(({ kind: what }) => html("span", { class: `flag ${what}`, "data-tip": what === "emergent" ? "emergent failure" : what === "compensated" ? "compensated success" : "" }))));
    const lines = rows.map(({ name, row }) => html("div", { class: `arm-row${row === 0 || row === names.length - 1 ? " edge" : ""}` }, html("span", { title: name }, name), html("div", { class: "cells" }, ...part.map((column) => instanceCell(column, row, names[row])))));
    strips.push(html("div", { class: "strip" }, marks, ...lines));
  }
  $("instance-grid").replaceChildren(html("div", { class: `tasks small instances${pitch > 18 ? " roomy" : ""}` }, html("div", { class: "task" }, ...strips)));
  const count = (name) => every.filter((cells) => kindOf(cells) === name).length;
  $("instance-count").textContent = `${shown.length} of ${every.length} instances at severity ${s.severities[picked.rank]} are shown; ${count("emergent")} are emergent failures, ${count("compensated")} compensated successes.`;
}

function instanceCell(column, row, name) {
  const episode = episodes[column.cells[row]];
  if (!episode) return html("span", { class: "cell none" });
  const text = `${name}: ${episode.outcome}, ${episode.task}${episode.length ? `, ${episode.length} steps` : ""}${filmed.has(episode.id) ? ", has a video" : ""}`;
  return html("button", {
    type: "button", class: `cell ${kind(episode)}${filmed.has(episode.id) ? " filmed" : ""}`, "data-id": episode.id, "data-tip": text, "aria-label": text, "aria-current": String(state.open === episode.id),
    onclick: () => { openColumn = { study: picked.study, rank: picked.rank, cells: column.cells }; open(episode.id); },
  });
}

/* ---- faults in the middle of an episode ---- */

function drawRecovery() {
  const rated = (rate) => (rate.rate === null ? html("td", { class: "heat" }, "–")
    : html("td", { class: "heat rate", style: `--level:${(100 * rate.rate).toFixed(0)}%`, "data-tip": `${rate.count} of ${rate.n} recovered, interval ${ends(rate.interval, (v) => percent(v, rate.n))}` }, percent(rate.rate, 1), html("small", {}, `${rate.count}/${rate.n}`)));
  $("faults").replaceChildren(...scores.recovery.map((s) => {
    const head = html("tr", {}, html("th", {}, studyName(s)), ...s.phases.map((phase) => html("th", {}, phase)), html("th", {}, "any time"), html("th", {}, "change [points]"));
    const line = (name, row, total) => html("tr", total ? { class: "total" } : { "data-fault": name }, html("th", {}, name.replaceAll("_", " ")), ...s.phases.map((phase) => rated(row.by_phase[phase].recovered)), rated(row.recovered),
      html("td", { "data-tip": row.interval ? `interval ${ends(row.interval, (v) => points(v, row.n))}${total ? "" : `, p = ${pValue(row.p_holm)} after Holm`}` : "" }, html("span", { class: !total && row.p_holm < SIGNIFICANT && row.difference < 0 ? "loss" : "" }, signed(row.difference, row.n))));
    const left = s.faults.flatMap((row) => Object.entries(row.left_out).map(([why, count]) => `${row.fault.replaceAll("_", " ")}, ${count}: ${why}`));
    return html("div", { class: "part" }, html("div", { class: "table" }, html("table", { class: "heatmap" }, head, ...s.faults.map((row) => line(row.fault, row, false)), line("all faults", s.all, true))), left.length ? html("p", { class: "note" }, `Left out: ${left.join("; ")}.`) : null);
  }));
}

/* ---- wiring ---- */

function drawMatched() {
  drawSeverity();
  drawTogether();
  drawInstances();
}

function wireMatched() {
  const options = (id, names, field) => {
    $(id).replaceChildren(...names.map((name, index) => html("button", { type: "button", "data-value": String(index), "aria-pressed": String(index === picked[field]) }, name)));
    $(id).addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      for (const other of $(id).children) other.setAttribute("aria-pressed", String(other === button));
      picked[field] = Number(button.dataset.value);
      picked.rank = Math.min(picked.rank, study().severities.length - 1);
      drawMatched();
    });
  };
  options("study", MATCHED.map(studyName), "study");
  $("study").hidden = MATCHED.length < 2;
  options("rank", MATCHED[0].severities, "rank");
  $("instance-task").append(...[...new Set(MATCHED.flatMap((s) => s.tasks))].map((task) => html("option", { value: task }, task)));
  $("instance-task").addEventListener("change", (event) => { picked.task = event.target.value; drawInstances(); });
  $("instance-kind").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    for (const other of $("instance-kind").children) other.setAttribute("aria-pressed", String(other === button));
    picked.kind = button.dataset.value;
    drawInstances();
  });
  const legend = [["square success", "success"], ["square failure", "failure"], ["square error", "error"], ["flag emergent", "fails only together (emergent)"], ["flag compensated", "succeeds only together (compensated)"]];
  $("instance-legend").append(...legend.map(([name, text]) => html("span", {}, html("i", { class: name }), text)));
  if (filmed.size) $("instance-legend").append(html("span", {}, html("i", { class: "square success filmed" }), "has a video"));
}
