"""The worst environment that a search finds, where the worst one is known."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import pytest

import psyco
from psyco._src.envs.actions import Discrete
from psyco._src.policies.network import network_for
from psyco._src.rollout.episodes import Stream
from psyco._src.verification.ledger import Ledger
from psyco._src.verification.stress import stress as search


@dataclass(frozen=True)
class Coin:
    """One toss: it is good with probability 1 - 0.8 a b."""

    horizon: int = 1
    a: float = 0.5
    b: float = 0.5

    name: ClassVar[str] = "coin"
    actions: ClassVar[Discrete] = Discrete(2)
    observation_size: ClassVar[int] = 1

    def reset(self, key: jax.Array) -> jax.Array:
        return jax.random.uniform(key) >= 0.8 * self.a * self.b

    def step(self, key: jax.Array, state: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array, bool]:
        return state, jnp.float32(0.0), False

    def observe(self, state: jax.Array) -> jax.Array:
        return jnp.ones(1)

    def signals(self, state: jax.Array) -> dict[str, jax.Array]:
        return {"good": state}


@pytest.fixture(scope="module")
def policy() -> psyco.Policy:
    network = network_for(Coin(), hidden=2)
    return psyco.Policy(jnp.zeros(network.size), network, Coin.actions, "coin", {})


FAMILY = {"a": "0..1", "b": "0..1"}


@pytest.mark.slow
def test_the_search_finds_the_worst_corner_and_tests_it(policy: psyco.Policy, tmp_path: Path) -> None:
    family = psyco.vary(Coin(), a=(0, 1), b=(0, 1))
    page = tmp_path / "worst.html"
    found = psyco.stress(policy, family, "P>=0.5 [ G good ] & C>=0.98", search_episodes=3000, out=page)
    assert found.verdict is psyco.Verdict.VIOLATED
    a, b = found.found.parameters.values()
    truth = 1.0 - 0.8 * a * b
    assert truth < 0.3  # the least is 0.2
    (finding,) = found.findings
    assert finding.lower <= truth <= finding.upper
    assert found.tried[0].share <= found.tried[-1].share
    assert "nothing is said about them" in found.statement
    assert found.parameters["vary"] == FAMILY
    assert json.loads(found.to_json())["found"]["parameters"] == found.found.parameters
    assert "VIOLATED in the worst environment that was found: a=" in str(found)
    assert "to repeat the search until it ends in SATISFIED is not covered" in str(found)
    assert "(95%), but too low on average" in str(found)
    text = page.read_text()
    assert "satisfied share over b" in text
    assert "nothing is said about them" in text
    assert psyco.stress(policy, family, "P>=0.5 [ G good ] & C>=0.98", search_episodes=3000) == found


@pytest.mark.slow
def test_searches_at_one_run_share_its_permitted_error_and_have_fresh_episodes(policy: psyco.Policy) -> None:
    family, ledger = psyco.vary(Coin(), a=(0, 1), b=(0, 1)), Ledger(stream=Stream.CERTIFY)
    wanted = psyco.parse("P>=0.1 [ G good ] & C>=0.98")
    first, second = (search(policy, family, wanted, search_episodes=200, ledger=ledger) for _ in range(2))
    assert [entry.look.share for entry in ledger.entries] == [1 / 2, 1 / 6]
    assert [entry.look.verdict for entry in ledger.entries] == [first.verdict, second.verdict]
    assert first.found == second.found
    assert first.findings[0].satisfied != second.findings[0].satisfied
    assert "There were 2 looks, each at fresh episodes of its own" in second.statement
    assert "is not covered" not in second.statement


@pytest.mark.slow
def test_two_levels_where_the_share_is_known(policy: psyco.Policy) -> None:
    # P >= 0.8 where a b <= 0.25: in 0.25 (1 + ln 4) = 59.7% of the environments.
    family = psyco.vary(Coin(), a=(0, 1), b=(0, 1))
    for share, verdict in (("35%", psyco.Verdict.SATISFIED), ("85%", psyco.Verdict.VIOLATED)):
        text = f"P>=0.8 in {share} of environments [ G good ] & C>=0.99"
        found = psyco.verify(policy, family, text, max_episodes=200_000)
        assert found.verdict is verdict
        assert found.findings[0].lower < 0.597 < found.findings[0].upper
    assert psyco.replay(found, policy, domain=family).matches


BAD: dict[str, tuple[dict[str, Any], str, type[psyco.PsycoError], str]] = {
    "no family": ({}, "P>=0.5 [ G good ]", psyco.RequirementError, "coin is a single environment"),
    "no probability": (FAMILY, "R{good}>=0.5 [ C ]", psyco.RequirementError, "needs a constraint on a probability"),
    "two sides": (FAMILY, "P in [0.2,0.9] [ G good ]", psyco.RequirementError, "bounds a probability on both sides"),
    "no signal": (FAMILY, "P>=0.5 [ G god ]", psyco.RequirementError, "did you mean 'good'"),
}


@pytest.mark.parametrize(("vary", "text", "error", "message"), BAD.values(), ids=BAD)
def test_bad_input(
    policy: psyco.Policy, vary: dict[str, str], text: str, error: type[psyco.PsycoError], message: str
) -> None:
    with pytest.raises(error, match=message):
        psyco.stress(policy, psyco.vary(Coin(), vary) if vary else Coin(), text)
