"""The page as text: self-contained, safe, complete, the same every time."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from synthetic_runs import SHARED, make_run, make_runs

from cop2l.files import read_json, write_json
from cop2l.report import sentences
from cop2l.report.groups import group
from cop2l.report.page import PAGE_FIGURES, page
from cop2l.report.runs import find, read

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"


class Outline(HTMLParser):
    """Every element with its attributes, every text, and whether elements close in order."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.texts, self.open = [], [], []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    def all(self, tag, **attributes):
        return [found for name, found in self.elements if name == tag and attributes.items() <= found.items()]


@pytest.fixture(scope="module")
def outline(html):
    return Outline(html)


def test_nothing_is_loaded_from_anywhere(outline, html):
    for tag, attributes in outline.elements:
        assert tag not in ("link", "img", "iframe", "object", "base")
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith("#")
    assert "default-src 'none'" in html
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_one_vega_serves_all_figures(outline, html):
    scripts = [s for s in outline.all("script") if s.get("type") != "application/json"]
    charts = outline.all("div", **{"class": "chart"})
    assert len(scripts) == 2
    assert len(charts) == len(outline.all("script", type="application/json")) > 20
    assert html.count("window.vegaEmbed") == 1
    assert len(html) < 1_600_000


def test_every_section_and_figure_is_there(outline):
    sections = [s["id"] for s in outline.all("section")]
    assert sections == ["summary", "stream-1", "stream-2", "certificates", "verify", "runs"]
    assert [a["href"] for a in outline.all("a") if "class" not in a][: len(sections)] == [
        f"#{s}" for s in sections
    ]
    figures = [f["data-figure"] for f in outline.all("figure")]
    assert figures == [*PAGE_FIGURES, *PAGE_FIGURES]


def test_what_is_seen_can_also_be_read(outline):
    assert outline.all("html") == [{"lang": "en"}]
    assert all(len(chart["aria-label"]) > 20 for chart in outline.all("div", role="img"))
    assert len(outline.all("div", role="img")) == len(outline.all("div", **{"class": "chart"}))
    assert len(outline.all("details")) >= len(outline.all("figure"))
    assert all(
        region["tabindex"] == "0" and region["aria-label"] for region in outline.all("div", role="region")
    )
    levels = [int(tag[1]) for tag, _ in outline.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))


def test_what_is_not_valid_or_left_out_is_said_first(outline):
    text = " ".join(outline.texts)
    first = text.index("Summary")
    assert text.index("Certificates not valid: cop2l and replay on permuted-mnist.") < first
    assert text.index(SHARED) < first
    assert text.index("is not finished (2 tasks recorded so far)") < first


def test_the_wording_of_certificates_is_on_the_page(outline):
    text = " ".join(outline.texts)
    for sentence in (*sentences.SAYS, *sentences.DOES_NOT_SAY, *sentences.ASSUMPTIONS):
        assert sentence in text
    assert "cop2l verify" in text


def test_a_claim_is_the_largest_bound_over_the_runs_rounded_upwards(found):
    ours = next(g for g in group(found.runs) if (g.method, g.benchmark.stream) == ("cop2l", "mnist"))
    sentence = sentences.claim(ours)
    stated = [
        float(number)
        for number in re.search(r"at most (.*?)\s%", sentence)[1].replace(" and", ",").split(", ")
    ]
    for task, value in enumerate(stated):
        largest = max(100 * run.tasks[task].bounds["preference"] for run in ours.runs)
        assert largest <= value < largest + 0.1
    assert "with probability at least 95\u00a0%" in sentence


def test_no_claim_without_a_valid_certificate(found):
    shared = next(
        g for g in group(found.runs) if (g.method, g.benchmark.stream) == ("cop2l", "permuted-mnist")
    )
    assert sentences.claim(shared) is None


