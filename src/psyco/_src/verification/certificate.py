"""The certificate: verdict, findings and guarantee about a policy."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np

from psyco._src.core.checks import check_count
from psyco._src.core.codec import decode, encode
from psyco._src.core.errors import RunError
from psyco._src.core.files import from_json, json_digest
from psyco._src.core.provenance import package_versions
from psyco._src.core.wording import plural
from psyco._src.envs.variants import adversary_of, describe_family, observed_parameters
from psyco._src.logic.ast import Requirement
from psyco._src.verification.base import Guarantee, MeanTest, Test, Verdict
from psyco._src.verification.environments import EnvironmentsTally, EnvironmentsTest
from psyco._src.verification.episode_notes import EpisodeNotes
from psyco._src.verification.findings import (
    Answer,
    AnyFinding,
    EnvironmentsFinding,
    Estimate,
    Finding,
    MeanFinding,
    ShareEstimate,
    format_bounds,
    format_mean,
    joint_guarantee,
    make_findings,
    standard_error,
)
from psyco._src.verification.methods import METHODS
from psyco._src.verification.rounding import confidence_percent, percent, rounded_down, rounded_up
from psyco._src.verification.tally import MeanTally, Tally, overall_verdict

if TYPE_CHECKING:
    from psyco._src.verification.counterexamples import Counterexamples

FORMAT = "psyco-certificate-1"
CHANGED_CODE_NOTE = (
    "The code of the environment changed during this run, which continued as was asked for (--allow-changed-code); "
    "the episodes of this certificate are of the last version."
)
# Start of the note on baselines, which a replay takes over: they are no part of what a certificate shows.
ENDED_PROCESS_NOTE = "A process was ended "
BASELINE_NOTE = "Returns of baselines, no part of the guarantee: "


@dataclass(frozen=True)
class Look:
    """One attempt to certify; the permitted error is shared among all looks."""

    policy: str | None  # SHA-256 of the policy file
    seed: int | None
    seed_block: int | None  # block of the random stream: each look has fresh episodes
    share: float  # fraction of the permitted error
    verdict: Verdict
    episodes: int
    max_episodes: int | None
    satisfied: tuple[int | None, ...]  # per constraint; None for an expected value
    violated: tuple[int | None, ...]
    means: tuple[float | None, ...]  # per constraint; None for a probability


@dataclass(frozen=True)
class EpisodeOrigin:
    """The origin of the episodes: a policy in a domain, or recorded outcomes."""

    domain: str | None = None
    parameters: dict[str, Any] = dataclasses.field(default_factory=dict)
    horizon: int | None = None  # maximum length of an episode
    code: str | None = None  # SHA-256 of the domain's source code
    policy: str | None = None  # SHA-256 of the policy file
    policy_kind: str | None = None
    policy_version: str | None = None
    seed: int | None = None
    stream: str | None = None
    seed_block: int | None = None
    outcomes: str | None = None  # SHA-256 of recorded outcomes


@dataclass(frozen=True, repr=False)
class Certificate:
    """The result of a verification. `print` gives a short block, `to_json` everything."""

    verdict: Verdict
    requirement: str
    syntax_tree: dict[str, Any]  # of the requirement
    findings: tuple[AnyFinding, ...]  # one per constraint
    answers: tuple[Answer, ...]  # one per question
    guarantee: Guarantee  # of the verdict about all constraints, over all looks
    episodes: int
    mean_return: float | None
    return_standard_error: float | None
    estimate: Estimate | None
    domain: str | None
    parameters: dict[str, Any]
    horizon: int | None  # the statement is about episodes of at most this many steps
    code: str | None  # SHA-256 of the domain's source code, where available
    policy: str | None  # SHA-256
    # What `policy` is the hash of: "file", "tensors", or "name", which says little about what a function does.
    policy_kind: str | None
    policy_version: str | None  # as given by the user
    outcomes: str | None  # SHA-256 of recorded outcomes
    method: str
    options: dict[str, Any]
    max_episodes: int | None
    seed: int | None
    stream: str | None
    seed_block: int | None
    share: float  # fraction of the permitted error for this look
    looks: tuple[Look, ...]
    notes: tuple[str, ...]  # caveats, in sentences
    # Per constraint, which episodes violate and which came closest: to look at them, no part of the guarantee.
    episode_notes: tuple[EpisodeNotes, ...]
    issued: str  # UTC
    versions: dict[str, str]

    def to_json(self) -> str:
        """Return the certificate as JSON, with a checksum of everything else at the end."""
        content = {"format": FORMAT, **encode(self)}
        return json.dumps({**content, "checksum": json_digest(content)}, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, *, origin: str = "the certificate", strict: bool = True) -> Certificate:
        """Read a certificate; `strict` refuses one that was changed after it was issued."""
        content = from_json(text, origin)
        if not isinstance(content, dict) or "format" not in content:
            raise RunError(f"{origin} is not a PSyCo certificate: it has no format")
        if content["format"] != FORMAT:
            raise RunError(f"{origin} has format {content['format']!r:.100}; this version reads {FORMAT!r}")
        record = {name: value for name, value in content.items() if name not in ("format", "checksum")}
        certificate = decode(record, cls, origin)
        certificate._check_consistency(origin)
        if strict and certificate.to_json() != text:
            raise RunError(
                f"{origin} was changed after it was issued: its checksum does not fit its content; "
                "`psyco verify --replay` says what"
            )
        return certificate

    def _check_consistency(self, origin: str) -> None:
        """Raise if numbers that belong together are missing: the text of the certificate needs them."""
        estimate = self.estimate
        for name, damaged in {
            "looks": not self.looks,
            "max_episodes": self.policy is not None and self.max_episodes is None,
            "return_standard_error": (self.mean_return is None) != (self.return_standard_error is None),
            "estimate": estimate is not None
            and (estimate.episodes < 1 or len(estimate.constraints) != len(self.findings)),
            "findings": not all(f.consistent for f in self.findings if isinstance(f, EnvironmentsFinding)),
            "episode_notes": len(self.episode_notes) != len(self.findings)
            or not all(
                noted.fit(f.episodes, (f.satisfied, f.violated) if isinstance(f, Finding) else ())
                for noted, f in zip(self.episode_notes, self.findings, strict=True)
            ),
        }.items():
            if damaged:
                raise RunError(f"{origin} is damaged: {name} does not fit the other fields")

    def __str__(self) -> str:
        lines = [f"{self.verdict.name}{self.opponent}: {self.verdict_summary}"]
        for f in self.findings:
            lines += [
                f"  {f.constraint}",
                f"    {f.verdict.name} after {plural(f.episodes, 'episode')}: {f.observed}",
                f"    {f.estimand} {f.interval}",
                f"    c_sat {rounded_down(f.confidence, 6)}",
            ]
        for answer in self.answers:
            lines += [f"  {answer.question}", f"    {answer.summary}"]
        if self.mean_return is not None:
            lines += [f"  return {self.return_summary}"]
        lines += [f"  {line}" for line in self.estimate_lines]
        lines += [f"  {self.subject}, method {self.method}"]
        if self.setting_summary:
            lines += [f"  {self.setting_summary}"]
        if len(self.looks) > 1:
            lines += [f"  {len(self.looks)} looks: " + ", ".join(map(_look_summary, self.looks))]
        lines += [f"  note: {note}" for note in self.notes]
        lines += [f"  {self.guarantee.statement}"]
        if len(self.findings) > 1:
            lines += [f"  {f.label}: {f.guarantee.statement}" for f in self.findings]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Certificate {self.verdict.name} after {plural(self.episodes_seen, 'episode')}: {self.subject}>"

    def _repr_html_(self) -> str:
        from psyco._src.verification.certificate_html import certificate_html

        return certificate_html(self)

    def counterexamples(
        self, policy: Any = None, *, domain: Any = None, traces: str | None = None, worst: int = 5
    ) -> Counterexamples:
        """Play the violating episodes again, or else the closest calls, and explain them; a notebook shows timelines.

        `psyco.counterexamples` also makes films, and a page.

        Args:
            policy: the certified policy.
            domain: where it acts; default: as described in the certificate.
            traces: file of the recorded traces, if the certificate is about these.
            worst: number of episodes per constraint.
        """
        from psyco._src.policies.external import as_policy
        from psyco._src.verification.counterexamples import find_counterexamples, find_player

        player, _ = find_player(self, None if policy is None else as_policy(policy), domain, traces)
        return find_counterexamples(self, player, worst=check_count("worst", worst))

    def with_looks(self, looks: tuple[Look, ...]) -> Certificate:
        """Return this certificate with another list of looks, and the guarantee over these."""
        answered = looks[-1].verdict is Verdict.ANSWERED
        guarantee = joint_guarantee(
            self.findings,
            answered=answered,
            looks=len(looks),
            share=self.share,
            family=self.parameters.get("vary"),
            adversary=adversary_of(self.parameters),
        )
        return dataclasses.replace(self, looks=looks, guarantee=guarantee)

    @property
    def episodes_seen(self) -> int:
        """Number of episodes behind the verdict and the answers, which may use more."""
        return max([self.episodes, *(answer.episodes for answer in self.answers)])

    @property
    def verdict_summary(self) -> str:
        """The verdict in words; if it is UNDECIDED, also the advice."""
        outcome, most = self.verdict.value, self.max_episodes or 0
        stopped = self.stream == "certify" and self.episodes < most and not self._about_environments
        if self.verdict is Verdict.UNDECIDED and stopped:
            # A run stops a test for futility.
            outcome = (
                f"the evidence does not suffice, and the test was ended after {self.episodes:,} of at most {most:,} "
                "episodes, since the others would hardly have changed that"
            )
        return "; ".join(filter(None, (outcome, self.advice)))

    @property
    def advice(self) -> str:
        """What may be done after UNDECIDED without voiding the guarantee; empty after another verdict."""
        if self.verdict is not Verdict.UNDECIDED or self.method not in METHODS:
            return ""
        if self.stream == "certify":  # of a run, which keeps a ledger of its looks
            return "psyco verify RUN takes a further look at fresh episodes, with a share of the permitted error"
        if METHODS[self.method].open_ended:
            return "raise the maximum number of episodes, and the same test goes on: that voids nothing"
        void = "a larger number of episodes for the same look would void the guarantee"
        left = 1.0 - sum(look.share for look in self.looks)
        if left > 1e-9:
            remains = f"{confidence_percent(left)} of the permitted error is left"
            return f"{void}; {remains} for a new look at fresh ones (--after)"
        how = " (--retryable, then --after; a run keeps count: psyco verify RUN)" if self.policy else ""
        return f"{void}; a new look at fresh ones needs a share of the permitted error, kept from the start{how}"

    @property
    def return_summary(self) -> str:
        """The mean return in words, if there is one."""
        of = f" of the first {self.episodes:,} episodes" * (self.episodes_seen > self.episodes)
        if self._about_environments:
            of = " of the first episode in each environment"
        return f"{self.mean_return:.2f} ± {self.return_standard_error:.2f} (mean ± standard error{of})"

    @property
    def estimate_lines(self) -> list[str]:
        """The estimate in words, if there is one."""
        if (e := self.estimate) is None:
            return []
        lines = [f"estimate from {e.episodes:,} further episodes, which the stopping rule does not bias:"]
        for part, f in zip(e.constraints, self.findings, strict=True):
            of = f" of {f.label}" if len(self.findings) > 1 else ""
            if isinstance(part, ShareEstimate):
                value = f"share {part.satisfied / e.episodes:.4f}"
                bounds = f"between {rounded_down(part.lower)} and {rounded_up(part.upper)}"
            else:
                value = f"{f.statistic} {format_mean(part)}"
                bounds = format_bounds(part)
            lines += [f"  {value}{of}, {bounds} ({confidence_percent(part.interval_level)} confidence interval)"]
        return [*lines, f"  return {e.mean_return:.2f} ± {e.return_standard_error:.2f}"]

    @property
    def setting_summary(self) -> str:
        """Horizon and parameters of the domain, in one line."""
        steps = [] if self.horizon is None else [f"episodes of at most {plural(self.horizon, 'step')}"]
        values = [f"{name}={value}" for name, value in self.parameters.items() if name != "horizon"]
        return shorten(", ".join([*steps, *values]), 200, placeholder=" ...")

    @property
    def subject(self) -> str:
        """The verified policy or recording, in a few words."""
        if self.policy is None:
            given = "" if self.max_episodes is None else f"{self.episodes_seen:,} of {self.max_episodes:,} "
            rest = (self.max_episodes or self.episodes_seen) - self.episodes_seen
            unseen = f" (decided before the other {rest:,}, which were not looked at)" if rest > 0 else ""
            return f"{given}recorded outcomes sha256:{str(self.outcomes)[:16]}{unseen}"
        policy = f"policy sha256:{self.policy[:16]}{self.policy_qualifier}"
        return f"{policy} on {self.domain}{self._family}{self.opponent}, seed {self.seed}, block {self.seed_block}"

    @property
    def opponent(self) -> str:
        """The adversary that acted in the episodes, in a few words; empty if there was none."""
        if (found := adversary_of(self.parameters)) is None:
            return ""
        policy = f"policy sha256:{str(found.get('policy'))[:16]}"
        if "agent" in found:
            return f" against the deviation of {found['agent']} for {found['goal']} ({policy})"
        return f" against an adversary ({found['kind']} {found['size']}, {policy})"

    @property
    def _family(self) -> str:
        vary = self.parameters.get("vary")
        if not isinstance(vary, Mapping):
            return ""
        seen = ", whose parameters the policy observes" if observed_parameters(self.parameters) else ""
        return f" (family {describe_family({name: str(text) for name, text in vary.items()})}{seen})"

    @property
    def _about_environments(self) -> bool:
        return any(isinstance(f, EnvironmentsFinding) for f in self.findings)

    @property
    def policy_qualifier(self) -> str:
        """A remark on the policy's hash: that it covers a name only, and the version."""
        parts = ["of its name only"] * (self.policy_kind == "name")
        parts += [] if self.policy_version is None else [f"version {self.policy_version}"]
        return f" ({', '.join(parts)})" * bool(parts)


