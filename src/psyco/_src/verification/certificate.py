"""The certificate: what was shown about which policy, how, and with which guarantee."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from textwrap import shorten
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.core.safe_io import check_kinds, from_json
from psyco._src.core.versions import versions
from psyco._src.logic.ast import Expectation, LongRun, Node, Quantity, Question, Reaching, Requirement
from psyco._src.verification.base import (
    Guarantee,
    MeanTally,
    MeanTest,
    Tally,
    Test,
    Verdict,
    confidence_percent,
    overall,
    percent,
    rounded_down,
    rounded_up,
)
from psyco._src.verification.bayes import belief
from psyco._src.verification.combined_guarantee import guarantee_of_all
from psyco._src.verification.findings import (
    Answer,
    Estimate,
    Finding,
    MeanFinding,
    ShareEstimate,
    between,
    check,
    read_answer,
    read_estimate,
    read_finding,
    shown,
)
from psyco._src.verification.methods import METHODS

FORMAT = "psyco-certificate-3"
# Still read, and written back as they were. The third differs from the second by what it can say of expected values
# and questions.
SECOND, FIRST = "psyco-certificate-2", "psyco-certificate-1"
# What the first version did not have, in certificates, findings and guarantees.
ADDED = frozenset(
    {"horizon", "policy_kind", "policy_version", "code", "notes", "estimate", "level", "condition", "cap"}
)
IF_ANY = frozenset(
    {"answers", "means", "questions"}
)  # left out where there are none, as before the third version


@dataclass(frozen=True)
class Look:
    """One attempt to certify; the permitted error is shared among all of them."""

    policy: str | None  # SHA-256 of the policy file
    seed: int | None
    block: int | None  # of the stream of certificates: each attempt has episodes of its own
    share: float  # of the permitted error
    verdict: Verdict
    episodes: int
    satisfied: tuple[int | None, ...]  # per constraint; None for an expected value
    violated: tuple[int | None, ...]
    cap: int | None = None  # at most so many episodes
    means: tuple[float | None, ...] = ()  # per constraint, if there is an expected value among them


@dataclass(frozen=True)
class EpisodeOrigin:
    """What the episodes came from: a policy in a domain, or outcomes that were recorded elsewhere."""

    domain: str | None = None
    parameters: dict[str, Any] = dataclasses.field(default_factory=dict)
    policy: str | None = None  # SHA-256 of the policy file
    seed: int | None = None
    stream: str | None = None
    block: int | None = None
    outcomes: str | None = None  # SHA-256 of recorded outcomes
    horizon: int | None = None  # the longest episode
    policy_kind: str | None = None
    policy_version: str | None = None
    code: str | None = None  # SHA-256 of the domain's source code


@dataclass(frozen=True, repr=False)
class Certificate:
    """What was shown. `print` gives a short block, `to_json` everything."""

    verdict: Verdict
    requirement: str
    tree: dict[str, Any]  # the same, taken apart
    findings: tuple[Finding | MeanFinding, ...]
    guarantee: Guarantee  # of the verdict about all constraints, over all looks
    episodes: int
    mean_return: float | None
    return_error: float | None  # standard error of that mean
    domain: str | None
    parameters: dict[str, Any]
    policy: str | None
    outcomes: str | None
    method: str
    options: dict[str, Any]
    max_episodes: int | None
    seed: int | None
    stream: str | None
    block: int | None
    share: float  # of the permitted error that this look may use
    looks: tuple[Look, ...]
    issued: str  # UTC
    versions: dict[str, str]
    horizon: int | None = None  # the statement is about episodes of at most so many steps
    # What `policy` is a hash of: "file", "tensors", or "name", which says little about what a function does.
    policy_kind: str | None = None
    policy_version: str | None = None  # as the user gave it
    code: str | None = None  # SHA-256 of the domain's source code, where it can be found
    notes: tuple[str, ...] = ()  # what a reader should know besides, in sentences
    estimate: Estimate | None = None
    answers: tuple[Answer, ...] = ()  # one per question
    format: str = FORMAT

    def to_json(self) -> str:
        """All of it, as JSON, with a checksum of everything else at the end."""
        left_out = ADDED if self.format == FIRST else frozenset[str]()
        content = {"format": self.format, **_plain(self, left_out)}
        return json.dumps({**content, "checksum": _checksum(content)}, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, *, origin: str = "the certificate", strict: bool = True) -> Certificate:
        """Read a certificate; `strict` refuses one that was changed after it was issued."""
        try:
            content = from_json(text, origin)
            if content["format"] not in (FIRST, SECOND, FORMAT):
                raise RunError(
                    f"{origin} has format {content['format']!r}; this version reads "
                    f"{FORMAT!r}, {SECOND!r} and {FIRST!r}"
                )
            checksum = content.pop("checksum")
            given = {"notes": [], "estimate": None, **content} if content["format"] == FIRST else content
            check(content, int, "episodes")
            check(content, int | float | None, "mean_return", "return_error", "share")
            check(content, dict, "parameters", "options", "versions")
            if not all(isinstance(note, str) for note in given["notes"]):
                raise TypeError(f"its notes are {given['notes']!r:.100}")
            certificate = cls(
                **{
                    **given,
                    "verdict": Verdict[content["verdict"]],
                    "guarantee": Guarantee(**content["guarantee"]),
                    "findings": tuple(map(read_finding, content["findings"])),
                    "looks": tuple(map(_look, content["looks"])),
                    "notes": tuple(given["notes"]),
                    "estimate": read_estimate(given["estimate"]),
                    "answers": tuple(map(read_answer, given.get("answers", ()))),
                }
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{origin} is not a PSyCo certificate, or it is damaged ({error!r})") from None
        parts = (
            certificate,
            certificate.guarantee,
            *certificate.findings,
            *certificate.answers,
            *certificate.looks,
        )
        for part in parts:
            check_kinds(part, origin)
        lacking = certificate.policy is not None and certificate.max_episodes is None
        if lacking or (certificate.mean_return is None) != (certificate.return_error is None):
            raise RunError(f"{origin} is damaged: a number that belongs to the others is missing")
        if strict and (checksum != _checksum(content) or certificate.to_json() != text):
            raise RunError(
                f"{origin} was changed after it was issued: its checksum does not fit its content; "
                "`psyco verify --replay` says what"
            )
        return certificate

    def __str__(self) -> str:
        lines = [f"{self.verdict.name}: {self.meaning}"]
        for f in self.findings:
            lines += [
                f"  {f.constraint}",
                f"    {f.verdict.name} after {f.episodes:,} episodes: {f.observed}",
                f"    {f.about} {f.interval}",
                f"    c_sat {rounded_down(f.confidence, 6)}",
            ]
        for answer in self.answers:
            lines += [f"  {answer.question}", f"    {answer.words}"]
        if self.mean_return is not None:
            lines += [f"  return {self.returned}"]
        lines += [f"  {line}" for line in self.estimated]
        lines += [f"  {self.subject}, method {self.method}"]
        if self.setting:
            lines += [f"  {self.setting}"]
        if len(self.looks) > 1:
            lines += [f"  {len(self.looks)} looks: " + ", ".join(map(_shown_look, self.looks))]
        lines += [f"  note: {note}" for note in self.notes]
        lines += [f"  {self.guarantee.statement}"]
        if len(self.findings) > 1:
            lines += [f"  {f.called}: {f.guarantee.statement}" for f in self.findings]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Certificate {self.verdict.name} after {self.looked_at:,} episodes: {self.subject}>"

    def _repr_html_(self) -> str:
        from psyco._src.verification.certificate_html import certificate_html

        return certificate_html(self)

    def with_looks(self, looks: tuple[Look, ...]) -> Certificate:
        """The same with another list of looks, and the guarantee that goes with it."""
        guarantee = guarantee_of_all(self.findings, looks, self.share)
        return dataclasses.replace(self, looks=looks, guarantee=guarantee)

    @property
    def looked_at(self) -> int:
        """How many episodes the verdict and the answers are from: questions go on where constraints are decided."""
        return max([self.episodes, *(answer.episodes for answer in self.answers)])

    @property
    def _unseen(self) -> str:
        """A word on recorded outcomes that nobody needed."""
        rest = (self.max_episodes or self.looked_at) - self.looked_at
        return f" (decided before the other {rest:,}, which were not looked at)" if rest > 0 else ""

    @property
    def meaning(self) -> str:
        """The verdict in words, and of an open one what may be done about it."""
        return "; ".join(filter(None, (self._outcome, self.advice)))

    @property
    def _outcome(self) -> str:
        """The verdict in words; a run ends a test that would hardly come to a good end, and says so."""
        most = self.max_episodes or 0
        if self.verdict is Verdict.UNDECIDED and self.stream == "certify" and self.episodes < most:
            return (
                f"the evidence does not suffice, and the test was ended after {self.episodes:,} of at most {most:,} "
                "episodes, since the others would hardly have changed that"
            )
        return self.verdict.value

    @property
    def advice(self) -> str:
        """What may be done after UNDECIDED without voiding the guarantee; empty after another verdict."""
        if self.verdict is not Verdict.UNDECIDED or self.method not in METHODS:
            return ""
        if self.stream == "certify":  # of a run, which keeps account
            return (
                "psyco verify RUN takes a further look at fresh episodes, with a share of the permitted error"
            )
        if METHODS[self.method].open_ended:
            return "raise the maximum number of episodes, and the same test goes on: that voids nothing"
        void = "a larger number of episodes for the same look would void the guarantee"
        left = 1.0 - sum(look.share for look in self.looks)
        if left > 1e-9:
            remains = f"{confidence_percent(left)} of the permitted error is left"
            return f"{void}; {remains} for a new look at fresh ones (--after)"
        how = " (--retryable, then --after; a run keeps count: psyco verify RUN)" if self.policy else ""
        return (
            f"{void}; a new look at fresh ones needs a share of the permitted error, kept from the start{how}"
        )

    @property
    def returned(self) -> str:
        """The mean return in words, if there is one; answers may be from more episodes."""
        of = f" of the first {self.episodes:,} episodes" * (self.looked_at > self.episodes)
        return f"{self.mean_return:.2f} ± {self.return_error:.2f} (mean ± standard error{of})"

    @property
    def estimated(self) -> list[str]:
        """The estimate in words, if there is one."""
        if (e := self.estimate) is None:
            return []
        lines = [f"estimate from {e.episodes:,} further episodes, which the stopping rule does not bias:"]
        for each, f in zip(e.shares, self.findings, strict=True):
            of = f" of {f.called}" if len(self.findings) > 1 else ""
            if isinstance(each, ShareEstimate):
                found = f"share {each.satisfied / e.episodes:.4f}"
                bounds = f"between {rounded_down(each.lower)} and {rounded_up(each.upper)}"
            else:
                found, bounds = f"{'rate' if f.about == 'rate' else 'mean'} {shown(each)}", between(each)
            lines += [f"  {found}{of}, {bounds} ({confidence_percent(each.level)} confidence interval)"]
        return [*lines, f"  return {e.mean_return:.2f} ± {e.return_error:.2f}"]

    @property
    def setting(self) -> str:
        """What the episodes were like: horizon and parameters of the domain, in one line."""
        steps = [] if self.horizon is None else [f"episodes of at most {self.horizon:,} steps"]
        values = [f"{name}={value}" for name, value in self.parameters.items() if name != "horizon"]
        return shorten(", ".join([*steps, *values]), 200, placeholder=" ...")

    @property
    def subject(self) -> str:
        """What was verified, in a few words."""
        if self.policy is None:
            given = "" if self.max_episodes is None else f"{self.looked_at:,} of {self.max_episodes:,} "
            return f"{given}recorded outcomes sha256:{str(self.outcomes)[:16]}{self._unseen}"
        policy = f"policy sha256:{self.policy[:16]}{self.qualification}"
        return f"{policy} on {self.domain}, seed {self.seed}, block {self.block}"

    @property
    def qualification(self) -> str:
        """What goes with the policy's hash: what it is of, where that is no more than a name, and the version."""
        about = ["of its name only"] * (self.policy_kind == "name")
        about += [] if self.policy_version is None else [f"version {self.policy_version}"]
        return f" ({', '.join(about)})" * bool(about)


