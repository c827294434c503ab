"""The studio in a real browser."""

import http.server
import re
import shutil
import threading

import pytest

import psyco
from tests.runs.small import begun
from tests.studio.server import StudioProcess

pytestmark = [pytest.mark.browser, pytest.mark.extra("starlette", "uvicorn")]

EASY = "P>=0.1 [ G (distance >= 0.0) ] & C>=0.8"
PATIENCE = 300_000  # milliseconds: a busy machine compiles for long


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    found = StudioProcess(tmp_path_factory.mktemp("studio") / "runs", "--jobs", "2")
    yield found
    found.stop()


@pytest.fixture
def page(browser, studio):
    found = open_page(browser, studio)
    yield found
    found.context.close()


def open_page(browser, studio):
    """A page of its own; any error of a script, and anything that its policy blocks, fails the test."""
    context = browser.new_context()
    found = context.new_page()
    found.set_default_timeout(PATIENCE)
    found.on("pageerror", lambda error: pytest.fail(f"error in the page: {error}"))
    found.on(
        "console", lambda message: None if "Content Security Policy" not in message.text else pytest.fail(message.text)
    )
    found.goto(studio.url)
    found.locator(".property").first.wait_for()
    return found


def verdict(page):
    return page.frame_locator("#frame").locator(".verdict .badge").first


def test_from_a_page_to_a_certificate_in_four_actions(page, studio):
    page.fill("#requirement", EASY)
    page.fill("#episodes", "2000")
    page.fill("#name", "four")
    page.click("#learn")
    page.locator("#runs tr", has_text="four").locator(".badge.satisfied").wait_for()
    verdict(page).wait_for()
    assert psyco.open_run(studio.folder / "four").certificate.verdict.name == "SATISFIED"


def test_a_wrong_requirement_is_shown_with_a_caret(page):
    page.fill("#requirement", "P>=0.9 [ G (distance >= ")
    page.locator("#problem:not([hidden])").wait_for()
    assert "^" in page.inner_text("#problem") and "the text ends too early" in page.inner_text("#problem")
    assert page.is_disabled("#learn") and page.get_attribute("#requirement", "aria-invalid") == "true"
    page.fill("#requirement", "P>=0.9 [ G (distanse >= 0.1) ]")
    page.locator("#problem", has_text="did you mean 'distance'?").wait_for()
    page.fill("#requirement", "distance shall always be at least 0.1 with probability at least 0.9")
    page.locator("#properties", has_text="P>=0.9 [ G (distance >= 0.1) ]").wait_for()
    page.locator("#problem[hidden]").wait_for(state="attached")
    assert not page.is_disabled("#learn")


def test_sliders_plan_and_write_the_requirement(page):
    from playwright.sync_api import expect

    page.locator("#plan-chart svg").wait_for()
    before = page.inner_text("#plan-words")
    page.eval_on_selector("#p", "node => { node.value = 0.7; node.dispatchEvent(new Event('input')) }")
    page.locator("#plan-command", has_text="P>=0.7").wait_for()
    assert page.inner_text("#plan-words") != before
    page.click("#write")
    expect(page.locator("#requirement")).to_have_value(re.compile(r"P>=0\.7"), timeout=PATIENCE)
    assert page.input_value("#most") == "10000"  # the third slider


def test_the_keyboard_suffices(page):
    page.locator("#signals tr").first.wait_for(state="attached")
    page.focus("#requirement")
    page.keyboard.press("Control+A")
    page.keyboard.type("P>=0.9 [ G (dist")
    page.locator("#completions li").first.wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.input_value("#requirement") == "P>=0.9 [ G (distance"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "episodes"


def test_episodes_are_played_before_learning(page):
    page.click("#play-episodes")
    page.locator(".example").first.wait_for()
    kinds = page.eval_on_selector_all(".example", "nodes => nodes.map((node) => node.dataset.satisfied)")
    assert kinds == ["true"] * 3 + ["false"] * 3
    assert page.locator(".example").first.locator(".strip").count() >= 1


