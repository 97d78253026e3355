"""cop2l report, plot and compare, end to end."""

import subprocess
import sys

import pytest
from synthetic_runs import make_runs

from cop2l.cli import main
from cop2l.report.page import PAGE_FIGURES


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run directories with invented numbers."""
    return make_runs(tmp_path_factory.mktemp("invented"))


def test_report_writes_one_page_and_says_what_is_missing(runs, tmp_path, capsys):
    out = tmp_path / "new" / "report.html"
    assert main(["report", str(runs), "--out", str(out), "--title", "Invented"]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{out}: 11 runs on one page\n"
    assert "Left out:" in printed.err
    assert "is not finished" in printed.err
    assert "<title>Invented</title>" in out.read_text()
    assert list(out.parent.iterdir()) == [out]


def test_compare_prints_tables(runs, capsys):
    assert main(["compare", str(runs)]) == 0
    printed = capsys.readouterr()
    assert [line.split(",")[0] for line in printed.out.splitlines() if "(mlp" in line] == [
        "average accuracy",
        "forgetting",
        "certified bound",
    ]
    assert "unfinished" in printed.err


@pytest.mark.parametrize(
    ("form", "sign"),
    [
        ("text", "cop2l"),
        ("markdown", "| cop2l |"),
        ("latex", r"\toprule"),
        ("json", "["),
    ],
)
def test_compare_in_every_format(runs, capsys, form, sign):
    assert main(["compare", str(runs), "--format", form, "--metric", "preference", "worst-kl"]) == 0
    assert sign in capsys.readouterr().out


def test_plot_saves_a_picture(runs, tmp_path, capsys):
    out = tmp_path / "bounds.svg"
    assert main(["plot", str(runs / "cop2l-0"), "--figure", "bounds", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert out.read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["report", "{}/nowhere"], "There is nothing at"),
        (["report", "{}/unfinished", "--out", "{}/x.html"], "None of these runs is finished"),
        (["compare", "{}/unfinished"], "None of these runs is finished"),
        (["compare", "{}", "--metric", "acc"], "There is no metric named 'acc'"),
        (["compare", "{}", "--format", "word"], "There is no format named 'word'"),
        (["plot", "{}", "--figure", "bond", "--out", "x.png"], "did you mean 'bounds'?"),
        (["plot", "{}", "--out", "x.docx"], "ends in .png, .svg or .pdf"),
    ],
)
def test_what_the_user_did_wrong_is_one_sentence(runs, capsys, arguments, sentence):
    assert main([argument.format(runs) for argument in arguments]) == 2
    printed = capsys.readouterr().err
    assert sentence in printed
    assert "Traceback" not in printed


WITHOUT_THE_EXTRA = """
import sys
sys.modules["altair"] = sys.modules["vl_convert"] = None
from cop2l.cli import main
from cop2l.report.page import PAGE_FIGURES
sys.exit(main(sys.argv[1:]))
"""


def test_the_page_needs_no_extra_and_a_picture_says_which(tmp_path):
    make_runs(tmp_path / "runs")
    out = tmp_path / "page.html"

    def run(*arguments):
        command = [sys.executable, "-c", WITHOUT_THE_EXTRA, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    process = run("report", str(tmp_path / "runs"), "--out", str(out))
    assert process.returncode == 0, process.stderr
    html = out.read_text()
    sentence = "This figure is not drawn; for that, install: pip install 'cop2l[report]'."
    assert html.count(sentence) == html.count("<figure ") == 2 * len(PAGE_FIGURES)  # of two streams
    assert html.count("Numbers behind this figure") >= 2 * len(PAGE_FIGURES)
    assert html.count("<script") == 1  # the copy button
    process = run("plot", str(tmp_path / "runs"), "--out", str(tmp_path / "a.png"))
    assert process.returncode == 2
    assert process.stderr.splitlines()[-1].endswith("install it with: pip install 'cop2l[report]'.")
