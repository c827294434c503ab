"""Build a PRISM or JANI model with Storm and write it as arrays: the program of a child process, which has limits.

A model file may come from a stranger. It runs no code, but it can take any time and memory, and Storm is a C++ program:
so it is parsed and built in a process of its own, with a limit of memory, and the caller ends it after a given time.
"""

from __future__ import annotations

import codecs
import json
import re
import resource
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

REFUSED = {
    "CTMC": "a continuous-time Markov chain, and steps have no time here",
    "MA": "a Markov automaton, and steps have no time here",
    "POMDP": "partially observable, and policies would observe all of its variables",
    "PTA": "a probabilistic timed automaton; PRISM's digital clocks make an MDP of it",
    "SMG": "a stochastic game, and there is one player here",
}
PRISM_TYPE = r"\s*(ctmc|stochastic|ma|pomdp|popta|pta|smg|csg)\b"  # the first word of a file
PROPERTY_FILES = (".props", ".pctl", ".prctl", ".csl")
OWN = frozenset({"name", "horizon", "reward", "observe", "start", "until", "max_states", "sha256"})  # parameters
OVERLAP = "overlap_guards"  # Storm's label of the states of a chain in which several commands are enabled
FILTER = re.compile(r"Obtain the (\w+)\b.* of the '(.*)'-states with values described by ", re.DOTALL)
AVERAGED = "Storm would average them, and the distribution of their sums would be lost"


class BuildError(Exception):
    """A problem of the model file, in words."""


def main(arguments: list[str]) -> int:
    """Build the model of a request and write `model.npz` and `model.json`, or `error.json`, into a folder."""
    request, folder = json.loads(arguments[0]), Path(arguments[1])
    if request["memory"]:
        resource.setrlimit(resource.RLIMIT_AS, (request["memory"], request["memory"]))
    try:
        arrays, facts = build(Path(request["file"]), request["constants"], request["max_states"], folder)
    except MemoryError:
        problem = "it needs too much memory"
    except BuildError as error:
        problem = str(error)
    except UnicodeDecodeError:  # of Storm's message
        problem = "it is no text in UTF-8"
    except RuntimeError as error:  # of Storm
        text = _message(error)
        problem = "it needs too much memory" if "bad_alloc" in text else text
    else:
        np.savez(folder / "model.npz", **arrays)
        (folder / "model.json").write_text(json.dumps(facts))
        return 0
    (folder / "error.json").write_text(json.dumps(problem))
    return 0


def _message(error: RuntimeError) -> str:
    """Return a message of Storm without the names of its exceptions."""
    text = " ".join(str(error).split(", here:")[0].split())
    text = re.sub(r"^(\[\S*\] )?(\w*Exception: )?", "", text)
    text = text.replace("expecting <model type>", "it does not begin with the type of a model, dtmc or mdp")
    return re.sub(r"^(Parsing error at (\d+):(\d+):|Error in \S+, line (\d+):)", _place, text)


def _place(found: re.Match[str]) -> str:
    return f"line {found[4]}:" if found[4] else f"line {found[2]}, column {found[3]}:"


