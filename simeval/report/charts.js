"use strict";

const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function html(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const minus = (text) => text.replaceAll("-", "−");
const percent = (rate, n) => `${(100 * rate).toFixed(n >= 100 ? 1 : 0)} %`;
const points = (difference, n) => {
  const text = (100 * Math.abs(difference)).toFixed(n >= 100 ? 1 : 0);
  return Number(text) === 0 ? text : (difference < 0 ? "−" : "+") + text;
};
/* A number and its bounds, to two digits of half the interval's width, or to four digits without one. */
function quantities(value, bounds, signed = false) {
  const half = bounds ? (bounds[1] - bounds[0]) / 2 : 0;
  const places = half > 0 ? Math.max(0, 1 - Math.floor(Math.log10(half))) : null;
  const text = (number) => {
    const shown = places !== null && places < 7 && Math.abs(value) < 1e7 ? Math.abs(number).toFixed(places) : String(Number(Math.abs(number).toPrecision(4)));
    return Number(shown) === 0 ? shown : (number < 0 ? "−" : signed ? "+" : "") + minus(shown);
  };
  return [value, ...(bounds ?? [])].map(text);
}
const pValue = (p) => (p >= 0.001 ? (p + 1e-12).toFixed(3) : minus(p.toExponential(0)));
const brief = (value) => (value === null || value === undefined ? "–" : minus(String(Number(value.toPrecision(4)))));

/* Numbers of one axis, told apart by as many decimals as their step needs, in thousands, millions, … where large. */
function axisNumbers(values) {
  const step = Math.min(...values.slice(1).map((v, i) => v - values[i])), most = Math.max(...values.map(Math.abs));
  const [unit, suffix] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1, ""]].find(([u]) => u <= most) ?? [1, ""];
  const smallest = (values.length > 1 ? step : most || 1) / unit;
  const places = Math.max(0, -Math.floor(Math.log10(smallest) + 1e-9));
  return values.map((v) => (v === 0 ? "0" : minus(places > 6 ? v.toExponential(2) : (v / unit).toFixed(places)) + suffix));
}

const GLYPH = 6.9, BIG_GLYPH = 8.8;
const textWidth = (texts, glyph = GLYPH) => Math.max(0, ...texts.map((text) => text.length)) * glyph;

/* Ticks of an axis from low to high on `room` pixels: as many, up to `count`, as their labels leave room for; its ends where there is no room for two. */
function axisTicks(low, high, room, count, format = axisNumbers) {
  for (; count > 1; count -= 1) {
    const values = ticks(low, high, count), texts = format(values);
    if (values.length > 1 && textWidth(texts) + 10 <= ((values[1] - values[0]) / (high - low)) * room) return values.map((value, i) => ({ value, text: texts[i] }));
  }
  const texts = format([low, high]);
  return [low, high].map((value, i) => ({ value, text: texts[i] }));
}

/* The label of a tick at x, kept between left and right. */
function tickLabel(text, x, y, left, right) {
  const half = textWidth([text], 6.2) / 2;
  return svg("text", { x: Math.min(Math.max(x, left + half), right - half), y, "text-anchor": "middle" }, text);
}

function ticks(low, high, count = 5) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-9; t += step) found.push(Number(t.toPrecision(12)));
  return found;
}

function whisker(x, y, estimate, interval, color, extra = {}) {
  const group = svg("g", { class: "whisker", ...extra });
  if (interval) group.append(svg("line", { x1: x(interval[0]), x2: x(interval[1]), y1: y, y2: y, stroke: color, "stroke-width": 2.5, "stroke-linecap": "round", opacity: 0.55 }));
  group.append(svg("circle", { cx: x(estimate), cy: y, r: 5, fill: color }));
  return group;
}

