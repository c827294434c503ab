"""The page of learning in turn has every round."""

from types import SimpleNamespace

import numpy as np

import psyco
from psyco._src.envs.variants import Deviation
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import policy_for
from psyco._src.reports.training_page import training_page
from psyco._src.runs.adversarial_training import AdversarialTraining, Pair, TrainingRound
from psyco._src.runs.attack import ExactViolation


def test_the_page_has_every_round_with_its_exact_worst_case():
    domain = psyco.make("obstacle-run")
    network = network_for(domain, hidden=2)
    policy = policy_for(domain, network, np.zeros(network.size, np.float32))
    rounds = tuple(
        TrainingRound(
            policy, policy, (Pair(violated, 1000, (0.5,), -4.0),),
            ExactViolation(0.0, violated / 1000, violated / 1000 + 0.05, 0.125),
        )
        for violated in (500, 250)
    )  # fmt: skip
    certificate = SimpleNamespace(
        verdict=psyco.Verdict.SATISFIED, findings=(SimpleNamespace(interval="between 0.7 and 0.9"),), episodes=10,
        domain="obstacle-run", requirement="P>=0.7 [ G !caught ]",
    )  # fmt: skip
    page = training_page(AdversarialTraining(rounds, 1, (certificate, certificate), Deviation("opponent")))
    assert "SATISFIED after 10 fresh episodes; between 0.7 and 0.9" in page
    assert "Against the agent opponent, which deviates to make the requirement fail." in page
    for cell in ("0.5000", "0.550000", "0.425000", "0.2500", "0.300000", "0.175000", "1 (chosen)"):
        assert f">{cell}<" in page
    assert "exact, of the best policy" in page
    # A line of the chart and a column of the table: 0.425 in the first round, 0.175 in the second.
    assert page.count("exploitability") >= 3