def build(
    file: Path, constants: dict[str, Any], max_states: int, folder: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arrays of the model, and its type, names and properties."""
    import stormpy

    if file.suffix == ".jani":
        _refuse(str(_content(file).get("type", "")).upper())  # Storm ends hard on some types
        parsed, properties = stormpy.parse_jani_model(str(file))
        if (mended := _without_percent(content := _content(file))) != content:
            (folder / "model.jani").write_text(json.dumps(mended))
            parsed, properties = stormpy.parse_jani_model(str(folder / "model.jani"))
    else:
        text = file.read_text(encoding="utf-8-sig", errors="replace")
        source = file
        if file.read_bytes().startswith(codecs.BOM_UTF8):  # Storm would take it for a part of the first word
            source = folder / "model.prism"
            source.write_text(text, encoding="utf-8")
        if stated := re.match(PRISM_TYPE, re.sub("//.*", "", text)):
            _refuse({"stochastic": "CTMC", "popta": "POMDP", "csg": "SMG"}.get(stated[1], stated[1].upper()))
        parsed, properties = stormpy.parse_prism_program(str(source)), []
        if (mended := _without_mod(text)) != text:  # only now, so that a syntax error has its place
            (folder / "model.prism").write_text(mended)
            parsed = stormpy.parse_prism_program(str(folder / "model.prism"))
    kind = str(parsed.model_type).rpartition(".")[2]
    _refuse(kind)
    if kind not in ("DTMC", "MDP"):
        raise BuildError(f"it is of type {kind}; discrete-time Markov chains and decision processes can be read")
    declared = {constant.name: constant for constant in parsed.constants}
    _check_constants(file, declared, constants)
    _refuse_averaged_assignments(file)
    # Constants of the properties alone (a bound, a target) stay undefined.
    undefined = [name for name, constant in declared.items() if not constant.defined]
    values = {name: _value(declared[name], constants[name]) for name in undefined}
    model, properties = stormpy.instantiate_constants(parsed, values, properties)
    unread: list[list[str]] = []
    if file.suffix != ".jani" and (beside := _beside(file)) is not None:
        try:
            properties = stormpy.parse_properties(beside.read_text(encoding="utf-8"), model)
        except (RuntimeError, UnicodeDecodeError) as error:
            why = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else _message(error)
            # Conditional expressions, too, have a question mark and a colon.
            unread = [[beside.name, f"Storm cannot read this file, {why[:120].replace('?', '')}"]]
    options = stormpy.BuilderOptions()
    options.set_build_state_valuations(True)
    options.set_build_all_labels(True)
    options.set_build_all_reward_models(True)
    options.set_add_overlapping_guards_label(True)
    built = _explore(model, options, max_states)
    facts = {
        "kind": kind,
        "properties": [[each.get_name(), _text(each, built.initial_states)] for each in properties] + unread,
    }
    path = folder / "model.umb"
    stormpy.io.export_to_umb(built, str(path))
    arrays = {"initial": np.array(built.initial_states), **dict(_arrays(path))}
    path.unlink()
    if built.nr_states > max_states or built.labeling.contains_label("unexplored"):
        return {}, facts | _program(model, int(np.diff(arrays["choices"]).max()))
    overlap = arrays.pop(f"label:{OVERLAP}", np.zeros(1, bool))
    averaged = [name.removeprefix("reward:choices:") for name in arrays if name.startswith("reward:choices:")]
    if overlap.any() and averaged:
        raise BuildError(
            f"several commands are enabled in {overlap.sum():,} states of this chain, and rewards are given to "
            f"commands ({', '.join(averaged)}): {AVERAGED}. Give rewards to states, or make the guards exclusive"
        )
    valuations, transient = built.state_valuations, _transient(file)
    for variable in sorted(valuations.get_all_variables(), key=lambda variable: str(variable.name)):
        if variable.name not in transient:
            if variable.has_rational_type():
                found = valuations.get_double_values(variable)
            else:
                found = valuations.get_values_states(variable)
            arrays[f"variable:{variable.name}"] = np.array(found)
    return arrays, facts


def _without_mod(text: str) -> str:
    """Return a PRISM program with mod(a, b) as a - b * floor(a/b); Storm has mod(-4, 2) = 2, and floor is right."""
    text = re.sub("//[^\n]*", "", text)
    while found := list(re.finditer(r"\bmod\s*\(", text)):
        begin, depth, comma, end = found[-1].end(), 0, 0, 0  # the last one contains no other
        for end in range(begin, len(text)):
            depth += (text[end] == "(") - (text[end] == ")")
            if depth < 0:
                break
            comma = end if text[end] == "," and depth == 0 else comma
        a, b = text[begin:comma], text[comma + 1 : end]
        text = f"{text[: found[-1].start()]}(({a})-({b})*floor(({a})/({b}))){text[end + 1 :]}"
    return text


def _without_percent(tree: Any) -> Any:
    """Return a JANI document with a % b as a - b * floor(a/b), for the same reason."""
    if isinstance(tree, list):
        return [_without_percent(each) for each in tree]
    if not isinstance(tree, dict):
        return tree
    found = {key: _without_percent(each) for key, each in tree.items()}
    if found.get("op") != "%":
        return found
    a, b = found["left"], found["right"]
    quotient = {"op": "floor", "exp": {"op": "/", "left": a, "right": b}}
    return {"op": "-", "left": a, "right": {"op": "*", "left": b, "right": quotient}}


def _explore(model: Any, options: Any, max_states: int) -> Any:
    """Return the built model; of one with more than `max_states` states, only a part of them."""
    from stormpy import developer

    limits = developer.ExplicitModelBuilderOptions[float]()
    limits.exploration_state_limit = max_states + 1
    described = developer.SymbolicModelDescription(model)
    return developer.make_explicit_model_builder[float](described, options, None, limits).build()


def _program(model: Any, actions: int) -> dict[str, Any]:
    """Return the program of a model that is too large to build, as a JANI document, and what else is known of it."""
    import stormpy

    model = model.substitute_constants()
    if not isinstance(model, stormpy.developer.storage.PrismProgram):
        model.substitute_functions()
        return {"program": json.loads(str(model)), "actions": actions, "labels": [], "order": None}
    model = model.substitute_formulas()
    document, _ = model.to_jani([])
    return {
        "program": json.loads(str(document)),
        "actions": actions,
        "labels": [label.name for label in model.labels],
        # Storm's JANI documents have the commands in another order.
        "order": {module.name: [_command_key(command) for command in module.commands] for module in model.modules},
    }


def _command_key(command: Any) -> list[Any]:
    """Return what identifies a command of a PRISM module: its action, guard and assignments."""
    made = [
        sorted(f"{each.variable.name} <- {each.expression}" for each in update.assignments)
        for update in command.updates
    ]
    return [command.action_name if command.is_labeled else None, str(command.guard_expression), made]


def _refuse(kind: str) -> None:
    if kind in REFUSED:
        raise BuildError(f"it is {REFUSED[kind]}")


def _text(stated: Any, initial: Any) -> str:
    """Return a property without its filter if this is its value in the initial state, else with it."""
    formula, filtered = str(stated.get_raw_formula()), FILTER.search(str(stated))
    what, states = filtered.groups() if filtered else ("unknown filter", "")
    # Storm 2.0 prints `minumum`.
    same = ("values", *(("minimum", "minumum", "maximum") if len(initial) == 1 else ()))
    return formula if what in same and states == '"init"' else f"filter({what}, {formula}, {states})"


def _value(constant: Any, given: Any) -> Any:
    """Return the value of a constant in the type that it has."""
    kind = constant.type
    if kind.is_boolean:
        fits, words = isinstance(given, bool), "true or false"
    elif kind.is_integer:
        fits, words = isinstance(given, int) and not isinstance(given, bool) and abs(given) < 2**63, "a 64-bit integer"
    else:
        fits = not isinstance(given, bool) and abs(given) < 1e300
        words, given = "a number", float(given) if fits else given
    if not fits:
        raise BuildError(f"its constant {constant.name!r} is {words}, got {given!r}")
    return given


def _refuse_averaged_assignments(file: Path) -> None:
    """Raise BuildError if the branches of an edge of a JANI file differ in their rewards."""
    if file.suffix != ".jani":
        return
    transient = _transient(file)
    for automaton in _content(file).get("automata", []):
        for edge in automaton.get("edges", []):
            made = [
                [each for each in branch.get("assignments", []) if each["ref"] in transient]
                for branch in edge["destinations"]
            ]
            kinds = {json.dumps(sorted((each["ref"], json.dumps(each["value"])) for each in part)) for part in made}
            later = any(each.get("index") and isinstance(each["value"], str | dict) for part in made for each in part)
            if len(kinds) > 1 or (later and len(made) > 1):
                raise BuildError(
                    f"the branches of an edge of {automaton['name']!r}, from {edge['location']!r}, differ in their "
                    f"rewards: {AVERAGED}. Give each its own location, from which an edge has the reward"
                )


def _check_constants(file: Path, declared: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    from psyco._src.core.errors import suggest

    open_ones = [name for name, constant in declared.items() if not constant.defined]
    for name in given:
        if name not in open_ones:
            known = f"its undefined constants are: {', '.join(open_ones) or 'none'}"
            what = "has a value already" if name in declared else "is unknown"
            raise BuildError(f"its constant {name!r} {what}{suggest(name, open_ones)}; {known}")
    if own := [name for name in open_ones if name in OWN]:
        raise BuildError(
            f"its constant {own[0]!r} has no value, and --set {own[0]} is a parameter of every model: "
            "give the constant another name, or a value in the file"
        )
    if missing := [name for name in open_ones if name not in given]:
        example = " ".join(f"--set {name}={_example(declared[name])}" for name in missing)
        python = ", ".join(f"{name}={_example(declared[name], python=True)}" for name in missing)
        raise BuildError(
            f"its constants {', '.join(missing)} have no values; give them, as in {example} "
            f"(in Python: psyco.make({str(file)!r}, {python}))"
        )


def _example(constant: Any, *, python: bool = False) -> str:
    kind = constant.type
    if kind.is_boolean:
        return "True" if python else "true"
    return "3" if kind.is_integer else "0.5"


def _beside(file: Path) -> Path | None:
    """Return the file with the properties of a PRISM model; `herman.9.prism` has `herman.props`."""
    stems = [file.stem[:end] for end in range(len(file.stem), 0, -1) if end == len(file.stem) or file.stem[end] == "."]
    for stem in stems:
        for suffix in PROPERTY_FILES:
            found = file.with_name(stem + suffix)
            if found.is_file():
                return found
    return None


def _content(file: Path) -> dict[str, Any]:
    """Return what a JANI file says; raise BuildError where it is no JSON object."""
    try:
        found = json.loads(file.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        hint = "; a model in PRISM's language has the ending .prism" if error.pos == 0 else ""
        raise BuildError(f"line {error.lineno}, column {error.colno}: no JSON, {error.msg}{hint}") from None
    except UnicodeDecodeError:
        raise BuildError("it is no text in UTF-8, and so no JANI model") from None
    if not isinstance(found, dict):
        raise BuildError("it is no JANI model, which is a JSON object")
    return found


def _transient(file: Path) -> list[str]:
    """Return the transient variables of a JANI file: labels and rewards, which are not part of the state."""
    if file.suffix != ".jani":
        return []
    content = _content(file)
    places = [content, *content.get("automata", [])]
    return [each["name"] for place in places for each in place.get("variables", []) if each.get("transient")]


def _arrays(path: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays of a UMB archive: states, their choices, and the branches of these."""
    with tarfile.open(path) as archive:
        files = {member.name.removeprefix("./"): member for member in archive.getmembers() if member.isfile()}

        def raw(name: str) -> bytes:
            found = archive.extractfile(files[name])
            assert found is not None
            return found.read()

        def numbers(name: str, kind: Any, otherwise: int) -> NDArray[Any]:
            if name not in files:  # one choice in each state
                return np.arange(otherwise + 1, dtype=np.int64)
            return np.frombuffer(raw(name), kind).astype(np.int64)

        index = json.loads(raw("index.json"))
        size = {what: int(index["transition-system"][f"#{what}"]) for what in ("states", "choices", "branches")}
        yield "choices", numbers("state-to-choices.bin", np.uint64, size["states"])
        yield "branches", numbers("choice-to-branches.bin", np.uint64, size["choices"])
        yield "successor", numbers("branch-to-target.bin", np.uint64, 0).astype(np.int32)
        yield "probability", np.frombuffer(raw("branch-to-probability.bin"), np.float64)
        for key, label in index.get("annotations", {}).get("aps", {}).items():
            bits = np.frombuffer(raw(f"annotations/aps/{key}/states/values.bin"), np.uint8)
            yield (
                f"label:{label.get('alias', key)}",
                np.unpackbits(bits, bitorder="little")[: size["states"]].astype(bool),
            )
        for key, reward in index.get("annotations", {}).get("rewards", {}).items():
            for what in reward["applies-to"]:
                values = np.frombuffer(raw(f"annotations/rewards/{key}/{what}/values.bin"), np.float64)
                if what not in ("states", "choices"):
                    raise BuildError(f"its reward {reward.get('alias', key)!r} differs between branches: {AVERAGED}")
                if not np.isfinite(values).all():
                    raise BuildError(f"its reward {reward.get('alias', key)!r} is not finite in some states")
                yield f"reward:{what}:{reward.get('alias', key)}", values


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
