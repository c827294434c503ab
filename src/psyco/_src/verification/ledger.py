"""The ledger of looks: every test of a policy that we can see, entered before its first episode is sampled.

A look costs a share of the permitted error and a block of fresh episodes. In a run's folder the ledger is a file,
written durably before a look begins, so that a process that dies on the way has spent it all the same. Only who began
a look may repeat it: a run that is resumed makes its own looks again, to the same end; whoever comes later takes the
next.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from psyco._src.core import atomic_io
from psyco._src.core.errors import MissingFileError, RunError
from psyco._src.core.safe_io import check_kinds, from_json, read_text
from psyco._src.envs.registry import DomainDescription
from psyco._src.logic.ast import Requirement
from psyco._src.logic.parser import parse
from psyco._src.rollout.episodes import Stream
from psyco._src.verification.base import Verdict
from psyco._src.verification.certificate import Certificate, Look

logger = logging.getLogger(__name__)

FORMAT = "psyco-looks-1"
# A note for certificates.
IGNORED = "Earlier looks at policies of this run were not counted, as was asked for (--ignore-looks)."


def look_share(look: int, *, of: int | None = None) -> float:
    """The part of the permitted error for look 1, 2, ...: 1/(i(i+1)), which sums to 1 over endlessly many looks.

    If there are at most `of` looks, the rest is not kept for later: the shares of these sum to 1.
    """
    return (1.0 if of is None else (of + 1) / of) / (look * (look + 1))


class LookTarget(NamedTuple):
    """What is tested, and how; looks share an error where all of it is the same."""

    statement: str  # the constraints, whatever they are called, the domain and its parameters
    method: str  # with its options


def make_claim(
    requirement: Requirement, where: DomainDescription, method: str, options: Mapping[str, Any]
) -> LookTarget:
    """The claim that a certificate would be about."""
    wanted = [str(dataclasses.replace(each, name=None)) for each in requirement.constraints]
    statement = json.dumps([wanted, *where], sort_keys=True, default=str)
    return LookTarget(statement, json.dumps([method, dict(options)], sort_keys=True, default=str))


class Entry(NamedTuple):
    """One look, begun or made."""

    look: Look  # UNDECIDED after 0 episodes as long as it has not come to its end
    claim: LookTarget
    work: str  # who looks: may repeat what it began


@dataclass
class Ledger:
    """All looks so far, and the shares of those to come.

    Args:
        entries: in order; where there is a file, what it begins with.
        share: the part of the permitted error for look 1, 2, ... at one claim.
        stream: where the episodes come from; every look takes a block of its own.
        block: of the next look, if it is not the next free one.
        work: who looks now.
        path: the file that is kept, if one is.
        guard: held while the file is read and written, where others may look at the same time.
    """

    entries: list[Entry] = field(default_factory=list)
    share: Callable[[int], float] = look_share
    stream: Stream = Stream.VERIFY
    block: int | None = None
    work: str = ""
    path: Path | None = None
    guard: Callable[[], AbstractContextManager[None]] = nullcontext
    _own: int = 0  # looks that this object began

    def begin(self, claim: LookTarget, policy: str, seed: int) -> tuple[Look, ...]:
        """All looks at this claim up to a new one, which is the last: its share of the error is spent from now on."""
        with self.guard():
            self.load()
            position = self._again(claim, policy, seed)
            self._own += 1
            if position is None:
                position = len(self.entries)
                self.entries.append(Entry(self._next(claim, policy, seed), claim, self.work))
                self._save()
            return self._looks(claim, position)

    def end(self, certificate: Certificate) -> None:
        """What came of a look. It is spent already, so that this cannot be entered is no reason to lose its outcome."""
        made = certificate.looks[-1]
        try:
            with self.guard():
                self.load()
                for i, entry in enumerate(self.entries):
                    if entry.look.block == made.block and entry.look != made:
                        self.entries[i] = entry._replace(look=made)
                        self._save()
        except RunError as error:
            logger.warning("the outcome of this look is not entered in the run's account: %s", error)

    def load(self) -> None:
        """The file as it is now: others may have looked meanwhile."""
        if self.path is None:
            return
        try:
            text = read_text(self.path, "description of a run", inside=self.path.parent)
            self.entries = _entries(from_json(text, str(self.path)))
        except MissingFileError:
            pass
        except (RunError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(
                f"{self.path} is damaged ({error}): which looks were taken at this run is not known any more; "
                "psyco verify --ignore-looks does not count them, and says so in the certificate"
            ) from None

    def _again(self, claim: LookTarget, policy: str, seed: int) -> int | None:
        """The position of the look that is repeated, if the one who looks began it already."""
        own = [i for i, entry in enumerate(self.entries) if self.work and entry.work == self.work]
        if self._own < len(own):
            entry = self.entries[own[self._own]]
            if (entry.claim, entry.look.policy, entry.look.seed) == (claim, policy, seed):
                return own[self._own]
        return None

    def _next(self, claim: LookTarget, policy: str, seed: int) -> Look:
        earlier = [entry for entry in self.entries if entry.claim.statement == claim.statement]
        for entry in earlier:
            if entry.claim.method != claim.method:
                raise RunError(
                    f"the earlier looks used the method {_words(entry.claim.method)}, this one would use "
                    f"{_words(claim.method)}; looks that share one error need one method with the same options"
                )
        used = sum(entry.look.share for entry in earlier)
        share = self.share(len(earlier) + 1)
        if not isinstance(share, int | float) or not 0.0 < share <= 1.0:
            raise RunError(f"the share of the error is a number above 0 and at most 1, got {share}")
        if share > 1.0 - used + 1e-12:
            raise RunError(
                f"the earlier looks used {used:.4g} of the permitted error, this one would use {share:.4g} more; "
                "if a certificate may have to be tried again, issue the first one with share=look_share(1) "
                "(--retryable)"
            )
        free = 1 + max((entry.look.block or 0 for entry in self.entries), default=-1)
        block = free if self.block is None else self.block
        return Look(policy, seed, block, share, Verdict.UNDECIDED, 0, (), ())

    def _looks(self, claim: LookTarget, last: int) -> tuple[Look, ...]:
        return tuple(e.look for e in self.entries[: last + 1] if e.claim == claim)

    def _save(self) -> None:
        if self.path is not None:
            try:
                atomic_io.write(self.path, to_json(self.entries).encode())
            except RunError as error:
                raise RunError(f"{error}; a look that is not entered there needs --ignore-looks") from None


def single(share: float = 1.0) -> Ledger:
    """One look that stands for itself."""
    return Ledger(share=lambda look: share)


def entries_of(certificate: Certificate, work: str = "") -> list[Entry]:
    """The looks that a certificate lists, as those of one piece of work."""
    where = DomainDescription(str(certificate.domain), certificate.parameters)
    claim = make_claim(parse(certificate.requirement), where, certificate.method, certificate.options)
    return [Entry(look, claim, work) for look in certificate.looks]


def to_json(entries: list[Entry]) -> str:
    """The file: one object per look, and a checksum."""
    looks = [
        {
            **dataclasses.asdict(e.look),
            "verdict": e.look.verdict.name,
            "statement": e.claim.statement,
            "method": e.claim.method,
            "work": e.work,
        }
        for e in entries
    ]
    return json.dumps({"format": FORMAT, "looks": looks, "sha256": _checksum(looks)}, indent=2) + "\n"


def _entries(content: Any) -> list[Entry]:
    if content["format"] != FORMAT or content["sha256"] != _checksum(content["looks"]):
        raise ValueError("its checksum is wrong")
    return [_entry(each) for each in content["looks"]]


def _entry(content: dict[str, Any]) -> Entry:
    claim, work = LookTarget(content.pop("statement"), content.pop("method")), content.pop("work")
    counts = {key: tuple(content.get(key, ())) for key in ("satisfied", "violated", "means")}
    look = Look(**{**content, **counts, "verdict": Verdict[content["verdict"]]})
    check_kinds(look, "a look")
    return Entry(look, claim, work)


def _checksum(looks: list[dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(looks, sort_keys=True).encode()).hexdigest()


def _words(method: str) -> str:
    name, options = json.loads(method)
    return f"{name} with options {options}" if options else str(name)
