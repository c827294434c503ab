"""The certificate: what was shown about which policy, how, and with which guarantee."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from textwrap import shorten
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyco._src.certify.joint import guarantee_of_all
from psyco._src.errors import RunError
from psyco._src.reading import check_kinds, from_json
from psyco._src.smc.base import (
    Guarantee,
    Tally,
    Test,
    Verdict,
    confidence_percent,
    percent,
    rounded_down,
    rounded_up,
)
from psyco._src.smc.bayes import posterior_mass
from psyco._src.smc.methods import METHODS
from psyco._src.spec.formula import Node, Requirement
from psyco._src.versions import versions

FORMAT = "psyco-certificate-2"
FIRST = "psyco-certificate-1"  # still read, and written back as it was
# What the first version did not have, in certificates, findings and guarantees.
ADDED = frozenset(
    {"horizon", "policy_kind", "policy_version", "code", "notes", "estimate", "level", "condition", "cap"}
)


@dataclass(frozen=True)
class Finding:
    """What was found about one constraint."""

    constraint: str  # as text
    name: str | None
    verdict: Verdict
    episodes: int
    satisfied: int  # episodes in which the formula held
    violated: int
    confidence: float  # posterior probability that the constraint holds (c_sat), from a uniform prior
    lower: float  # bounds for the true probability, in the sense of the guarantee
    upper: float
    guarantee: Guarantee
    level: float | None = (
        None  # of both bounds together; None: each of them holds at the confidence by itself
    )

    @property
    def share(self) -> float:
        """The observed share of satisfying episodes; where the test chose its end by looking, it is biased."""
        return self.satisfied / self.episodes if self.episodes else float("nan")

    @property
    def called(self) -> str:
        """A name for it in sentences."""
        return self.name or self.constraint

    @property
    def interval(self) -> str:
        """The bounds in words, with what they are worth."""
        between = f"between {rounded_down(self.lower)} and {rounded_up(self.upper)}"
        if self.level is None:
            return f"{between} (each bound by itself)"
        kind = "credible" if self.guarantee.kind == "posterior" else "confidence"
        # A verdict spends the whole error on one side, so the requirement may still lie inside.
        why = "" if self.verdict is Verdict.UNDECIDED else "; the verdict needs one side at a time"
        return f"{between} ({confidence_percent(self.level)} {kind} interval, two-sided{why})"


@dataclass(frozen=True)
class Look:
    """One attempt to certify; the permitted error is shared among all of them."""

    policy: str | None  # SHA-256 of the policy file
    seed: int | None
    block: int | None  # of the stream of certificates: each attempt has episodes of its own
    share: float  # of the permitted error
    verdict: Verdict
    episodes: int
    satisfied: tuple[int, ...]  # per constraint
    violated: tuple[int, ...]
    cap: int | None = None  # at most so many episodes


@dataclass(frozen=True)
class ShareEstimate:
    """How often one constraint's formula held, with Clopper and Pearson's interval."""

    satisfied: int
    lower: float
    upper: float
    level: float  # of both bounds together


@dataclass(frozen=True)
class Estimate:
    """Further episodes of the same look, as many as were asked for: no stopping rule biases them.

    They come after the decision and are no part of it.
    """

    episodes: int
    shares: tuple[ShareEstimate, ...]  # per constraint
    mean_return: float
    return_error: float  # standard error of that mean


@dataclass(frozen=True)
class Subject:
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
    findings: tuple[Finding, ...]
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
            if content["format"] not in (FIRST, FORMAT):
                raise RunError(
                    f"{origin} has format {content['format']!r}; this version reads {FORMAT!r} and {FIRST!r}"
                )
            checksum = content.pop("checksum")
            given = {"notes": [], "estimate": None, **content} if content["format"] == FIRST else content
            _check(content, int, "episodes")
            _check(content, int | float | None, "mean_return", "return_error", "share")
            _check(content, dict, "parameters", "options", "versions")
            if not all(isinstance(note, str) for note in given["notes"]):
                raise TypeError(f"its notes are {given['notes']!r:.100}")
            certificate = cls(
                **{
                    **given,
                    "verdict": Verdict[content["verdict"]],
                    "guarantee": Guarantee(**content["guarantee"]),
                    "findings": tuple(map(_finding, content["findings"])),
                    "looks": tuple(map(_look, content["looks"])),
                    "notes": tuple(given["notes"]),
                    "estimate": _estimate(given["estimate"]),
                }
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{origin} is not a PSyCo certificate, or it is damaged ({error!r})") from None
        for part in (certificate, certificate.guarantee, *certificate.findings, *certificate.looks):
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
                f"    {f.verdict.name} after {f.episodes:,} episodes: {f.satisfied:,} satisfied, "
                f"{f.violated:,} violated (share {f.share:.4f})",
                f"    probability {f.interval}",
                f"    c_sat {rounded_down(f.confidence, 6)}",
            ]
        if self.mean_return is not None:
            lines += [f"  return {self.mean_return:.2f} ± {self.return_error:.2f} (mean ± standard error)"]
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
        return f"<Certificate {self.verdict.name} after {self.episodes:,} episodes: {self.subject}>"

    def _repr_html_(self) -> str:
        from psyco._src.certify.html import certificate_html

        return certificate_html(self)

    def with_looks(self, looks: tuple[Look, ...]) -> Certificate:
        """The same with another list of looks, and the guarantee that goes with it."""
        guarantee = guarantee_of_all(self.findings, looks, self.share)
        return dataclasses.replace(self, looks=looks, guarantee=guarantee)

    @property
    def _unseen(self) -> str:
        """A word on recorded outcomes that the test did not need."""
        rest = (self.max_episodes or self.episodes) - self.episodes
        return f" (decided before the other {rest:,}, which were not looked at)" if rest > 0 else ""

    @property
    def meaning(self) -> str:
        """The verdict in words, and of an open one what may be done about it."""
        return "; ".join(filter(None, (self.verdict.value, self.advice)))

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
    def estimated(self) -> list[str]:
        """The estimate in words, if there is one."""
        if (e := self.estimate) is None:
            return []
        lines = [f"estimate from {e.episodes:,} further episodes, which the stopping rule does not bias:"]
        for share, f in zip(e.shares, self.findings, strict=True):
            of = f" of {f.called}" if len(self.findings) > 1 else ""
            lines += [
                f"  share {share.satisfied / e.episodes:.4f}{of}, between {rounded_down(share.lower)} and "
                f"{rounded_up(share.upper)} ({confidence_percent(share.level)} confidence interval)"
            ]
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
            given = "" if self.max_episodes is None else f"{self.episodes:,} of {self.max_episodes:,} "
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
    subject: Subject,
    tests: Sequence[Test],
    progress: Sequence[Tally],
    verdict: Verdict,
    *,
    returns: Any = (),
    method: str,
    options: Mapping[str, Any],
    max_episodes: int | None,
    share: float = 1.0,
    earlier: tuple[Look, ...] = (),
    issued: str | None = None,
    notes: Sequence[str] = (),
    estimate: Estimate | None = None,
) -> Certificate:
    """Write down how a verification ended."""
    findings = tuple(_found(test, progress) for test, progress in zip(tests, progress, strict=True))
    episodes = max((f.episodes for f in findings), default=len(returns))
    look = Look(
        subject.policy, subject.seed, subject.block, share, verdict, episodes,
        tuple(f.satisfied for f in findings), tuple(f.violated for f in findings), max_episodes,
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
        notes=(*notes, *_bias(tests, subject, estimate)),
        estimate=estimate,
    )


def _bias(tests: Sequence[Test], subject: Subject, estimate: Estimate | None) -> Iterator[str]:
    """A test that stops by what it has seen stops where the share looks good, or bad."""
    if estimate is None and any(test.sequential for test in tests):
        remedy = "; psyco verify --estimate N adds an estimate without that bias" if subject.policy else ""
        what = "The share and the mean return are" if subject.policy else "The share is"
        yield f"{what} biased by where the test stopped{remedy}."


def tree(node: Requirement | Node | Any) -> Any:
    """A requirement taken apart: nested objects whose `kind` is the name of the operator."""
    if isinstance(node, tuple):
        return [tree(each) for each in node]
    if not dataclasses.is_dataclass(node):
        return node
    shown = {f.name: tree(getattr(node, f.name)) for f in dataclasses.fields(node) if f.compare}
    return {"kind": type(node).__name__, **shown}


def now() -> str:
    """The time of issue: UTC in seconds; SOURCE_DATE_EPOCH replaces the clock, for reproducible files."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    moment = datetime.fromtimestamp(int(epoch), UTC) if epoch else datetime.now(UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _found(test: Test, progress: Tally) -> Finding:
    constraint = test.task.constraint
    delta = test.task.false_accept
    lower, upper = test.bounds(progress.counts, delta / 2.0)  # half of the error for either side
    return Finding(
        constraint=str(constraint),
        name=constraint.name,
        verdict=progress.verdict,
        episodes=progress.episodes,
        satisfied=int(progress.counts.satisfied),
        violated=int(progress.counts.violated),
        confidence=float(posterior_mass(progress.counts, constraint.lower, constraint.upper)),
        lower=lower,
        upper=upper,
        guarantee=test.guarantee,
        level=1.0 - delta,
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
        names = [f.name for f in dataclasses.fields(value) if f.name not in left_out]
        return {name: _plain(getattr(value, name), left_out) for name in names}
    if isinstance(value, tuple | list):
        return [_plain(each, left_out) for each in value]
    return value


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _finding(content: dict[str, Any]) -> Finding:
    verdict, guarantee = Verdict[content["verdict"]], Guarantee(**content["guarantee"])
    _check(content, str, "constraint")
    _check(content, int, "episodes", "satisfied", "violated")
    _check(content, int | float, "confidence", "lower", "upper")
    return Finding(**{**content, "verdict": verdict, "guarantee": guarantee})


def _check(content: dict[str, Any], kind: Any, *names: str) -> None:
    """A damaged file may hold anything anywhere; what reads it counts on numbers."""
    for name in names:
        if not isinstance(content[name], kind):
            raise TypeError(f"{name} is {content[name]!r}")


def _look(content: dict[str, Any]) -> Look:
    _check(content, int, "episodes")
    _check(content, int | float, "share")
    counts = {key: tuple(content[key]) for key in ("satisfied", "violated")}
    return Look(**{**content, **counts, "verdict": Verdict[content["verdict"]]})


def _estimate(content: dict[str, Any] | None) -> Estimate | None:
    if content is None:
        return None
    _check(content, int, "episodes")
    _check(content, int | float, "mean_return", "return_error")
    return Estimate(**{**content, "shares": tuple(ShareEstimate(**share) for share in content["shares"])})
