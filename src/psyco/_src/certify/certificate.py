"""The certificate: what was shown about which policy, how, and with which guarantee."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import numpy as np

from psyco._src.errors import RunError
from psyco._src.smc.base import Guarantee, Tally, Test, Verdict, percent
from psyco._src.smc.bayes import posterior_mass
from psyco._src.spec.formula import Node, Requirement
from psyco._src.versions import versions

FORMAT = "psyco-certificate-1"


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

    @property
    def estimate(self) -> float:
        """The observed share."""
        return self.satisfied / self.episodes if self.episodes else float("nan")


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

    def to_json(self) -> str:
        """All of it, as JSON, with a checksum of everything else at the end."""
        content = {"format": FORMAT, **_plain(self)}
        return json.dumps({**content, "checksum": _checksum(content)}, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, *, origin: str = "the certificate", strict: bool = True) -> Certificate:
        """Read a certificate; `strict` refuses one that was changed after it was issued."""
        try:
            content = json.loads(text)
            if content["format"] != FORMAT:
                raise RunError(f"{origin} has format {content['format']!r}; this version reads {FORMAT!r}")
            checksum = content.pop("checksum")
            _check(content, int, "episodes")
            _check(content, int | float | None, "mean_return", "return_error", "share")
            _check(content, dict, "parameters", "options", "versions")
            certificate = cls(
                **{
                    **{key: value for key, value in content.items() if key != "format"},
                    "verdict": Verdict[content["verdict"]],
                    "guarantee": Guarantee(**content["guarantee"]),
                    "findings": tuple(map(_finding, content["findings"])),
                    "looks": tuple(map(_look, content["looks"])),
                }
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{origin} is not a PSyCo certificate, or it is damaged ({error!r})") from None
        if strict and (checksum != _checksum(content) or certificate.to_json() != text):
            raise RunError(
                f"{origin} was changed after it was issued: its checksum does not fit its content; "
                "`psyco verify --replay` says what"
            )
        return certificate

    def __str__(self) -> str:
        lines = [f"{self.verdict.name}: {self.verdict.value}"]
        for f in self.findings:
            lines += [
                f"  {f.constraint}",
                f"    {f.verdict.name} after {f.episodes:,} episodes: {f.satisfied:,} satisfied, "
                f"{f.violated:,} violated (share {f.estimate:.4f}, between {f.lower:.4f} and {f.upper:.4f})",
                f"    c_sat {f.confidence:.6f}",
            ]
        if self.mean_return is not None:
            lines += [f"  return {self.mean_return:.2f} ± {self.return_error:.2f} (mean ± standard error)"]
        lines += [f"  {self.subject}, method {self.method}"]
        if len(self.looks) > 1:
            lines += [f"  {len(self.looks)} looks: " + ", ".join(map(_shown_look, self.looks))]
        lines += [f"  {self.guarantee.statement}"]
        if len(self.findings) > 1:
            lines += [f"  {f.name or f.constraint}: {f.guarantee.statement}" for f in self.findings]
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
    def subject(self) -> str:
        """What was verified, in a few words."""
        if self.policy is None:
            given = "" if self.max_episodes is None else f"{self.episodes:,} of {self.max_episodes:,} "
            return f"{given}recorded outcomes sha256:{str(self.outcomes)[:16]}{self._unseen}"
        return f"policy sha256:{self.policy[:16]} on {self.domain}, seed {self.seed}, block {self.block}"


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
) -> Certificate:
    """Write down how a verification ended."""
    findings = tuple(_found(test, progress) for test, progress in zip(tests, progress, strict=True))
    episodes = max((f.episodes for f in findings), default=len(returns))
    look = Look(
        subject.policy, subject.seed, subject.block, share, verdict, episodes,
        tuple(f.satisfied for f in findings), tuple(f.violated for f in findings),
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
        return_error=_standard_error(returns) if len(returns) else None,
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
    )


def guarantee_of_all(findings: Sequence[Finding], looks: Sequence[Look], share: float) -> Guarantee:
    """What the verdict about the whole requirement is worth, with all looks counted; `share` is this look's."""
    if not findings:
        return Guarantee("exact", "There is no constraint, so there is nothing to be wrong about.", 0.0, 0.0)
    own = findings[0].guarantee
    several = len(findings) > 1
    if own.wrongly_satisfied is None:
        accept = reject = None
        statement = (
            f"Of each of the {len(findings)} constraints by itself it is said: " * several + own.statement
        )
        jointly = "so each of them holds the belief to a stricter level than a single one would have."
    else:
        accept = max(f.guarantee.wrongly_satisfied or 0.0 for f in findings) / share
        reject = sum(f.guarantee.wrongly_violated or 0.0 for f in findings)
        statement = own.statement
        if several:
            statement = (
                f"If at least one of the {len(findings)} constraints fails, the chance that all are called satisfied "
                f"is at most {percent(accept * share)}; if all hold, the chance that one is called violated is at most "
                f"{percent(reject)}. What is said of each constraint by itself is listed with it."
            )
        jointly = (
            f"so the chance that any of them wrongly ends in SATISFIED is at most {percent(accept)} in total."
        )
    if len(looks) > 1:
        statement += (
            f" There were {len(looks)} looks, each at fresh episodes of its own. They share the permitted error, "
            f"{jointly}"
        )
    elif share < 1.0:
        statement += (
            f" This look used {percent(share)} of the permitted error; the rest was kept for further looks."
        )
    return Guarantee(own.kind, statement, accept, reject)


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
    lower, upper = test.bounds(progress.counts)
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
    )


def _standard_error(returns: Any) -> float:
    return float(returns.std(ddof=1) / np.sqrt(len(returns))) if len(returns) > 1 else 0.0


def _shown_look(look: Look) -> str:
    return f"{look.verdict.name} after {look.episodes:,} ({percent(look.share)} of the error)"


def _plain(value: Any) -> Any:
    """Dataclasses, tuples and verdicts as what JSON has."""
    if isinstance(value, Verdict):
        return value.name
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
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