def test_a_run_of_the_command_line_appears_in_two_tabs(browser, studio, page, cli):
    other = open_page(browser, studio)
    said = cli(
        "synthesize", "particle-dance", "--require", EASY, "--episodes", "2000", "--out", studio.folder / "typed"
    )
    assert said.status == 0
    for tab in (page, other):
        tab.locator("[data-run=typed]").wait_for()
    other.context.close()


def test_many_tabs_of_one_browser_do_not_block_each_other(browser, studio):
    """A browser has six connections to a server; each visible tab holds one."""
    hide = "Object.defineProperty(document, 'hidden', {value: true});"
    hide += "document.dispatchEvent(new Event('visibilitychange'))"
    tab = open_page(browser, studio)
    for _ in range(7):
        tab.evaluate(hide)
        tab = tab.context.new_page()
        tab.goto(studio.url)
        tab.locator("#live", has_text="live").wait_for(timeout=PATIENCE)
    tab.context.close()


def test_completion_shows_ranges_and_recent_values(page):
    page.locator("#signals tr").first.wait_for(state="attached")
    page.focus("#requirement")
    page.keyboard.press("Control+A")
    page.keyboard.type("P>=0.9 [ G (dist")
    item = page.locator("#completions li", has_text="distance").first
    item.wait_for()
    assert item.locator("svg path").count() == 1 and "0 …" in item.inner_text()


def test_agents_and_groups_are_completed(page):
    page.fill("#parameters", "agents=2")
    page.dispatch_event("#parameters", "change")
    page.locator("#signals", has_text="agent_1.distance").wait_for(state="attached")
    for typed, wanted in (
        ("P>=0.9 [ G (agent_1.dis", "agent_1.distance"),
        ("P>=0.9 [ G ea", "each(agent."),
        ("P>=0.9 [ G each(agent.dis", "agent.distance"),
        ("fo", "for each agent: "),
    ):
        page.focus("#requirement")
        page.keyboard.press("Control+A")
        page.keyboard.type(typed)
        page.locator("#completions li", has_text=wanted.strip()).first.wait_for()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        assert page.input_value("#requirement").endswith(wanted)
    page.keyboard.type("P>=0.9 [ G (agent.distance >= 0.1) ]")
    page.locator("#properties", has_text="For each agent by itself").wait_for()


def test_a_formula_becomes_a_sentence_and_comes_back(page):
    from playwright.sync_api import expect

    area, before = page.locator("#requirement"), "P>=0.9 [ G (distance >= 0.1) ] & C>=0.98"
    area.fill(before)
    page.locator("#properties", has_text="at least 0.9").wait_for()
    page.locator("#other", has_text="as a sentence").click()
    sentence = "distance shall always be at least 0.1 with probability at least 0.9, 98% sure"
    expect(area).to_have_value(sentence, timeout=PATIENCE)
    page.locator("#other", has_text="as a formula").click()
    expect(area).to_have_value(before, timeout=PATIENCE)


NAMELESS = """() => {
  const controls = [...document.querySelectorAll("a[href], button, input, select, textarea, iframe")];
  const labelled = (node) => [...(node.labels || [])].some((label) => label.textContent.trim());
  const named = (node) => node.ariaLabel || node.title || node.textContent.trim() || labelled(node);
  return controls.filter((node) => !node.hidden && !named(node)).map((node) => node.outerHTML);
}"""


def test_every_control_has_a_name_and_is_reached_with_tab(page):
    """In the order of the page, which begins with a link over the menu."""
    page.locator("#signals tr").first.wait_for(state="attached")
    assert page.evaluate(NAMELESS) == []
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    found = []
    for _ in range(60):
        page.keyboard.press("Tab")
        found.append(page.evaluate("document.activeElement.id || document.activeElement.innerText"))
        if found[-1] == "filter":
            break
    wanted = ["To the requirement", "domain", "parameters", "requirement", "episodes", "seed", "most", "name", "learn"]
    wanted += ["other", "p", "c", "n", "write", "policy", "play-episodes", "filter"]
    assert [each for each in found if each in wanted] == wanted
    heard = page.locator("main").aria_snapshot()
    for said in ('heading "What shall the policy do?" [level=1]', 'slider "Probability P ≥', 'textbox "Requirement'):
        assert said in heard


