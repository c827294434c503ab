"""Every claim can hold, fail or stay open, depending on synthetic runs."""

import pytest

from psyco._src.paper.claims import CLAIMS, ClaimOutcome, belief_claims
from psyco._src.paper.experiments import CALIBRATION, EXPERIMENTS, OBSTACLE_RUN, PARTICLE_DANCE
from tests.paper.made_up import results_of

pytestmark = pytest.mark.slow  # synthetic runs of full size

DANCE = PARTICLE_DANCE.resized(episodes=20_000)
COMPARISON = CALIBRATION.resized(episodes=20_000, repetitions=5)
RUN = OBSTACLE_RUN.resized(episodes=4000)
ORDERED = {"unconstrained": {"ret": -14.0}, "n_max4": {"ret": -23.0}, "n_max1": {"ret": -26.0}}
REVERSED = {"unconstrained": {"ret": -26.0}, "n_max4": {"ret": -23.0}, "n_max1": {"ret": -14.0}}


def both(**shape):
    return {"n_max1": shape, "n_max4": shape}


# claim, experiment, made to hold, made to fail
CASES = [
    ("particle-dance-start", DANCE, both(share=0.98), both(share=0.7)),
    ("particle-dance-ordering", DANCE, ORDERED, REVERSED),
    ("particle-dance-share", DANCE, both(share=0.855), both(share=0.9)),
    ("particle-dance-share", DANCE, both(share=0.855), both(share=0.8)),
    ("particle-dance-confidence", DANCE, both(c_sat=0.99), both(c_sat=0.97)),
    ("particle-dance-split-return", DANCE, both(violating_gain=5.0), both(violating_gain=-5.0)),
    ("particle-dance-zoom", DANCE, ORDERED, REVERSED),
    ("particle-dance-split-cost", DANCE, both(cost=0.5), both(cost=5.0)),
    ("calibration-over-satisfies", COMPARISON, {"MLE": {"share": 0.92}}, {"MLE": {"share": 0.86}}),
    ("calibration-snes-share", COMPARISON, {"SNES": {"share": 0.855}}, {"SNES": {"share": 0.9}}),
    ("calibration-return", COMPARISON, {"MLE": {"ret": -30.0}}, {"MLE": {"ret": -20.0}}),
    ("calibration-split-return", COMPARISON, {"MLE": {"ret": -30.0}}, {"MLE": {"ret": -20.0}}),
    ("obstacle-run-start", RUN, both(share=0.6), both(share=0.97)),
    ("obstacle-run-ordering", RUN, ORDERED, REVERSED),
    ("obstacle-run-share", RUN, both(share=0.97), both(share=0.9)),
    ("obstacle-run-fast-is-safe", RUN, {"unconstrained": {"share": 0.97}}, {"unconstrained": {"share": 0.8}}),
    ("obstacle-run-underestimates", RUN, both(c_sat=0.1, verified=0.9), both(c_sat=0.9, verified=0.1)),
    ("obstacle-run-split-return", RUN, both(violating_gain=5.0), both(violating_gain=-5.0)),
    ("obstacle-run-split-cost", RUN, both(cost=0.5), both(cost=9.0)),
    ("particle-dance-verification", DANCE, both(verified=(0.1, 0.9)), both(verified=(0.9, 0.1))),
]


def claim_of(name, experiment, shapes):
    results = results_of(experiment, **shapes)
    functions = [s for s in CLAIMS[experiment.name] if getattr(s, "func", s).__name__ not in SAMPLING]
    (claim,) = [claim for s in functions if (claim := s(results)).name == name]
    return claim


SAMPLING = {"_without_collision"}  # samples policies, which synthetic runs do not have


@pytest.mark.parametrize(("name", "experiment", "shapes", "_"), CASES, ids=[case[0] for case in CASES])
def test_a_claim_holds_for_runs_as_the_paper_describes_them(name, experiment, shapes, _):
    assert claim_of(name, experiment, shapes).outcome is ClaimOutcome.HOLDS


@pytest.mark.parametrize(("name", "experiment", "_", "shapes"), CASES, ids=[case[0] for case in CASES])
def test_a_claim_fails_for_opposite_runs(name, experiment, _, shapes):
    assert claim_of(name, experiment, shapes).outcome is ClaimOutcome.FAILS


def test_one_repetition_leaves_claims_about_means_open():
    claim = claim_of("particle-dance-ordering", DANCE.resized(repetitions=1), ORDERED)
    assert claim.outcome is ClaimOutcome.OPEN


def test_rejected_policies_at_the_end_are_what_may_violate_is_about():
    results = results_of(DANCE, **both())
    (function,) = [s for s in CLAIMS[DANCE.name] if getattr(s, "__name__", "") == "_may_violate"]
    assert function(results).outcome is ClaimOutcome.FAILS  # not one was rejected
    for runs in results.runs.values():
        for run in runs:
            run.metrics["verdict"][run.metrics["verdict"] != ""] = "VIOLATED"
    assert function(results).outcome is ClaimOutcome.HOLDS


def test_the_belief_sharpens():
    (claim,) = belief_claims()
    assert claim.outcome is ClaimOutcome.HOLDS


def test_the_paper_is_asked_for_more_than_twelve_claims():
    assert sum(len(CLAIMS[name]) for name in EXPERIMENTS) + len(belief_claims()) >= 20
