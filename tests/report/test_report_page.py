"""The page as text: self-contained, safe, complete, the same every time."""

import html as entities
import re
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from synthetic_runs import SHARED, make_run, make_runs

from cop2l.cli import main
from cop2l.files import read_json, write_json
from cop2l.kernel.form import ASSUMPTIONS
from cop2l.report import sentences
from cop2l.report.groups import group
from cop2l.report.page import PAGE_FIGURES, page
from cop2l.report.runs import RunSet, find_runs, read_run

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
        return [attrs for name, attrs in self.elements if name == tag and attributes.items() <= attrs.items()]


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


def test_the_half_page_is_in_sight_and_the_rest_is_folded(outline, html):
    assert [s["id"] for s in outline.all("section")] == ["certified", "verify", "tasks"]
    folds = [d["id"] for d in outline.all("details", **{"class": "fold"})]
    assert folds == ["comparison", "others", "figures-1", "figures-2", "certificates", "runs"]
    assert not any("open" in d for d in outline.all("details"))
    assert max(map(html.index, ('id="certified"', 'id="verify"', 'id="tasks"'))) < html.index("<details")
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


def test_what_is_not_valid_or_left_out_is_said_first(outline, html):
    text = " ".join(outline.texts)
    assert text.index("Certificates not valid: cop2l and replay on permuted-mnist.") < text.index(
        "What is certified"
    )
    assert html.index(SHARED) < html.index("<h1>")
    assert (
        title_of(html)
        == "Not valid: the certificates of cop2l and replay on permuted-mnist guarantee nothing"
    )
    assert text.index("is not finished (2 tasks recorded so far)") < text.index("What is certified")


def test_the_wording_of_certificates_is_on_the_page(outline):
    text = " ".join(outline.texts)
    for sentence in (*sentences.VOIDS, *sentences.DOES_NOT_SAY, *ASSUMPTIONS):
        assert sentence in text
    assert "cop2l verify" in text


def test_a_claim_is_the_largest_bound_over_the_runs_rounded_upwards(run_set):
    cop2l = next(g for g in group(run_set.runs) if (g.method, g.benchmark.stream) == ("cop2l", "mnist"))
    (sentence,) = sentences.claim(cop2l)
    claimed = [float(number) for number in re.findall(r"([\d.]+)\s% on task", sentence)]
    assert len(claimed) == 5
    for task, value in enumerate(claimed):
        largest = max(100 * run.tasks[task].bounds["preference"] for run in cop2l.runs)
        assert largest <= value < largest + 0.1
    assert "With probability at least 95\u00a0%" in sentences.meaning([cop2l])


def test_what_the_claims_mean_is_true_of_every_run(tmp_path):
    """Two runs do not hold at once with the probability of one, and the page names no probability that one of them lacks."""
    make_run(tmp_path / "sure", stream="digits", delta=0.05)
    alone = flat(page(find_runs([tmp_path])))
    assert (
        "With probability at least 95 % over the draw of the training data, all of these statements hold"
        in alone
    )
    shutil.rmtree(make_run(tmp_path / "unsure", stream="mnist", delta=0.2) / "certificates")
    both = flat(page(find_runs([tmp_path])))
    assert both.count("cop2l verify /") == 1  # and no command for a run that has no certificate
    assert (
        "With probability at least 80 % over the draw of the training data, each run's statements hold"
        in both
    )


def test_tasks_are_called_by_their_names(tmp_path):
    folder = make_run(tmp_path / "run", tasks=2)
    summary = read_json(folder / "summary.json")
    write_json(folder / "summary.json", summary | {"task_names": ["Bern", "Genf"]})
    text = flat(page(find_runs([tmp_path])))
    assert re.search(
        r'misclassifies at most [\d.]+ % on task 1 \("Bern"\) and [\d.]+ % on task 2 \("Genf"\)\.', text
    )
    assert re.search(r'2 \("Genf"\) \d', text)  # in the table


def test_no_claim_without_a_valid_certificate(run_set):
    shared = [g for g in group(run_set.runs) if g.benchmark.stream == "permuted-mnist"]
    assert [sentences.claim(g) for g in shared] == [[], []]
    html = page(RunSet(tuple(run for g in shared for run in g.runs)))
    assert title_of(html).startswith("Not valid: ")
    assert "What is certified" not in html
    assert 'class="command"' not in html


def test_the_bound_stands_beside_a_hold_out_and_the_papers_formula(run_set):
    cop2l = next(g for g in group(run_set.runs) if (g.method, g.benchmark.stream) == ("cop2l", "mnist"))
    sentence = sentences.context(cop2l)
    assert "“preference”" in sentence
    assert re.search(
        r"the paper's formula gives [\d.]+.* % for .* a hold-out gives [\d.]+",
        sentence.replace("\u00a0", " "),
    )