def test_the_page_is_small_and_soon_there(browser, studio):
    """Below a second, beside what the browser itself takes for a word: a busy machine is slower with both."""
    first_paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    painted, empty = [], []
    for _ in range(3):
        tab = open_page(browser, studio)
        painted.append(tab.evaluate(first_paint))
        sizes = tab.evaluate("performance.getEntriesByType('resource').map((each) => each.transferSize)")
        tab.goto("data:text/html,<p>word")
        tab.wait_for_function(first_paint)
        empty.append(tab.evaluate(first_paint))
        tab.context.close()
    assert min(painted) < 1000 + 2 * min(empty)
    assert sum(sizes) < 100_000  # and a run's page has about 50,000


@pytest.mark.parametrize("width", [390, 820])
def test_a_phone_and_a_tablet_show_everything_without_scrolling_sideways(page, studio, width):
    begun(studio.folder / f"narrow-{width}")
    page.set_viewport_size({"width": width, "height": 800})
    page.locator(f"[data-run=narrow-{width}]").click()
    page.frame_locator("#frame").locator("h1").wait_for()
    page.fill("#requirement", f"P>=0.9 [ G (distanse >= 0.1 & {' & '.join(['collisions <= 1'] * 8)}) ]")
    page.locator("#problem", has_text="did you mean 'distance'?").wait_for()
    wide = "document.documentElement.scrollWidth > innerWidth"
    assert not page.evaluate(wide) and not page.frames[-1].evaluate(wide)
    badge = page.locator("#runs tr", has_text=f"narrow-{width}").locator(".badge").bounding_box()
    assert badge["x"] + badge["width"] <= width
    quoted = page.locator("#problem .quoted")
    lines = quoted.inner_text().split("\n")
    assert lines[1].index("^") == lines[0].index("distanse")
    assert quoted.bounding_box()["height"] < 60  # two lines: the caret is below the sign that it is about
    shutil.rmtree(studio.folder / f"narrow-{width}")


