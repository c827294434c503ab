import csv
import shutil

import pytest

import psyco
from psyco._src.core.errors import RunError
from psyco._src.paper import reproduction as module
from psyco._src.paper.claims import ClaimOutcome
from psyco._src.paper.experiments import EXPERIMENTS
from psyco._src.paper.figures import FIGURES
from psyco._src.paper.reproduction import reproduce
from tests.paper.conftest import TINY

pytestmark = pytest.mark.slow  # computes many runs


def files(folder, pattern):
    return {path.name: path.read_bytes() for path in folder.glob(pattern)}


@pytest.mark.more
def test_every_figure_of_the_paper_is_there_as_png_svg_and_csv(reproduction):
    names = {path.stem for path in (reproduction / "figures").iterdir()}
    assert len(names) == 1 + sum(len(FIGURES[name]) for name in EXPERIMENTS) == 18
    for name in names:
        png, svg, table = ((reproduction / "figures" / f"{name}.{end}") for end in ("png", "svg", "csv"))
        assert png.read_bytes().startswith(b"\x89PNG")
        assert "</svg>" in svg.read_text()
        rows = list(csv.reader(table.read_text().splitlines()))
        assert len(rows) > 1
        assert all(len(row) == len(rows[0]) for row in rows)


@pytest.mark.more
def test_a_line_in_a_table_is_the_mean_of_its_repetitions(part):
    with (part / "figures" / "obstacle-run-return.csv").open() as file:
        for row in csv.DictReader(file):
            seeds = [float(row["seed 0"]), float(row["seed 1"])]
            assert float(row["mean"]) == pytest.approx(sum(seeds) / 2, rel=1e-5)


def same_in(folder, whole):
    """Assert that SVG, CSV and claims of a part are byte-identical in two folders."""
    for pattern in ("*.csv", "*.svg"):
        found, before = files(folder / "figures", pattern), files(whole / "figures", pattern)
        assert len(found) == len(FIGURES["obstacle-run"])
        assert found == {name: before[name] for name in found}
    claims, before = ((each / "claims.csv").read_text().splitlines() for each in (folder, whole))
    assert set(claims) <= set(before)


@pytest.mark.more
def test_the_same_again_elsewhere_gives_the_same_figures_and_numbers(part, tmp_path):
    """Another number of workers and another folder."""
    done = reproduce(["obstacle-run"], tmp_path, **TINY, workers=1)
    assert (done.computed, done.reused) == (3 * 2, 0)
    same_in(tmp_path, part)


@pytest.mark.more
def test_one_part_alone_is_what_it_is_among_all(part, reproduction):
    same_in(part, reproduction)


def test_one_part_alone_needs_no_learning(tmp_path):
    done = reproduce(["belief"], tmp_path)
    assert (done.computed, done.reused) == (0, 0)
    assert [part.title for part in done.parts] == ["The belief (section 2.4)"]
    assert "belief" in done.page.read_text()
    assert 'class="banner"' not in done.page.read_text()


@pytest.mark.parametrize(("option", "value"), [("episodes", 0), ("repetitions", 0), ("episodes", -5)])
def test_a_size_below_one_is_an_error(tmp_path, option, value):
    with pytest.raises(RunError, match=f"{option} must be at least 1, got {value}"):
        reproduce([], tmp_path, **{option: value})


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write the reproduction to"):
        reproduce(["belief"], tmp_path / "file")


@pytest.mark.more
def test_repetitions_are_added_until_every_claim_is_decided_or_all_are_spent(part, tmp_path, monkeypatch):
    """With few episodes some claims stay open, so the maximum number of repetitions is reached."""
    monkeypatch.setattr(module, "MAX_REPETITIONS", 3)
    monkeypatch.setattr(module, "draw_all", lambda results: [])  # figures have their own tests
    shutil.copytree(part / "runs", tmp_path / "runs")  # the runs of the first look are reused
    done = reproduce(["obstacle-run"], tmp_path, **TINY, until_decided=True, workers=1)
    claims = done.parts[0].claims
    (study,) = [psyco.open_study(folder) for folder in (tmp_path / "runs").iterdir()]
    assert any(claim.outcome is ClaimOutcome.OPEN for claim in claims)
    assert study.complete and len(study.outcomes) == 3 * 3
    assert (done.computed, done.reused) == (3, 6)  # those of the first look were reused
    page = done.page.read_text()
    assert "--until-decided" in page and "with 2 looks at the results and at most 3 repetitions" in page
    again = reproduce(["obstacle-run"], tmp_path, episodes=TINY["episodes"], repetitions=3)
    assert again.computed == 0 and [c.outcome for c in again.parts[0].claims] == [c.outcome for c in claims]


def test_what_is_decided_gets_no_more_repetitions():
    e = EXPERIMENTS["obstacle-run"]
    assert module._larger(e, ([], None)) is e
    full = e.resized(repetitions=module.MAX_REPETITIONS)
    claim = type("Open", (), {"outcome": ClaimOutcome.OPEN})
    assert module._larger(full, ([claim], None)) is full
    assert module._larger(e, ([claim], None)).repetitions == 2 * e.repetitions
