"""Draw the packages of cop2l and their imports: `python docs/import_graph.py` writes figures/architecture.svg.

Packages are read from the table of CONTRIBUTING.md, arrows from the import statements themselves.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "cop2l"
PICTURE = ROOT / "docs" / "figures" / "architecture.svg"
MARKER = (
    '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
    '<path d="M0,0 L8,4 L0,8 z" fill="#777"/></marker></defs>'
)
WIDTH, HEIGHT, GAP, LEFT, ROW = 150, 30, 22, 20, 56


def packages(root: Path = ROOT) -> list[list[str]]:
    """The rows of the table in CONTRIBUTING.md, each a list of names, from the top."""
    section = (root / "CONTRIBUTING.md").read_text().split("## Packages")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [re.findall(r"`(\w+)/?`", row) for row in rows]


def imports(path: Path, root: Path = ROOT) -> Iterator[str]:
    """The modules of cop2l that a file imports, anywhere in it."""
    package = path.relative_to(root / "src").parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "cop2l")
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            if module == "cop2l":
                yield from (f"cop2l.{alias.name}" for alias in node.names)
            elif module.startswith("cop2l."):
                yield module


def edges() -> set[tuple[str, str]]:
    """(importing package, imported package), without imports inside a package."""
    names = {name for row in packages() for name in row}
    arrows = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        importer = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for module in imports(path):
            imported = module.split(".")[1] if "." in module else ""
            if importer in names and imported in names and importer != imported:
                arrows.add((importer, imported))
    return arrows


def without_implied(arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The arrows that do not follow from others: a picture of all of them shows nothing."""

    def reaches(start: str, end: str, banned: tuple[str, str]) -> bool:
        visited, waiting = set(), [start]
        while waiting:
            package = waiting.pop()
            for importer, imported in arrows:
                if importer == package and (importer, imported) != banned and imported not in visited:
                    visited.add(imported)
                    waiting.append(imported)
        return end in visited

    return {arrow for arrow in arrows if not reaches(*arrow, arrow)}


def picture() -> str:
    """The SVG: one row of boxes per row of the table, arrows from the importing to the imported package."""
    corners = {}
    for number, row in enumerate(packages()):
        for column, name in enumerate(row):
            corners[name] = (LEFT + column * (WIDTH + GAP) + (number % 2) * 90, 20 + number * ROW)
    width = max(x for x, _ in corners.values()) + WIDTH + LEFT
    height = max(y for _, y in corners.values()) + HEIGHT + 20
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="14">',
        MARKER,
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for importer, imported in sorted(without_implied(edges())):
        (x1, y1), (x2, y2) = corners[importer], corners[imported]
        start, end = f"{x1 + WIDTH / 2:g},{y1:g}", f"{x2 + WIDTH / 2:g},{y2 + HEIGHT:g}"
        lines.append(f'<path d="M{start} L{end}" stroke="#777" fill="none" marker-end="url(#tip)"/>')
    for name, (x, y) in corners.items():
        fill = "#fde7c4" if name == "kernel" else "#e8eef7"
        lines.append(
            f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="5" fill="{fill}" stroke="#445"/>'
        )
        lines.append(f'<text x="{x + WIDTH / 2:g}" y="{y + 20}" text-anchor="middle">{name}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    print(PICTURE.relative_to(ROOT))
