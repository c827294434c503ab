"""Words: the field's own terms, sentences that are read once, and one meaning per name."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "psyco"

# Words and shapes that make a sentence a riddle -> a better way to say it.
REFUSED = {
    r"\btold\b": "name the message, the argument or the report",
    r"\bheard\b": "received, read",
    r"\bso many\b": "a number of, this many: name the number",
    r"\bwhat (?:is|was|are|were|has|had)\b": "a noun: the result, the recorded values",
    r"(?<!people )(?<!users )(?<!those )(?<!readers )(?<!anyone )\bwho\b": "which, that; a role: the caller, the user",
    r"\bwhoever\b": "the caller, the user",
    r"\b(?:somebody|nobody)\b": "a role: the user, another process",
    r"(?<!soon )(?<!far )\bas it is\b": "unchanged, verbatim",
    r"\bof others\b": "external",
    r"\bof late\b": "recently",
    r"\bin vain\b": "without effect",
    r"(?<!on )\bdemand(?:s|ed)?\b": "constraint, required",
    r"\bmend(?:ed|s|ing)?\b": "fix",
    r"\bcomes? to (?:its|an) end\b": "ends, finishes",
    r"\bso that it can be had\b": "say which condition makes it possible",
    r"\bcan be had\b": "is possible, is available",
}
# Files whose words are not ours to choose, or that quote earlier ones.
LEFT_OUT = {"CHANGELOG.md"}


def prose_of(path: Path) -> list[tuple[int, str]]:
    """Return the lines of prose of a file: comments and strings of Python, everything but code blocks of Markdown."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        found = []
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                found += [(token.start[0] + i, line) for i, line in enumerate(token.string.split("\n"))]
        return found
    lines, fenced = [], False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            lines.append((number, re.sub(r"`[^`]*`", "", line)))
    return lines


def files() -> list[Path]:
    sources = sorted(SOURCE.rglob("*.py"))
    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in (*sources, *pages) if path.name not in LEFT_OUT]


def refused_words(path: Path) -> list[str]:
    where = path.relative_to(ROOT)
    return [
        f"{where}:{number}: {match[0]!r} ({better}): {line.strip()[:100]}"
        for number, line in prose_of(path)
        for shape, better in REFUSED.items()
        for match in re.finditer(shape, line, re.IGNORECASE)
    ]


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_refused_words(path: Path) -> None:
    assert not (found := refused_words(path)), "\n".join(found)


@pytest.mark.parametrize("text", ["# what is left", '"""Who asks twice."""', "# so many episodes"])
def test_refused_words_are_found(text: str, tmp_path: Path) -> None:
    path = ROOT / "tests" / "a_file_that_is_not_there.py"
    lines = [(1, text)]
    assert any(re.search(shape, line, re.IGNORECASE) for _, line in lines for shape in REFUSED), path


def test_no_class_name_exists_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(SOURCE)))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not twice


def test_no_module_name_exists_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted((SOURCE / "_src").rglob("*.py")):
        if path.stem not in ("__init__", "base") and path.parent.name != "cli":
            places[path.stem].append(str(path.relative_to(SOURCE)))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not twice


GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")


def test_the_glossary_is_short_and_names_code_that_is_there() -> None:
    entries = re.findall(r"^\*\*(.+?)\*\*: (.+)\nCode: (.+)$", GLOSSARY, re.MULTILINE)
    assert 30 <= len(entries) <= 40 and len(entries) == GLOSSARY.count("\n**")
    assert [term for term, *_ in entries] == sorted((term for term, *_ in entries), key=str.lower)
    for term, _, code in entries:
        path = None
        for word in re.findall(r"`([^`]+)`", code):
            if word.endswith(".py"):
                path = SOURCE / "_src" / word
                assert path.is_file(), f"{term}: there is no {word}"
            else:
                assert path is not None
                defined = re.search(rf"^(?:class|def) {word}\b", path.read_text(encoding="utf-8"), re.MULTILINE)
                assert defined, f"{term}: {path.name} has no {word}"


# Lines of src/psyco; only a deliberate commit moves the ceiling.
LINES_CEILING = 65_000


def test_the_source_stays_below_its_ceiling() -> None:
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCE.rglob("*.py"))
    assert lines <= LINES_CEILING