/* Rows of dots with whiskers on one axis: rows = [{name, estimate, interval, label, color, tip}]. */
function whiskers(rows, { low, high, format, zero = null, width = 480, nameWidth = 128 }) {
  const rowHeight = 36, top = 4, bottom = top + rows.length * rowHeight;
  const labelWidth = 10 + Math.max(textWidth(rows.map((row) => row.label), BIG_GLYPH), textWidth(rows.map((row) => row.detail)));
  const room = width - nameWidth - labelWidth - 14;
  const x = (v) => nameWidth + ((v - low) / (high - low)) * room;
  const plot = svg("svg", { viewBox: `0 0 ${width} ${bottom + 22}`, role: "img" });
  for (const { value, text } of axisTicks(low, high, room, width < 400 ? 2 : 4, format)) {
    plot.append(svg("line", { class: "rule", x1: x(value), x2: x(value), y1: top, y2: bottom }));
    plot.append(tickLabel(text, x(value), bottom + 15, 0, width));
  }
  if (zero !== null) plot.append(svg("line", { class: "zero", x1: x(zero), x2: x(zero), y1: top, y2: bottom }));
  rows.forEach((row, index) => {
    const y = top + (index + 0.5) * rowHeight;
    plot.append(clipped(row.name, 0, y + 4, nameWidth - 12, "name"));
    if (row.estimate !== null) plot.append(whisker(x, y, row.estimate, row.interval, row.color));
    plot.append(svg("text", { class: "big", x: width, y: y - 1, "text-anchor": "end" }, row.label));
    plot.append(svg("text", { x: width, y: y + 13, "text-anchor": "end" }, row.detail));
    if (row.tip) plot.append(hover(0, y - rowHeight / 2, width, rowHeight, row.tip));
  });
  return plot;
}

function clipped(text, x, y, room, name) {
  const limit = Math.max(4, Math.floor(room / 6.9));
  const lines = text.length <= limit ? [text] : wrapped(text, limit);
  const element = svg("text", { class: name, x, y: y - (lines.length - 1) * 7 });
  lines.forEach((line, index) => element.append(svg("tspan", { x, dy: index ? 15 : 0 }, line)));
  return element;
}

function wrapped(text, limit) {
  const words = text.split(" "), lines = [""];
  for (const word of words) {
    const last = lines[lines.length - 1];
    if (last && last.length + word.length + 1 > limit) lines.push(word);
    else lines[lines.length - 1] = last ? `${last} ${word}` : word;
  }
  const cut = lines.slice(0, 2).map((line) => (line.length > limit ? `${line.slice(0, limit - 1)}…` : line));
  if (lines.length > 2) cut[1] = `${cut[1].slice(0, limit - 1)}…`;
  return cut;
}

function hover(x, y, width, height, text) {
  const area = svg("rect", { x, y, width, height, fill: "transparent", "data-tip": text });
  return area;
}

/* The small plot in a table's row: several whiskers on one axis, with their numbers if asked. */
function rowCell(entries, { width, labelWidth, detailWidth, low = 0, high = 1 }) {
  const line = labelWidth ? 16 : 13;
  const height = Math.max(26, entries.length * line + 6);
  const x = (v) => 8 + ((v - low) / (high - low)) * (width - 16 - labelWidth);
  const plot = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  for (const t of ticks(low, high, 4)) plot.append(svg("line", { class: "rule", x1: x(t), x2: x(t), y1: 0, y2: height }));
  entries.forEach((entry, index) => {
    const y = (height * (index + 0.5)) / entries.length;
    if (entry.estimate !== null) plot.append(whisker(x, y, entry.estimate, entry.interval, entry.color));
    if (labelWidth) {
      plot.append(svg("text", { class: "name", x: width - detailWidth, y: y + 4, "text-anchor": "end" }, entry.label));
      plot.append(svg("text", { x: width - 4, y: y + 4, "text-anchor": "end" }, entry.detail));
    }
    plot.append(hover(0, y - line / 2, width, line, entry.tip));
  });
  return plot;
}

function rateAxis({ width, labelWidth }) {
  const plot = svg("svg", { viewBox: `0 0 ${width} 14` });
  for (const t of [0, 0.5, 1])
    plot.append(svg("text", { x: 8 + t * (width - 16 - labelWidth), y: 11, "text-anchor": t === 0 ? "start" : t === 1 ? "end" : "middle" }, `${100 * t} %`));
  return plot;
}

