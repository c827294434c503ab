"use strict";
// Draws the charts and plays the sample episodes from the JSON in the page. Texts become text nodes only.
(() => {
const $ = (id) => document.getElementById(id);
const page = JSON.parse($("data").textContent);
let data = page;
const view = { zoom: null, smooth: true, hidden: new Set() }; // shared by all charts

// ---- small tools -------------------------------------------------------------------------------------------

function element(space, name, attributes, children) {
  const node = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}
const html = (name, attributes = {}, ...children) => element(null, name, attributes, children);
const svg = (name, attributes = {}, ...children) => element("http://www.w3.org/2000/svg", name, attributes, children);
const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const isNumber = (x) => typeof x === "number" && Number.isFinite(x);

function short(x) {
  if (!isNumber(x)) return "–";
  const size = Math.abs(x);
  if (size >= 1000) return Math.round(x).toLocaleString("en-US");
  return String(Number(x.toPrecision(size >= 1 ? 4 : 3)));
}

function ticks(low, high, count) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((k) => k >= raw);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(Number((k * step).toPrecision(12)));
  return found;
}

function moving(values) {
  // The moving average over a window of a fiftieth of the run; missing values are left out.
  const reach = Math.floor(values.length / 100);
  const sums = [0], counts = [0];
  values.forEach((v, i) => { sums.push(sums[i] + (isNumber(v) ? v : 0)); counts.push(counts[i] + isNumber(v)); });
  return values.map((v, i) => {
    const from = Math.max(0, i - reach), to = Math.min(values.length, i + reach + 1), n = counts[to] - counts[from];
    return n ? (sums[to] - sums[from]) / n : null;
  });
}

function pathOf(xs, ys, X, Y) {
  let d = "", pen = false;
  for (let i = 0; i < xs.length; i++) {
    if (!isNumber(ys[i])) { pen = false; continue; }
    d += `${pen ? "L" : "M"}${X(xs[i]).toFixed(1)} ${Y(ys[i]).toFixed(1)}`;
    pen = true;
  }
  return d;
}

// ---- a frame with axes, hover and zoom -------------------------------------------------------------------------

const MARGIN = { left: 66, right: 12, top: 10, bottom: 40 };

function frame(box, xRange, yRange, xLabel, [xTitle, yTitle]) {
  const width = Math.max(260, box.clientWidth || 480), height = Math.round(clamp(width * 0.5, 190, 270));
  const X = (x) => MARGIN.left + ((x - xRange[0]) / (xRange[1] - xRange[0] || 1)) * (width - MARGIN.left - MARGIN.right);
  const Y = (y) => height - MARGIN.bottom - ((y - yRange[0]) / (yRange[1] - yRange[0] || 1)) * (height - MARGIN.top - MARGIN.bottom);
  const inverse = (pixel) => xRange[0] + ((pixel - MARGIN.left) / (width - MARGIN.left - MARGIN.right)) * (xRange[1] - xRange[0]);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  const axis = svg("g", { class: "axis" });
  for (const y of ticks(...yRange, 5)) {
    axis.append(svg("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: Y(y), y2: Y(y) }));
    axis.append(svg("text", { x: MARGIN.left - 7, y: Y(y) + 4, "text-anchor": "end" }, short(y)));
  }
  for (const x of ticks(...xRange, width < 360 ? 4 : 5)) {
    const anchor = X(x) > width - 40 ? "end" : "middle";
    axis.append(svg("text", { x: anchor === "end" ? width - MARGIN.right : X(x), y: height - 22, "text-anchor": anchor }, xLabel(x)));
  }
  const middle = (height + MARGIN.top - MARGIN.bottom) / 2;
  axis.append(svg("text", { class: "title", x: (width + MARGIN.left - MARGIN.right) / 2, y: height - 5, "text-anchor": "middle" }, xTitle));
  axis.append(svg("text", { class: "title", x: 12, y: middle, transform: `rotate(-90 12 ${middle})`, "text-anchor": "middle" }, yTitle));
  root.append(axis);
  box.replaceChildren(root);
  return { root, X, Y, inverse, width, height, box };
}

const place = (area, event) => {
  const bounds = area.root.getBoundingClientRect();
  return ((event.clientX - bounds.left) / bounds.width) * area.width;
};

function showTip(area, pixel, lines) {
  let tip = area.box.querySelector(".tip");
  if (!tip) area.box.append((tip = html("div", { class: "tip" })));
  tip.replaceChildren(...lines.map((line) => html("div", {}, line)));
  const share = pixel / area.width;
  tip.style.top = "12px";
  tip.style.left = share < 0.55 ? `${share * 100 + 3}%` : "auto";
  tip.style.right = share < 0.55 ? "auto" : `${(1 - share) * 100 + 3}%`;
}

function hideTip(area) {
  area.box.querySelector(".tip")?.remove();
  area.root.querySelectorAll(".hover").forEach((node) => node.remove());
}

// ---- the curves --------------------------------------------------------------------------------------------------

const CHARTS = [
  { id: "return", title: "Return during training", y: "return per episode", series: [["return", "return"]], dots: ["verified_return", "when checked"] },
  { id: "satisfied", title: "Share of satisfying episodes", y: "share of episodes", series: [["satisfied", "satisfied"]], dots: ["verified_share", "when checked"], interval: true, limits: "p" },
  { id: "c_sat", title: "Confidence", y: "c_sat", series: [["c_sat", "c_sat while learning"]], dots: ["verified_confidence", "when checked"], limits: "c" },
  { id: "lambda", title: "λ, the weight of return against cost", y: "λ", series: [["lambda", "λ"]] },
  { id: "split", title: "Return, split by outcome", y: "return per episode", series: [["return_satisfying", "satisfying episodes"], ["return_violating", "violating episodes"]] },
  { id: "cost", title: "Cost", y: "cost per episode", series: [["cost", "mean cost"]] },
];

function seriesOf(chart) {
  const many = data.runs.length > 1;
  const found = [];
  data.runs.forEach((run, r) => chart.series.forEach(([key, label], s) => {
    const ys = run.curves[key];
    if (!ys || !ys.some(isNumber)) return;
    const name = many ? run.name + (chart.series.length > 1 ? `, ${label}` : "") : label;
    // One run: a colour for each line. Several: a colour for each run, and its second line is dashed.
    const colour = many ? `s${r % 6}${s ? " dashed" : ""}` : `s${s}`;
    found.push({ name, xs: run.curves.episodes, raw: ys, soft: moving(ys), colour });
  }));
  return found;
}

function dotsOf(chart) {
  if (!chart.dots || data.runs.length > 1) return [];
  return data.runs[0].checks.filter((check) => isNumber(check[chart.dots[0]]));
}

function drawCharts() {
  const any = data.runs.some((run) => run.curves.episodes?.length);
  $("learning").hidden = !any;
  if (!any) return;
  $("learning-note").textContent = data.runs.length === 1 && isNumber(data.certified)
    ? `The certified policy is the candidate of episode ${data.certified.toLocaleString("en-US")}, the best of those kept late in learning. Learning went on from it, so the curves may end lower, and they are of exploring episodes.`
    : "";
  // All frames first: the width of each depends on their number.
  for (const chart of CHARTS) {
    chart.all = seriesOf(chart);
    const figure = $(`chart-${chart.id}`);
    if (!chart.all.length) figure?.remove();
    else if (!figure) $("charts").append(html("figure", { class: "chart", id: `chart-${chart.id}` }, html("figcaption"), html("div", { class: "plot" })));
  }
  for (const chart of CHARTS) if (chart.all.length) drawChart(chart, $(`chart-${chart.id}`), chart.all, dotsOf(chart));
}

function drawChart(chart, figure, all, checks) {
  const [caption, box] = figure.children;
  const legend = html("span", { class: "legend" });
  const item = (name, mark) => {
    const key = `${chart.id}/${name}`;
    const button = html("button", { type: "button", "aria-pressed": String(!view.hidden.has(key)) }, mark, name);
    button.addEventListener("click", () => { view.hidden.has(key) ? view.hidden.delete(key) : view.hidden.add(key); drawCharts(); });
    legend.append(button);
  };
  all.forEach((s) => item(s.name, html("span", { class: `key ${s.colour}` })));
  if (checks.length) item(chart.dots[1], html("span", { class: "key dot" }));
  const limits = (chart.limits && data.limits[chart.limits]) || [];
  // In the legend: beside its line, the label would cover data.
  for (const limit of limits) legend.append(html("span", {}, html("span", { class: "key dashed" }), `required ${limit}`));
  const certified = data.runs.length === 1 && isNumber(data.certified);
  if (certified) legend.append(html("span", {}, html("span", { class: "key dashed" }), "certified policy"));
  caption.replaceChildren(html("span", {}, chart.title), legend);

  const shown = all.filter((s) => !view.hidden.has(`${chart.id}/${s.name}`));
  const dots = checks.length && !view.hidden.has(`${chart.id}/${chart.dots[1]}`) ? checks : [];
  const last = Math.max(...all.map((s) => s.xs[s.xs.length - 1]));
  const xRange = view.zoom ? [Math.max(0, view.zoom[0]), Math.min(last, view.zoom[1])] : [0, last];
  const inside = (x) => x >= xRange[0] && x <= xRange[1];
  const values = shown.flatMap((s) => (view.smooth ? s.soft : s.raw).filter((y, i) => isNumber(y) && inside(s.xs[i])));
  values.push(...dots.filter((c) => inside(c.episodes)).map((c) => c[chart.dots[0]]), ...(values.length ? limits : []));
  let low = Math.min(...values), high = Math.max(...values);
  if (!values.length) [low, high] = [0, 1];
  if (high - low < 1e-9) [low, high] = [low - 0.5, high + 0.5];
  const pad = (high - low) * 0.06;
  const area = frame(box, xRange, [low - pad, high + pad], (x) => (x >= 1000 ? `${short(x / 1000)}k` : short(x)), ["training episodes", chart.y]);
  area.root.setAttribute("aria-label", `${chart.title} over training episodes`);
  const clip = `clip-${chart.id}`;
  area.root.append(svg("clipPath", { id: clip }, svg("rect", { x: MARGIN.left, y: MARGIN.top - 4, width: area.width - MARGIN.left - MARGIN.right, height: area.height - MARGIN.top - MARGIN.bottom + 8 })));
  const plot = svg("g", { "clip-path": `url(#${clip})` });
  for (const s of shown) {
    if (view.smooth && s.xs.length > 100 && data.runs.length === 1) plot.append(svg("path", { class: `line faint ${s.colour}`, d: pathOf(s.xs, s.raw, area.X, area.Y) }));
    plot.append(svg("path", { class: `line ${s.colour}`, d: pathOf(s.xs, view.smooth ? s.soft : s.raw, area.X, area.Y) }));
  }
  const marks = svg("g", { class: "dots" });
  if (chart.interval) for (const check of dots.filter((c) => isNumber(c.verified_lower))) marks.append(svg("line", { class: "interval", x1: area.X(check.episodes), x2: area.X(check.episodes), y1: area.Y(check.verified_lower), y2: area.Y(check.verified_upper) }));
  for (const check of dots) marks.append(svg("circle", { class: check.verdict.toLowerCase(), cx: area.X(check.episodes), cy: area.Y(check[chart.dots[0]]), r: 2.6 }));
  plot.append(marks);
  area.root.append(plot);
  for (const limit of limits) area.root.append(svg("line", { class: "limit", x1: MARGIN.left, x2: area.width - MARGIN.right, y1: area.Y(limit), y2: area.Y(limit) }));
  if (certified && inside(data.certified)) area.root.append(svg("line", { class: "limit", x1: area.X(data.certified), x2: area.X(data.certified), y1: MARGIN.top, y2: area.height - MARGIN.bottom }));
  interact(area, chart, shown, dots, xRange);
}

function interact(area, chart, shown, dots, xRange) {
  let from = null;
  const hover = (event) => {
    hideTip(area);
    if (!shown.length) return;
    const x = clamp(area.inverse(place(area, event)), ...xRange);
    const xs = shown[0].xs;
    const i = nearest(xs, x);
    const lines = [`episode ${xs[i].toLocaleString("en-US")}`];
    const group = svg("g", { class: "hover" }, svg("line", { class: "cursor", x1: area.X(xs[i]), x2: area.X(xs[i]), y1: MARGIN.top, y2: area.height - MARGIN.bottom }));
    for (const s of shown) {
      const j = nearest(s.xs, xs[i]), y = (view.smooth ? s.soft : s.raw)[j];
      lines.push(`${s.name}: ${short(y)}` + (view.smooth && isNumber(s.raw[j]) && s.xs.length > 100 ? ` (here ${short(s.raw[j])})` : ""));
      if (isNumber(y)) group.append(svg("circle", { class: `marker ${s.colour}`, cx: area.X(s.xs[j]), cy: area.Y(y), r: 4 }));
    }
    if (dots.length) {
      const check = dots[nearest(dots.map((c) => c.episodes), xs[i])];
      const between = chart.interval && isNumber(check.verified_lower) ? `, between ${short(check.verified_lower)} and ${short(check.verified_upper)}` : "";
      lines.push(`checked at ${check.episodes.toLocaleString("en-US")}: ${short(check[chart.dots[0]])}${between}` + (check.verdict ? `, ${check.verdict.toLowerCase()}` : ""));
    }
    area.root.append(group);
    if (from !== null) {
      const [a, b] = [from, place(area, event)].sort((p, q) => p - q);
      group.append(svg("rect", { class: "selection", x: a, width: b - a, y: MARGIN.top, height: area.height - MARGIN.top - MARGIN.bottom }));
    }
    showTip(area, area.X(xs[i]), lines);
  };
  area.root.addEventListener("pointerdown", (event) => { from = place(area, event); area.root.setPointerCapture(event.pointerId); });
  area.root.addEventListener("pointermove", hover);
  area.root.addEventListener("pointerleave", () => { if (from === null) hideTip(area); });
  area.root.addEventListener("pointercancel", () => { from = null; hideTip(area); });
  area.root.addEventListener("pointerup", (event) => {
    const start = from, end = place(area, event);
    from = null;
    if (start === null || Math.abs(end - start) < 8) return hover(event);
    zoom([start, end].map((pixel) => clamp(area.inverse(pixel), ...xRange)).sort((a, b) => a - b));
  });
  area.root.addEventListener("dblclick", () => zoom(null));
}

function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (xs[middle] < x) low = middle; else high = middle; }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

function zoom(range) { view.zoom = range; drawCharts(); }

// ---- the posterior over p ------------------------------------------------------------------------------------------

function logGamma(x) { // Lanczos
  const c = [76.18009172947146, -86.50532032941677, 24.01409824083091, -1.231739572450155, 0.1208650973866179e-2, -0.5395239384953e-5];
  let sum = 1.000000000190015;
  c.forEach((value, i) => { sum += value / (x + 1 + i); });
  return (x + 0.5) * Math.log(x + 5.5) - (x + 5.5) + Math.log((2.5066282746310005 * sum) / x);
}

function drawPosteriors() {
  const all = data.posteriors || [];
  $("belief").hidden = !all.length;
  if (!all.length) return;
  $("belief-note").textContent = {
    "certificate": "The posterior over the probability p that an episode of the final policy satisfies the formula, from a uniform prior and the certificate's episodes.",
    "growing certificate": "The certificate as it grows: the posterior over p from the fresh episodes of the final policy that were played so far.",
  }[all[0].source] || "The posterior over p from the latest verification during learning; the certificate comes at the end.";
  $("posteriors").replaceChildren(...all.map((p) => html("figure", { class: "chart" },
    html("figcaption", {},
      html("span", {}, `${p.label}: ${p.satisfied.toLocaleString("en-US")} satisfied, ${p.violated.toLocaleString("en-US")} violated`),
      html("span", { class: "legend" },
        ...bounds(p).map((x) => html("span", {}, html("span", { class: "key dashed" }), `p_req ${x}`)),
        html("span", {}, html("span", { class: "key area" }), `c_sat ${(Math.floor(p.mass * 1e4) / 1e4).toFixed(4)}, required ${p.confidence}`))),
    html("div", { class: "plot" }))));
  all.forEach((p, i) => movePosterior(p, i, $("posteriors").children[i].children[1]));
}

// While a page is live the density moves from the evidence before to the evidence now.
const MOVE_MILLISECONDS = 600, still = matchMedia("(prefers-reduced-motion: reduce)");
const shownCounts = [];

function movePosterior(p, i, box) {
  const [s, v] = (page.live && !still.matches && shownCounts[i]) || [p.satisfied, p.violated], began = performance.now();
  const move = (now) => {
    if (!box.isConnected) return; // a later update has replaced it
    const share = clamp((now - began) / MOVE_MILLISECONDS, 0, 1), ease = share * share * (3 - 2 * share);
    shownCounts[i] = [s + (p.satisfied - s) * ease, v + (p.violated - v) * ease];
    drawPosterior({ ...p, satisfied: shownCounts[i][0], violated: shownCounts[i][1] }, box);
    if (share < 1 && (s !== p.satisfied || v !== p.violated)) requestAnimationFrame(move);
  };
  move(began);
}

const bounds = (p) => [p.lower, p.upper].filter((x) => x > 0 && x < 1);

function drawPosterior(p, box) {
  const a = p.satisfied + 1, b = p.violated + 1;
  const mean = a / (a + b), deviation = Math.sqrt((mean * (1 - mean)) / (a + b + 1));
  const low = Math.max(0, Math.min(mean - 5 * deviation, ...bounds(p)) - deviation);
  const high = Math.min(1, Math.max(mean + 5 * deviation, ...bounds(p)) + deviation);
  const scale = logGamma(a + b) - logGamma(a) - logGamma(b);
  const density = (x) => Math.exp(scale + (a - 1) * Math.log(Math.max(x, 1e-300)) + (b - 1) * Math.log(Math.max(1 - x, 1e-300)));
  const xs = Array.from({ length: 301 }, (_, i) => low + (i / 300) * (high - low));
  const ys = xs.map(density), top = Math.max(...ys);
  const area = frame(box, [low, high], [0, top * 1.12], short, ["p", "density"]);
  area.root.setAttribute("aria-label", "posterior density of p");
  const under = (from, to, kind) => {
    if (to <= from) return;
    const part = [from, ...xs.filter((x) => x > from && x < to), to];
    const line = pathOf(part, part.map(density), area.X, area.Y);
    area.root.append(svg("path", { class: `area ${kind}`, d: `${line}L${area.X(to)} ${area.Y(0)}L${area.X(from)} ${area.Y(0)}Z` }));
  };
  const [from, to] = [clamp(p.lower, low, high), clamp(p.upper, low, high)];
  under(low, from, ""); under(from, to, "good"); under(to, high, "");
  area.root.append(svg("path", { class: "density", d: pathOf(xs, ys, area.X, area.Y) }));
  for (const x of bounds(p)) area.root.append(svg("line", { class: "limit", x1: area.X(x), x2: area.X(x), y1: MARGIN.top, y2: area.height - MARGIN.bottom }));
  area.root.addEventListener("pointermove", (event) => {
    hideTip(area);
    const x = clamp(area.inverse(place(area, event)), low, high);
    area.root.append(svg("g", { class: "hover" }, svg("line", { class: "cursor", x1: area.X(x), x2: area.X(x), y1: MARGIN.top, y2: area.height - MARGIN.bottom })));
    showTip(area, area.X(x), [`p = ${x.toFixed(4)}`, `density ${short(density(x))}`]);
  });
  area.root.addEventListener("pointerleave", () => hideTip(area));
}

// ---- sample episodes --------------------------------------------------------------------------------------------------

const player = { index: 0, time: 0, playing: false, taken: false, before: 0, drawn: "" };
const STEPS_PER_SECOND = 12;
const BODIES = ["s1", "s0", "s2", "s3", "s4", "s5"]; // the colours of the bodies in a scene

const current = () => data.trajectories.episodes[player.index];

function drawEpisodes() {
  const all = data.trajectories;
  $("episodes").hidden = !all?.episodes.length;
  if (!all?.episodes.length) return;
  const drawn = JSON.stringify(all);
  if (drawn === player.drawn) return; // an update without new episodes does not stop the player
  player.drawn = drawn;
  player.index = Math.min(player.index, all.episodes.length - 1);
  $("episodes-note").textContent = `${all.episodes.filter((episode) => !episode.kind).length} of ${all.looked_at} episodes of the current policy; ${all.violating} of the ${all.looked_at} violate the requirement. Violations are marked in red.`;
  $("thumbs").replaceChildren(...all.episodes.map((episode, i) => {
    const good = episode.satisfied.every(Boolean);
    const picture = svg("svg", { viewBox: "0 0 120 120", role: "img", "aria-label": `episode ${episode.number}` });
    paint(picture, episode, episode.steps, 120, true);
    const label = html("span", good ? {} : { class: "broken" }, `${good ? "✓" : "✗"} return ${short(episode.return)}`);
    const kind = episode.kind ? [html("b", {}, `${episode.kind}, after ${short(episode.after)}`), html("br")] : [];
    const button = html("button", { type: "button" }, picture, ...kind, label);
    button.addEventListener("click", () => { player.taken = true; player.index = i; player.time = 0; play(true); choose(); });
    return button;
  }));
  choose();
  // A film of the current policy runs while it learns, until somebody takes over.
  if (page.live && data.state === "running" && !still.matches && !player.taken) { player.time = 0; play(true); }
}

function choose() {
  const episode = current();
  [...$("thumbs").children].forEach((button, i) => button.setAttribute("aria-pressed", String(i === player.index)));
  $("scrub").max = episode.steps;
  $("ticks").replaceChildren(...episode.violations.map((step) => {
    const tick = html("i", { title: `violation at step ${step}` });
    tick.style.left = `${(step / Math.max(1, episode.steps)) * 100}%`;
    return tick;
  }));
  drawMoment();
}

function drawMoment() {
  const episode = current(), step = Math.floor(player.time + 1e-6);
  $("scrub").value = player.time;
  const stage = $("stage");
  if (!stage.firstChild) stage.append(svg("svg", { viewBox: "0 0 420 420", role: "img", "aria-label": "episode" }));
  stage.firstChild.replaceChildren();
  paint(stage.firstChild, episode, player.time, 420, false);
  const violating = episode.violations.includes(step);
  stage.classList.toggle("violating", violating);
  const values = Object.entries(episode.signals).filter(([, v]) => isNumber(v[step])).map(([name, v]) => `${name} ${short(v[step])}`);
  const known = isNumber(episode.decided) && step >= episode.decided;
  const decided = known ? ` · ${episode.satisfied.every(Boolean) ? "satisfied" : "violated"} whatever comes, since step ${episode.decided}` : "";
  $("moment").replaceChildren(`step ${step} of ${episode.steps} · ${values.join(" · ")}${decided}`, ...(violating ? [" ", html("b", {}, "violation")] : []));
}

function paint(root, episode, time, size, small) {
  if (data.trajectories.scene) paintScene(root, episode, time, size, small);
  else paintSignals(root, episode, time, size, small);
}

function paintScene(root, episode, time, size, small) {
  const scene = data.trajectories.scene, pad = small ? 2 : 6;
  const span = Math.max(scene.high[0] - scene.low[0], scene.high[1] - scene.low[1]);
  const unit = (size - 2 * pad) / span;
  const X = (x) => pad + (x - scene.low[0]) * unit, Y = (y) => size - pad - (y - scene.low[1]) * unit;
  const step = Math.floor(time + 1e-6), rest = time - step;
  root.append(svg("rect", { class: "frame", x: pad, y: pad, width: (scene.high[0] - scene.low[0]) * unit, height: (scene.high[1] - scene.low[1]) * unit, rx: 3 }));
  const names = svg("g", { class: "names" });
  scene.bodies.forEach((body, b) => {
    const path = episode.signals[body], colour = BODIES[b % BODIES.length];
    const at = (i) => path[Math.min(i, path.length - 1)];
    const now = at(step).map((x, k) => x + (at(step + 1)[k] - x) * rest);
    const points = [...path.slice(0, step + 1), now];
    // Older parts of the trail fade, in a few strokes.
    const pieces = 6;
    for (let k = 0; k < pieces; k++) {
      const part = points.slice(Math.floor((k * (points.length - 1)) / pieces), Math.floor(((k + 1) * (points.length - 1)) / pieces) + 1);
      if (part.length < 2) continue;
      const d = part.map((p, i) => `${i ? "L" : "M"}${X(p[0]).toFixed(1)} ${Y(p[1]).toFixed(1)}`).join("");
      root.append(svg("path", { class: `trail ${colour}`, d, "stroke-width": small ? 1.3 : 2.2, opacity: 0.2 + (0.7 * (k + 1)) / pieces }));
    }
    root.append(svg("circle", { class: `body ${colour}`, cx: X(now[0]), cy: Y(now[1]), r: Math.max(small ? 3 : 6, (scene.contact * unit) / 2) }));
    const left = X(now[0]) > size * 0.8;
    if (!small) names.append(svg("text", { class: colour, x: X(now[0]) + (left ? -10 : 10), y: Math.max(16, Y(now[1]) - 9), "text-anchor": left ? "end" : "start" }, body.replace(/\.position$/, "")));
  });
  const tracks = scene.bodies.map((body) => episode.signals[body]);
  const several = tracks.filter((_, b) => scene.bodies[b].includes(".")), agents = several.length ? several : tracks.slice(-1);
  const reach = small ? 3 : 6;
  for (let i = 0; i <= step; i++) {
    if (episode.violations.includes(i)) {
      for (const agent of agents) {
        const [x, y] = [X(agent[i][0]), Y(agent[i][1])];
        root.append(svg("path", { class: "cross", d: `M${x - reach} ${y - reach}L${x + reach} ${y + reach}M${x - reach} ${y + reach}L${x + reach} ${y - reach}` }));
      }
      continue;
    }
    tracks.forEach((second, b) => {
      const touched = tracks.slice(0, b).some((first) => Math.hypot(first[i][0] - second[i][0], first[i][1] - second[i][1]) < scene.contact);
      if (touched) root.append(svg("circle", { class: "contact", cx: X(second[i][0]), cy: Y(second[i][1]), r: reach }));
    });
  }
  root.append(names);
}

function paintSignals(root, episode, time, size, small) {
  // A domain without a scene: every numeric signal over time, each on its own scale, with a cursor.
  const rows = Object.entries(episode.signals).flatMap(([name, values]) => {
    const first = values[0];
    if (typeof first === "number") return [[name, values]];
    return Array.isArray(first) ? first.slice(0, 4).map((_, k) => [`${name}[${k}]`, values.map((v) => v[k])]) : [];
  }).filter(([name, values]) => name !== "return" && values.some((v) => v !== values[0])).slice(0, small ? 2 : 7);
  const height = size / Math.max(1, rows.length), X = (i) => 4 + (i / Math.max(1, episode.steps)) * (size - 8);
  rows.forEach(([name, values], r) => {
    const low = Math.min(...values), high = Math.max(...values);
    const Y = (v) => r * height + height - 6 - ((v - low) / (high - low || 1)) * (height - (small ? 10 : 26));
    root.append(svg("path", { class: `line s${r % 6}`, d: pathOf(values.map((_, i) => i), values, X, Y) }));
    if (!small) root.append(svg("g", { class: `names s${r % 6}` }, svg("text", { x: 4, y: r * height + 13 }, `${name}  ${short(values[Math.floor(time + 1e-6)])}`)));
  });
  for (const step of episode.violations) root.append(svg("line", { class: "cross", x1: X(step), x2: X(step), y1: 0, y2: size, opacity: 0.45 }));
  if (!small) root.append(svg("line", { class: "cursor", x1: X(time), x2: X(time), y1: 0, y2: size }));
}

function play(on) {
  player.playing = on;
  $("play").textContent = on ? "❚❚" : "▶";
  $("play").setAttribute("aria-label", on ? "Pause" : "Play");
  player.before = performance.now();
  if (on) requestAnimationFrame(tick);
}

function tick(now) {
  if (!player.playing) return;
  player.time = Math.min(current().steps, player.time + Math.max(0, ((now - player.before) / 1000) * STEPS_PER_SECOND));
  player.before = now;
  drawMoment();
  if (player.time >= current().steps) play(false);
  else requestAnimationFrame(tick);
}

// ---- the whole page, and its updates ---------------------------------------------------------------------------------------------

function drawPhase() {
  const now = data.moment;
  $("phase").hidden = !now;
  if (now) $("phase").textContent = `Now: ${now.phase}, ${short(now.done)} of ${now.phase === "certifying" ? "at most " : ""}${short(now.total)} ${now.unit}` + (now.done ? "" : "; the first ones take longer, since they are compiled");
}

function draw() {
  document.body.classList.toggle("running", page.live && data.state === "running");
  drawPhase();
  $("certificate-section").hidden = !$("certificate").childElementCount || (page.live && data.state === "running");
  drawCharts();
  drawPosteriors();
  drawEpisodes();
}

function replaceSections(sections) {
  for (const [id, content] of Object.entries(sections)) {
    const open = [...$(id).querySelectorAll("details")].map((node) => node.open);
    $(id).innerHTML = content; // escaped by the server, like the page itself
    $(id).querySelectorAll("details").forEach((node, i) => { if (i < open.length) node.open = open[i]; });
  }
}

async function poll(version) {
  let wait = 1000;
  try {
    const answer = await fetch(`data.json?version=${encodeURIComponent(version)}`, { cache: "no-store" });
    if (answer.status === 200) {
      const latest = await answer.json();
      version = latest.version;
      data = latest.data;
      replaceSections(latest.sections);
      draw();
    }
  } catch { wait = 5000; } // the server is gone: keep the last content
  setTimeout(poll, wait, version);
}

$("play").addEventListener("click", () => {
  player.taken = true;
  if (!player.playing && player.time >= current().steps) player.time = 0;
  play(!player.playing);
});
$("scrub").addEventListener("input", () => { player.taken = true; play(false); player.time = Number($("scrub").value); drawMoment(); });
$("smooth").addEventListener("change", () => { view.smooth = $("smooth").checked; drawCharts(); });
document.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => {
  const share = Number(button.dataset.zoom), last = Math.max(...data.runs.map((run) => run.curves.episodes.at(-1)));
  zoom(share === 1 ? null : [last * (1 - share), last]);
}));
let resizing;
window.addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(() => { drawCharts(); drawPosteriors(); }, 120); });
window.addEventListener("beforeprint", () => document.querySelectorAll("#details details").forEach((node) => { node.open = true; }));
draw();
if (page.live) poll("");
})();
