"""Docs and messages use the words of the glossary in CONTRIBUTING.md, and none that it replaces."""

import ast
import re
from pathlib import Path

import pytest

from doc_pages import PAGES, ROOT

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
GLOSSARY = CONTRIBUTING.split("## Glossary")[1].split("\n## ")[0]
RETIRED = [
    word
    for line in GLOSSARY.splitlines()[5:]
    if line.startswith("|")
    for word in line.split("|")[3].split(",")
    if word.strip()
]
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


def test_the_search_finds_what_is_retired():
    assert len(RETIRED) > 12
    assert retired("The rows were set aside.") == ["set aside"]
    assert retired("The verbs of cop2l") == ["verbs"]
    assert messages('"""No message."""\nf(f"{x} were set aside")') == [" were set aside"]


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
def test_no_message_uses_a_retired_word(path: Path):
    if path.name not in ELSEWHERE:
        assert [text for text in messages(path.read_text(encoding="utf-8")) if retired(text)] == []
