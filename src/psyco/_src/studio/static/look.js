// What can be taken along: files, exports, commands; and the studies of the folder.
import { $, html } from "./draw.js";

// Fetched first, so that an error is shown instead of saved.
async function save(address, name, say) {
  say(`making ${name} …`);
  try {
    const answer = await fetch(address);
    if (!answer.ok) { say((await answer.json()).error); return; }
    const link = html("a", { href: URL.createObjectURL(await answer.blob()), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    say(`${name} is saved`);
  } catch { say("the studio does not answer"); }
}

export function exporter(run, name, text, say) {
  const button = html("button", { type: "button", title: `${name} of ${run.name}` }, text);
  button.addEventListener("click", async () => { button.disabled = true; await save(`runs/${run.id}/export/${name}`, name, say); button.disabled = false; });
  return button;
}

export function command(words, text) {
  const button = html("button", { type: "button", "aria-label": `copy the command that ${words}` }, "Copy");
  button.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch { button.textContent = "select it"; }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return html("div", { class: "command" }, html("span", { class: "muted" }, words), html("code", {}, text), button);
}

const WORDS = { study: "study", front: "front: return against probability", tuning: "tuning" };

export function showStudies(studies) {
  $("studies-section").hidden = $("studies-link").hidden = !studies.length;
  const drawn = JSON.stringify(studies);
  if ($("studies").dataset.drawn === drawn) return; // keep the focus of the keyboard
  $("studies").dataset.drawn = drawn;
  $("studies").tBodies[0].replaceChildren(...studies.map((study) => html("tr", {},
    html("td", {}, study.finished || study.kind === "study" ? html("a", { href: `studies/${study.id}/`, target: "_blank", rel: "noopener" }, study.name) : study.name),
    html("td", {}, WORDS[study.kind]), html("td", {}, study.title),
    html("td", {}, study.cells === null ? "" : `${study.begun} of ${study.cells} begun`),
    html("td", {}, study.problem || (study.finished ? "has a page" : "not finished")))));
}
