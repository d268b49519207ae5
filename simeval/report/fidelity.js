/* A World against models of it: rates side by side, and the error under the same actions. */

const FORESIGHTS = [["recorded", "same actions", "var(--arm-0)"], ["persistence", "nothing moves", "var(--faint)"], ["still", "no action", "var(--arm-1)"], ["shuffled", "shuffled actions", "var(--arm-2)"]];
const between = (value, digits = 2) => (value.estimate === null ? "–" : minus(value.estimate.toFixed(digits)));
const limits = (value, digits = 2, unit = 1) => (value.interval.includes(null) ? "no interval" : value.interval.map((end) => minus((unit * end).toFixed(digits))).join(" to "));

function drawFidelity() {
  const studies = scores.fidelity, [first] = studies;
  const rated = (value, n) => (value === null ? html("td", { class: "number" }, "–") : html("td", { class: "number", "data-tip": `interval ${value.interval.map((end) => percent(end, n)).join(" to ")}, ${n} starts` }, percent(value.estimate, n)));
  const helped = first.policies.some((row) => row.combined !== null);
  const head = html("tr", {}, ...["Policy", first.truth, ...studies.map((s) => s.model), ...(helped ? ["Together", "Worth"] : [])].map((name, i) => html("th", i ? { class: "number" } : {}, name)));
  const rows = first.policies.map((row, i) => html("tr", {}, html("td", {}, row.policy), rated(row.truth, row.n), ...studies.map((s) => rated(s.policies[i].model, s.policies[i].n)),
    ...(helped ? [rated(row.combined, row.n), html("td", { class: "number" }, row.combined === null ? "–" : row.combined.worth.toFixed(2))] : [])));
  $("closed-loop").replaceChildren(html("div", { class: "table" }, html("table", {}, html("thead", {}, head), html("tbody", {}, ...rows))));

  const names = [["pearson", "Pearson"], ["spearman", "Spearman"], ["mmrv", "MMRV"], ["mean_gap", "Mean gap [points]"]];
  const agreed = studies.map((s) => html("tr", { "data-model": s.model }, html("td", {}, s.model),
    ...names.map(([name]) => html("td", { class: "number", "data-tip": s.agreement === null ? "" : `interval ${name === "mean_gap" ? limits(s.agreement[name], 1, 100) : limits(s.agreement[name])}` }, s.agreement === null ? "–" : name === "mean_gap" ? points(s.agreement[name].estimate, s.agreement.starts) : between(s.agreement[name]))),
    html("td", { class: "number" }, s.agreement === null ? "–" : pValue(s.agreement.p)), html("td", { class: "number" }, s.trusted === null ? "–" : `${s.trusted.steps}`)));
  $("agreement").replaceChildren(html("div", { class: "table" }, html("table", {}, html("thead", {}, html("tr", {}, ...["Model", ...names.map(([, name]) => name), "p", "Trusted steps"].map((name, i) => html("th", i ? { class: "number" } : {}, name)))), html("tbody", {}, ...agreed))));

  $("error-legend").replaceChildren(...FORESIGHTS.map(([, name, color]) => html("span", {}, html("i", { style: `background:${color}` }), name)));
  $("open-loop").replaceChildren(...studies.filter((s) => s.open_loop !== null).map((s) => html("figure", { "data-model": s.model }, html("figcaption", {}, `${s.model}: trusted for ${s.trusted.steps} step${s.trusted.steps === 1 ? "" : "s"}`), errorPlot(s.open_loop, s.trusted.steps))));
}

/* Error [standard deviations] against steps; the line is where trust ends. */
function errorPlot(curves, trusted, width = 300, height = 200) {
  const left = 34, bottom = height - 34, steps = curves.mean.recorded.length;
  const high = Math.max(1e-9, ...FORESIGHTS.flatMap(([name]) => curves.mean[name]));
  const x = (step) => left + (step / Math.max(1, steps)) * (width - left - 14), y = (value) => bottom - (value / high) * (bottom - 10);
  const plot = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "error over the horizon" });
  for (const { value, text } of axisTicks(0, high, bottom, 4)) {
    plot.append(svg("line", { class: "rule", x1: left, x2: width - 14, y1: y(value), y2: y(value) }));
    plot.append(svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, text));
  }
  for (const { value, text } of axisTicks(0, steps, width - left - 14, 5)) plot.append(tickLabel(text, x(value), bottom + 16, 0, width));
  plot.append(svg("text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, "steps"));
  if (trusted) plot.append(svg("line", { class: "zero", x1: x(trusted), x2: x(trusted), y1: 8, y2: bottom }));
  for (const [name, label, color] of FORESIGHTS) {
    const points = curves.mean[name].map((value, i) => `${x(i + 1).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
    plot.append(svg("polyline", { points, fill: "none", stroke: color, "stroke-width": name === "recorded" ? 3 : 1.8, "data-tip": label }));
  }
  return plot;
}
