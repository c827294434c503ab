// The studio: talks to its own server only. A change is a POST with the secret of the address.
import { $, html } from "./draw.js";
import { makeEditor } from "./editor.js";
import { makePlan } from "./plan.js";
import { makePlay } from "./play.js";
import { makeRuns } from "./runs.js";

const token = location.pathname.split("/")[1];

async function post(address, content) {
  try {
    const answer = await fetch(address, { method: "POST", headers: { "Content-Type": "application/json", "X-Studio-Token": token }, body: JSON.stringify(content) });
    const text = await answer.text();
    let data = {};
    try { data = JSON.parse(text); } catch { data = { error: text }; }
    return { ok: answer.ok, data, error: answer.ok ? "" : data.error || `the studio answered ${answer.status}` };
  } catch {
    return { ok: false, data: {}, error: "the studio does not answer; start it again with: psyco studio" };
  }
}

const studio = { post, refresh };
studio.editor = makeEditor(studio);
studio.plan = makePlan(studio);
studio.play = makePlay(studio);
studio.runs = makeRuns(studio);

let first = true;
async function refresh() {
  let found;
  try { found = await (await fetch("state", { cache: "no-store" })).json(); } catch { return; }
  $("domains").replaceChildren(...found.domains.map((name) => html("option", { value: name })));
  document.title = `${found.folder} – PSyCo Studio`;
  if (found.ready) { studio.runs.take(found); studio.play.offer(found.runs); }
  if (first) {
    first = false;
    if (!$("domain").value) { $("domain").value = found.domain; studio.editor.start(found.requirement); }
    studio.editor.loadDomain();
  }
}

// A hidden tab listens to nothing: a browser has six connections to a server, for all tabs together.
let events = null;
function listen() {
  events?.close();
  events = null;
  if (document.hidden) return;
  events = new EventSource("events");
  events.onmessage = () => { $("live").textContent = "live"; $("live").classList.remove("offline"); refresh(); };
  events.onerror = () => { $("live").textContent = "the studio has ended; runs go on. Start it again with: psyco studio"; $("live").classList.add("offline"); };
}
document.addEventListener("visibilitychange", listen);
listen();

$("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  if ($("learn").disabled) return;
  $("learn").disabled = true;
  $("answer").textContent = "starting …";
  const content = { ...studio.editor.request(), episodes: Number($("episodes").value), seed: Number($("seed").value), max_episodes: Number($("most").value) || null, name: $("name").value.trim() };
  const answer = await post("runs", content);
  $("learn").disabled = false;
  $("answer").textContent = answer.ok ? (answer.data.state === "queued" ? `${answer.data.name} waits for its turn` : `${answer.data.name} has been started`) : answer.error;
  if (answer.ok) { $("name").value = ""; if (answer.data.state !== "queued") studio.runs.start(answer.data.name, answer.data.job); refresh(); }
});
