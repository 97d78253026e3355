"""The documentation builds as a site: every link leads somewhere, every formula and every name of the reference is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory, monkeypatch_module):
    build = pytest.importorskip("mkdocs.commands.build")
    config = pytest.importorskip("mkdocs.config")
    monkeypatch_module.chdir(ROOT)
    folder = tmp_path_factory.mktemp("site")
    build.build(config.load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def test_every_page_is_in_the_navigation(site):
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"}
    assert pages == {folder.name for folder in site.iterdir() if (folder / "index.html").is_file()}
    listed = set(re.findall(r"(\w+)\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert pages == listed - {"index"}


def test_formulas_are_drawn(site):
    source = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    page = (site / "theory" / "index.html").read_text(encoding="utf-8")
    assert (
        page.count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block"')
        == source.count("$$\n") // 2
    )
    assert "arithmatex" not in page
    assert "<mi>&</mi>" not in page  # an environment that the converter does not know


def test_nothing_is_fetched_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(r'<(?:script|img|iframe)[^>]*\bsrc="(https?:[^"]+)"', text)
        fetched += re.findall(r'<link[^>]*rel="stylesheet"[^>]*href="(https?:[^"]+)"', text)
        assert not fetched, (page, fetched)


def test_the_reference_names_what_is_public(site):
    import cop2l

    page = (site / "architecture" / "index.html").read_text(encoding="utf-8")
    for name in set(cop2l.__all__) - {"__version__"}:
        assert f'id="cop2l.{name}"' in page, name
