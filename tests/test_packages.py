"""A package imports only from packages above it in the list of CONTRIBUTING.md."""

import subprocess
import sys

import pytest

from cop2l import _MODULES
from docs.import_graph import PACKAGE, PICTURE, edges, imports, packages, picture

ANYWHERE = ("_version", "__version__")
TOP = ("__init__", "__main__")


def package_of(module):
    """cop2l.bounds.kl -> bounds; cop2l.CoP2L, which is imported when used -> certify."""
    parts = _MODULES.get(module.removeprefix("cop2l."), module).split(".")
    return parts[1] if len(parts) > 1 else "__init__"


FILES = sorted(PACKAGE.rglob("*.py"))


def test_every_package_is_listed():
    listed = {name for row in packages() for name in row}
    present = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in FILES}
    assert present - listed - {*ANYWHERE, *TOP} == set()
    assert listed <= present
    assert len(packages()) >= 10


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_up(path):
    place = {name: number for number, row in enumerate(packages()) for name in row}
    here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if here in TOP:
        return
    for module in imports(path):
        there = package_of(module)
        if there in (here, *ANYWHERE):
            continue
        assert there in place, f"{path.name} imports {module}"
        assert place[there] <= place[here], f"{path.name} imports {module}, which is in a package below"


def test_the_check_sees_imports_inside_functions_and_relative_ones(tmp_path):
    file = tmp_path / "src" / "cop2l" / "bounds" / "bad.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "def f():\n    from cop2l import certificates\n    from ..streams import load\n    import cop2l.cli.run\n"
    )
    assert sorted(imports(file, tmp_path)) == ["cop2l.certificates", "cop2l.cli.run", "cop2l.streams"]


WITHOUT_TORCH = """
import importlib, pkgutil, sys
import cop2l.bounds, cop2l.console, cop2l.files, cop2l.monitor
import cop2l.planning, cop2l.report, cop2l.streams, cop2l.kernel.arithmetic
assert cop2l.streams.Stream.__name__ == "Stream"
assert cop2l.Monitor.__name__ == "Monitor"
for package in (cop2l.bounds, cop2l.monitor, cop2l.report):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
assert "torch" not in sys.modules
"""


def test_bounds_report_monitor_planning_console_files_and_the_names_of_streams_do_without_torch():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_picture_of_the_packages_is_that_of_the_imports():
    assert ("learner", "kernel") in edges()
    assert PICTURE.read_text(encoding="utf-8") == picture(), "run: python docs/import_graph.py"


def test_issuing_shares_no_function_with_the_checks():
    """A fault in how the checker reads counts or computes a bound must not be the issuer's too."""
    checks = {f"cop2l.kernel.{name}" for name in ("arithmetic", "counting", "verdict", "checking", "holdout")}
    for path in [
        *sorted((PACKAGE / "certificates").glob("*.py")),
        *sorted((PACKAGE / "learner").glob("*.py")),
    ]:
        text = path.read_text(encoding="utf-8")
        assert [name for name in checks if f"from {name} import" in text] == [], path.name
        assert "import promised_statements" not in text
