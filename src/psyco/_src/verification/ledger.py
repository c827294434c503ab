"""The ledger of looks: every test of a policy, entered before its first episode is sampled.

A look costs a share of the permitted error and a block of fresh episodes. In a run's folder the ledger is a file,
written durably before a look begins, so that a look counts as spent even if its process dies. Only the owner of a look
may repeat it: a resumed run repeats its own looks, with the same result; any later caller takes the next look. A look
whose episodes are no functions of their seeds is never repeated.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from psyco._src.core import files
from psyco._src.core.codec import decode, encode
from psyco._src.core.errors import MissingFileError, RunError
from psyco._src.core.files import from_json, json_digest, read_text
from psyco._src.envs.registry import DomainDescription
from psyco._src.envs.variants import adversary_of, read_adversary
from psyco._src.logic.ast import Requirement
from psyco._src.logic.parser import parse
from psyco._src.rollout.episodes import Stream
from psyco._src.verification.base import Verdict
from psyco._src.verification.certificate import Certificate, Look
from psyco._src.verification.methods import DEFAULT_METHOD

logger = logging.getLogger(__name__)

FORMAT = "psyco-looks-1"
# A note for certificates.
IGNORED_LOOKS_NOTE = "Earlier looks at policies of this run were not counted, as was asked for (--ignore-looks)."


def look_share(look: int, *, of: int | None = None) -> float:
    """Return the share of the permitted error for look 1, 2, ...: 1/(i(i+1)), which sums to 1 over all looks.

    With at most `of` looks nothing is kept for later ones: their shares sum to 1.
    """
    return (1.0 if of is None else (of + 1) / of) / (look * (look + 1))


class LookTarget(NamedTuple):
    """The claim under test and the method; looks at equal targets share one permitted error."""

    statement: str  # the constraints without their names, the domain and its parameters
    method: str  # and its options


def make_target(
    requirement: Requirement, where: DomainDescription, method: str, options: Mapping[str, Any]
) -> LookTarget:
    """Return the target of a look."""
    method_text = json.dumps([method, dict(options)], sort_keys=True, default=str)
    return LookTarget(make_statement(requirement, where), method_text)


def make_statement(requirement: Requirement, where: DomainDescription) -> str:
    """Return the statement of a target.

    Adversaries of one kind and size share it, and so do deviations of one agent for one goal: to learn one after the
    other until a test ends in SATISFIED is one search for that verdict.
    """
    constraints = [str(dataclasses.replace(stated, name=None)) for stated in requirement.constraints]
    parameters = dict(where.parameters)
    if found := adversary_of(parameters):
        parameters["adversary"] = vars(read_adversary(found))
    return json.dumps([constraints, where.name, parameters], sort_keys=True, default=str)


class Entry(NamedTuple):
    """One look, begun or finished."""

    look: Look  # UNDECIDED after 0 episodes until it is finished
    target: LookTarget
    owner: str  # may repeat the look


@dataclass
class Ledger:
    """All looks so far, and the shares of later ones.

    Args:
        entries: looks in order; with a file, its initial content.
        share: returns the share of the permitted error for look 1, 2, ... at one target.
        stream: random stream of the episodes; every look takes its own block.
        seed_block: block of the next look; None: the next free one.
        owner: owner of the next look.
        path: file of the ledger; None: in memory.
        guard: lock held while the file is read and written, where several processes may look.
    """

    entries: list[Entry] = field(default_factory=list)
    share: Callable[[int], float] = look_share
    stream: Stream = Stream.VERIFY
    seed_block: int | None = None
    owner: str = ""
    path: Path | None = None
    guard: Callable[[], AbstractContextManager[None]] = nullcontext
    _begun: int = 0  # looks begun by this object

    def begin(self, target: LookTarget, policy: str, seed: int, *, seeded: bool = True) -> tuple[Look, ...]:
        """Enter a new look, whose share of the error is then spent; return all looks at this target up to it.

        Args:
            target: the claim under test.
            policy: digest of the policy.
            seed: of the episodes.
            seeded: whether episodes repeat under their seeds; if not, the owner too takes the next look.
        """
        with self.guard():
            self.load()
            position = self._find_own(target, policy, seed) if seeded else None
            self._begun += 1
            if position is None:
                position = len(self.entries)
                self.entries.append(Entry(self._next(target, policy, seed), target, self.owner))
                self._save()
            return tuple(entry.look for entry in self.entries[: position + 1] if entry.target == target)

    def end(self, finished: Look) -> None:
        """Enter the outcome of a look; a failure is logged only, since the look is spent and its outcome is known."""
        try:
            with self.guard():
                self.load()
                for i, entry in enumerate(self.entries):
                    if entry.look.seed_block == finished.seed_block and entry.look != finished:
                        self.entries[i] = entry._replace(look=finished)
                        self._save()
        except RunError as error:
            logger.warning("the outcome of this look is not entered in the run's account: %s", error)

    def load(self) -> None:
        """Read the file again: other processes may have added looks."""
        if self.path is None:
            return
        try:
            text = read_text(self.path, "description of a run", inside=self.path.parent)
            self.entries = _read_entries(text, str(self.path))
        except MissingFileError:
            pass
        except RunError as error:
            raise RunError(
                f"{error}: which looks were taken at this run is not known any more; "
                "psyco verify --ignore-looks does not count them, and says so in the certificate"
            ) from None

    def earlier_method(self, statement: str) -> tuple[str, dict[str, Any]]:
        """Return the method of the earlier looks at a statement, and its options; the default if there were none."""
        self.load()
        used = (json.loads(entry.target.method) for entry in self.entries if entry.target.statement == statement)
        name, options = next(used, (DEFAULT_METHOD, {}))
        return name, options

    def _find_own(self, target: LookTarget, policy: str, seed: int) -> int | None:
        """Return the position of this look if its owner began it earlier."""
        own = [i for i, entry in enumerate(self.entries) if self.owner and entry.owner == self.owner]
        if self._begun < len(own):
            entry = self.entries[own[self._begun]]
            if (entry.target, entry.look.policy, entry.look.seed) == (target, policy, seed):
                return own[self._begun]
        return None

    def _next(self, target: LookTarget, policy: str, seed: int) -> Look:
        earlier = [entry for entry in self.entries if entry.target.statement == target.statement]
        for entry in earlier:
            if entry.target.method != target.method:
                raise RunError(
                    f"the earlier looks used the method {_method_text(entry.target.method)}, this one would use "
                    f"{_method_text(target.method)}; looks that share one error need one method with the same options: "
                    f"{_method_arguments(entry.target.method)}; or do not count the earlier looks (--ignore-looks)"
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
        free = 1 + max((entry.look.seed_block or 0 for entry in self.entries), default=-1)
        seed_block = free if self.seed_block is None else self.seed_block
        return Look(policy, seed, seed_block, share, Verdict.UNDECIDED, 0, None, (), (), ())

    def _save(self) -> None:
        if self.path is not None:
            try:
                files.write(self.path, to_json(self.entries).encode())
            except RunError as error:
                raise RunError(f"{error}; a look that is not entered there needs --ignore-looks") from None


def single_look(share: float = 1.0) -> Ledger:
    """Return a ledger in memory for a single look."""
    return Ledger(share=lambda look: share)


def certificate_entries(certificate: Certificate, owner: str = "") -> list[Entry]:
    """Return the looks that a certificate lists, as entries of one owner."""
    where = DomainDescription(str(certificate.domain), certificate.parameters)
    target = make_target(parse(certificate.requirement), where, certificate.method, certificate.options)
    return [Entry(look, target, owner) for look in certificate.looks]


def to_json(entries: list[Entry]) -> str:
    """Return the content of the file: the entries and a checksum."""
    plain = encode(entries)
    return json.dumps({"format": FORMAT, "entries": plain, "checksum": json_digest(plain)}, indent=2) + "\n"


class _LedgerFile(NamedTuple):
    format: str
    entries: list[Entry]
    checksum: str


def _read_entries(text: str, origin: str) -> list[Entry]:
    content = from_json(text, origin)
    file = decode(content, _LedgerFile, origin)
    if file.format != FORMAT or file.checksum != json_digest(content["entries"]):
        raise RunError(f"{origin} is damaged: its checksum or format is wrong")
    return file.entries


def _method_text(method: str) -> str:
    name, options = json.loads(method)
    return f"{name} with options {options}" if options else str(name)


def _method_arguments(method: str) -> str:
    name, options = json.loads(method)
    return " ".join([f"--method {name}", *(f"--option {key}={value}" for key, value in options.items())])
