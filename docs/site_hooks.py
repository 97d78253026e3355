"""Hooks of the documentation site: formulas as MathML, links to files outside docs/, and doctests as code."""

import re
from html import unescape
from typing import Any

import griffe
from latex2mathml.converter import convert

FORMULA = re.compile(r'<(div|span) class="arithmatex">\\[\[(](.*?)\\[\])]</\1>', re.DOTALL)
OUTSIDE = re.compile(r"\]\(\.\./(?P<path>[^)]+)\)")
SOURCE = "https://github.com/cop2l/cop2l/blob/main/"
DOCTEST = re.compile(r"^>>> .*(?:\n(?!$).*)*", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point links that leave docs/ to the repository."""
    return OUTSIDE.sub(lambda link: f"]({SOURCE}{link['path']})", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Write formulas as MathML, which a browser draws without a script."""

    def as_mathml(formula: re.Match[str]) -> str:
        if formula[1] == "span":
            return convert(unescape(formula[2]), display="inline")
        return f'<div class="formula">{convert(unescape(formula[2]), display="block")}</div>'

    return FORMULA.sub(as_mathml, html)


class Doctests(griffe.Extension):
    """Put the examples of docstrings into fences."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(lambda d: f"```python\n{d[0]}\n```", obj.docstring.value)