def certificate_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of `Certificate.to_json`."""
    return json.loads(files(__package__).joinpath("certificate.schema.json").read_text(encoding="utf-8"))


def certify(
    requirement: Requirement,
    origin: EpisodeOrigin,
    tests: Sequence[Test | MeanTest] | Sequence[EnvironmentsTest],
    tallies: Sequence[Tally | MeanTally] | Sequence[EnvironmentsTally],
    *,
    returns: Any = (),
    reached: Any = None,
    method: str,
    options: Mapping[str, Any],
    max_episodes: int | None,
    share: float = 1.0,
    earlier: tuple[Look, ...] = (),
    issued: str | None = None,
    notes: Sequence[str] = (),
    episode_notes: tuple[EpisodeNotes, ...],
    estimate: Estimate | None = None,
    answers: tuple[Answer, ...] = (),
) -> Certificate:
    """Return the certificate of a finished verification.

    `returns` and `reached` are those of the episodes consumed, where known; `earlier` are the looks that share the
    permitted error with this one.
    """
    answered = bool(requirement.questions and not requirement.constraints)
    verdict = Verdict.ANSWERED if answered else overall_verdict(tallies)
    findings = make_findings(requirement, tests, tallies, reached, origin.horizon)
    episodes = max((f.episodes for f in findings), default=len(returns))

    def per_constraint(name: str) -> tuple[Any, ...]:
        return tuple(getattr(f, name, None) for f in findings)

    look = Look(
        origin.policy, origin.seed, origin.seed_block, share, verdict, episodes, max_episodes,
        per_constraint("satisfied"), per_constraint("violated"), per_constraint("mean"),
    )  # fmt: skip
    looks = (*earlier, look)
    returns = np.asarray(returns, np.float64)
    known: dict[str, Any] = vars(origin) | {"parameters": plain_data(origin.parameters)}
    return Certificate(
        verdict=verdict,
        requirement=str(requirement),
        syntax_tree=syntax_tree(requirement),
        findings=findings,
        answers=answers,
        guarantee=joint_guarantee(
            findings,
            answered=answered,
            looks=len(looks),
            share=share,
            family=known["parameters"].get("vary"),
            adversary=adversary_of(known["parameters"]),
        ),
        episodes=episodes,
        mean_return=float(returns.mean()) if len(returns) else None,
        return_standard_error=standard_error(returns) if len(returns) else None,
        estimate=estimate,
        method=method,
        options=json.loads(json.dumps(dict(options))),
        max_episodes=max_episodes,
        share=share,
        looks=looks,
        notes=(*notes, *_bias_notes(tests, findings, origin, estimate)),
        episode_notes=episode_notes,
        issued=issued or now(),
        versions=package_versions(),
        **known,
    )


def plain_data(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a domain as a certificate holds them."""
    return json.loads(json.dumps(dict(parameters), default=str))


