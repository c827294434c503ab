// Episodes before learning, with the timeline of the requirement under each.
import { $, html, isNumber, path, short, svg } from "./draw.js";

const BODIES = ["s1", "s0", "s2", "s3", "s4", "s5"];

function scene(episode, frame) {
  const size = 220, span = Math.max(frame.high[0] - frame.low[0], frame.high[1] - frame.low[1]), unit = (size - 12) / span;
  const X = (x) => 6 + (x - frame.low[0]) * unit, Y = (y) => size - 6 - (y - frame.low[1]) * unit;
  const root = svg("svg", { viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": "paths in the plane" });
  root.append(svg("rect", { class: "frame", x: 6, y: 6, width: (frame.high[0] - frame.low[0]) * unit, height: (frame.high[1] - frame.low[1]) * unit, rx: 3 }));
  frame.bodies.forEach((body, b) => {
    const points = episode.signals[body];
    if (!points) return;
    const last = points[points.length - 1], colour = BODIES[b % BODIES.length];
    root.append(svg("path", { class: `trail ${colour}`, "stroke-width": 1.6, d: path(points.map((p) => p[0]), points.map((p) => p[1]), X, Y) }));
    root.append(svg("circle", { class: `body ${colour}`, cx: X(last[0]), cy: Y(last[1]), r: 5 }));
    root.append(svg("g", { class: `names ${colour}` }, svg("text", { x: Math.min(X(last[0]) + 7, size - 50), y: Math.max(14, Y(last[1]) - 7) }, body)));
  });
  return root;
}

function curves(episode, names) {
  const rows = Object.entries(episode.signals).flatMap(([name, values]) => {
    if (isNumber(values[0])) return [[name, values]];
    return Array.isArray(values[0]) ? values[0].map((_, k) => [`${name}[${k}]`, values.map((v) => v[k])]) : [];
  }).filter(([, values]) => values.some((v) => v !== values[0]));
  const used = (name) => names.some((text) => text.includes(name));
  const shown = [...rows.filter(([name]) => used(name)), ...rows.filter(([name]) => !used(name))].slice(0, 4);
  const root = svg("svg", { viewBox: `0 0 330 ${Math.max(1, shown.length) * 42}`, role: "img", "aria-label": "signals over time" });
  shown.forEach(([name, values], r) => {
    const low = Math.min(...values), high = Math.max(...values);
    const X = (i) => 2 + (i / Math.max(1, values.length - 1)) * 326, Y = (v) => r * 42 + 38 - ((v - low) / (high - low || 1)) * 24;
    root.append(svg("path", { class: `line s${r % 6}`, d: path(values.map((_, i) => i), values, X, Y) }));
    root.append(svg("g", { class: `names s${r % 6}` }, svg("text", { x: 2, y: r * 42 + 11 }, `${name}: ${short(low)} to ${short(high)}`)));
  });
  return root;
}

function strip(row, count) {
  const bar = svg("svg", { viewBox: `0 0 ${count} 10`, preserveAspectRatio: "none", role: "img", "aria-label": `holds in ${[...row.holds].filter((x) => x === "1").length} of ${count} shown states` });
  for (let i = 0; i < count;) {
    let j = i;
    while (j < count && row.holds[j] === row.holds[i]) j++;
    bar.append(svg("rect", { class: row.holds[i] === "1" ? "holds" : "fails", x: i, width: j - i, y: 0, height: 10 }));
    i = j;
  }
  return html("div", { class: "strip" }, html("code", { title: row.formula }, `${"· ".repeat(Math.min(row.depth, 4))}${row.formula}`), bar);
}

function card(episode, frame) {
  const rows = episode.timelines.flatMap((timeline) => timeline.rows);
  const decided = isNumber(episode.decided) ? `, decided at step ${episode.decided}` : "";
  return html("figure", { class: "example", "data-satisfied": String(episode.satisfied) },
    html("figcaption", {}, html("strong", { class: episode.satisfied ? "good" : "bad" }, episode.satisfied ? "✓ satisfied" : "✗ violated"), `${decided} of ${episode.steps}; return ${short(episode.return)}`),
    frame ? scene(episode, frame) : curves(episode, rows.map((row) => row.formula)),
    ...rows.map((row) => strip(row, episode.shown.length)));
}

export function makePlay(studio) {
  $("play-episodes").addEventListener("click", async () => {
    $("play-episodes").disabled = true;
    $("play-words").textContent = "playing …";
    const answer = await studio.post("play", { ...studio.editor.request(), policy: $("policy").value || null });
    $("play-episodes").disabled = false;
    if (!answer.ok) { $("play-words").textContent = answer.error; return; }
    const { satisfied, violated, episodes, scene: frame } = answer.data;
    $("play-words").textContent = `${satisfied} of ${satisfied + violated} episodes satisfy the requirement. Green: a formula holds from there on as it says; red: it does not.`;
    $("examples").replaceChildren(...episodes.map((episode) => card(episode, frame)));
  });
  return {
    offer(runs) {
      const chosen = $("policy").value, made = runs.filter((run) => run.files.includes("policy.safetensors"));
      $("policy").replaceChildren(html("option", { value: "" }, "random"), ...made.map((run) => html("option", { value: run.id }, run.name)));
      $("policy").value = made.some((run) => run.id === chosen) ? chosen : "";
    },
  };
}
