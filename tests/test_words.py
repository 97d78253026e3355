"""Docs, messages and names use the words of the glossary in CONTRIBUTING.md, and none that it replaces."""

import ast
import re
from pathlib import Path

import pytest

from doc_pages import PAGES, ROOT

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
GLOSSARY = CONTRIBUTING.split("## Glossary")[1].split("\n## ")[0]
WORDS, _, NAMES = GLOSSARY.partition("| retired name |")
RETIRED = [
    word
    for line in WORDS.splitlines()[6:]
    if line.startswith("|")
    for word in line.split("|")[3].split(",")
    if word.strip()
]
RETIRED_NAMES = {
    name
    for line in NAMES.splitlines()[2:]
    if "|" in line
    for name in re.findall("`(.*?)`", line.split("|")[1])
}
VAGUE = set(re.findall("`(.*?)`", CONTRIBUTING.split("none of these:")[1].split("\n\n")[0].split(".\n")[0]))
FOUND = re.compile("|".join(rf"\b{re.escape(word.strip())}\b" for word in RETIRED), re.IGNORECASE)
CODE = re.compile(r"```.*?```|`[^`]*`|^ *>.*$", re.DOTALL | re.MULTILINE)
DEFINED_ELSEWHERE = {"experience": "integrations.md", "strategy": "integrations.md"}
"""Avalanche's words, on the page about Avalanche."""
ELSEWHERE = {"avalanche.py"}
"""A module that is not looked at: it has Avalanche's words."""
FILES = sorted((ROOT / "src" / "cop2l").rglob("*.py"))


def retired(text: str) -> list[str]:
    return FOUND.findall(text)


def messages(source: str) -> list[str]:
    """The texts of a module that are sentences or parts of one, without docstrings."""
    tree = ast.parse(source)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in alone)
    return [node.value for node in strings if isinstance(node.value, str) and " " in node.value]


def names(source: str) -> set[str]:
    """The names of a module: variables, attributes, arguments, functions, classes, imports, and keys (texts of one word)."""
    nodes = [*ast.walk(ast.parse(source))]
    found = {
        getattr(node, field, None)
        for node in nodes
        for field in ("id", "attr", "arg", "name", "asname", "module", "value")
    }
    return {
        part
        for name in found
        if isinstance(name, str) and re.fullmatch(r"[\w.]+", name)
        for part in name.split(".")
    }


def lasting(source: str) -> set[str]:
    """The parameters and fields of a module, and the variables that a function uses over more than three lines."""
    names, spans = set(), dict[tuple[int, str], list[int]]()
    for number, node in enumerate(ast.walk(ast.parse(source))):
        if isinstance(node, ast.FunctionDef):
            names |= {arg.arg for arg in ast.walk(node.args) if isinstance(arg, ast.arg)}
            for used in ast.walk(node):
                if isinstance(used, ast.Name):
                    spans.setdefault((number, used.id), []).append(used.lineno)
        elif isinstance(node, ast.ClassDef):
            names |= {field.target.id for field in node.body if isinstance(field, ast.AnnAssign)}
    return names | {name for (_, name), lines in spans.items() if max(lines) - min(lines) > 2}


def test_the_search_finds_what_is_retired():
    assert len(RETIRED_NAMES) > 15
    assert names("from a.room import f as verb\ndef seen(cut): x.told({'doubt': 1}, stays=2)") >= {
        *("room", "verb", "seen", "cut", "told", "doubt", "stays")
    }
    assert len(VAGUE) > 20
    assert lasting(
        "def f(a):\n    b = c = 1\n    b += 1\n    b += 2\n    return c\nclass D:\n    e: int"
    ) == {"a", "c", "e"}
    assert len(RETIRED) > 12
    assert retired("The prior examples train.") == ["prior examples"]
    assert retired("The verbs of cop2l") == ["verbs"]
    assert messages('"""No message."""\nf(f"{x} prior examples")') == [" prior examples"]


@pytest.mark.parametrize("name", [*PAGES, "CONTRIBUTING.md"])
def test_no_page_uses_a_retired_word(name):
    text = (
        CONTRIBUTING.replace(GLOSSARY, "")
        if name == "CONTRIBUTING.md"
        else PAGES[name].read_text(encoding="utf-8")
    )
    assert [
        word
        for word in retired(CODE.sub("", text))
        if DEFINED_ELSEWHERE.get(word.lower().rstrip("s")) != name
    ] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_no_name_and_no_message_is_retired(path: Path):
    source = path.read_text(encoding="utf-8")
    assert names(source) & RETIRED_NAMES == set()
    assert lasting(source) & VAGUE == set()
    if path.name not in ELSEWHERE:
        assert [text for text in messages(source) if retired(text)] == []