def test_a_click_shows_the_run_at_once_and_its_results_can_be_taken_along(page, studio, tmp_path):
    page.fill("#requirement", EASY)
    page.fill("#episodes", "2000")
    page.fill("#name", "taken")
    page.click("#learn")
    page.locator("#run-title", has_text="taken").wait_for()
    assert page.evaluate("document.activeElement.id") == "run"
    page.locator("#runs tr", has_text="taken").locator(".badge.satisfied").wait_for()
    for text, name in (("ONNX", "policy.onnx"), ("C with monitor", "policy-c.zip")):
        with page.expect_download() as download:
            page.click(f"#run-files button:has-text('{text}')")
        assert download.value.suggested_filename == name
        download.value.save_as(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 500
    page.click("#run summary")
    commands = page.locator(".command code").all_inner_texts()
    assert commands[0].startswith("psyco synthesize --config ") and commands[1].startswith("psyco verify --replay ")


def test_the_keyboard_keeps_its_place_while_the_table_changes(page, studio, cli):
    run = studio.folder / "kept"
    cli("synthesize", "particle-dance", "--require", EASY, "--episodes", "2000", "--out", run)
    page.locator("[data-run=kept]").wait_for()
    page.locator("[data-run=kept]").focus()
    cli("synthesize", "particle-dance", "--require", EASY, "--episodes", "2000", "--out", studio.folder / "other")
    page.locator("[data-run=other]").wait_for()
    assert page.evaluate("document.activeElement.dataset.run") == "kept"


def test_names_of_a_stranger_are_text(page, studio):
    evil = "<img src=x onerror=document.title=1>"
    begun(studio.folder / evil)
    study = studio.folder / "study <b>bold"
    study.mkdir()
    (study / "study.toml").write_text(
        'title = "<script>document.title=1</script>"\nrequirement = "P>=0.8 [ G distance >= 0.1 ]"\n'
        '[domain]\nname = "particle-dance"\n[settings]\nepisodes = 2000\n'
    )
    page.locator("#runs button", has_text=evil).wait_for()
    page.locator("#studies a", has_text="study <b>bold").wait_for()
    page.locator("#runs button", has_text=evil).click()
    page.frame_locator("#frame").locator("h1", has_text=evil).wait_for()
    assert page.locator("#runs img, #studies b, #studies script").count() == 0 and page.title() != "1"
    shutil.rmtree(studio.folder / evil)
    shutil.rmtree(study)


def test_a_run_is_stopped_before_it_has_a_folder(page, studio):
    page.fill("#requirement", EASY)
    page.fill("#episodes", "2000000")
    page.fill("#name", "early")
    page.click("#learn")
    page.locator("#run-actions button", has_text="Stop").click()
    page.locator("#answer", has_text="early: interrupted before its first results").wait_for()
    assert page.locator("#run").is_hidden() and not (studio.folder / "early").exists()
    (job,) = [each for each in studio.get("state").json()["jobs"] if each["run"] == "early"]
    assert (job["state"], job["interrupted"]) == ("ended", True)


@pytest.mark.more
def test_a_run_is_stopped_and_resumed(page, studio):
    page.fill("#requirement", EASY)
    page.fill("#episodes", "2000000")
    page.fill("#name", "long")
    page.click("#learn")
    page.locator("[data-run=long]").wait_for()
    page.locator("#run-actions button", has_text="Stop").click()
    page.locator("#run-actions button", has_text="Resume").wait_for()
    run = psyco.open_run(studio.folder / "long")
    assert run.state == "stopped" and run.certificate is None
    page.locator("#run-actions button", has_text="Resume").click()
    page.locator("#run-actions button", has_text="Stop").click()
    page.locator("#run-actions button", has_text="Resume").wait_for()


@pytest.mark.more
def test_runs_survive_the_studio(browser, tmp_path):
    first = StudioProcess(tmp_path / "runs")
    asked = {"domain": "particle-dance", "requirement": EASY, "episodes": 2_000_000, "name": "long"}
    assert first.post("runs", asked).json()["state"] == "running"
    first.wait(lambda state: any(run["state"] == "running" for run in state["runs"]))
    page = open_page(browser, first)
    first.process.kill()
    first.process.wait(30)
    page.locator("#live.offline").wait_for()
    page.context.close()
    second = StudioProcess(tmp_path / "runs")
    try:
        again = open_page(browser, second)
        again.locator("[data-run=long]").click()
        again.locator("#run-actions button", has_text="Stop").click()
        again.locator("#run-actions button", has_text="Resume").wait_for()
        again.context.close()
    finally:
        second.stop()


HOSTILE = """<!doctype html><title>waiting</title>
<form id="f" method="post" enctype="text/plain" target="t" action="{url}runs">
<input name='{{"domain":"particle-dance","requirement":"P>=0.1 [ true ]","name":"evil","x":"' value='"}}'>
</form>
<iframe name="t"></iframe>
<script>
const body = JSON.stringify({{domain: "particle-dance", requirement: "P>=0.1 [ true ]", name: "evil"}});
const ask = (options) => fetch("{url}runs", {{method: "POST", body, ...options}}).then((a) => a.type, () => "refused");
(async () => {{
  const seen = [
    await ask({{mode: "no-cors"}}),
    await ask({{headers: {{"Content-Type": "application/json"}}}}),
    await ask({{headers: {{"Content-Type": "application/json", "X-Studio-Token": "{token}"}}}}),
    await fetch("{url}state").then((a) => a.text(), () => "refused"),
  ];
  document.getElementById("f").submit();
  setTimeout(() => {{ document.title = seen.join(" "); }}, 500);
}})();
</script>"""


def test_a_page_of_another_origin_can_start_and_read_nothing(browser, studio):
    """It even knows the secret."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(HOSTILE.format(url=studio.url, token=studio.token).encode())

        def log_message(self, *_):
            pass

    from playwright.sync_api import expect

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page = browser.new_context().new_page()
    try:
        page.goto(f"http://localhost:{server.server_address[1]}/")
        expect(page).not_to_have_title("waiting", timeout=PATIENCE)
        assert page.title() == "refused refused refused refused"  # it may read no answer either
    finally:
        page.context.close()
        server.shutdown()
    found = studio.get("state").json()
    assert not any(each["run"] == "evil" for each in found["jobs"])
    assert not (studio.folder / "evil").exists() and not (studio.folder / ".studio" / "evil.props").exists()