def certificate_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of `Certificate.to_json`."""
    return json.loads(files(__package__).joinpath("certificate.schema.json").read_text(encoding="utf-8"))


def certify(
    requirement: Requirement,
    subject: EpisodeOrigin,
    tests: Sequence[Test | MeanTest],
    progress: Sequence[Tally | MeanTally],
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
    estimate: Estimate | None = None,
    answers: tuple[Answer, ...] = (),
) -> Certificate:
    """Write down how a verification ended."""
    no_verdict = requirement.questions and not requirement.constraints
    verdict = Verdict.ANSWERED if no_verdict else overall(progress)
    findings = _findings(requirement, tests, progress, reached, subject.horizon)
    episodes = max((f.episodes for f in findings), default=len(returns))

    def of_each(number: str) -> tuple[Any, ...]:
        return tuple(
            getattr(f, number, None) for f in findings
        )  # a mean has no outcomes, and the other way round

    look = Look(
        subject.policy, subject.seed, subject.block, share, verdict, episodes,
        of_each("satisfied"), of_each("violated"), max_episodes, of_each("mean") if _means(findings) else (),
    )  # fmt: skip
    looks = (*earlier, look)
    returns = np.asarray(returns, np.float64)
    return Certificate(
        verdict=verdict,
        requirement=str(requirement),
        tree=tree(requirement),
        findings=findings,
        guarantee=guarantee_of_all(findings, looks, share),
        episodes=episodes,
        mean_return=float(returns.mean()) if len(returns) else None,
        return_error=standard_error(returns) if len(returns) else None,
        domain=subject.domain,
        parameters=json.loads(json.dumps(subject.parameters, default=str)),
        policy=subject.policy,
        outcomes=subject.outcomes,
        method=method,
        options=json.loads(json.dumps(dict(options))),
        max_episodes=max_episodes,
        seed=subject.seed,
        stream=subject.stream,
        block=subject.block,
        share=share,
        looks=looks,
        issued=issued or now(),
        versions=versions(),
        horizon=subject.horizon,
        policy_kind=subject.policy_kind,
        policy_version=subject.policy_version,
        code=subject.code,
        notes=(*notes, *_bias(tests, findings, subject, estimate)),
        estimate=estimate,
        answers=answers,
    )


def _means(findings: Sequence[Finding | MeanFinding]) -> bool:
    return any(isinstance(f, MeanFinding) for f in findings)


def _bias(
    tests: Sequence[Test | MeanTest],
    findings: Sequence[Finding | MeanFinding],
    subject: EpisodeOrigin,
    estimate: Estimate | None,
) -> Iterator[str]:
    """A test that stops by what it has seen stops where the share looks good, or bad."""
    if estimate is None and any(test.sequential for test in tests):
        remedy = "; psyco verify --estimate N adds an estimate without that bias" if subject.policy else ""
        if _means(findings):
            what = "Shares, means and the mean return are" if subject.policy else "Shares and means are"
        else:
            what = "The share and the mean return are" if subject.policy else "The share is"
        yield f"{what} biased by where the test stopped{remedy}."


def tree(node: Requirement | Node | Any) -> Any:
    """A requirement taken apart: nested objects whose `kind` is the name of the operator."""
    if isinstance(node, tuple):
        return [tree(each) for each in node]
    if not dataclasses.is_dataclass(node):
        return None if node in (-math.inf, math.inf) else node  # an expected value without such a bound
    shown = {f.name: tree(getattr(node, f.name)) for f in dataclasses.fields(node) if f.compare}
    return {"kind": type(node).__name__, **{k: v for k, v in shown.items() if v or k not in IF_ANY}}


def now() -> str:
    """The time of issue: UTC in seconds; SOURCE_DATE_EPOCH replaces the clock, for reproducible files."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    moment = datetime.fromtimestamp(int(epoch), UTC) if epoch else datetime.now(UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _findings(
    requirement: Requirement,
    tests: Sequence[Test | MeanTest],
    progress: Sequence[Tally | MeanTally],
    reached: Any,
    horizon: int | None,
) -> tuple[Finding | MeanFinding, ...]:
    found: list[Finding | MeanFinding] = []
    for stated, test, tally in zip(requirement.constraints, tests, progress, strict=True):
        if isinstance(stated, Expectation):
            besides = circumstances(requirement, stated, reached, tally.episodes, horizon)
            found.append(_mean_finding(stated, test, tally, *besides))
        else:
            found.append(_finding(test, tally))
    return tuple(found)