def _bias_notes(
    tests: Sequence[Test | MeanTest] | Sequence[EnvironmentsTest],
    findings: Sequence[AnyFinding],
    origin: EpisodeOrigin,
    estimate: Estimate | None,
) -> Iterator[str]:
    """Yield a note on stopping bias: a sequential test stops where the share looks good, or bad."""
    no_estimate = any(isinstance(f, EnvironmentsFinding) for f in findings)
    if estimate is None and not no_estimate and any(test.sequential for test in tests):
        remedy = "; psyco verify --estimate N adds an estimate without that bias" if origin.policy else ""
        if any(isinstance(f, MeanFinding) for f in findings):
            what = "Shares, means and the mean return are" if origin.policy else "Shares and means are"
        else:
            what = "The share and the mean return are" if origin.policy else "The share is"
        yield f"{what} biased by where the test stopped{remedy}."


def syntax_tree(node: Any) -> Any:
    """Return a requirement as nested objects whose `kind` is the name of the operator."""
    if isinstance(node, tuple):
        return [syntax_tree(child) for child in node]
    if not dataclasses.is_dataclass(node):
        return None if node in (-math.inf, math.inf) else node  # None: no bound on the expected value
    # A requirement of a certificate is written out for all agents.
    shown = [f.name for f in dataclasses.fields(node) if f.compare and f.name != "for_each"]
    children = {name: syntax_tree(getattr(node, name)) for name in shown}
    return {"kind": type(node).__name__, **children}


def now() -> str:
    """Return the time of issue: UTC in seconds; SOURCE_DATE_EPOCH replaces the clock, for reproducible files."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    moment = datetime.fromtimestamp(int(epoch), UTC) if epoch else datetime.now(UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _look_summary(look: Look) -> str:
    return f"{look.verdict.name} after {look.episodes:,} ({percent(look.share)} of the error)"
