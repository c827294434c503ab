"""The page of a run in a real browser: it renders, reacts, plays, follows a run, and runs no foreign script."""

import dataclasses
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from psyco._src.reports.live_server import PageServer
from psyco._src.reports.page import embed
from psyco._src.reports.run_page import LiveRun, compare_page, run_data, run_page
from psyco._src.runs.config import Config
from psyco._src.runs.execute import execute
from psyco._src.runs.sample_trajectories import sampling_callback
from psyco._src.runs.session import build_problem, resume_run, start_run
from psyco._src.runs.store import load_episodes, read_run
from psyco._src.runs.train import Callback
from psyco._src.verification.base import Verdict
from tests.runs.small import CONFIG

COLOUR = "e => getComputedStyle(e).color"
OVERLAPPING = """figure => {
  const boxes = [...figure.querySelectorAll("svg text, .legend > *")].map((e) => e.getBoundingClientRect());
  const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  return boxes.some((a, i) => boxes.slice(0, i).some((b) => meet(a, b)));
}"""
HANGING_OVER = """section => [...section.querySelectorAll("*")].some(
  (e) => e.getBoundingClientRect().right > section.getBoundingClientRect().right)"""
EVIL = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


def run(folder: Path, config: Config = CONFIG) -> Path:
    with start_run(folder, config, build_problem(config)) as session:
        execute(session)
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("runs") / "dance")


@pytest.fixture(scope="module")
def address(finished: Path) -> str:
    return write(finished / "report.html", run_page(read_run(finished)))


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "half"

    def stop(problem: Any, position: Any) -> None:
        if position.generation >= 70:
            raise KeyboardInterrupt

    with start_run(folder, CONFIG, build_problem(CONFIG)) as session, pytest.raises(KeyboardInterrupt):
        execute(
            session,
            callbacks=[sampling_callback(folder / "episodes.json", every=0), Callback(on_checkpoint=stop)],
        )
    return folder


