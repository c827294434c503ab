"""Instances of the Quantitative Verification Benchmark Set: `make bench-qvbs QVBS=FOLDER`.

For each instance: does it load; do the answers of `psyco verify` on chains contain the reference value; how far is the
exact value of a learned policy from the optimum; and, once per family, how far is a policy that was learned under a
constraint from Storm's `multi`. The folder has `instances.json` with files, constants and references.

Rows are kept in a file (`--out`), and those that are there are not computed again: it goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
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
MAX_HORIZON = 1000
ENDS = {"consensus": ' | "finished"'}  # there the rewards of a model go on for ever, so that no state is absorbing
TOLERANCE = 0.01  # of a learned probability; of a learned reward, relative
SPEED_MODELS = ("brp", "consensus", "zeroconf")


class Row(NamedTuple):
    """What became of a property of an instance."""

    instance: str
    family: str
    name: str
    what: str  # "loaded", "interval", "learned", "constrained", "refused", "failed", "late"
    good: bool | None
    reference: float | None
    found: str
    episodes: int
    seconds: float
    storm_seconds: float = 0.0

    def __str__(self) -> str:
        mark = {True: "ok", False: "OFF", None: ""}[self.good]
        reference = "" if self.reference is None else f"{self.reference:.6g}"
        times = f"{self.seconds:.1f}", f"{self.storm_seconds:.1f}" if self.storm_seconds else ""
        episodes = f"{self.episodes:,}" if self.episodes else ""
        cells = (self.instance, self.name, self.what, reference, self.found, mark, episodes, *times)
        return f"| {' | '.join(cells)} |"


class Late(Exception):
    """The time of a row is over."""


def clock() -> float:
    """Return the seconds that this process and those that it started have spent on processors."""
    return sum(os.times()[:4])


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise Late after some seconds on a processor; a running call of Storm or JAX is left to its end."""

    def stop(*_: Any) -> None:
        raise Late

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


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
    if not isinstance(made, ModelFile):
        raise psyco.DomainError(f"it has more than {made.max_states:,} states")  # of Storm's JANI builder
    return made


def chain_row(
    domain: ModelFile, about: About, stated: ModelProperty, reference: float, episodes: int, seed: int
) -> Row:
    """Return whether the interval of `psyco verify` contains the reference, beside Storm's time for the exact value."""
    parameters = {name: value for name, value in domain.parameters.items() if name != "sha256"}
    began = clock()
    psyco.exact(domain.name, requirement=stated.requirement, parameters=parameters)
    storm = clock() - began
    began = clock()
    certificate = psyco.verify(
        domain.name, requirement=stated.requirement, parameters=parameters, max_episodes=episodes, seed=seed
    )
    seconds = clock() - began
    (answer,) = certificate.answers
    good = answer.lower - 1e-9 <= reference <= answer.upper + 1e-9
    found = f"{answer.mean:.5g} in [{answer.lower:.5g}, {answer.upper:.5g}]"
    return Row(*about, stated.name, "interval", good, reference, found, answer.episodes, seconds, storm)


class About(NamedTuple):
    """Names of an instance."""

    instance: str
    family: str


def target_of(stated: ModelProperty, family: str) -> dict[str, str]:
    """Return where the episodes of a property end: its target, if it asks for reaching one, or the end of the model."""
    target = stated.requirement.partition("[ F ")[2].removesuffix(" ]")
    return {"until": f"({target}){ENDS.get(family, '')}"} if target else {}


def reward_of(stated: ModelProperty) -> str:
    """Return the reward structure of a property."""
    return stated.requirement.partition('R{"')[2].partition('"')[0] or "none"


def learn_table(
    folder: Path,
    instance: dict[str, Any],
    requirement: str,
    given: argparse.Namespace,
    bound: int = 0,
    **parameters: Any,
) -> Any:
    """Return a policy that a table has learned, with a horizon of `bound`, or by which most episodes have ended."""
    if not 0 < bound <= MAX_HORIZON:
        half_life = load(folder, instance, **parameters).horizon // HALVINGS
        bound = min(max(8 * half_life, 50), MAX_HORIZON)
    domain = load(folder, instance, horizon=bound, **parameters)
    wanted = parse(requirement)
    settings = psyco.Settings(episodes=given.training, learner="table", verify_every=0, seed=given.seed)
    problem = prepare(fit_model(domain, wanted, settings), wanted, settings)
    return problem.policy(problem.wrapped_learner.deployed(learn(problem, []).state))


