"""Generate parts of the reference from the program: replace markers such as `{{ commands }}` when the site is built.

| marker | replacement |
|---|---|
| `{{ names api verification }}` | all public names from these packages, with their docstrings |
| `{{ names rest }}` | all other public names |
| `{{ commands }}` | the commands, each option with its default |
| `{{ settings }}` | the fields of `Settings`: the table `[settings]` of a configuration file |
| `{{ execution }}` | the fields of `Execution` |
| `{{ learners }}` | the options of every learner: the table `[learner]` |
| `{{ certificate }}` | the fields of a certificate, from its schema |
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[2] / "src" / "psyco"
MARKER = re.compile(r"^\{\{ (\w+)((?: \w+)*) \}\}$", re.MULTILINE)
NAMES = re.compile(r"^\{\{ names((?: \w+)*) \}\}$", re.MULTILINE)
# In the order of use; the others follow alphabetically, functions before classes.
FIRST = (
    "synthesize",
    "verify",
    "plan",
    "exact",
    "check",
    "start",
    "resume",
    "open_run",
    "report",
    "render",
    "parse",
    "make",
)
asked_for: set[str] = set()  # packages that some page shows


def on_files(files: Any, config: Any) -> Any:
    """Collect the packages that have a page, before the first page is built."""
    asked_for.clear()
    for file in files.documentation_pages():
        for rooms in NAMES.findall(file.content_string):
            asked_for.update(rooms.split())
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Replace the markers of a page."""
    parts = {
        "names": names,
        "commands": commands,
        "settings": settings,
        "execution": execution,
        "learners": learners,
        "certificate": certificate,
    }
    return MARKER.sub(lambda match: parts[match[1]](*match[2].split()), markdown)


def public_names() -> dict[str, str]:
    """Return every public name of `psyco` with its package."""
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {
        alias.asname or alias.name: str(node.module).removeprefix("_src.").partition(".")[0]
        for node in found
        for alias in node.names
    }


def names(*rooms: str) -> str:
    """Return the mkdocstrings directives of the public names from these packages."""
    found = public_names()
    wanted = set(found.values()) - asked_for - {"version"} if rooms == ("rest",) else set(rooms)
    if unknown := wanted - set(found.values()):
        raise ValueError(f"no public name comes from {', '.join(sorted(unknown))}")

    def place(name: str) -> tuple[int, bool, str]:
        return FIRST.index(name) if name in FIRST else len(FIRST), name[0].isupper(), name

    chosen = sorted((name for name, room in found.items() if room in wanted), key=place)
    return "\n\n".join(f"::: psyco.{name}" for name in chosen)


def commands() -> str:
    """Return a section per command: description, example, arguments and options."""
    import typer

    from psyco._src.cli.app import COMMANDS, app

    group: Any = typer.main.get_command(app)
    everywhere = {option.name for option in group.params}
    parts = ["## Before any command", _options(group.params)]
    for name in COMMANDS:
        command = group.commands[name]
        arguments = [each for each in command.params if not each.opts[0].startswith("-")]
        options = [each for each in command.params if each not in arguments and each.name not in everywhere]
        words = " ".join(each.name.upper() if each.required else f"[{each.name.upper()}]" for each in arguments)
        parts += [
            f"## psyco {name} {{ #{name} }}",
            f"```text\npsyco {name} [OPTIONS] {words}".rstrip() + "\n```",
            str(command.help),
            *(
                [_table(("argument", "is"), ((f"`{a.name.upper()}`", _cell(a.help)) for a in arguments))]
                * bool(arguments)
            ),
            *([_options(options)] * bool(options)),
        ]
    return "\n\n".join(parts)


def _options(options: Iterable[Any]) -> str:
    rows = (
        (
            " ".join(f"`{word}`" for word in (*each.opts, *each.secondary_opts)),
            _default(each),
            _cell(each.help),
        )
        for each in options
    )
    return _table(("option", "default", "is"), rows)


def _default(option: Any) -> str:
    value = option.default
    if value is None or value is False or value == () or option.required or option.count:
        return ""
    if value is True:
        return f"`{option.opts[0]}`"
    return f"`{value:,}`" if isinstance(value, int) else f"`{value}`"


def settings() -> str:
    """Return the table of settings, from their declarations."""
    from psyco._src.runs.settings import Settings

    return _declared(Settings, left_out=("learner",))


def execution() -> str:
    """Return the table of execution options, from their declarations."""
    from psyco._src.rollout.execution import Execution

    return _declared(Execution)


def learners() -> str:
    """Return the options of every learner, from their declarations."""
    from psyco._src.learners.learner_registry import LEARNERS

    parts = []
    for name in LEARNERS:
        learner: Any = LEARNERS[name]
        parts += [f"### `{name}`: `psyco.{learner.__name__}`", str(learner.__doc__).partition("\n")[0]]
        parts.append(_declared(learner))
    return "\n\n".join(parts)


def _declared(cls: Any, left_out: tuple[str, ...] = ()) -> str:
    from psyco._src.core.options import declared

    rows = (
        (f"`{name}`", "automatic" if each.default is None else f"`{_toml(each.default)}`", _cell(each.help))
        for name, each in declared(cls).items()
        if name not in left_out
    )
    return _table(("key", "default", "meaning"), rows)


def certificate() -> str:
    """Return the fields of a certificate and of all objects in it."""
    schema = json.loads((PACKAGE / "_src" / "verification" / "certificate.schema.json").read_text(encoding="utf-8"))
    parts = [_fields(schema)]
    for name, part in schema["$defs"].items():
        parts.append(f"### {name.replace('_', ' ')} {{ #{name} }}")
        parts.append(_fields(part) if "properties" in part else f"{_kind(part)}. {part.get('description', '')}")
    return "\n\n".join(parts)


def _fields(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    rows = (
        (
            f"`{name}`",
            _kind(part) + ("" if name in required else ", may be missing"),
            _cell(part.get("description")),
        )
        for name, part in schema["properties"].items()
    )
    return _table(("field", "holds", "is"), rows)


def _kind(part: Mapping[str, Any]) -> str:
    """Return the type of a field in words."""
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        return f"[{name.replace('_', ' ')}](#{name})"
    if "anyOf" in part:
        return " or ".join(map(_kind, part["anyOf"]))
    if "enum" in part:
        return " or ".join(f"`{word}`" for word in part["enum"])
    kinds = part.get("type", "anything")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if "array" in kinds and isinstance(part.get("items"), dict):
        return f"list of {_kind(part['items'])}"
    called = {"string": "text", "integer": "whole number", "array": "list", "object": "table", "null": "null"}
    return " or ".join(called.get(kind, kind) for kind in kinds)


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else json.dumps(value, ensure_ascii=False)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: object) -> str:
    return " ".join(str(text or "").split()).replace("|", "\\|")
