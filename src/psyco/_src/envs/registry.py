"""Make domains by name, describe them as plain data, and decide which code such data may import.

Plug-ins register domains through the entry-point group `psyco.domains`.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, NamedTuple

from psyco._src.core.checks import check_parameters
from psyco._src.core.errors import DomainError, PsycoError, check_has, format_exception, suggest
from psyco._src.core.lazy_registry import Registry
from psyco._src.envs.agents import agents_of
from psyco._src.envs.sandbox import deduplicate_output, sandboxed

if TYPE_CHECKING:
    from psyco._src.envs.base import Domain

BUILT_IN = Registry(
    "domain",
    {
        "particle-dance": "envs.particle_dance:ParticleDance",
        "obstacle-run": "envs.obstacle_run:ObstacleRun",
    },
)
# The same with several agents, and the parameter that asks for it, with its value for one agent.
SEVERAL_AGENTS = Registry(
    "domain",
    {
        "particle-dance": "envs.dance_team:DanceTeam",
        "obstacle-run": "envs.obstacle_game:ObstacleGame",
    },
)
ASKS_FOR_SEVERAL: dict[str, tuple[str, Any]] = {"particle-dance": ("agents", 1), "obstacle-run": ("opponent", False)}
PREFIXES = Registry(
    "prefix",
    {
        "gymnax": "envs.gymnax_env:gymnax_domain",
        "brax": "envs.brax_env:brax_domain",
        "jaxmarl": "envs.jaxmarl_env:jaxmarl_domain",
        "pettingzoo": "envs.gym_env:pettingzoo_domain",
    },
)
KNOWN_TEAMS = ("mpe2", "pettingzoo")  # packages whose environments of PettingZoo may be named by any file
TRUST_NOTHING: frozenset[str] = frozenset()
PLAIN_WORD = re.compile(r"[\w +-]*")  # a text that names no file, unless there is one of that name
FILE_WORDS = frozenset({"file", "files", "filename", "path", "paths", "dir", "directory", "folder"})
MAX_SHOWN_PARAMETERS = 2_000  # characters
MODEL_SUFFIXES = (".prism", ".pm", ".nm", ".sm", ".jani")  # of PRISM and JANI models


class DomainDescription(NamedTuple):
    """Name and parameters of a domain: plain data that can be stored and compared without making the domain."""

    name: str
    parameters: dict[str, Any]


def domain_names() -> list[str]:
    """Return the names of built-in domains and installed plug-ins, without importing them."""
    return sorted({*BUILT_IN, *_plugins()})


def domain_factories() -> dict[str, Callable[..., Domain]]:
    """Return the classes of built-in domains and installed plug-ins by name."""
    return {name: point.load() for name, point in _plugins().items()} | dict(BUILT_IN)


def make(name: str | Callable[..., Any], /, **parameters: Any) -> Domain:
    """Return the domain of that name; `parameters` replace its defaults.

    Args:
        name: a built-in or plug-in domain; a Gymnasium id (`CartPole-v1`, `module:Id`); a `gymnax:`, `brax:` or
            `jaxmarl:` environment; a module of PettingZoo (`pettingzoo:mpe2.simple_spread_v3`); a PRISM or JANI model
            file; the class of a compiled domain; a class or function that returns a Gymnasium environment; or
            `module:name` of such a class or function.
        parameters: of the domain. A Gymnasium environment takes its own parameters and `horizon`, `signals`,
            `wrappers`, `action_bound`, `seeded`. `vary` makes it a family, and
            `observe_parameters` shows its parameters to policies, as in `psyco.vary`. `shield` is that of a
            finite domain or a model, `{"level": 0.95, "requirement": "P>=0.9 [ G !crash ]"}`.

    >>> make("particle-dance", horizon=30).horizon
    30
    >>> make("CartPole-v1").observation_size
    4
    """
    distributions, observe = parameters.pop("vary", None), parameters.pop("observe_parameters", False)
    shield = parameters.pop("shield", None)
    try:
        if "adversary" in parameters:
            _refuse_adversary(parameters)
        domain = _joint(_make(name, parameters))
        if distributions or observe:
            domain = _family(domain, distributions, observe)
        if shield:
            domain = _shielded(domain, shield)
        hash(domain)  # jit needs it
    except PsycoError:
        raise
    except Exception as error:  # from user code, or about parameters from a file
        raise DomainError(f"cannot make {name} with {parameters!r:.200}: {format_exception(error)}") from error
    return domain


def _make(name: str | Callable[..., Any], parameters: dict[str, Any]) -> Domain:
    from psyco._src.envs.gym_env import gym_domain, gym_names, import_factory, is_gym_name

    if not isinstance(name, str):
        return (
            _make_compiled(qualified_name(name), name, parameters)
            if _is_compiled(name)
            else gym_domain(name, **parameters)
        )
    if name in BUILT_IN:
        asks, one = ASKS_FOR_SEVERAL[name]
        fields = [field.name for field in dataclasses.fields(BUILT_IN[name]) if field.init]
        check_has(name, "parameter", parameters, [*fields, asks], DomainError)
        given = parameters.get(asks, one)
        if type(given) is type(one) and given == one:
            return _make_compiled(name, BUILT_IN[name], {k: v for k, v in parameters.items() if k != asks})
        return _make_compiled(name, SEVERAL_AGENTS[name], parameters)
    if name in (plugins := _plugins()):
        return _make_compiled(name, plugins[name].load(), parameters)
    if is_model_name(name):
        from psyco._src.envs.model_file import model_domain

        return model_domain(name, **parameters)
    prefix, colon, rest = name.partition(":")
    if colon and prefix in PREFIXES:
        domain: Domain = PREFIXES[prefix](rest, **parameters)
        return domain
    if colon:
        source = import_factory(name)
        return _make_compiled(name, source, parameters) if _is_compiled(source) else gym_domain(name, **parameters)
    if is_gym_name(name):
        return gym_domain(name, **parameters)
    if os.path.isfile(name):
        raise DomainError(
            f"{name} is a file, and no model by its ending: PRISM models end in {', '.join(MODEL_SUFFIXES[:-1])}, JANI "
            "models in .jani. A policy or a run comes before its domain"
        )
    known = domain_names()
    raise DomainError(
        f"unknown domain {name!r}{suggest(name, [*known, *gym_names()])}; known are: {', '.join(known)}, "
        "and every environment of Gymnasium; for one of another package write its module first: "
        "highway_env:merge-v1"
    )


def _joint(domain: Domain) -> Domain:
    """Return the domain, as one agent sees it if it has several."""
    if not agents_of(domain):
        return domain
    from psyco._src.envs.multi_agent import joint_domain

    return joint_domain(domain)


def _refuse_adversary(parameters: Mapping[str, Any]) -> None:
    from psyco._src.envs.variants import adversary_of

    if (found := adversary_of(parameters)) and "agent" in found:
        raise DomainError(
            f"the agent {found['agent']} deviates in this domain, as in a policy file of its own: psyco exploit POLICY "
            f"--agent {found['agent']} --deviation FILE verifies against it, and psyco verify --replay CERTIFICATE "
            "POLICY --adversary FILE repeats a certificate; in Python, it is psyco.exploit(...).domain"
        )
    if found:
        named = f" (sha256:{found['policy']!s:.16})" if "policy" in found else ""
        raise DomainError(
            f"an adversary acts in this domain{named}, whose policy is a file of its own: "
            "psyco stress POLICY --adversary FILE verifies against it, and psyco verify --replay CERTIFICATE POLICY "
            "--adversary FILE repeats a certificate; in Python, it is psyco.attack(...).domain"
        )


def _family(domain: Domain, distributions: Any, observe: Any) -> Domain:
    from psyco._src.envs.family import vary

    if not distributions:
        raise DomainError(
            f"nothing varies in {domain.name}, so there are no parameters to observe: --vary NAME=0.08..0.12 with "
            "--observe-parameters; a policy that observes them acts in families only"
        )
    if not isinstance(distributions, Mapping):
        raise DomainError(f"vary is a table of distributions, as in max_speed = '0.08..0.12'; got {distributions!r}")
    return vary(domain, distributions, observe_parameters=observe)


def _shielded(domain: Domain, shield: Any) -> Domain:
    from psyco._src.envs.shield import with_shield
    from psyco._src.logic.parser import parse

    if not isinstance(shield, Mapping) or {*shield} != {"level", "requirement"}:
        raise DomainError(f"a shield has a level and a requirement, got {shield!r:.100}")
    return with_shield(domain, parse(str(shield["requirement"])), shield["level"])


def is_model_name(name: str) -> bool:
    """Return whether a name is that of a PRISM or JANI model file."""
    return name.endswith(MODEL_SUFFIXES)


def describe(domain: Domain) -> DomainDescription:
    """Return the description that makes this domain again: by registered name, or else as `module:Class`."""
    from psyco._src.envs.base import parameters
    from psyco._src.envs.variants import DerivedDomain

    values = parameters(domain)
    if isinstance(domain, DerivedDomain):
        return DomainDescription(describe(domain.base).name, values)
    if hasattr(domain, "parameters"):  # made from an id or a function
        return DomainDescription(domain.name, values)
    # Built-in domains first: looking for plug-ins takes longer than an episode.
    for registry in (lambda: BUILT_IN, domain_factories):
        for name, factory in registry().items():
            if factory is type(domain):
                return DomainDescription(name, values)
    return DomainDescription(qualified_name(type(domain)), values)


def make_from_description(description: DomainDescription, trust: Collection[str] = TRUST_NOTHING) -> Domain:
    """Return the domain that a file (policy, run, certificate) describes.

    The file may be of unknown origin. It may name registered domains, but code to import (`module:name`) and files to
    read only if the user names these in `trust`, too.
    """
    check_trust(description, trust)
    return make(description.name, **description.parameters)


def required_trust(description: DomainDescription) -> list[str]:
    """Return what the user must name before this domain is made: code to import, and files that parameters may name."""
    return list(dict.fromkeys([*_required_code(description), *_named_files(description)]))


def proposed_trust(description: DomainDescription) -> list[str]:
    """Return the names that a hint may propose to trust: none if parameters hold further texts, which it hides.

    The command without them then asks for trust, and shows the parameters.
    """
    named = required_trust(description)
    return [] if set(texts(list(_arguments(description).values()))) - set(named) else named


def _required_code(description: DomainDescription) -> list[str]:
    """Return every `module:name` that making this domain would import."""
    named = [
        *([description.name] if _is_code(description.name) else []),
        *texts(description.parameters.get("wrappers")),
        *texts(description.parameters.get("signals")),
    ]
    return [code for code in named if ":" in code]


def _named_files(description: DomainDescription) -> list[str]:
    """Return the texts among the parameters that may name a file; trust in the code of an environment includes them."""
    if is_model_name(description.name):
        return [description.name]
    if _is_code(description.name):
        return []
    arguments = _arguments(description)
    odd_names = [name for name in arguments if not PLAIN_WORD.fullmatch(name)]
    return [*odd_names, *(text for name, value in arguments.items() for text in _file_names(value, name))]


def _arguments(description: DomainDescription) -> dict[str, Any]:
    """Return the parameters without those that name code as `module:name`, and without those of a family or shield."""
    others = ("wrappers", "signals", "vary", "observe_parameters", "shield")
    return {name: value for name, value in description.parameters.items() if name not in others}


def _is_code(name: str) -> bool:
    prefix, colon, rest = name.partition(":")
    if prefix == "pettingzoo" and colon:
        return rest.partition(".")[0] not in KNOWN_TEAMS
    return bool(colon) and prefix not in PREFIXES  # gymnax:... is not a module


def _file_names(value: Any, key: str = "") -> Iterator[str]:
    """Yield texts that are more than a word, that name an existing file, or whose parameter is called a file."""
    match value:
        case str():
            called_file = FILE_WORDS & set(re.split(r"[\W_]+", key.lower()))
            if value and (called_file or not PLAIN_WORD.fullmatch(value) or os.path.lexists(value)):
                yield value
        case Mapping():
            for name, item in value.items():
                yield from _file_names(str(name), key)
                yield from _file_names(item, str(name))
        case list() | tuple():
            for item in value:
                yield from _file_names(item, key)


def qualified_name(thing: Any) -> str:
    """Return `module:name` of a function or class, for messages and files."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    return f"{module}:{name}" if module and name else type(thing).__name__


