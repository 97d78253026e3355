"""HTML as nested calls: every string that is not already markup is escaped, so that nothing else can be."""

from collections.abc import Iterable, Sequence
from html import escape

EMPTY = frozenset({"br", "meta", "hr", "col"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | Markup | None | Iterable["Child"]


def tag(name: str, *children: Child, **attributes: str | int | bool | None) -> Markup:
    """One element; `class_` is class, `aria_label` is aria-label, None and False leave an attribute out.

    >>> tag("p", "1 < 2", class_="note", hidden=True)
    '<p class="note" hidden>1 &lt; 2</p>'
    """
    words = [name]
    for key, value in attributes.items():
        if value is not None and value is not False:
            attribute = key.rstrip("_").replace("_", "-")
            words.append(attribute if value is True else f'{attribute}="{escape(str(value))}"')
    opening = f"<{' '.join(words)}>"
    return Markup(opening if name in EMPTY else f"{opening}{join(children)}</{name}>")


def join(children: Child) -> Markup:
    """Children one after the other."""
    if children is None:
        return Markup("")
    if isinstance(children, Markup):
        return children
    if isinstance(children, str):
        return Markup(escape(children))
    return Markup("".join(join(child) for child in children))


def table(
    header: Iterable[Child], rows: Iterable[Iterable[Child]], *, label: str, words: Sequence[int] = (0,)
) -> Markup:
    """A table that scrolls by itself on a narrow screen; the columns `words` are text, the others numbers."""
    head = tag("tr", [_cell("th", name, i, words, scope="col") for i, name in enumerate(header)])
    body = [
        tag(
            "tr",
            [
                _cell("th", cell, i, words, scope="row") if i == 0 else _cell("td", cell, i, words)
                for i, cell in enumerate(row)
            ],
        )
        for row in rows
    ]
    whole = tag("table", tag("caption", label, class_="unseen"), tag("thead", head), tag("tbody", body))
    return tag("div", whole, class_="scroll", tabindex=0, role="region", aria_label=label)


def _cell(name: str, child: Child, index: int, words: Sequence[int], scope: str | None = None) -> Markup:
    return tag(name, child, class_=None if index in words else "number", scope=scope)