def circumstances(
    requirement: Requirement,
    stated: Expectation | Question,
    reached: Any,
    episodes: int,
    horizon: int | None,
) -> tuple[int | None, str | None]:
    """What a number says only together with it: episodes that never reached what they wait for; when it starts again.

    Args:
        requirement: what was measured.
        stated: the part of it that is meant.
        reached: as in Episodes, `[B, M]`; the first `episodes` of it count.
        episodes: how many were consumed.
        horizon: the longest episode; None if it is not known.
    """
    match stated.subject:
        case Quantity(_, Reaching()) if reached is not None:
            return int((~reached[:episodes, requirement.measured.index(stated)]).sum()), None
        case Quantity(_, LongRun()):
            limit = "" if horizon is None else f", by itself or after {horizon:,} steps"
            return None, f"whenever an episode ends{limit}"
    return None, None


def _finding(test: Any, tally: Any) -> Finding:
    constraint, delta = test.task.constraint, test.task.false_accept
    lower, upper = test.bounds(tally.counts, delta / 2.0)  # half of the error for either side
    return Finding(
        constraint=str(constraint),
        name=constraint.name,
        verdict=tally.verdict,
        episodes=tally.episodes,
        satisfied=int(tally.counts.satisfied),
        violated=int(tally.counts.violated),
        confidence=belief(test, tally),
        lower=lower,
        upper=upper,
        guarantee=test.guarantee,
        level=1.0 - delta,
    )


