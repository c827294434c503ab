// The runs of the folder: a table, the live page of one, and what can be done with it.
import { $, html, short } from "./draw.js";
import { command, exporter, showStudies } from "./look.js";

export function makeRuns(studio) {
  const state = { runs: [], jobs: [], sort: "created", down: true, selected: new Set(), shown: null, wanted: null, job: 0, frame: "", drawn: "" };
  const jobOf = (name) => state.jobs.find((job) => job.run === name && job.state !== "ended");

  function badge(run) {
    const word = run.verdict || (run.state === "stopped" ? "NOT FINISHED" : run.state.toUpperCase());
    return html("span", { class: `badge small ${(run.verdict || "").toLowerCase()}` }, word);
  }

  function table() {
    const wanted = $("filter").value.toLowerCase();
    const rows = state.runs.filter((run) => [run.name, run.domain, run.verdict, run.state, run.requirement].join(" ").toLowerCase().includes(wanted));
    rows.sort((a, b) => {
      const [x, y] = [a[state.sort], b[state.sort]];
      const order = x === y ? 0 : x === null ? 1 : y === null ? -1 : x < y ? -1 : 1;
      return state.down ? -order : order;
    });
    $("no-runs").hidden = state.runs.length > 0;
    const drawn = JSON.stringify([rows, state.sort, state.down, state.shown]);
    if (drawn === state.drawn) return;
    state.drawn = drawn;
    const focused = document.activeElement?.dataset.key; // it stays where it is while the table is drawn again
    $("runs").tBodies[0].replaceChildren(...rows.map((run) => {
      const box = html("input", { type: "checkbox", "aria-label": `select ${run.name}`, "data-key": `box-${run.id}` });
      box.checked = state.selected.has(run.id);
      box.addEventListener("change", () => { box.checked ? state.selected.add(run.id) : state.selected.delete(run.id); $("compare").disabled = state.selected.size < 2; });
      const open = html("button", { type: "button", "data-run": run.name, "data-key": `open-${run.id}` }, run.name);
      open.addEventListener("click", () => show(run.id, true));
      const begun = run.created ? new Date(run.created * 1000).toLocaleString() : "–";
      return html("tr", { "aria-current": String(run.id === state.shown), title: run.requirement },
        html("td", {}, box), html("td", {}, open), html("td", { class: "wide" }, run.domain), html("td", {}, short(run.return)),
        html("td", {}, badge(run)), html("td", {}, `${Math.round(run.progress * 100)}%${run.state === "running" ? ` ${run.moment?.phase || "starting"}` : ""}`), html("td", { class: "wide" }, begun));
    }));
    if (focused) $("runs").querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    document.querySelectorAll("#runs th[aria-sort]").forEach((head) => {
      const own = head.firstElementChild.dataset.sort === state.sort;
      head.setAttribute("aria-sort", own ? (state.down ? "descending" : "ascending") : "none");
    });
  }

  function jobs() {
    const known = new Set(state.runs.map((run) => run.name));
    const shown = state.jobs.filter((job) => (job.state !== "ended" && !(job.state === "running" && known.has(job.run) && job.kind !== "counterexamples")) || job.log);
    $("jobs").replaceChildren(...shown.map((job) => {
      const words = { queued: "waits for its turn", running: { learn: "is starting", resume: "is resuming", counterexamples: "plays its worst episodes again" }[job.kind], ended: job.interrupted ? "was stopped:" : "ended with an error" }[job.state];
      const node = html("div", { class: "job" }, html("strong", {}, job.run), ` ${words} `);
      if (job.state !== "ended") node.append(job.stopped ? "and is being stopped" : stopper(job.run, job.state === "queued" ? "Remove" : "Stop"));
      if (job.log) node.append(html("pre", {}, job.log.trim()));
      return node;
    }));
  }

  // By the name of its run, which may have no folder yet.
  function stopper(run, text) {
    const stop = html("button", { type: "button" }, text);
    stop.addEventListener("click", () => { stop.disabled = true; act(`jobs/${encodeURIComponent(run)}/stop`); });
    return stop;
  }

  async function act(address) {
    const answer = await studio.post(address, {});
    $("answer").textContent = answer.ok ? "" : answer.error;
    if (!answer.ok) $("live").textContent = answer.error;
    studio.refresh();
  }

  function actions(run) {
    const job = jobOf(run.name), made = [];
    const button = (text, address) => {
      const node = html("button", { type: "button" }, text);
      node.addEventListener("click", () => { node.disabled = true; act(address); });
      made.push(node);
    };
    if (job?.stopped) made.push(html("span", { class: "muted" }, "It is being stopped …"));
    else if (job && run.state === "running") button("Stop", `runs/${run.id}/stop`);
    else if (run.state === "running") made.push(html("span", { class: "muted" }, "started elsewhere: stop it there"));
    if (!job && run.state === "stopped") button("Resume", `runs/${run.id}/resume`);
    if (!job && run.verdict && !run.counterexamples) button("Show counterexamples", `runs/${run.id}/counterexamples`);
    if (run.counterexamples) made.push(html("a", { href: `runs/${run.id}/counterexamples.html`, target: "_blank", rel: "noopener" }, "Counterexamples"));
    const again = html("button", { type: "button" }, "Use this requirement");
    again.addEventListener("click", () => { $("domain").value = run.domain; studio.editor.set(run.text); studio.editor.loadDomain(); $("requirement").focus(); });
    made.push(again);
    const say = (text) => { $("run-status").textContent = text; };
    const files = run.files.map((name) => html("a", { href: `runs/${run.id}/files/${name}`, download: name }, name));
    if (run.files.includes("policy.safetensors")) files.push(exporter(run, "policy.onnx", "ONNX", say), exporter(run, "policy-c.zip", "C with monitor", say));
    if (files.length) files.unshift(html("span", { class: "muted" }, "Download:"));
    const drawn = JSON.stringify([run.id, run.state, run.verdict, run.counterexamples, run.files, job?.state, job?.stopped]);
    if ($("run-actions").dataset.drawn === drawn) return; // keep the focus of the keyboard
    $("run-actions").dataset.drawn = drawn;
    $("run-actions").replaceChildren(...made);
    $("run-files").replaceChildren(...files);
    $("run-commands").parentElement.hidden = false;
    $("run-commands").replaceChildren(command("repeats this run", run.command), ...(run.replay ? [command("repeats its certificate", run.replay)] : []));
  }

  function show(id, move) {
    const run = state.runs.find((each) => each.id === id);
    if (!run) return;
    state.shown = id;
    $("run").hidden = false;
    $("run-title").textContent = run.name;
    const now = run.moment;
    const words = run.state !== "running" ? "" : !now ? (run.progress > 0 ? "The results are written." : "The simulator is compiled; the first episodes come in a few seconds.") : `${now.phase}: ${short(now.done)} of ${now.phase === "certifying" ? "at most " : ""}${short(now.total)} ${now.unit}`;
    if (words || $("run-status").dataset.run !== id || $("run-status").dataset.live) $("run-status").textContent = words;
    $("run-status").dataset.run = id;
    $("run-status").dataset.live = words ? "1" : "";
    actions(run);
    $("frame").hidden = false;
    if (state.frame !== id) { state.frame = id; $("frame").src = `runs/${id}/`; }
    if (move) { $("run").scrollIntoView({ block: "start" }); $("run").focus({ preventScroll: true }); table(); }
  }

  // Before the run has a folder.
  function showPending(name, job) {
    Object.assign(state, { wanted: name, job, shown: null, frame: "" });
    $("run").hidden = false;
    $("run-title").textContent = name;
    $("run-status").textContent = "A process is started for it …";
    $("frame").hidden = true;
    $("frame").removeAttribute("src");
    $("run-files").replaceChildren();
    $("run-commands").parentElement.hidden = true;
    delete $("run-actions").dataset.drawn;
    $("run-actions").replaceChildren(stopper(name, "Stop"));
    $("run").scrollIntoView({ block: "start" });
    $("run").focus({ preventScroll: true });
  }

  // The frame has the height of its page.
  setInterval(() => {
    const inner = $("frame").contentDocument?.querySelector("main");
    if (inner && !$("run").hidden) $("frame").style.height = `${Math.min(8000, Math.max(500, inner.scrollHeight + 60))}px`;
  }, 700);

  $("filter").addEventListener("input", table);
  $("compare").addEventListener("click", () => window.open(`compare?${[...state.selected].map((id) => `run=${id}`).join("&")}`, "_blank", "noopener"));
  document.querySelectorAll("#runs [data-sort]").forEach((button) => button.addEventListener("click", () => {
    state.down = state.sort === button.dataset.sort ? !state.down : button.dataset.sort === "created" || button.dataset.sort === "return";
    state.sort = button.dataset.sort;
    table();
  }));

  return {
    take(found) {
      state.runs = found.runs; state.jobs = found.jobs;
      table(); jobs(); showStudies(found.studies);
      const failed = state.wanted && state.jobs.find((job) => job.number === state.job && job.state === "ended" && job.log);
      if (failed) { state.wanted = null; $("run").hidden = true; $("answer").textContent = `${failed.run}: ${failed.log.trim().split("\n").pop()}`; }
      const wanted = state.wanted && state.runs.find((run) => run.name === state.wanted);
      if (wanted) { state.wanted = null; show(wanted.id, false); $("run").scrollIntoView({ block: "start" }); }
      else if (state.shown) show(state.shown, false);
    },
    start: showPending,
  };
}