def learned_row(
    folder: Path,
    instance: dict[str, Any],
    about: About,
    stated: ModelProperty,
    reference: float,
    arguments: argparse.Namespace,
) -> Row:
    """Return how far the exact value of a policy that a table has learned is from the optimum."""
    began = clock()
    is_reward = stated.requirement.startswith("R")
    subject = parse(stated.requirement).questions[0].subject
    if is_reward:
        requirement = f"R{stated.best}=? [ C ]"
    else:
        requirement = f"P>=0.9999 [ {subject} ]" if stated.best == "max" else f"P<=0.0001 [ {subject} ]"
    reward = reward_of(stated)
    bound = max(map(int, re.findall(r"[UFC]<=(\d+)", stated.requirement)), default=0)
    ends = target_of(stated, about.family)
    policy = learn_table(folder, instance, requirement, arguments, bound, reward=reward, **ends)
    plain = load(folder, instance, reward=reward, observe="index")
    value = psyco.exact(policy, plain, stated.requirement).answers[0]
    seconds = clock() - began
    scale = max(1.0, abs(reference)) if is_reward else 1.0
    good = abs(value - reference) <= TOLERANCE * scale
    wrong = value > reference + 1e-4 * scale if stated.best == "max" else value < reference - 1e-4 * scale
    text = f"{value:.6g}" + " BETTER THAN THE OPTIMUM" * wrong
    return Row(*about, stated.name, "learned", good and not wrong, reference, text, arguments.training, seconds)


def constrained_row(
    folder: Path,
    instance: dict[str, Any],
    about: About,
    goal: ModelProperty,
    bound: ModelProperty,
    arguments: argparse.Namespace,
) -> Row:
    """Return how far the return of a policy that was learned under a constraint is from Storm's `multi`.

    The constraint is halfway between the smallest and the largest probability.
    """
    began = clock()
    given: dict[str, Any] = {"reward": reward_of(goal), **target_of(goal, about.family)}
    plain = load(folder, instance, observe="index", **given)
    (span,) = psyco.optimum(plain, bound.requirement)
    if span.largest - span.smallest < 1e-6:
        name, reason = f"{goal.name} under {bound.name}", "no constraint: all policies have the same probability"
        return Row(*about, name, "refused", None, None, reason, 0, clock() - began)
    half = (span.smallest + span.largest) / 2
    formula = parse(bound.requirement).questions[0].subject
    sign = ">=" if bound.best == "max" else "<="
    requirement = f"R{goal.best}=? [ C ]; P{sign}{half:.6g} [ {formula} ]"
    optimum = psyco.optimum(plain, requirement)[-1]
    storm = clock() - began
    if not math.isfinite(optimum.largest):
        return Row(*about, f"{goal.name} under {bound.name}", "refused", None, None, optimum.text[:90], 0, storm)
    policy = learn_table(folder, instance, requirement, arguments, **given)
    answer = psyco.exact(policy, plain, requirement)
    seconds, value = clock() - began - storm, answer.value.expected_return
    p, holds = answer.value.probabilities[0], answer.verdict is psyco.Verdict.SATISFIED
    scale = max(1.0, abs(optimum.largest))
    off = (optimum.largest - value) / scale * (1 if goal.best == "max" else -1)
    text = f"{value:.6g} with P = {p:.4g}, {sign}{half:.4g}" + " BETTER THAN THE OPTIMUM" * (holds and off < -1e-3)
    good = holds and -1e-3 <= off <= 5 * TOLERANCE
    name = f"{goal.name} under {bound.name}"
    return Row(*about, name, "constrained", good, optimum.largest, text, arguments.training, seconds, storm)


def rows(
    folder: Path, instance: dict[str, Any], arguments: argparse.Namespace, done: Mapping[tuple[str, str], Row]
) -> Iterator[Row]:
    """Yield a row for each property of an instance with a reference value, but for those that are done."""
    constants = ", ".join(f"{name}={value}" for name, value in instance["constants"].items())
    about = About(f"{Path(instance['file']).stem} {constants}".strip(), instance["family"])
    names = {"", *([] if arguments.load_only else instance["reference"])}
    pair = f"constrained {about.family}"
    if all((about.instance, name) in done for name in names) and (instance["type"] != "mdp" or ("", pair) in done):
        return
    began = clock()
    try:
        domain = load(folder, instance)
    except psyco.PsycoError as error:
        yield Row(*about, "", "failed", False, None, str(error)[:120], 0, clock() - began)
        return
    seconds = clock() - began
    yield Row(*about, "", "loaded", True, None, f"{domain.tables.states:,} states", 0, seconds)
    usable = []
    for stated in model_properties(domain):
        reference = instance["reference"].get(stated.name, {}).get("value")
        if reference is None or arguments.load_only:
            continue
        reason = _reason(domain, stated)
        usable += [] if reason else [stated]
        if (about.instance, stated.name) not in done:
            yield _row(folder, instance, about, domain, stated, float(reference), reason, arguments)
    if domain.is_chain or ("", pair) in done or arguments.load_only:
        return
    goals = [each for each in usable if each.requirement.startswith("R")]
    bounds = [each for each in usable if each.requirement.startswith("P")]
    if goals and bounds:
        yield _guarded(
            about, f"{goals[0].name} under {bounds[0].name}", arguments.limit,
            lambda: constrained_row(folder, instance, about, goals[0], bounds[0], arguments),
        )  # fmt: skip


