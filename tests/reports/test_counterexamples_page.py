"""The page of counterexamples, its films, and the command that writes it."""

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import psyco
from psyco._src.core.errors import RunError
from psyco._src.reports import counterexamples_page
from psyco._src.reports.counterexamples_page import with_films
from psyco._src.verification.counterexamples import Counterexamples
from tests.environments import Drawn
from tests.reports.test_run_page import open_page, write

POLICY = "python:tests.reports.test_counterexamples_page:walk_right"
REQUIREMENT = "P>=0.9 [ G (abs(obs[0]) <= 2 & count(info.cost > 0) <= 6) ] & C>=0.9"


def walk_right(observation: Any) -> int:
    return 1


def drawn(**options: Any) -> psyco.GymDomain:
    return psyco.make(Drawn, horizon=20, **options)  # type: ignore[return-value]


@pytest.fixture(scope="module")
def found() -> Counterexamples:
    certificate = psyco.verify(walk_right, drawn(), REQUIREMENT, seed=3, method="fixed", max_episodes=20)
    return psyco.counterexamples(walk_right, certificate=certificate, domain=drawn(), worst=3, film_format="gif")


def frames_of(film: bytes | None) -> int:
    assert film is not None
    with Image.open(io.BytesIO(film)) as gif:
        return int(getattr(gif, "n_frames", 1))


def test_a_gymnasium_environment_is_filmed_frame_by_frame(found: Counterexamples) -> None:
    assert [frames_of(each.film) for each in found] == [each.steps + 1 for each in found]


def test_an_environment_without_frames_has_no_film_and_says_why(found: Counterexamples) -> None:
    bare = dataclasses.replace(found, episodes=tuple(dataclasses.replace(each, film=None) for each in found))
    made = with_films(bare, drawn(broken="raise"), psyco.open_policy(POLICY))
    assert [each.film for each in made] == [None] * 3
    assert "There is no film: " in made.remarks[0] and "pygame is not installed" in made.remarks[0]


def test_a_scene_is_filmed_in_few_frames(found: Counterexamples, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counterexamples_page, "MAX_FRAMES", 5)
    dance, states = psyco.make("particle-dance"), 11
    path = {"step": np.arange(states), "return": np.zeros(states)}
    path |= {body: np.zeros((states, 2)) for body in dance.scene.bodies}
    alone = dataclasses.replace(found, episodes=(dataclasses.replace(found[0], signals=path),))
    (each,) = with_films(alone, dance, psyco.open_policy(POLICY), "gif")
    assert frames_of(each.film) == 4  # states 0, 3, 6 and 9


def test_a_page_is_one_file_without_scripts_of_its_own(found: Counterexamples) -> None:
    evil = dataclasses.replace(found, remarks=("<script>alert(1)</script>",))
    page = counterexamples_page.counterexamples_page(evil, "<b>title</b>")
    assert "<script>alert" not in page and "<b>title" not in page
    assert page.count("data:image/gif;base64,") == 3
    assert "Why:" in page and "count(info.cost &gt; 0) &lt;= 6" in page
    assert page.count('class="psyco-certificate"') == 1


@pytest.mark.browser
@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_on_a_desk_and_on_a_phone(
    browser: Any, found: Counterexamples, tmp_path: Path, width: int, scheme: str
) -> None:
    address = write(tmp_path / "page.html", counterexamples_page.counterexamples_page(found, "walk"))
    with open_page(browser, address, viewport={"width": width, "height": 800}, color_scheme=scheme) as page:
        assert page.locator("article.violates").count() == 3
        assert page.locator("article img").evaluate_all("all => all.every(each => each.naturalWidth > 0)")
        assert page.evaluate("document.documentElement.scrollWidth") == width, "nothing hangs over the edge"
        for picture in page.locator("article svg").all():
            inside = (
                "svg => [...svg.querySelectorAll('text')].every(each => {"
                "const b = each.getBBox(); return b.x >= -1 && b.x + b.width <= 561 })"
            )
            assert picture.evaluate(inside), "every label is inside of the picture"
        side_by_side = page.locator("article .both").first.evaluate(
            "each => each.children[0].getBoundingClientRect().right <= each.children[1].getBoundingClientRect().left"
        )
        assert side_by_side == (width == 1200)


def test_the_command_writes_a_page_or_json(cli: Any, tmp_path: Path) -> None:
    file, certificate = tmp_path / "field.csv", tmp_path / "certificate.json"
    file.write_text("episode,x\na,0\na,1\nb,5\nb,0\n")
    made = psyco.verify_outcomes(file, "P>=0.9 [ G x <= 3 ]", traces=True)
    certificate.write_text(made.to_json())
    code, out, err = cli("counterexamples", certificate, "--traces", file)
    assert code == 0, err
    assert "episode 1: violates, decided at step 0 of 1" in out and "x <= 3 is false at step 0" in out
    assert "PSyCo counterexamples" in (tmp_path / "counterexamples.html").read_text()
    code, out, err = cli("counterexamples", certificate, "--traces", file, "--json", "--worst", 1)
    assert code == 0, err
    assert [each["deciding"] for each in json.loads(out)["episodes"]] == [[["x <= 3", 0]]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("certificate.json",), "give the file of the traces"),
        (("certificate.json", "--worst", "0"), "worst"),
        (("nowhere",), "nowhere"),
        (("certificate.json", "--traces", "nothing.csv"), "nothing.csv"),
    ],
)
def test_bad_input_is_a_sentence_and_status_2(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    made = psyco.verify_outcomes([1, 0], "P>=0.9")
    (tmp_path / "certificate.json").write_text(made.to_json())
    code, out, err = cli("counterexamples", *arguments)
    assert code == 2 and message in out + err and "Traceback" not in out + err


@pytest.mark.slow
def test_render_draws_an_episode_of_a_certificate_by_its_seed(found: Counterexamples, tmp_path: Path) -> None:
    shown = found[0]
    options: dict[str, Any] = {"domain": drawn(), "certificate": found.certificate, "film_format": "gif"}
    psyco.render(walk_right, tmp_path / "a", seed=shown.seed, **options)
    psyco.render(walk_right, tmp_path / "b", episode=shown.episode, episodes=1, **options)
    assert (tmp_path / "a" / "trajectory.gif").read_bytes() == (tmp_path / "b" / "trajectory.gif").read_bytes()
    with pytest.raises(RunError, match="has the seed 1"):
        psyco.render(walk_right, tmp_path / "a", seed=1, **options)
