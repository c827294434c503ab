import pytest

from psyco._src.paper.claims import CLAIMS
from psyco._src.paper.figures import FIGURES
from psyco._src.paper.reproduction import with_symbols

pytestmark = pytest.mark.more  # draws every figure

CLAIM_COUNT = 1 + sum(map(len, CLAIMS.values()))
FIGURE_COUNT = 1 + sum(map(len, FIGURES.values()))


@pytest.fixture
def page(browser, reproduction):
    """Open the page; `problems` collects console messages and requests to the network."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.set_default_timeout(180_000)  # a busy machine is no failure
    page.problems = []
    page.on("console", lambda message: page.problems.append(message.text))
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("request", lambda r: r.url.startswith(("data:", "file:")) or page.problems.append(r.url))
    page.on("requestfailed", lambda request: page.problems.append(request.url[:100]))
    page.goto((reproduction / "reproduction.html").as_uri())
    yield page
    page.close()


@pytest.mark.browser
@pytest.mark.slow
def test_the_page_shows_every_claim_first_and_every_figure_after(page):
    rows = page.locator("tr.claim")
    assert rows.count() == CLAIM_COUNT >= 12
    assert all(text.strip() for text in rows.locator("td").all_inner_texts())
    figures = page.locator("figure")
    assert figures.count() == FIGURE_COUNT
    assert all(page.evaluate("[...document.images].map(i => i.complete && i.naturalWidth > 100)"))
    assert all(len(text) > 80 for text in page.locator("figcaption").all_inner_texts())
    assert rows.last.bounding_box()["y"] < figures.first.bounding_box()["y"]
    assert page.problems == []


@pytest.mark.browser
@pytest.mark.slow
def test_no_figure_is_blank(page):
    """Drawn onto a canvas, every figure has dark and coloured points."""
    inked = page.evaluate(
        """() => [...document.images].map(image => {
            const canvas = Object.assign(document.createElement('canvas'), {width: 300, height: 200});
            const context = canvas.getContext('2d');
            context.drawImage(image, 0, 0, 300, 200);
            const data = context.getImageData(0, 0, 300, 200).data;
            let inked = 0;
            for (let i = 0; i < data.length; i += 4)
                inked += data[i + 3] > 0 && Math.min(data[i], data[i + 1], data[i + 2]) < 200;
            return inked / (data.length / 4);
        })"""
    )
    assert len(inked) == FIGURE_COUNT
    assert min(inked) > 0.005


@pytest.mark.browser
@pytest.mark.slow
def test_the_tally_counts_the_outcomes_of_the_table(page):
    for name in ("holds", "fails", "open"):
        assert int(page.locator(f".tally .{name} b").inner_text()) == page.locator(f"tr .outcome.{name}").count()


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390, 768])
def test_a_narrow_window_needs_no_sideways_scrolling(page, width):
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.browser
@pytest.mark.slow
def test_it_prints_on_a_few_pages_without_cutting_figures(page):
    pdf = page.pdf(format="A4")
    assert 5 <= pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") <= 30
    page.emulate_media(media="print")
    assert set(page.evaluate("[...document.querySelectorAll('figure')].map(f => getComputedStyle(f).breakInside)")) == {
        "avoid"
    }


@pytest.mark.browser
@pytest.mark.slow
def test_a_page_of_another_size_than_the_papers_says_so(page):
    banner = page.locator(".banner").inner_text()
    assert "Not the paper's size" in banner
    assert "400 episodes and 2 repetitions instead of 60,000 and 5" in banner


def test_text_is_escaped_and_symbols_are_set():
    assert with_symbols("<script> n_max = 1 & p_req") == (
        "&lt;script&gt; <i>n</i><sub>max</sub>&nbsp;=&nbsp;1 &amp; <i>p</i><sub>req</sub>"
    )