def _reason(domain: ModelFile, stated: ModelProperty) -> str:
    """Return why a property is left out; empty: it is not."""
    if len(domain.tables.initial) > 1:
        return "several initial states, and the reference is not about a single one"
    return stated.refused or (f"a bound on the optimum: {stated.text}" if stated.bound else "")


def _row(
    folder: Path,
    instance: dict[str, Any],
    about: About,
    domain: ModelFile,
    stated: ModelProperty,
    reference: float,
    reason: str,
    arguments: argparse.Namespace,
) -> Row:
    if reason:
        return Row(*about, stated.name, "refused", None, reference, reason[:100], 0, 0.0)
    if domain.is_chain:
        return _guarded(
            about, stated.name, arguments.limit,
            lambda: chain_row(domain, about, stated, reference, arguments.episodes, arguments.seed),
        )  # fmt: skip
    return _guarded(
        about, stated.name, arguments.limit,
        lambda: learned_row(folder, instance, about, stated, reference, arguments),
    )  # fmt: skip


def _guarded(about: About, name: str, limit: float, make: Callable[[], Row]) -> Row:
    """Return the row, or why there is none."""
    began = clock()
    try:
        with limited(limit):
            return make()
    except psyco.PsycoError as error:
        what, reason = "refused", " ".join(str(error).split())[:100]
    except Late:
        what, reason = "late", f"not within {limit:g} seconds"
    return Row(*about, name, what, False if what == "late" else None, None, reason, 0, clock() - began)


def speed(folder: Path, instances: list[dict[str, Any]], seconds: float = 3.0) -> Iterator[str]:
    """Yield steps per second of processor time beside stormpy's simulator, with first choices; use one core."""
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
            steps, began = 0, time.process_time()
            while time.process_time() - began < seconds:
                steps += int(np.sum(play(theta, keys).length))
            rates.append(steps / (time.process_time() - began))
        parsed, _ = stormpy.parse_jani_model(str(folder / instance["file"]))
        model, _ = stormpy.instantiate_constants(parsed, instance["constants"], [])
        other = simulator.create_simulator(stormpy.build_model(model), seed=0)
        steps, began = 0, time.process_time()
        while time.process_time() - began < seconds:
            other.restart()
            for _ in range(200):
                if other.is_done():
                    break
                other.step(0)
                steps += 1
        theirs = steps / (time.process_time() - began)
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
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds on a processor of a row")
    parser.add_argument("--out", type=Path, default=Path("build/qvbs.jsonl"), help="rows that are there are kept")
    parser.add_argument("--load-only", action="store_true")
    parser.add_argument("--speed", action="store_true", help="only steps per second")
    arguments = parser.parse_args()
    instances = json.loads((arguments.folder / "instances.json").read_text())
    if arguments.speed:
        print("| model | steps per second | judged | stormpy | times |\n|---|---|---|---|---|")
        for line in speed(arguments.folder, instances):
            print(line, flush=True)
        return
    found = read_rows(arguments.out)
    print(f"{HEAD}\n{'|---' * HEAD.count(' | ')}|---|")
    for row in found:
        print(row)
    for instance in sorted(instances, key=lambda each: each["states"]):
        wanted = not arguments.only or instance["family"] in arguments.only
        if wanted and arguments.kind in instance["type"] and instance["states"] <= arguments.max_states:
            done = {(row.instance, row.name): row for row in found}
            done |= {("", f"constrained {row.family}"): row for row in found if row.what == "constrained"}
            for row in rows(arguments.folder, instance, arguments, done):
                if (row.instance, row.name) not in done:
                    found.append(row)
                    write_row(arguments.out, row)
                    print(row, flush=True)
    print(summary(found))


HEAD = "| instance | property | | reference | found | | episodes | seconds | Storm |"


def read_rows(file: Path) -> list[Row]:
    """Return the rows of a file; none if there is no file."""
    return [Row(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def write_row(file: Path, row: Row) -> None:
    """Add a row to the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as out:
        out.write(json.dumps(row._asdict()) + "\n")


def summary(found: list[Row]) -> str:
    """Return the shares that the documentation states."""
    loaded = [row for row in found if row.what in ("loaded", "failed")]
    lines = [f"\nloaded: {sum(row.what == 'loaded' for row in loaded)} of {len(loaded)}"]
    for what in ("interval", "learned", "constrained"):
        judged = [row for row in found if row.what == what]
        lines.append(f"{what}: {sum(bool(row.good) for row in judged)} of {len(judged)}")
    lines.append(f"late: {sum(row.what == 'late' for row in found)}")
    lines.append(f"better than the optimum: {sum('BETTER' in row.found for row in found)}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