def test_whether_holdout_is_tighter_is_said_either_way(tmp_path):
    folder = make_run(tmp_path / "run")
    summary = read_json(folder / "summary.json")
    for bound, expected in ((0.0, "looser"), (1.0, "tighter"), (None, "No hold-out was measured")):
        for task in summary["tasks"]:
            task["bounds"]["holdout"] = bound
        write_json(folder / "summary.json", summary)
        assert expected in sentences.against_holdout(group([read(folder)])[0])


def test_html_in_files_stays_text(tmp_path):
    folder = make_run(tmp_path / "evil", stream=EVIL, **{EVIL: EVIL})
    for name in ("summary.json", "environment.json"):
        values = read_json(folder / name)
        values |= {"method": EVIL, "model": EVIL, "not_valid": [EVIL], EVIL: EVIL}
        write_json(folder / name, values)
    make_run(tmp_path / EVIL.replace("/", ""), finished_tasks=1)
    outline = Outline(page(find([tmp_path]), title=EVIL))
    assert outline.all("img") == []
    assert len([s for s in outline.all("script") if s.get("type") != "application/json"]) == 2
    assert any(EVIL in text for text in outline.texts)
    assert not any(key.startswith("on") for _, attributes in outline.elements for key in attributes)


def test_the_same_runs_make_the_same_page(found, html):
    assert page(found) == html


def test_one_lonely_run_makes_a_page(tmp_path):
    make_run(tmp_path / "run", "replay", tasks=1)
    outline = Outline(page(find([tmp_path])))
    assert "1 finished run of replay" in " ".join(outline.texts)


def test_torch_is_not_needed(tmp_path):
    make_runs(tmp_path)
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from cop2l.cli import main, plot\n"
        f"assert main(['compare', {str(tmp_path)!r}]) == 0\n"
        f"assert main(['report', {str(tmp_path)!r}, '--out', {str(tmp_path / 'page')!r}]) == 0\n"
        "from cop2l.report.figures import draw\n"
        "from cop2l.report.runs import find\n"
        f"draw('matrix', find([{str(tmp_path)!r}]).runs)\n"
        "import cop2l.report.page, cop2l.report.formats\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def changed(folder, **values):
    """A run whose tasks have other numbers."""
    path = make_run(folder) / "summary.json"
    content = read_json(path)
    write_json(path, content | {"tasks": [task | values for task in content["tasks"]]})


def test_the_page_says_where_nothing_was_picked(tmp_path, html):
    said = "nothing was picked: this is a hold-out certificate on"
    assert said not in html
    changed(tmp_path / "run", picked=0, n=400)
    assert f"cop2l on mnist, one run: {said} 2000 examples." in page(find([tmp_path]))


def test_the_page_says_where_a_test_error_is_above_its_claim(tmp_path, html):
    assert "above the claim" not in html
    changed(tmp_path / "run", bounds={"preference": 0.05}, test_error=0.06, test_n=1000)
    said = " ".join(" ".join(Outline(page(find([tmp_path]))).texts).replace("\u00a0", " ").split())
    assert "cop2l on mnist: 5 test errors above the claim, in 1 of 1 run" in said
    assert (
        "the test error, 6.00 %, is above the claim, 5.01 %: p-value 0.087 (60 of 1000 test examples)" in said
    )
    assert sentences.P_VALUE in said


def test_the_summary_says_what_was_trained_on_certified_on_and_picked(tmp_path):
    changed(tmp_path / "run", prior=30, n=400, picked=7)
    made = page(find([tmp_path]))
    heads = re.findall(r'<th class="number" scope="col">([^<]+)</th>', made)
    at = [heads.index(name) for name in ("trained freely", "certified on", "picked")]
    row = re.search(r'<tr><th scope="row">cop2l</th>(.*?)</tr>', made, re.DOTALL)[1]
    cells = [re.sub(r"<[^>]+>|\s", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)]
    assert [cells[i] for i in at] == ["30", "400", "7"]
