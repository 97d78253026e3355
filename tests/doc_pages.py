"""The documentation, page by page and section by section."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = {path.name: path for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}


def blocks(text: str, kind: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def sections(page: str) -> dict[str, str]:
    """The text of a page by the headings of its second level; what comes first has the heading ''."""
    parts = re.split(r"^## (.+)\n", PAGES[page].read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def python(page: str, heading: str) -> list[str]:
    """The Python of one section."""
    return blocks(sections(page)[heading], "python")
