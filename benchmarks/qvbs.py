"""Instances of the Quantitative Verification Benchmark Set: `make bench-qvbs QVBS=FOLDER`.

For each instance: does it load; do the answers of `psyco verify` on chains contain the reference value; how far is the
exact value of a learned policy from the optimum. The folder has `instances.json` with files, constants and references.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import psyco
from psyco._src.envs.model_file import HALVINGS, ModelFile
from psyco._src.exact.model_properties import ModelProperty, model_properties
from psyco._src.logic.parser import parse
from psyco._src.policies.network import Network
from psyco._src.rollout.episodes import Stream, episode_keys, stream_key
from psyco._src.rollout.model_sampler import ModelSampler
from psyco._src.rollout.sampler import make_sampler
from psyco._src.runs.budget import fit_model
from psyco._src.runs.problem import prepare
from psyco._src.runs.train import learn

LEVEL = 0.95
TOLERANCE = 0.01  # of a learned probability; of a learned reward, relative
SPEED_MODELS = ("brp", "consensus", "zeroconf")


class Row(NamedTuple):
    """What became of a property of an instance."""

    instance: str
    name: str
    what: str  # "interval", "learned", "refused", "failed"
    good: bool | None
    reference: float
    found: str
    episodes: int
    seconds: float

    def __str__(self) -> str:
        mark = {True: "ok", False: "OFF", None: ""}[self.good]
        cells = (self.instance, self.name, self.what, f"{self.reference:.6g}", self.found, mark, f"{self.seconds:.1f}")
        return f"| {' | '.join(cells)} |"


def load(folder: Path, instance: dict[str, Any], **more: Any) -> ModelFile:
    """Return the domain of an instance; of several initial states, the one in which all variables are 1."""
    parameters = {**instance["constants"], **more}
    try:
        made = psyco.make(str(folder / instance["file"]), **parameters)
    except psyco.DomainError as error:
        if "initial states" not in str(error):
            raise
        start = str(error).partition("start='")[2].removesuffix("'")
        made = psyco.make(str(folder / instance["file"]), **parameters, start=start)
    assert isinstance(made, ModelFile)
    return made


def chain_row(domain: ModelFile, instance: str, stated: ModelProperty, reference: float, episodes: int) -> Row:
    """Return whether the interval of `psyco verify` contains the reference."""
    began = time.perf_counter()
    parameters = {name: value for name, value in domain.parameters.items() if name != "sha256"}
    certificate = psyco.verify(
        domain.name, requirement=stated.requirement, parameters=parameters, max_episodes=episodes
    )
    (answer,) = certificate.answers
    good = answer.lower - 1e-9 <= reference <= answer.upper + 1e-9
    found = f"{answer.mean:.5g} in [{answer.lower:.5g}, {answer.upper:.5g}]"
    return Row(instance, stated.name, "interval", good, reference, found, episodes, time.perf_counter() - began)


def learned_row(
    folder: Path, instance: dict[str, Any], name: str, stated: ModelProperty, reference: float, episodes: int
) -> Row:
    """Return how far the exact value of a policy that a table has learned is from the optimum."""
    began = time.perf_counter()
    subject = parse(stated.requirement).questions[0].subject
    target = stated.requirement.partition("[ F ")[2].removesuffix(" ]")
    is_reward = stated.requirement.startswith("R")
    until = {"until": target} if target else {}
    reward = stated.requirement.partition('R{"')[2].partition('"')[0] if is_reward else "none"
    open_ended = load(folder, instance, reward=reward, **until)
    half_life = open_ended.horizon // HALVINGS
    horizon = min(max(8 * half_life, 50), 1000)
    if is_reward:
        requirement = f"R{stated.best}=? [ C ]"
    else:
        requirement = f"P>=0.9999 [ {subject} ]" if stated.best == "max" else f"P<=0.0001 [ {subject} ]"
    domain = load(folder, instance, reward=reward, horizon=horizon, **until)
    wanted, settings = parse(requirement), psyco.Settings(episodes=episodes, learner="table", verify_every=0)
    problem = prepare(fit_model(domain, wanted, settings), wanted, settings)
    policy = problem.policy(problem.wrapped_learner.deployed(learn(problem, []).state))
    found = psyco.exact(policy, load(folder, instance, reward=reward, observe="index"), stated.requirement)
    value = found.answers[0]
    scale = max(1.0, abs(reference)) if is_reward else 1.0
    good = abs(value - reference) <= TOLERANCE * scale
    wrong = value > reference + 1e-4 * scale if stated.best == "max" else value < reference - 1e-4 * scale
    text = f"{value:.6g}" + " BETTER THAN THE OPTIMUM" * wrong
    return Row(name, stated.name, "learned", good and not wrong, reference, text, episodes, time.perf_counter() - began)


def rows(folder: Path, instance: dict[str, Any], arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each property of an instance with a reference value."""
    constants = ", ".join(f"{name}={value}" for name, value in instance["constants"].items())
    name = f"{Path(instance['file']).stem} {constants}".strip()
    began = time.perf_counter()
    try:
        domain = load(folder, instance)
    except psyco.PsycoError as error:
        yield Row(name, "", "failed", False, math.nan, str(error)[:120], 0, time.perf_counter() - began)
        return
    yield Row(name, "", "loaded", True, math.nan, f"{domain.tables.states:,} states", 0, time.perf_counter() - began)
    for stated in model_properties(domain):
        reference = instance["reference"].get(stated.name, {}).get("value")
        if reference is None or arguments.load_only:
            continue
        value = float(reference)
        if stated.refused or stated.bound:
            reason = stated.refused or f"a bound on the optimum: {stated.text}"
            yield Row(name, stated.name, "refused", None, value, reason[:100], 0, 0.0)
            continue
        try:
            if len(domain.tables.initial) > 1:
                why = "several initial states, and the reference is not about a single one"
                yield Row(name, stated.name, "refused", None, value, why, 0, 0.0)
            elif domain.is_chain:
                yield chain_row(domain, name, stated, value, arguments.episodes)
            else:
                yield learned_row(folder, instance, name, stated, value, arguments.training)
        except psyco.PsycoError as error:
            reason = " ".join(str(error).split())[:100]
            yield Row(name, stated.name, "refused", None, value, reason, 0, time.perf_counter() - began)


