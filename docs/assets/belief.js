// The figure of explanation/belief.md: the posterior Beta(s+1, v+1), the mass above p_req, and the λ that follows from it.
"use strict";

// log Γ(x) for x > 0, by Lanczos.
function logGamma(x) {
  const c = [76.18009172947146, -86.50532032941677, 24.01409824083091, -1.231739572450155, 1.208650973866179e-3, -5.395239384953e-6];
  const t = x + 5.5;
  const sum = c.reduce((total, each, i) => total + each / (x + 1 + i), 1.000000000190015);
  return (x + 0.5) * Math.log(t) - t + Math.log((2.5066282746310005 * sum) / x);
}

function logBeta(a, b) {
  return logGamma(a) + logGamma(b) - logGamma(a + b);
}

// I_x(a, b), the regularized incomplete beta function, by its continued fraction (Lentz).
function incompleteBeta(a, b, x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  if (x > (a + 1) / (a + b + 2)) return 1 - incompleteBeta(b, a, 1 - x);
  const tiny = 1e-300;
  let c = 1, d = 1 - ((a + b) * x) / (a + 1);
  d = 1 / (Math.abs(d) < tiny ? tiny : d);
  let h = d;
  for (let m = 1; m <= 500; m++) {
    for (const numerator of [
      (m * (b - m) * x) / ((a + 2 * m - 1) * (a + 2 * m)),
      (-(a + m) * (a + b + m) * x) / ((a + 2 * m) * (a + 2 * m + 1)),
    ]) {
      d = 1 + numerator * d;
      d = 1 / (Math.abs(d) < tiny ? tiny : d);
      c = 1 + numerator / c;
      if (Math.abs(c) < tiny) c = tiny;
      h *= d * c;
    }
    if (Math.abs(d * c - 1) < 1e-14) break;
  }
  return (Math.exp(a * Math.log(x) + b * Math.log1p(-x) - logBeta(a, b)) * h) / a;
}

// c_sat of the paper's Eq. c_sat: the belief that the probability is p_req or more.
function confidence(s, v, required) {
  return incompleteBeta(v + 1, s + 1, 1 - required);
}

// λ of Eq. lambda: return counts as far as confidence exceeds what is required.
function weight(c, required) {
  return Math.max(0, c - required) / (1 - required);
}

function draw(figure) {
  const value = (name) => Number(figure.querySelector(`input[name=${name}]`).value);
  const [s, v, p, c] = ["s", "v", "p", "c"].map(value);
  for (const [name, shown] of [["s", s], ["v", v], ["p", p.toFixed(2)], ["c", c.toFixed(2)]]) {
    figure.querySelector(`output[name=${name}]`).textContent = shown;
  }
  const n = 400, density = [];
  for (let i = 1; i < n; i++) {
    const x = i / n;
    density.push([x, s * Math.log(x) + v * Math.log1p(-x)]);
  }
  const highest = Math.max(...density.map((each) => each[1]));
  const at = (x) => 10 + 580 * x;
  const points = density.map(([x, log]) => [at(x), 170 - 150 * Math.exp(log - highest)]);
  const path = (chosen) => (chosen.length ? `M${at(chosen[0][2])},170 ` + chosen.map(([x, y]) => `L${x.toFixed(1)},${y.toFixed(1)}`).join(" ") + ` L${chosen.at(-1)[0].toFixed(1)},170 Z` : "");
  const above = points.filter((_, i) => density[i][0] >= p).map(([x, y]) => [x, y, p]);
  figure.querySelector(".belief-all").setAttribute("d", path(points.map(([x, y]) => [x, y, 0])));
  figure.querySelector(".belief-above").setAttribute("d", path(above));
  const line = figure.querySelector(".belief-required");
  line.setAttribute("x1", at(p));
  line.setAttribute("x2", at(p));
  const known = confidence(s, v, p), lambda = weight(known, c);
  figure.querySelector(".belief-c").textContent = known.toFixed(4);
  figure.querySelector(".belief-lambda").textContent = lambda.toFixed(3);
  figure.querySelector(".belief-bar").setAttribute("width", 580 * lambda);
  figure.querySelector(".belief-says").textContent =
    lambda > 0 ? `Return counts ${lambda.toFixed(2)}, cost ${(1 - lambda).toFixed(2)}.` : "Only cost counts: first become safe.";
}

for (const figure of document.querySelectorAll(".belief")) {
  figure.hidden = false;
  figure.addEventListener("input", () => draw(figure));
  draw(figure);
}