def test_html_in_files_stays_text(tmp_path):
    folder = make_run(tmp_path / "evil", stream=EVIL, **{EVIL: EVIL})
    for name in ("summary.json", "environment.json"):
        values = read_json(folder / name)
        values |= {"method": EVIL, "model": EVIL, "not_valid": [EVIL], EVIL: EVIL}
        write_json(folder / name, values)
    make_run(tmp_path / EVIL.replace("/", ""), finished_tasks=1)
    outline = Outline(page(find_runs([tmp_path]), title=EVIL))
    assert outline.all("img") == []
    assert len([s for s in outline.all("script") if s.get("type") != "application/json"]) == 2
    assert any(EVIL in text for text in outline.texts)
    assert not any(key.startswith("on") for _, attributes in outline.elements for key in attributes)


def test_the_same_runs_make_the_same_page(run_set, html):
    assert page(run_set) == html


def test_torch_is_not_needed(tmp_path):
    make_runs(tmp_path)
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from cop2l.cli import main, plot\n"
        f"assert main(['compare', {str(tmp_path)!r}]) == 0\n"
        f"assert main(['report', {str(tmp_path)!r}, '--out', {str(tmp_path / 'page')!r}]) == 0\n"
        "from cop2l.report.figures import draw\n"
        "from cop2l.report.runs import find_runs\n"
        f"draw('matrix', find_runs([{str(tmp_path)!r}]).runs)\n"
        "import cop2l.report.page, cop2l.report.formats\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def changed(folder, **values):
    """A run whose tasks have other numbers."""
    path = make_run(folder) / "summary.json"
    content = read_json(path)
    write_json(path, content | {"tasks": [task | values for task in content["tasks"]]})


def test_the_page_says_where_a_test_error_is_above_its_claim(tmp_path, html):
    assert "above the claim" not in html
    changed(tmp_path / "run", bounds={"preference": 0.05}, test_error=0.06, test_n=1000)
    text = " ".join(" ".join(Outline(page(find_runs([tmp_path]))).texts).replace("\u00a0", " ").split())
    assert "cop2l on mnist: 5 test errors above the claim in 1 run" in text
    assert (
        "the test error, 6.00 %, is above the claim, 5.01 %: p-value 0.087 (60 of 1000 test examples)" in text
    )
    assert sentences.P_VALUE in text


def cells(html, label):
    """The texts of the cells of a column, by what the column is called on a phone."""
    contents = re.findall(rf'data-label="{re.escape(label)}">(.*?)</td>', html, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in contents]


def test_the_summary_says_what_was_trained_on_certified_on_and_picked(tmp_path):
    changed(tmp_path / "run", n=400, picked=7)
    made = page(find_runs([tmp_path]))
    names = ("learned from, mean over tasks", "certified on, mean over tasks", "picked, mean over tasks")
    assert [cells(made, name) for name in names] == [["400"], ["400"], ["7"]]


def flat(html):
    return " ".join(" ".join(Outline(html).texts).replace("\u00a0", " ").split())


def title_of(html):
    return re.search(r"<h1>(.*?)</h1>", html)[1].replace("\u00a0", " ")


def test_the_title_is_the_result(tmp_path):
    changed(tmp_path / "run", bounds={"preference": 0.08999}, test_error=0.05)
    summary = read_json(tmp_path / "run" / "summary.json")
    write_json(tmp_path / "run" / "summary.json", summary | {"accuracy": 0.95})
    made = page(find_runs([tmp_path]))
    assert title_of(made) == "Certified: at most 9.00 % error on every task; measured 5.00 % on average"
    assert title_of(made) in re.search(r"<title>(.*?)</title>", made)[1].replace("\u00a0", " ")
    named = page(find_runs([tmp_path]), title="Own")
    assert title_of(named) == "Own"
    assert "Certified: at most 9.00 % error on every task" in flat(named)


def test_the_title_of_one_task_speaks_of_no_average(tmp_path):
    make_run(tmp_path / "run", "replay", tasks=1)
    made = title_of(page(find_runs([tmp_path])))
    assert re.fullmatch(r"Certified: at most \d+\.\d\d % error; measured \d+\.\d\d %", made)


def test_the_title_chooses_ours_by_its_name_and_not_by_its_bound(tmp_path):
    for method in ("cop2l", "replay"):
        for seed in range(2):
            make_run(tmp_path / f"{method}-{seed}", method, seed)
    runs = find_runs([tmp_path]).runs
    worst = max(task.bounds["preference"] for run in runs if run.method == "cop2l" for task in run.tasks)
    title = title_of(page(find_runs([tmp_path])))
    assert title.startswith("Certified by cop2l: at most ")
    assert 100 * worst <= float(re.search(r"at most ([\d.]+) %", title)[1]) < 100 * worst + 0.1
    assert "(the worst of 2 runs)" in title
    only = sentences.headline(group([run for run in runs if run.method == "replay"]))
    assert only.startswith("Certified: at most")


