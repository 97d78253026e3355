"""The kernel stays small enough to be read in one sitting, and leans on nothing but what its first page names."""

import ast
import io
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

import cop2l.kernel

FILES = sorted(Path(cop2l.kernel.__file__).parent.glob("**/*.py"))
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
OUTSIDE = {"numpy", "torch", "safetensors", *sys.stdlib_module_names}
INSIDE = ("cop2l.kernel", "cop2l.randomness")


def code_lines(source: str) -> set[int]:
    """The numbers of the lines that hold code: neither blank nor comments nor texts that stand alone (docstrings)."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def imported(source: str) -> set[str]:
    """The modules that a file imports, anywhere in it; relative ones begin with a point."""
    modules = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            modules.update(
                f"cop2l.{alias.name}" for alias in node.names
            ) if module == "cop2l" else modules.add(module)
    return modules


def allowed(module: str) -> bool:
    own = any(module == name or module.startswith(f"{name}.") for name in INSIDE)
    return own or module.partition(".")[0] in OUTSIDE


def test_the_counter_counts_code_only():
    source = '"""Says."""\n\n# why\nx = 1  # what\n\n\ndef f():\n    """Says\n    more.\n    """\n'
    source += '    return (\n        """a\n\n        b"""\n    )\n'
    assert code_lines(source) == {4, 7, 11, 12, 13, 14, 15}
    assert imported("import torch.nn\ndef f():\n    from cop2l import bounds, kernel\n    from .. import errors\n") == {
        "torch.nn", "cop2l.bounds", "cop2l.kernel", "..",
    }  # fmt: skip
    assert not any(map(allowed, ("cop2l.bounds", "cop2l.kernels", "scipy", "..", "cop2l")))


LOADED = """
import sys
import cop2l.kernel.__main__
names = [name for name in sys.modules if name.partition(".")[0] == "cop2l"]
print("\\n".join(sys.modules[name].__file__ for name in names))
"""


def test_the_process_that_decides_loads_few_lines():
    """What must be right for a verdict to be right: docs and README state these numbers."""
    process = subprocess.run([sys.executable, "-P", "-c", LOADED], capture_output=True, text=True, check=True)
    texts = {name: Path(name).read_text() for name in process.stdout.split()}
    sizes = {name: (len(text.splitlines()), len(code_lines(text))) for name, text in texts.items()}
    assert len(texts) <= 21, sizes
    assert sum(whole for whole, _ in sizes.values()) <= 3400, sizes
    assert sum(code for _, code in sizes.values()) <= 2300, sizes


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_kernel_imports_what_its_first_page_says(path):
    assert {module for module in imported(path.read_text()) if not allowed(module)} == set()