def import_object(text: str) -> Any:
    """Return the object `module:name`. This imports the module: call it only for names that the user typed."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise DomainError(f"{text!r} names no object; write module:name")
    thing = import_code(module, text)
    for part in name.split("."):
        if not hasattr(thing, part):
            raise DomainError(f"{module!r} has no {name!r}{suggest(part, dir(thing))}")
        thing = getattr(thing, part)
    return thing


def import_code(module: str, text: str) -> Any:
    """Return the module of `text`, imported in the sandbox."""
    try:
        with sandboxed(), deduplicate_output():
            return import_module(module)
    except ImportError as error:
        raise DomainError(f"cannot import {module!r} of {text!r}: {error}") from None
    except Exception as error:  # an invalid module name, or any error of the module's code
        raise DomainError(f"cannot import {module!r} of {text!r}: {format_exception(error)}") from error


def trusted_names(trust: Collection[str]) -> set[str]:
    """Return the trusted names as a set; `trust` may be a single name."""
    return {trust} if isinstance(trust, str) else set(trust)


def check_trust(description: DomainDescription, trust: Collection[str]) -> None:
    """Raise DomainError if making a described domain needs code or files that the user does not trust by name.

    A `module:name` may also be trusted by its module.
    """
    trusted = trusted_names(trust)
    required = _required_code(description)
    code = [name for name in required if name not in trusted and name.partition(":")[0] not in trusted]
    named_files = _named_files(description)
    if local := [name for name in code if name.startswith("__main__:") or "<" in name]:
        raise DomainError(
            f"{local[0]} was defined in a script or a notebook and cannot be imported by name; "
            "give the object itself: domain=... in Python, or --domain"
        )
    missing = list(dict.fromkeys([*code, *(name for name in named_files if name not in trusted)]))
    if missing:
        needs = f"this needs the Python code {', '.join(code)}, and a file must not choose which code runs"
        shown = _shown(description.parameters)
        reads = (
            f"parameters of {description.name} may name files, {shown}, and a file must not choose which files are read"
        )
        more = f". The file sets these parameters, which may name further code and files: {shown}"
        options = " ".join(f"--trust {shlex.quote(name)}" for name in missing)
        raise DomainError(
            f"{needs if code else reads}; if you trust it, name it yourself: {options} (in Python: trust={missing!r})"
            + more * bool(code and description.parameters)
        )
    for name in named_files:
        if os.path.exists(name) and stat.S_ISFIFO(os.stat(name).st_mode):
            raise DomainError(f"{name!r} is a pipe, and reading it may never end; give the name of a file")


def _shown(parameters: Mapping[str, Any]) -> str:
    """Format parameters for a question about trust: those with texts first; a cut is announced."""
    ordered = sorted(parameters.items(), key=lambda item: not any(texts(item[1])))
    text = ", ".join(f"{name} = {value!r}" for name, value in ordered)
    if len(text) <= MAX_SHOWN_PARAMETERS:
        return text
    return f"{text[:MAX_SHOWN_PARAMETERS]}... ({len(text):,} characters in all; read the file before you trust it)"


def texts(value: Any) -> Iterator[str]:
    """Yield every text inside a value from a file, which may have any shape."""
    match value:
        case str():
            yield value
        case Mapping():
            yield from texts([*value, *value.values()])
        case list() | tuple():
            for item in value:
                yield from texts(item)


@cache  # searches all installed packages
def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group="psyco.domains")}


def _is_compiled(factory: Any) -> bool:
    """Return whether this is the class of a compiled domain; other callables make Gymnasium environments."""
    return isinstance(factory, type) and all(hasattr(factory, name) for name in ("observe", "signals", "reset", "step"))


def _make_compiled(name: str, factory: Callable[..., Domain], parameters: dict[str, Any]) -> Domain:
    """Return a domain of this class, after a check of names and types of its parameters."""
    if dataclasses.is_dataclass(factory):
        fields = {field.name: field.default for field in dataclasses.fields(factory) if field.init}
        check_parameters(name, parameters, fields)
    return factory(**parameters)
