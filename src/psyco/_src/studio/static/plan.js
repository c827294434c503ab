// Sliders for P, C and the largest number of episodes; what `psyco plan` computes follows them.
import { $, chart, short } from "./draw.js";

export function makePlan(studio) {
  const state = { busy: false, again: false };
  const episodes = () => Math.round(10 ** Number($("n").value));

  function words() {
    $("p-out").textContent = Number($("p").value).toFixed(3);
    $("c-out").textContent = Number($("c").value).toFixed(3);
    $("n-out").textContent = episodes().toLocaleString("en-US");
    $("n").setAttribute("aria-valuetext", `${episodes()} episodes`);
  }

  async function update() {
    words();
    if (state.busy) { state.again = true; return; } // the latest move counts
    state.busy = true;
    const answer = await studio.post("plan", { p: Number($("p").value), c: Number($("c").value), max_episodes: episodes() });
    state.busy = false;
    if (answer.ok) draw(answer.data);
    else $("plan-words").textContent = answer.error;
    if (state.again) { state.again = false; update(); }
  }

  function draw(found) {
    chart($("plan-chart"), found.p, [[found.satisfied, "s2"], [found.violated, "s1 dashed"]], found.p_req, "true probability of the policy");
    const room = 1 - found.p_req, wanted = found.p_req + room / 2;
    const at = found.p.reduce((best, p, i) => (Math.abs(p - wanted) < Math.abs(found.p[best] - wanted) ? i : best), 0);
    const least = found.shortest === null ? "No certificate fits into so few episodes." : `A certificate takes at least ${found.shortest} episodes, all satisfied.`;
    $("plan-words").textContent = `${least} A policy with true probability ${short(found.p[at])} is SATISFIED with probability ${found.satisfied[at].toFixed(2)}, after ${short(found.episodes[at])} episodes on average; one exactly at ${found.p_req} hardly ever.`;
    $("plan-command").textContent = found.command;
  }

  for (const id of ["p", "c", "n"]) $(id).addEventListener("input", update);
  $("write").addEventListener("click", async () => {
    const answer = await studio.post("rewrite", { requirement: $("requirement").value, p: Number($("p").value), c: Number($("c").value) });
    if (!answer.ok) { $("plan-words").textContent = answer.error; return; }
    $("most").value = episodes();
    studio.editor.set(answer.data.requirement);
    $("requirement").focus();
  });
  return {
    take(p, c) { $("p").value = p; $("c").value = c; update(); },
  };
}
