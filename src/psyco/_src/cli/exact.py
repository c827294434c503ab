"""`psyco exact`: exact probabilities on finite domains, without sampling."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import psyco
from psyco._src.cli.common import (
    EXIT,
    Json,
    OtherDomain,
    Parameters,
    Require,
    Trust,
    code_of,
    read_domain_parameters,
    say,
    trusted,
)
from psyco._src.cli.display import show_activity
from psyco._src.core.errors import RunError

if TYPE_CHECKING:
    from psyco._src.exact.solver import ExactAnswer, Value
    from psyco._src.logic.ast import Requirement


def exact(
    policy: Annotated[
        str,
        typer.Argument(
            metavar="POLICY_OR_RUN",
            help="Policy file, run folder, or any other policy that `psyco verify` accepts.",
        ),
    ],
    domain: OtherDomain = None,
    require: Require = None,
    storm: Annotated[bool, typer.Option("--storm", help="Also compute the answers with Storm (psyco[storm]).")] = False,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write the Markov chain of the policy and the MDP of the domain, for Storm and PRISM.",
        ),
    ] = None,
    optimum: Annotated[
        bool,
        typer.Option("--optimum", help="Of a PRISM or JANI file: smallest and largest values over all policies."),
    ] = False,
    trust: Trust = None,
    parameters: Parameters = None,
    as_json: Json = False,
) -> None:
    """Compute the exact probabilities and expected return of a policy, and the optimum.

    A Markov chain in a PRISM or JANI file needs no policy, nor do Pmax=?, Pmin=?, Rmax=?, Rmin=? of a decision process.
    Exit status: 0 the requirement holds, 1 it does not, 2 bad input, 3 Storm's error does not tell.

    Examples:

        psyco exact runs/obstacles --storm

        psyco exact examples/dice.prism --require 'P=? [ F d=6 ]'

        psyco exact examples/courier.prism --set N=3 --require 'Pmax=? [ F "delivered" ]'

        psyco exact examples/courier.prism --optimum --set N=3 --require 'P=? [ F "delivered" ]'
    """
    from psyco._src.api.coerce import as_subject
    from psyco._src.envs.registry import is_model_name
    from psyco._src.exact.model_export import write_model
    from psyco._src.exact.solver import exact as answer_exactly
    from psyco._src.exact.storm import storm_value

    values = read_domain_parameters(parameters)
    if optimum:
        _print_optimum(policy, require, values, as_json=as_json)
        return
    code_of(policy)
    with show_activity("computing exact values") as update:
        subject = as_subject(policy, domain, require, values, trusted(trust, domain, values))
        if is_model_name(subject.domain.name) and (storm or export):
            raise RunError(f"{subject.domain.name} is a model; Storm answers for it: leave out --storm and --export")
        answer = answer_exactly(*subject)
        if storm:
            update("computing the values by Storm")
        second = storm_value(*subject) if storm else None
        if export:
            update("writing the model")
        files = write_model(*subject, export) if export else []
    if as_json:
        _print_json(_content(subject.requirement, answer, second))
    else:
        _print(subject.requirement, answer, second)
        for file in files:
            say(f"written: {file}")
    raise typer.Exit(EXIT[answer.verdict.name])


def _print_json(content: Any) -> None:
    """Print JSON, which has no infinite numbers: these become strings, and NaN becomes null."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [plain(each) for each in value]
        if isinstance(value, float) and not math.isfinite(value):
            return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return value

    print(json.dumps(plain(content), indent=2, allow_nan=False))


def _print_optimum(model: str, require: str | None, values: dict[str, Any], *, as_json: bool) -> None:
    if require is None:
        raise RunError("--optimum needs a property, as in --require 'P=? [ F \"goal\" ]'")
    with show_activity("computing the optimum"):
        found = psyco.optimum(model, require, parameters=values)
    if as_json:
        _print_json([each._asdict() for each in found])
        return
    for each in found:
        if math.isnan(each.smallest):
            say(each.text)
            continue
        ends = f"{each.smallest:.9g}" if each.smallest == each.largest else f"{each.smallest:.9g} to {each.largest:.9g}"
        say(f"{each.text}\n  {ends}")


def _print(requirement: Requirement, answer: ExactAnswer, second: Value | None) -> None:
    from psyco._src.exact.model_values import BY_STORM, OPTIMUM_BY_STORM

    places = {BY_STORM: "that the policy reaches", OPTIMUM_BY_STORM: "of the model"}
    what = places.get(answer.guarantee, "of the unfolded chain")
    lines = [f"{answer.verdict.name}: exact, over {answer.nodes:,} states {what}"]
    optimum = answer.optimum
    found, best = answer.value.by_constraint(requirement), optimum and optimum.by_constraint(requirement)
    for k, constraint in enumerate(requirement.constraints):
        at_best = f", at the optimum {best[k]:.9f}" if best else ""
        lines.append(f"  {constraint}\n    {constraint.estimand} {found[k]:.9f}{at_best}")
    for question, number in zip(requirement.questions, answer.answers, strict=True):
        lines.append(f"  {question}\n    {number:.9f}")
    if answer.guarantee == OPTIMUM_BY_STORM:
        say("\n".join([*lines, f"  {answer.guarantee.statement}"]))
        return
    lines.append(f"  expected return {answer.value.expected_return:.6f}")
    if requirement.bounds_cvar:
        lines.append("  the optimum under a bound on CVaR is not computed")
    elif answer.guarantee == BY_STORM:
        lines.append("  psyco exact --optimum computes the best values over all policies")
    elif optimum is None:
        lines.append("  no controller meets this requirement")
    else:
        way = "below" if requirement.goal.maximize else "above"
        if (answer.value.expected_return - optimum.expected_return > 0) == requirement.goal.maximize:
            way = "above" if requirement.goal.maximize else "below"
        lines.append(
            f"  optimum under the requirement {optimum.expected_return:.6f}: the policy is {answer.gap:.6f} {way} it"
        )
    if second is not None:
        shown = ", ".join(f"{number:.9f}" for number in second.by_constraint(requirement))
        what = "constraint by constraint" if second.expected else "probability"
        lines.append(f"  Storm: {what} {shown}, expected return {second.expected_return:.6f}")
    lines.append(f"  {answer.guarantee.statement}")
    say("\n".join(lines))


def _content(requirement: Requirement, answer: ExactAnswer, second: Value | None) -> dict[str, Any]:
    return {
        "verdict": answer.verdict.name,
        "requirement": str(requirement),
        "probabilities": list(answer.value.probabilities),
        "expected": list(answer.value.expected),
        "answers": list(answer.answers),
        "expected_return": answer.value.expected_return,
        "optimum": answer.optimum and answer.optimum._asdict(),
        "gap": answer.gap,
        "storm": second and second._asdict(),
        "nodes": answer.nodes,
        "guarantee": {"kind": answer.guarantee.kind, "statement": answer.guarantee.statement},
    }
