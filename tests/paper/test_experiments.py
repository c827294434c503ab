import pytest

from psyco._src.core.errors import RunError
from psyco._src.paper.experiments import EXPERIMENTS, NAMES, PARTICLE_DANCE, check_names
from psyco._src.runs.session import build_problem
from psyco._src.studies.study_plan import make_plan


def test_the_experiments_have_the_papers_size():
    """Sections 4.1 and 4.2, experimental setup."""
    sizes = {name: (e.episodes, e.repetitions, e.verify_every, e.verify_episodes) for name, e in EXPERIMENTS.items()}
    assert sizes == {
        "particle-dance": (60_000, 5, 1000, 1000),
        "calibration": (60_000, 12, 1000, 1000),
        "obstacle-run": (20_000, 5, 1000, 1000),
    }


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_a_run_has_the_papers_parameters_whatever_the_defaults_are(experiment):
    for variant in experiment.variants.values():
        (cell,) = make_plan({"cells": [experiment.cell(variant)], "seeds": 1}, seeds=[3]).cells
        problem = build_problem(cell.config)
        learner = problem.learner
        assert type(learner).__name__ == "SNES"
        assert (learner.population, learner.learning_rate, learner.sigma) == (20, 0.01, 0.1)
        assert (problem.network.hidden, problem.network.bias) == (32, "one")
        (constraint,) = problem.requirement.constraints
        assert (constraint.lower, constraint.confidence) == (experiment.p_req, experiment.c_req)
        assert f"collisions <= {variant.n_max}" in str(constraint)
        assert problem.domain.horizon == 50


@pytest.mark.parametrize("episodes", [1, 19, 30, 400, 12_000, 60_000])
def test_every_size_is_made_of_whole_generations(episodes):
    e = PARTICLE_DANCE.resized(episodes=episodes, repetitions=2)
    assert all(x >= 20 and x % 20 == 0 for x in (e.episodes, e.final, e.window, e.verify_every))
    assert e.final <= e.episodes
    assert e.repetitions == 2


def test_parts_come_in_the_papers_order_and_none_means_all():
    assert check_names([]) == list(NAMES)
    assert check_names(["obstacle-run", "belief"]) == ["belief", "obstacle-run"]


def test_an_unknown_part_is_an_error_with_a_suggestion():
    with pytest.raises(RunError, match=r"'particle-dnce' \(did you mean 'particle-dance'\?\).*obstacle-run"):
        check_names(["particle-dnce"])
