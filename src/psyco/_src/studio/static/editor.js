// The requirement: live errors with carets, completion, its meaning in words.
import { $, html, short, sparkline } from "./draw.js";

const WORDS = [
  ["P>=0.9 [ ]", "probability"], ["G ", "in every state"], ["F ", "in some state"], ["X ", "next state"], [" U ", "until"], [" W ", "weak until"], [" R ", "release"],
  ["=>", "implies"], ["count()", "states so far"], ["sum()", "states so far"], ["& C>=0.98", "confidence"], ['"end"', "last state"],
  ["shall always", "sentence"], ["shall never", "sentence"], ["shall eventually", "sentence"], ["within 10 steps", "sentence"], ["whenever ", "sentence"],
  ["with probability at least 0.9", "sentence"], ["98% sure", "sentence"], ["be at least", "sentence"], ["be at most", "sentence"], ["occur at most twice", "sentence"],
];

export function makeEditor(studio) {
  const area = $("requirement"), list = $("completions"), problem = $("problem");
  const state = { signals: [], words: [], other: "", chosen: -1, found: [], serial: 0, touched: false, timer: 0, domain: "" };

  function domainRequest() { return { domain: $("domain").value.trim(), parameters: readParameters($("parameters").value) }; }

  function readParameters(text) {
    const found = {};
    for (const part of text.split(/[,\s]+/).filter(Boolean)) {
      const [name, value = ""] = part.split("=");
      found[name] = value === "true" ? true : value === "false" ? false : value !== "" && Number.isFinite(Number(value)) ? Number(value) : value;
    }
    return found;
  }

  function show(error) {
    problem.hidden = !error;
    // Quoted lines and their caret stay below each other on a narrow page; other lines wrap.
    const parts = [];
    for (const line of (error || "").split("\n")) {
      const quoted = line.startsWith(" ");
      if (parts.at(-1)?.quoted === quoted) parts.at(-1).text += `${line}\n`;
      else parts.push({ quoted, text: `${line}\n` });
    }
    problem.replaceChildren(...parts.map((part) => html("div", part.quoted ? { class: "quoted" } : {}, part.text)));
    area.setAttribute("aria-invalid", String(Boolean(error)));
    $("properties").classList.toggle("stale", Boolean(error)); // they may be those of an earlier text
    $("learn").disabled = Boolean(error) || !area.value.trim();
  }

  function showMeaning(found) {
    $("properties").replaceChildren(...found.properties.map((each) => html("div", { class: "property" },
      html("p", {}, each.words), html("p", {}, html("code", {}, each.formula)),
      ...(each.sentence ? [html("p", { class: "muted" }, `“${each.sentence}”`)] : []))));
    const spoken = /\bshall\b/i.test(area.value);
    $("other").hidden = found.other.includes("shall") === spoken;
    $("other").textContent = spoken ? "Write it as a formula" : "Write it as a sentence";
    state.other = found.other;
    $("warnings").replaceChildren(...found.warnings.map((text) => html("li", {}, text)));
  }

  async function check() {
    const serial = ++state.serial, text = area.value;
    if (!text.trim()) { show(""); $("properties").replaceChildren(); $("other").hidden = true; return; }
    // The grammar first, which takes an instant; the environment may take seconds to make.
    let answer = await studio.post("check", { requirement: text });
    if (serial !== state.serial) return;
    if (!answer.ok) { show(answer.error); return; }
    show(""); showMeaning(answer.data);
    if ("p" in answer.data) studio.plan?.take(answer.data.p, answer.data.c);
    if (!domainRequest().domain) return;
    answer = await studio.post("check", { requirement: text, ...domainRequest() });
    if (serial !== state.serial) return;
    if (answer.ok) showMeaning(answer.data);
    else show(answer.error);
  }

  function soon() { clearTimeout(state.timer); state.timer = setTimeout(check, 200); }

  async function loadDomain() {
    const asked = domainRequest(), key = JSON.stringify(asked);
    if (!asked.domain || key === state.domain) return;
    state.domain = key;
    $("signals").replaceChildren();
    $("answer").textContent = "making the environment …";
    const answer = await studio.post("domain", asked);
    if (key !== state.domain) return;
    $("answer").textContent = answer.ok ? "" : answer.error;
    if (!answer.ok) { state.domain = ""; return; }
    state.signals = [...answer.data.signals, ...ofGroups(answer.data)];
    state.words = Object.keys(answer.data.groups).flatMap((group) => [[`each(${group}.`, `every ${group}`], [`any(${group}.`, `some ${group}`], [`for each ${group}: `, "a property of each"]]);
    if (answer.data.requirement && (!area.value.trim() || !state.touched)) area.value = answer.data.requirement;
    $("signals").replaceChildren(...answer.data.signals.map((signal) => html("tr", {},
      html("td", {}, html("code", {}, signal.size ? `${signal.name}[0..${signal.size - 1}]` : signal.name)),
      html("td", {}, signal.boolean ? "true or false" : signal.low === null && signal.high === null ? "" : `${short(signal.low)} to ${short(signal.high)}`),
      html("td", {}, ...(signal.recent.length > 1 ? [sparkline(signal.recent)] : [])))));
    check();
  }

  // Signals of all agents of a group: `agent.distance` in each(...), any(...) and for each agent.
  function ofGroups({ signals, groups }) {
    return Object.entries(groups).flatMap(([group, agents]) => signals.filter((signal) => signal.name.startsWith(`${agents[0]}.`))
      .map((signal) => ({ ...signal, name: group + signal.name.slice(agents[0].length), note: `of each or any ${group}` })));
  }

  // ---- completion

  function word() { return /[\w."[\]]*$/.exec(area.value.slice(0, area.selectionStart))[0]; }

  function complete() {
    const typed = word().replace(/^"/, "").toLowerCase();
    const names = state.signals.flatMap((s) => s.name.endsWith(".") ? [] : [[s.size ? `${s.name}[0]` : s.name, s.note ?? (s.boolean ? "true or false" : s.low === null ? "number" : `${short(s.low)} … ${short(s.high)}`), s.recent]]);
    const found = typed ? [...names, ...state.words, ...WORDS].filter(([name]) => name.toLowerCase().startsWith(typed) && name.toLowerCase() !== typed) : [];
    state.found = found.slice(0, 8).map(([name]) => name);
    state.chosen = -1;
    list.hidden = !state.found.length;
    area.setAttribute("aria-expanded", String(Boolean(state.found.length)));
    list.replaceChildren(...found.slice(0, 8).map(([name, note, recent], i) => {
      const item = html("li", { role: "option", id: `completion-${i}`, "aria-selected": "false" }, name, html("small", {}, note), ...(recent?.length > 1 ? [sparkline(recent)] : []));
      item.addEventListener("pointerdown", (event) => { event.preventDefault(); insert(i); });
      return item;
    }));
    area.removeAttribute("aria-activedescendant");
  }

  function choose(i) {
    state.chosen = (i + state.found.length) % state.found.length;
    [...list.children].forEach((item, k) => item.setAttribute("aria-selected", String(k === state.chosen)));
    area.setAttribute("aria-activedescendant", `completion-${state.chosen}`);
  }

  function insert(i) {
    const start = area.selectionStart - word().length;
    area.setRangeText(state.found[i], start, area.selectionStart, "end");
    list.hidden = true; state.found = [];
    area.focus(); state.touched = true; soon();
  }

  area.addEventListener("input", () => { state.touched = true; complete(); soon(); });
  area.addEventListener("blur", () => { list.hidden = true; });
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); $("form").requestSubmit(); return; }
    if (list.hidden || !state.found.length) return;
    if (event.key === "ArrowDown") { event.preventDefault(); choose(state.chosen + 1); }
    else if (event.key === "ArrowUp") { event.preventDefault(); choose(state.chosen - 1); }
    else if (event.key === "Enter" && state.chosen >= 0) { event.preventDefault(); insert(state.chosen); }
    else if (event.key === "Escape") { list.hidden = true; }
  });
  $("other").addEventListener("click", () => { area.value = state.other; state.touched = true; soon(); area.focus(); });
  for (const id of ["domain", "parameters"]) $(id).addEventListener("change", () => { loadDomain(); soon(); });

  return {
    request: () => ({ ...domainRequest(), requirement: area.value }),
    set(text) { area.value = text; state.touched = true; soon(); },
    start(text) { if (!area.value.trim()) { area.value = text; check(); } },
    loadDomain,
  };
}
