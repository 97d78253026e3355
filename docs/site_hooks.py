"""What the site needs beside Markdown: formulas as MathML, links to files outside docs/, and doctests as code."""

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
    """Links that leave docs/ go to the repository."""
    return OUTSIDE.sub(lambda link: f"]({SOURCE}{link['path']})", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Formulas that a browser draws without a script."""
    return FORMULA.sub(
        lambda found: convert(unescape(found[2]), display="block" if found[1] == "div" else "inline"), html
    )


class Doctests(griffe.Extension):
    """Examples of docstrings in fences."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for everything that is documented."""
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(lambda d: f"```python\n{d[0]}\n```", obj.docstring.value)
