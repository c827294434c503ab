"""The documentation as a site: it builds without a warning, holds together, and needs nothing from elsewhere."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest
from scipy.stats import beta

import psyco
from tests.reports.test_run_page import open_page

pytestmark = pytest.mark.extra("material", "mkdocstrings_handlers.python")
ROOT = Path(__file__).parents[2]
# Elements that hang over the page, but for what scrolls in a box of its own or is folded away outside of the screen.
TOO_WIDE = """() => {
  const scrolls = (e) => e !== document.body && (getComputedStyle(e).overflowX !== "visible"
    || getComputedStyle(e).position === "fixed" || scrolls(e.parentElement));
  return [...document.querySelectorAll(".md-main *, .md-header *, .md-footer *")]
    .filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && e.getBoundingClientRect().width > 0
      && !scrolls(e.parentElement) && getComputedStyle(e).visibility !== "hidden")
    .map((e) => `${e.tagName}.${e.className}: ${e.textContent.trim().slice(0, 60)}`);
}"""


class Found(HTMLParser):
    """What a page has and what it refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link":
            self.resources.append(values["href"])
        elif "src" in values:
            self.resources.append(values["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Found]:
    return {path: Found(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}


@pytest.mark.slow
def test_every_link_and_anchor_leads_somewhere(site: Path, pages: dict[Path, Found]) -> None:
    checked = 0
    for path, page in pages.items():
        if path.name == "404.html":  # its addresses are those of a server
            continue
        for link in page.links:
            address, anchor = urldefrag(link)
            if re.match(r"\w+:", address):
                continue
            target = (path.parent / unquote(address)).resolve() if address else path
            assert target.is_file(), f"{path.name} links to {link}"
            if anchor and target.suffix == ".html":
                assert unquote(anchor) in pages[target].ids, f"{path.name} links to {link}"
            checked += 1
    assert checked > 1000


@pytest.mark.slow
def test_nothing_comes_from_elsewhere(site: Path, pages: dict[Path, Found]) -> None:
    for path, page in pages.items():
        assert not [each for each in page.resources if re.match(r"(\w+:)?//", each)], path
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style


@pytest.mark.slow
def test_code_in_tables_can_be_copied_as_it_is(pages: dict[Path, Found]) -> None:
    """A table of Markdown writes | as \\|, which is no operator of anything."""
    for path in pages:
        if "files" not in path.parts:
            cells = re.findall(r"<td>.*?</td>", path.read_text(encoding="utf-8"), re.DOTALL)
            assert not [cell for cell in cells if "\\|" in cell], path


@pytest.mark.slow
def test_every_public_name_and_every_option_is_in_the_reference(site: Path, pages: dict[Path, Found]) -> None:
    import typer

    from psyco._src.cli.app import app

    ids = set().union(*(page.ids for page in pages.values()))
    missing = [name for name in psyco.__all__ if f"psyco.{name}" not in ids and name != "__version__"]
    assert not missing
    assert {"psyco.sb3.Bridge", "psyco.Certificate.to_json"} <= ids
    candidates = (site / "reference" / "runs.html").read_text(encoding="utf-8").partition('id="psyco.Candidate"')[2]
    assert "mean_return" in candidates.partition('id="psyco.Config"')[0]  # a field without a comment
    assert "every constraint is at least the required one" in candidates  # the comment of a field
    shown = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        assert f'id="{name}"' in shown
        for option in command.params:
            if option.opts[0].startswith("-"):
                assert f"<code>{option.opts[0]}</code>" in shown, option.opts


@pytest.fixture
def window(browser: Any, site: Path) -> Iterator[Any]:
    with open_page(browser, (site / "index.html").as_uri(), color_scheme="light") as page:
        yield page


@pytest.mark.more
@pytest.mark.browser
def test_no_element_of_any_page_is_wider_than_a_desk_or_a_phone(window: Any, pages: dict[Path, Found]) -> None:
    """In light and in dark."""
    hanging = []
    for path in pages:
        if path.name == "404.html":  # its addresses are those of a server
            continue
        window.goto(path.as_uri())
        window.add_style_tag(content="* { transition: none !important }")  # what moves is on its way
        for number, palette in enumerate(("default", "slate")):
            window.evaluate(f"document.querySelectorAll('input[name=__palette]')[{number}].click()")
            assert window.evaluate("document.body.dataset.mdColorScheme") == palette
            for width in (1280, 390):
                window.set_viewport_size({"width": width, "height": 800})
                found = window.evaluate(TOO_WIDE)
                if found or window.evaluate("document.documentElement.scrollWidth") > width:
                    hanging.append((path.name, palette, width, found))
    assert not hanging
    wide = '<div style="width: 500px">wide</div>'
    window.evaluate(f"document.querySelector('.md-content__inner').insertAdjacentHTML('beforeend', '{wide}')")
    assert window.evaluate(TOO_WIDE) == ["DIV.: wide"]  # this is how it would be seen


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "palette"), [("light", "default"), ("dark", "slate")])
def test_light_or_dark_is_as_the_reader_has_it_elsewhere(browser: Any, site: Path, scheme: str, palette: str) -> None:
    with open_page(browser, (site / "index.html").as_uri(), color_scheme=scheme) as page:
        assert page.evaluate("document.body.dataset.mdColorScheme") == palette


@pytest.mark.slow
@pytest.mark.browser
def test_the_search_works_from_disk(window: Any) -> None:
    window.locator("input.md-search__input").fill("certify_candidates")
    window.locator(".md-search-result__link", has_text="certify_candidates").first.wait_for()


@pytest.mark.slow
@pytest.mark.browser
def test_the_figure_of_the_belief_is_the_papers(window: Any, site: Path) -> None:
    """SciPy has the posterior; λ is Eq. lambda."""
    window.goto((site / "explanation" / "belief.html").as_uri())
    for s, v, required, sure in (
        (90, 9, 0.85, 0.9),
        (0, 0, 0.6, 0.5),
        (300, 30, 0.9, 0.98),
        (3, 100, 0.5, 0.5),
    ):
        for name, value in {"s": s, "v": v, "p": required, "c": sure}.items():
            window.locator(f".belief input[name={name}]").fill(str(value))
        c_sat = float(beta.sf(required, s + 1, v + 1))
        assert float(window.locator(".belief-c").inner_text()) == pytest.approx(c_sat, abs=6e-5)
        weight = max(0.0, c_sat - sure) / (1 - sure)
        assert float(window.locator(".belief-lambda").inner_text()) == pytest.approx(weight, abs=6e-4)