def test_the_title_says_where_nothing_is_certified(tmp_path):
    two = [read_run(make_run(tmp_path / model, model=model, tasks=2)) for model in ("mlp", "cnn")]
    assert sentences.headline(group(two)).startswith("Certified on 2 of 2 streams: at most ")
    changed(tmp_path / "full", bounds={"preference": 1.0})
    full = title_of(page(find_runs([tmp_path / "full"])))
    assert full.startswith("Nothing certified: the bound reaches 100 %; measured ")
    changed(tmp_path / "none", bounds={})
    none = title_of(page(find_runs([tmp_path / "none"])))
    assert re.fullmatch(r"Nothing certified; measured [\d.]+ % error on average", none)
    assert sentences.headline([]) == "No finished run"


def test_families_alone_make_a_title(tmp_path):
    folder = make_run(tmp_path / "run", tasks=2)
    summary = read_json(folder / "summary.json")
    for task in summary["tasks"]:
        del task["bounds"]["preference"]
    average = {"family": "average", "task": None, "subject": None, "kind": "preference", "value": 0.1756}
    write_json(folder / "summary.json", summary | {"claims": [average]})
    assert title_of(page(find_runs([tmp_path]))).startswith(
        "Certified: at most 17.57 % error on average over the 2 tasks; measured"
    )
    classes = {"family": "classes", "task": 2, "subject": 1, "kind": "preference", "value": 0.375}
    write_json(folder / "summary.json", summary | {"claims": [classes]})
    assert title_of(page(find_runs([tmp_path]))) == (
        "Certified: of every class of task 2 at most 37.50 % is misclassified;"
        " the largest of these bounds is that of class 1 in task 2"
    )


def test_a_test_error_stands_beside_its_bound_with_its_interval(tmp_path):
    changed(tmp_path / "run", bounds={"preference": 0.08999}, test_error=0.05, test_n=100)
    text = flat(page(find_runs([tmp_path])))
    assert "1 9.00 5.00 1.64 to 11.29" in text
    assert "95 % interval (Clopper and Pearson, each task by itself)" in text


def test_only_figures_with_something_to_see(tmp_path):
    def figures(*methods, tasks):
        where = tmp_path / f"{'-'.join(methods)}{tasks}"
        for method in methods:
            make_run(where / method, method, tasks=tasks)
        return [f["data-figure"] for f in Outline(page(find_runs([where]))).all("figure")]

    assert figures("replay", tasks=1) == ["classes"]
    assert figures("cop2l", tasks=1) == ["classes"]
    alone = figures("cop2l", tasks=2)
    assert alone == ["bounds", "progress", "matrix", "classes"]
    assert figures("cop2l", "replay", tasks=2) == [*alone, "plasticity"]
    made = page(find_runs([tmp_path / "cop2l2"]))
    assert "Average accuracy on the tasks seen" in made
    assert "<h4>Forgetting</h4>" not in made  # two tasks give it one dot


def test_the_page_folds_into_cards_with_the_bounds_first(outline):
    labels = [cell["data-label"] for cell in outline.all("td") if "data-label" in cell]
    assert labels[0] == "certified bound, worst task, %"
    assert labels.index("average accuracy, %") > labels.index("certified bound, mean over tasks, %")


def test_who_did_not_learn_is_said(html):
    assert "Did not learn, and so is never the best: finetuning." in html


@pytest.mark.parametrize(
    "options",
    [
        [
            "method=cop2l",
            "lr=0.1",
            "max_iterations=4",
            "data.task_classes=[[0,1],[2,3]]",
            "claim=tasks,average",
        ],
        ["method=replay", "holdout=0.3", "class_seed=3", "scenario=task-incremental"],
    ],
    ids=["cop2l", "hold-out"],
)
def test_the_command_of_the_page_verifies_the_run(tmp_path, capsys, options):
    run = tmp_path / "a run"
    assert main(["run", "digits", "--out", str(run), "tasks=2", "epochs=1", *options]) == 0
    (code,) = re.findall(r"<pre><code>(.*?)</code></pre><button", page(find_runs([run])), re.DOTALL)
    arguments = shlex.split(entities.unescape(re.sub("<[^>]+>", "", code)))
    capsys.readouterr()
    assert arguments[0] == "cop2l"
    assert main(arguments[1:]) == 0, capsys.readouterr().out


def test_groups_that_differ_in_a_list_make_a_page(tmp_path):
    for number, claim in enumerate((["tasks"], ["tasks", "average"], ["average"])):
        make_run(tmp_path / str(number), claim=claim)
    assert "cop2l (claim [&#34;tasks&#34;])" in page(find_runs([tmp_path]))