@contextmanager
def open_page(browser: Any, address: str, **options: Any) -> Iterator[Any]:
    """Open a page that may use no network but its own server, and may log no error or warning."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(180_000)  # a busy machine is no failure
    complaints: list[str] = []
    page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request",
        lambda r: None if r.url.startswith(("file:", "data:", address)) else complaints.append(r.url),
    )
    page.goto(address)
    yield page
    assert not complaints
    context.close()


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return path.as_uri()


@pytest.mark.browser
@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_shows_everything_on_a_desk_and_on_a_phone(
    browser: Any, finished: Path, address: str, width: int, scheme: str
) -> None:
    with open_page(browser, address, viewport={"width": width, "height": 800}, color_scheme=scheme) as page:
        verdict = json.loads((finished / "certificate.json").read_text())["verdict"]
        assert page.locator(".verdict .badge").inner_text() == verdict
        assert "collisions <= 1" in page.locator(".requirement").inner_text()
        for chart in ("return", "satisfied", "c_sat", "lambda", "split", "cost"):
            assert page.locator(f"#chart-{chart} path.line").count() >= 1, chart
        assert page.locator("#posteriors .density").count() == 1
        assert "p_req 0.85" in page.locator("#posteriors .legend").inner_text()
        assert page.locator("#posteriors line.limit").count() == 1
        assert page.locator("#certificate .psyco-certificate").get_attribute("data-verdict") == verdict
        for figure in page.locator(".chart").all():
            assert figure.locator(".axis .title").count() == 2, "both axes say what they show"
            assert figure.locator("svg text:not(.axis text)").count() == 0, "no text stands on the data"
            assert not figure.evaluate(OVERLAPPING), "nor on another"
        assert page.locator("#thumbs button").count() >= 1
        assert page.locator("#stage .body").count() == 2
        assert page.evaluate("document.documentElement.scrollWidth") == width, "nothing hangs over the edge"
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, dark[4:-1].split(","))) < 200) == (scheme == "dark")


def test_an_open_verdict_comes_with_what_its_method_permits(finished: Path) -> None:
    record = read_run(finished)
    assert record.certificate is not None
    run = "psyco verify RUN takes a further look"
    for method, stream, words in (
        ("anytime", "verify", "raise the maximum number"),
        ("fixed", "verify", "would void the guarantee"),
        ("anytime", "certify", run),
    ):
        certificate = dataclasses.replace(record.certificate, verdict=Verdict.UNDECIDED, method=method, stream=stream)
        assert words in run_page(dataclasses.replace(record, certificate=certificate)).partition("<dl")[0]


@pytest.mark.browser
def test_a_certificate_of_many_looks_fits_on_a_phone(browser: Any, finished: Path, tmp_path: Path) -> None:
    record = read_run(finished)
    assert record.certificate is not None
    looks = tuple(
        dataclasses.replace(look, verdict=Verdict.UNDECIDED, episodes=10_000) for look in 3 * record.certificate.looks
    )
    many = dataclasses.replace(record, certificate=dataclasses.replace(record.certificate, looks=looks))
    address = write(tmp_path / "page.html", run_page(many))
    with open_page(browser, address, viewport={"width": 390, "height": 800}) as page:
        assert page.locator(".psyco-certificate .looks tr").count() == 1 + len(looks)
        assert not page.locator(".psyco-certificate").evaluate(HANGING_OVER)


@pytest.mark.browser
def test_hover_shows_values_a_drag_zooms_and_a_click_hides_a_line(browser: Any, address: str) -> None:
    with open_page(browser, address, viewport={"width": 1200, "height": 900}) as page:
        chart = page.locator("#chart-return svg")
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
        tip = page.locator("#chart-return .tip").inner_text()
        assert re.match(r"episode [67]\d\d\n", tip), "the middle of 1,500"
        assert "return: -" in tip

        def labels() -> list[str]:
            return page.locator("#chart-lambda .axis text").all_text_contents()

        whole = labels()
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 60)
        page.mouse.up()
        assert labels() != whole, "all charts zoom together"
        page.locator("#chart-return svg").dblclick(position={"x": 200, "y": 60})
        assert labels() == whole
        page.get_by_role("button", name="Last tenth").click()
        assert labels() != whole

        lines = page.locator("#chart-split path.line").count()
        page.locator("#chart-split .legend button").first.click()
        assert page.locator("#chart-split path.line").count() < lines
        assert page.locator("#chart-split .legend button").first.get_attribute("aria-pressed") == "false"


@pytest.mark.browser
def test_an_episode_plays_pauses_and_scrubs(browser: Any, address: str) -> None:
    with open_page(browser, address) as page:
        moment = page.locator("#moment")
        assert moment.inner_text().startswith("step 0 of 5")
        page.locator("#play").click()
        page.locator("#moment", has_text="step 5 of 5").wait_for()
        assert page.locator("#play").get_attribute("aria-label") == "Play", "it stops at the end"
        # Both at once: on a busy machine the episode may end between two clicks.
        page.evaluate("() => { const play = document.getElementById('play'); play.click(); play.click(); }")
        assert page.locator("#play").get_attribute("aria-label") == "Play", "it pauses"
        page.locator("#scrub").evaluate("s => { s.value = 3; s.dispatchEvent(new Event('input')); }")
        assert moment.inner_text().startswith("step 3 of 5")
        page.locator("#thumbs button").last.click()
        assert page.locator("#thumbs button").last.get_attribute("aria-pressed") == "true"


@pytest.mark.browser
def test_violations_are_marked_and_it_is_said_since_when_an_episode_is_decided(browser: Any, tmp_path: Path) -> None:
    # The bodies start so close to each other that they often collide.
    config = dataclasses.replace(CONFIG, parameters={"horizon": 5, "start": 0.01})
    folder = run(tmp_path / "run", config)
    address = write(tmp_path / "page.html", run_page(read_run(folder)))
    with open_page(browser, address) as page:
        assert page.locator("#thumbs .broken").count() >= 1
        page.locator("#thumbs button:has(.broken)").first.click()
        assert page.locator("#ticks i").count() >= 1
        page.locator("#scrub").evaluate("s => { s.value = s.max; s.dispatchEvent(new Event('input')); }")
        assert page.locator("#stage .cross").count() >= 1
        (first, *_) = next(e["violations"] for e in load_episodes(read_run(folder))["episodes"] if e["violations"])
        scrub = "(s, step) => { s.value = step; s.dispatchEvent(new Event('input')); }"
        for step, said in ((first - 1, False), (first, True)):  # of `G`, the first violation decides
            page.locator("#scrub").evaluate(scrub, step)
            found = f"violated whatever comes, since step {first}" in page.locator("#moment").inner_text()
            assert found == said


@pytest.mark.browser
def test_violations_of_a_team_are_marked_at_all_of_its_agents(browser: Any, tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, parameters={"horizon": 5, "start": 0.01, "agents": 2})
    record = read_run(run(tmp_path / "run", config))
    with open_page(browser, write(tmp_path / "page.html", run_page(record))) as page:
        page.locator("#thumbs button:has(.broken)").first.click()
        page.locator("#scrub").evaluate("s => { s.value = s.max; s.dispatchEvent(new Event('input')); }")
        assert page.locator("#stage .cross").count() == 2 * page.locator("#ticks i").count() > 0
        assert page.locator("#stage .names text").all_text_contents() == ["particle", "agent_0", "agent_1"]


@pytest.mark.browser
@pytest.mark.parametrize("bodies", [["agent"], 4 * ["particle", "agent"]], ids=len)
def test_a_scene_may_have_any_number_of_bodies(browser: Any, finished: Path, tmp_path: Path, bodies: list[str]) -> None:
    record = read_run(finished)
    shown = load_episodes(record)
    assert shown is not None
    text = run_page(record).replace(embed(shown["scene"]), embed(shown["scene"] | {"bodies": bodies}))
    with open_page(browser, write(tmp_path / "page.html", text)) as page:
        page.locator("#scrub").evaluate("s => { s.value = s.max; s.dispatchEvent(new Event('input')); }")
        assert page.locator("#stage .body").count() == len(bodies)


@pytest.mark.browser
def test_a_run_without_a_certificate_has_a_page(browser: Any, unfinished: Path, tmp_path: Path) -> None:
    with open_page(browser, write(tmp_path / "page.html", run_page(read_run(unfinished)))) as page:
        assert page.locator(".verdict .badge").inner_text() == "PENDING"
        assert "psyco resume" in page.locator(".verdict").inner_text()
        assert "latest verification" in page.locator("#belief-note").inner_text()
        assert page.locator("#stage .body").count() == 2, "it was seen to act already"


@pytest.mark.browser
def test_a_run_that_has_only_begun_has_a_page(browser: Any, tmp_path: Path) -> None:
    with start_run(tmp_path / "run", CONFIG, build_problem(CONFIG)):
        page_text = run_page(read_run(tmp_path / "run"))
    with open_page(browser, write(tmp_path / "page.html", page_text)) as page:
        assert page.locator(".verdict .badge").inner_text() == "PENDING"
        assert not page.locator("#learning").is_visible()


@pytest.mark.browser
@pytest.mark.extra("starlette", "uvicorn")
def test_a_live_page_follows_the_run_to_its_verdict(browser: Any, unfinished: Path) -> None:
    with PageServer(LiveRun(unfinished)).in_background() as server, open_page(browser, server.url) as page:
        assert page.locator(".verdict .badge").inner_text() == "PENDING"
        with resume_run(unfinished) as session:
            assert session is not None
            execute(session)
        page.locator(".verdict .badge:not(:text('PENDING'))").wait_for(timeout=20_000)
        assert "1,500 of 1,500" in page.locator(".facts").first.inner_text()
        assert page.locator("#certificate .psyco-certificate").count() == 1


@pytest.mark.browser
def test_text_from_outside_is_text_and_no_script(browser: Any, finished: Path, tmp_path: Path) -> None:
    record = read_run(finished)
    assert record.config is not None
    assert record.certificate is not None
    assert record.info is not None
    evil = dataclasses.replace(
        record,
        folder=tmp_path / "<script>alert(1)<",
        config=dataclasses.replace(record.config, domain=EVIL, requirement=f"// {EVIL}\n{record.config.requirement}"),
        certificate=dataclasses.replace(record.certificate, domain=EVIL, issued=EVIL, method=EVIL),
        info=dataclasses.replace(record.info, machine={EVIL: EVIL}),
        problems=(EVIL,),
    )
    for name, text in {"run": run_page(evil), "compare": compare_page([evil, record])}.items():
        with open_page(browser, write(tmp_path / f"{name}.html", text)) as page:
            assert page.title() != "owned"
            assert page.locator("img").count() == 0
            assert page.locator("script").count() == 2, "ours, and the data"
            assert EVIL in page.locator("body").inner_text()


@pytest.mark.browser
def test_on_paper_controls_are_gone_and_episodes_are_still_there(browser: Any, address: str) -> None:
    with open_page(browser, address) as page:
        page.emulate_media(media="print")
        assert not page.locator("#play").is_visible()
        assert page.locator("#thumbs svg").first.is_visible()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.pdf(format="A4").startswith(b"%PDF")


@pytest.mark.browser
def test_compared_runs_share_their_charts(browser: Any, finished: Path, unfinished: Path, tmp_path: Path) -> None:
    text = compare_page([read_run(finished), read_run(unfinished)])
    with open_page(browser, write(tmp_path / "compare.html", text)) as page:
        assert page.locator("#chart-return .legend button").all_inner_texts() == ["dance", "half"]
        assert not page.locator("#episodes").is_visible()
        legends = page.locator("#charts .legend button").all()
        colours = {(b.inner_text().split(",")[0], b.locator(".key").evaluate(COLOUR)) for b in legends}
        assert len(legends) > 8
        assert len(colours) == 2, "a run has one colour in all charts"


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_table_that_scrolls_has_a_shadow_where_it_goes_on(
    browser: Any, finished: Path, unfinished: Path, tmp_path: Path, scheme: str
) -> None:
    address = write(tmp_path / "compare.html", compare_page([read_run(finished), read_run(unfinished)]))
    with open_page(browser, address, viewport={"width": 390, "height": 800}, color_scheme=scheme) as page:
        table = page.locator(".scroll").first
        assert table.evaluate("e => e.scrollWidth > e.clientWidth")

        def edges() -> list[bool]:
            """Return whether the left and the right edge differ from the middle, above all text."""
            with Image.open(BytesIO(table.screenshot())) as shot:
                row = np.asarray(shot.convert("L"), int)[4]
            return [abs(row[x] - row[len(row) // 2]) > 20 for x in (1, -2)]

        assert edges() == [False, True]
        table.evaluate("e => e.scrollTo(e.scrollWidth, 0)")
        assert edges() == [True, False]


def test_a_page_holds_all_it_needs_in_under_3_megabytes_with_the_verdict_before_any_script(
    finished: Path,
) -> None:
    text = run_page(read_run(finished))
    assert len(text.encode()) < 3_000_000
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")  # the name of SVG, not an address
    assert "https://" not in text
    assert text.index('class="verdict') < text.index("<script"), "first content needs no script"


def test_data_in_a_script_element_cannot_end_it() -> None:
    data = {"a": EVIL, "b": "<!--", "c": ["&amp;", "\u2028"]}
    assert not set("<>&\u2028") & set(embed(data))
    assert json.loads(embed(data)) == data


@pytest.mark.extra("starlette", "uvicorn")
def test_the_server_listens_on_loopback_answers_two_addresses_and_no_other_host(finished: Path) -> None:
    import http.client

    with PageServer(LiveRun(finished)).in_background() as server:
        host, port = server.host, server.port
        assert host == "127.0.0.1"

        def get(path: str, **headers: str) -> tuple[int, bytes]:
            connection = http.client.HTTPConnection(str(host), port)
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()

        assert get("/")[0] == 200
        assert get("/../../etc/passwd")[0] == 404
        assert get("/", Host="evil.example")[0] == 403
        news = json.loads(get("/data.json")[1])
        assert news["data"]["state"] == "finished"
        assert get(f"/data.json?version={news['version'].replace(' ', '%20')}") == (204, b"")


@pytest.mark.browser
def test_a_run_without_constraints_has_a_page(browser: Any, tmp_path: Path) -> None:
    settings = dataclasses.replace(CONFIG.settings, episodes=100)
    folder = run(tmp_path / "free", dataclasses.replace(CONFIG, requirement="Rmax=? [ C ]", settings=settings))
    with open_page(browser, write(tmp_path / "page.html", run_page(read_run(folder)))) as page:
        assert "nothing to verify" in page.locator(".verdict").inner_text()
        assert not page.locator("#belief").is_visible()
        assert page.locator("#stage .body").count() == 2


def test_a_page_marks_the_certified_candidate(finished: Path, unfinished: Path) -> None:
    run, other = read_run(finished), read_run(unfinished)
    marked = run_data(run)["certified"]
    assert run.info is not None
    at = (run.info.certified_generation or 0) - 1
    assert 0 < marked == run.metrics["episodes"][at] <= run.episodes
    assert run_data(other)["certified"] is None