def speed(folder: Path, instances: list[dict[str, Any]], seconds: float = 3.0) -> Iterator[str]:
    """Yield steps per second beside stormpy's simulator, both on one core, with first choices."""
    import stormpy
    from stormpy import simulator

    for family in SPEED_MODELS:
        instance = next(each for each in instances if each["family"] == family)
        domain = load(folder, instance)
        requirement = parse("R{step}=? [ I=200 ]")  # decided after 200 steps, or where nothing can change
        domain = domain.for_requirement(requirement)
        network = Network(domain.observation_size, domain.actions.n, 1)
        sampler = make_sampler(domain, network, requirement)
        assert isinstance(sampler, ModelSampler)
        keys = episode_keys(stream_key(0, Stream.THROUGHPUT), 0, 4096)
        theta = np.zeros(network.size, np.float32)
        sampler(theta, keys)
        rates = []
        for play in (sampler.paths, sampler):
            steps, began = 0, time.perf_counter()
            while time.perf_counter() - began < seconds:
                steps += int(np.sum(play(theta, keys).length))
            rates.append(steps / (time.perf_counter() - began))
        parsed, _ = stormpy.parse_jani_model(str(folder / instance["file"]))
        model, _ = stormpy.instantiate_constants(parsed, instance["constants"], [])
        other = simulator.create_simulator(stormpy.build_model(model), seed=0)
        steps, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            other.restart()
            for _ in range(200):
                if other.is_done():
                    break
                other.step(0)
                steps += 1
        theirs = steps / (time.perf_counter() - began)
        yield f"| {family} | {rates[0]:,.0f} | {rates[1]:,.0f} | {theirs:,.0f} | {rates[0] / theirs:.0f} |"


def main() -> None:
    """Print the table, and the shares that the documentation states."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--max-states", type=int, default=200_000)
    parser.add_argument("--only", nargs="*", default=[], help="families")
    parser.add_argument("--kind", default="", help="dtmc or mdp")
    parser.add_argument("--episodes", type=int, default=10_000, help="of an interval")
    parser.add_argument("--training", type=int, default=20_000, help="episodes of a learned policy")
    parser.add_argument("--load-only", action="store_true")
    parser.add_argument("--speed", action="store_true", help="only steps per second")
    arguments = parser.parse_args()
    instances = json.loads((arguments.folder / "instances.json").read_text())
    if arguments.speed:
        print("| model | steps per second | judged | stormpy | times |\n|---|---|---|---|---|")
        for line in speed(arguments.folder, instances):
            print(line, flush=True)
        return
    found: list[Row] = []
    print("| instance | property | | reference | found | | seconds |\n|---|---|---|---|---|---|---|")
    for instance in instances:
        wanted = not arguments.only or instance["family"] in arguments.only
        if wanted and arguments.kind in instance["type"] and instance["states"] <= arguments.max_states:
            for row in rows(arguments.folder, instance, arguments):
                found.append(row)
                print(row, flush=True)
    loaded = [row for row in found if row.what in ("loaded", "failed")]
    print(f"\nloaded: {sum(row.what == 'loaded' for row in loaded)} of {len(loaded)}")
    for what in ("interval", "learned"):
        judged = [row for row in found if row.what == what]
        print(f"{what}: {sum(bool(row.good) for row in judged)} of {len(judged)}")


if __name__ == "__main__":
    main()