/* Strip plot: groups = [{name, color, values: [{value, filled, id}], mean, interval}]. */
function strips(groups, { width = 480, nameWidth = 128, onpick }) {
  const values = groups.flatMap((g) => [...g.values.map((v) => v.value), ...(g.interval ?? [])]).filter((v) => v !== null);
  if (!values.length) return html("p", { class: "note" }, "No counted episode.");
  let low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  if (low === high) [low, high] = [low - 1, high + 1];
  const rowHeight = 50, bottom = 4 + groups.length * rowHeight;
  const room = width - nameWidth - 20;
  const x = (v) => nameWidth + 8 + ((v - low) / (high - low)) * room;
  const plot = svg("svg", { viewBox: `0 0 ${width} ${bottom + 22}`, role: "img" });
  for (const { value, text } of axisTicks(low, high, room, 4)) {
    plot.append(svg("line", { class: "rule", x1: x(value), x2: x(value), y1: 4, y2: bottom }));
    plot.append(tickLabel(text, x(value), bottom + 15, 0, width));
  }
  groups.forEach((group, index) => {
    const y = 4 + (index + 0.5) * rowHeight;
    plot.append(clipped(group.name, 0, y + 4, nameWidth - 12, "name"));
    spread(group.values, 1500).forEach((v, i) => {
      const jitter = (((i * 0.618034) % 1) - 0.5) * 26;
      const dot = svg("circle", { cx: x(v.value), cy: y + jitter - 2, r: 3, stroke: group.color, "stroke-width": 1.2, fill: v.filled ? group.color : "transparent", opacity: 0.5, "data-tip": v.tip, style: "cursor:pointer" });
      dot.addEventListener("click", () => onpick(v.id));
      plot.append(dot);
    });
    if (group.interval) plot.append(svg("line", { x1: x(group.interval[0]), x2: x(group.interval[1]), y1: y - 2, y2: y - 2, stroke: "var(--ink)", "stroke-width": 2 }));
    if (group.mean !== null) {
      plot.append(svg("line", { x1: x(group.mean), x2: x(group.mean), y1: y - 13, y2: y + 9, stroke: "var(--ink)", "stroke-width": 2.5, "stroke-linecap": "round" }));
      plot.append(hover(x(group.mean) - 5, y - 14, 10, 26, group.tip));
    }
  });
  return plot;
}

/* An axis that holds all estimates and intervals of some entries, with a margin. */
function span(entries) {
  const values = entries.flatMap((entry) => [entry.estimate, ...(entry.interval ?? [])]).filter((v) => v !== null);
  if (!values.length) return { low: 0, high: 1 };
  const low = Math.min(...values), high = Math.max(...values), margin = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return { low: low - margin, high: high + margin };
}

const spread = (list, most) => (list.length <= most ? list : list.filter((_, i) => i % Math.ceil(list.length / most) === 0));

/* Reward per step, with the spans in which the goal held. */
function curve(data, length, width = 410, height = 150) {
  const bottom = height - 22;
  const values = data.reward.map((p) => p[1]).filter((v) => v !== null);
  let low = Math.min(0, ...values), high = Math.max(...values, low + 1e-9);
  const pad = (high - low) * 0.08;
  high += pad;
  const marks = axisTicks(low, high, 1e9, 3), left = 12 + textWidth(marks.map((mark) => mark.text));
  const x = (t) => left + ((t + 0.5) / length) * (width - left - 4);
  const y = (v) => bottom - ((v - low) / (high - low)) * (bottom - 8);
  const plot = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "reward by step" });
  for (const [from, to] of data.success)
    plot.append(svg("rect", { x: x(from - 0.5), width: Math.max(2, x(to - 0.5) - x(from - 0.5)), y: 4, height: bottom - 4, fill: "var(--success)", opacity: 0.18 }));
  for (const { value, text } of marks) {
    plot.append(svg("line", { class: "rule", x1: left, x2: width - 4, y1: y(value), y2: y(value) }));
    plot.append(svg("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, text));
  }
  for (const { value, text } of axisTicks(0, length, width - left, 4)) plot.append(tickLabel(text, x(value - 0.5), height - 5, left - 4, width));
  const path = data.reward.filter((p) => p[1] !== null).map((p, i) => `${i ? "L" : "M"}${x(p[0]).toFixed(1)} ${y(p[1]).toFixed(1)}`).join("");
  plot.append(svg("path", { d: path, fill: "none", stroke: "var(--accent)", "stroke-width": 2, "stroke-linejoin": "round" }));
  return plot;
}
