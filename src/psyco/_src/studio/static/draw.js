// Small tools for elements and pictures. Texts become text nodes only.
function element(space, name, attributes, children) {
  const node = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null && value !== undefined) node.setAttribute(key, value);
  node.append(...children);
  return node;
}
export const $ = (id) => document.getElementById(id);
export const html = (name, attributes = {}, ...children) => element(null, name, attributes, children);
export const svg = (name, attributes = {}, ...children) => element("http://www.w3.org/2000/svg", name, attributes, children);
export const isNumber = (x) => typeof x === "number" && Number.isFinite(x);
export const short = (x) => !isNumber(x) ? "–" : Math.abs(x) >= 1000 ? Math.round(x).toLocaleString("en-US") : String(Number(x.toPrecision(4)));

export function path(xs, ys, X, Y) {
  return xs.map((x, i) => `${i ? "L" : "M"}${X(x).toFixed(1)} ${Y(ys[i]).toFixed(1)}`).join("");
}

export function sparkline(values) {
  const low = Math.min(...values), high = Math.max(...values);
  const X = (i) => 2 + (i / Math.max(1, values.length - 1)) * 116, Y = (v) => 23 - ((v - low) / (high - low || 1)) * 20;
  return svg("svg", { viewBox: "0 0 120 26", role: "img", "aria-label": `from ${short(low)} to ${short(high)}` },
    svg("path", { class: "line s0", d: path(values.map((_, i) => i), values, X, Y) }));
}

// Lines over x from `low` to 1, y from 0 to 1, with axes; `mark` is a dashed upright line.
export function chart(box, xs, lines, mark, xTitle) {
  const width = Math.max(280, box.clientWidth || 460), height = 240, left = 44, bottom = 38;
  const low = xs[0], high = xs[xs.length - 1];
  const X = (x) => left + ((x - low) / (high - low || 1)) * (width - left - 12), Y = (y) => 8 + (1 - y) * (height - 8 - bottom);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": xTitle });
  const axis = svg("g", { class: "axis" });
  for (const y of [0, 0.25, 0.5, 0.75, 1]) axis.append(svg("line", { x1: left, x2: width - 12, y1: Y(y), y2: Y(y) }), svg("text", { x: left - 6, y: Y(y) + 4, "text-anchor": "end" }, String(y)));
  for (let k = 0; k <= 4; k++) { const x = low + ((high - low) * k) / 4; axis.append(svg("text", { x: X(x), y: height - 20, "text-anchor": k === 4 ? "end" : "middle" }, short(x))); }
  axis.append(svg("text", { class: "title", x: (width + left) / 2, y: height - 4, "text-anchor": "middle" }, xTitle));
  root.append(axis);
  for (const [ys, kind] of lines) root.append(svg("path", { class: `line ${kind}`, d: path(xs, ys, X, Y) }));
  root.append(svg("line", { class: "limit", x1: X(mark), x2: X(mark), y1: 8, y2: height - bottom }));
  box.replaceChildren(root);
}