def _mean_finding(
    stated: Expectation, test: Any, tally: Any, unreached: int | None, restart: str | None
) -> MeanFinding:
    task, delta = test.task, test.task.false_accept
    lower, upper = test.bounds(tally.state, delta / 2.0)
    return MeanFinding(
        constraint=str(stated),
        name=stated.name,
        verdict=tally.verdict,
        episodes=tally.episodes,
        mean=task.mean(tally.moments),
        confidence=belief(test, tally),
        lower=lower,
        upper=upper,
        level=1.0 - delta,
        range=(task.lo, task.hi),
        unreached=unreached,
        restart=restart,
        guarantee=test.guarantee,
    )


def standard_error(returns: NDArray[np.float64]) -> float:
    return float(returns.std(ddof=1) / np.sqrt(len(returns))) if len(returns) > 1 else 0.0


def _shown_look(look: Look) -> str:
    return f"{look.verdict.name} after {look.episodes:,} ({percent(look.share)} of the error)"


def _plain(value: Any, left_out: frozenset[str]) -> Any:
    """Dataclasses, tuples and verdicts as what JSON has; fields of the names `left_out` are not in it."""
    if isinstance(value, Verdict):
        return value.name
    if dataclasses.is_dataclass(value):
        shown = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.name not in left_out}
        return {name: _plain(each, left_out) for name, each in shown.items() if each or name not in IF_ANY}
    if isinstance(value, tuple | list):
        return [_plain(each, left_out) for each in value]
    return value


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _look(content: dict[str, Any]) -> Look:
    check(content, int, "episodes")
    check(content, int | float, "share")
    counts = {key: tuple(content.get(key, ())) for key in ("satisfied", "violated", "means")}
    return Look(**{**content, **counts, "verdict": Verdict[content["verdict"]]})
