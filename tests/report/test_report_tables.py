"""Groups over seeds, tables and their formats."""

import json
from statistics import fmean, stdev

import pytest
from synthetic_runs import SHARED, make_run

from cop2l.errors import UserError
from cop2l.files import read_json, write_json
from cop2l.report import comparison, formats
from cop2l.report.groups import by_benchmark, group, repeated
from cop2l.report.metric import KINDS, METRICS, bounds_of
from cop2l.report.runs import find_runs, read_run
from cop2l.text import rounded_text


def tables(run_set, *names):
    return comparison.tables(group(run_set.runs), names)


def test_mean_and_deviation_are_over_the_seeds(run_set):
    (table,) = tables(run_set, "accuracy")
    values = [run.accuracy for run in run_set.runs if (run.method, run.stream) == ("cop2l", "mnist")]
    cell = table.cells[table.rows.index("cop2l")][table.columns.index("mnist, class-incremental")]
    assert len(values) == 3
    assert cell.value == (fmean(values), stdev(values), 3)


def test_methods_are_rows_and_streams_are_columns(run_set):
    (table,) = tables(run_set, "accuracy")
    assert table.rows == ("cop2l", "finetuning", "replay")
    assert table.columns == ("mnist, class-incremental", "permuted-mnist, domain-incremental")
    assert table.shared == "mlp, 5 tasks"
    assert table.cells[1][1] is None


def test_the_best_is_the_largest_accuracy_and_the_smallest_bound(run_set):
    for table in tables(run_set, "accuracy", "bound"):
        column = [row[0] for row in table.cells]
        pick = max if column[0].metric.better == "higher" else min
        best = pick(column, key=lambda cell: cell.value.mean)
        assert [cell for cell in column if cell.best] == [best]


def test_a_bound_that_is_not_valid_is_never_the_best(run_set):
    (table,) = tables(run_set, "bound")
    assert [row[1].valid for row in table.cells if row[1]] == [False, False]
    assert not any(row[1].best for row in table.cells if row[1])
    assert SHARED in formats.text([table])


def rated(folder, method, *, accuracy=0.9, plasticity=0.95, forgetting=0.05, seed=0):
    path = make_run(folder / f"{method}-{seed}", method, seed) / "summary.json"
    summary = read_json(path)
    tasks = [task | {"test_error": 1 - accuracy, "test_n": 1000} for task in summary["tasks"]]
    numbers = {"accuracy": accuracy, "plasticity": plasticity, "forgetting": forgetting}
    write_json(path, summary | numbers | {"tasks": tasks, "seconds": 1 if method == "finetuning" else 2})
    return read_run(path.parent)


@pytest.mark.parametrize(
    "numbers",
    [
        {"accuracy": 0.1, "plasticity": 0.1, "forgetting": -0.42},  # guesses among ten classes
        {"accuracy": 0.4, "forgetting": 0.01},
        {"plasticity": 0.3, "forgetting": -0.6},
    ],
    ids=str,
)
def test_a_method_that_did_not_learn_is_never_the_best(tmp_path, numbers):
    runs = [
        rated(tmp_path, "replay"),
        rated(tmp_path, "cop2l", accuracy=0.8),
        rated(tmp_path, "finetuning", **numbers),
    ]
    metrics = ["accuracy", "forgetting", "plasticity", "seconds", "holdout"]
    (table,) = comparison.tables(group(runs), metrics)
    assert len(table.columns) == len(metrics)
    assert not any(cell.best for cell in table.filled if cell.group.method == "finetuning")
    alone = comparison.tables(group(runs[2:]), ["accuracy"])[0]
    assert not any(cell.best for cell in alone.filled)


def best(runs, metric):
    (table,) = comparison.tables(group(runs), [metric])
    return {cell.group.method for cell in table.filled if cell.best}


def test_forgetting_far_below_zero_is_not_the_best_and_nothing_beats_none(tmp_path):
    late = rated(tmp_path, "finetuning", accuracy=0.9, plasticity=0.48, forgetting=-0.42)
    steady, lost = rated(tmp_path, "replay", forgetting=-0.01), rated(tmp_path, "cop2l", forgetting=0.2)
    assert best([late, steady, lost], "forgetting") == {"replay"}
    level = rated(tmp_path / "level", "cop2l", forgetting=0.0)
    assert best([late, steady, level], "forgetting") == {"replay", "cop2l"}


def test_what_is_level_within_its_noise_is_best_together(tmp_path):
    near = [rated(tmp_path, "replay", accuracy=0.9), rated(tmp_path, "cop2l", accuracy=0.897)]
    far = rated(tmp_path, "finetuning", accuracy=0.8)
    assert best([*near, far], "accuracy") == {"replay", "cop2l"}
    assert best(near, "accuracy") == set()  # all of them
    seeds = [rated(tmp_path / "s", "replay", accuracy=a, seed=i) for i, a in enumerate((0.900, 0.901))]
    noisy = [rated(tmp_path / "s", "cop2l", accuracy=a, seed=i) for i, a in enumerate((0.97, 0.60))]
    assert best([*seeds, *noisy], "accuracy") == {"replay"}  # noise of its own makes nothing level


def test_other_settings_are_other_rows_with_the_fewest_words(tmp_path):
    runs = []
    for preset, stop, omega in (("picking", "preference", 15), ("paper", "kl", 25)):
        for seed in range(2):
            folder = tmp_path / f"{preset}-{seed}"
            options = {"patience": 3 if stop == "kl" else 4}
            runs.append(
                read_run(
                    make_run(folder, "cop2l", seed, preset=preset, stop=stop, omega=omega, options=options)
                )
            )
    runs.append(read_run(make_run(tmp_path / "replay", "replay")))
    groups = group(runs)
    assert [g.label for g in groups] == ["cop2l (preset paper)", "cop2l (preset picking)", "replay"]
    assert [len(g.runs) for g in groups] == [2, 2, 1]


def test_settings_inside_tables_of_the_configuration_count(tmp_path):
    runs = [read_run(make_run(tmp_path / str(p), options={"patience": p})) for p in (3, 20)]
    assert [g.label for g in group(runs)] == ["cop2l (patience 3)", "cop2l (patience 20)"]


def test_a_setting_is_named_only_where_it_varies(tmp_path):
    runs = [read_run(make_run(tmp_path / f"a{m}", memory=m)) for m in (1000, 2000)]
    runs.append(read_run(make_run(tmp_path / "b", stream="fashion-mnist")))
    assert [[g.label for g in groups] for groups in by_benchmark(runs)] == [
        ["cop2l"],
        ["cop2l (memory 1000)", "cop2l (memory 2000)"],
    ]
    (table,) = comparison.tables(group(runs), ["accuracy"])
    assert table.rows == ("cop2l (memory 1000)", "cop2l (memory 2000)")


def test_keys_to_average_over_can_be_named(tmp_path):
    runs = [read_run(make_run(tmp_path / str(o), class_seed=o)) for o in (1, 2)]
    assert len(group(runs)) == 2
    (only,) = group(runs, over=["seed", "class_seed"])
    assert len(only.runs) == 2
    assert repeated([only]) == []


def test_a_seed_counted_twice_is_said(tmp_path):
    runs = [read_run(make_run(tmp_path / name, seed=7)) for name in ("a", "b")]
    (sentence,) = repeated(group(runs))
    assert "counts seed 7 2 times" in sentence


def test_fewer_seeds_than_the_others_is_said(run_set):
    text = formats.text(tables(run_set, "accuracy"))
    assert "[1]" in text
    assert "over n seeds only" in text


@pytest.mark.parametrize("kind", KINDS)
def test_mean_worst_and_ratio_of_every_kind(run_set, kind):
    run = next(run for run in run_set.runs if run.method == "cop2l")
    values = [task.bounds[kind] for task in run.tasks]
    assert bounds_of(run, kind) == values
    assert METRICS[kind].of(run) == fmean(values)
    assert METRICS[f"worst-{kind}"].of(run) == max(values)
    assert METRICS[f"ratio-{kind}"].of(run) == pytest.approx(fmean(values) / (1 - run.accuracy))


def test_a_kind_that_some_task_lacks_is_no_number(tmp_path):
    folder = make_run(tmp_path / "run")
    summary = read_json(folder / "summary.json")
    del summary["tasks"][2]["bounds"]["kl"]
    write_json(folder / "summary.json", summary)
    assert METRICS["kl"].of(read_run(folder)) is None


def test_bounds_are_rounded_upwards_and_nothing_is_minus_zero():
    assert METRICS["kl"].text(0.070001) == "7.01"
    assert METRICS["kl"].text(1e-300) == "0.01"
    assert METRICS["accuracy"].text(0.070001) == "7.00"
    assert rounded_text(-0.00001, 2, "100") == "0.00"


def test_json_holds_unrounded_numbers(run_set):
    made = tables(run_set, "accuracy", "bound")
    cells = [cell for table in made for cell in table.filled]
    objects = json.loads(formats.as_json(made))
    assert len(objects) == 10
    for value, cell in zip(objects, cells, strict=True):
        assert (value["metric"], value["method"]) == (cell.metric.name, cell.group.method)
        assert (value["mean"], value["sd"], value["best"]) == (cell.value.mean, cell.value.sd, cell.best)


def test_markdown_has_as_many_cells_as_its_header(tmp_path):
    runs = [read_run(make_run(tmp_path / str(i), stream=name)) for i, name in enumerate(("a|b<c", "d"))]
    lines = formats.markdown(comparison.tables(group(runs), ["accuracy"])).splitlines()
    assert r"| method | a\|b&lt;c | d |" in lines
    assert sum(line.startswith("|") for line in lines) == 3


def test_latex_escapes_what_is_special(tmp_path):
    run = read_run(make_run(tmp_path / "run", stream="a_b&50%"))
    text = formats.latex(comparison.tables(group([run]), ["accuracy"]))
    assert r"a\_b\&50\%" in text
    assert text.count(r"\begin{") == text.count(r"\end{") == 2


def test_one_stream_makes_one_table_of_methods_and_metrics(run_set):
    runs = [run for run in run_set.runs if run.stream == "mnist"]
    (table,) = comparison.tables(group(runs), ["accuracy", "forgetting", "preference", "picked"])
    assert table.columns == (
        "average accuracy, %",
        "forgetting, %",
        "bound, preference, mean over tasks, %",
        "picked, mean over tasks",
    )
    assert [len(row) for row in table.cells] == [4] * len(table.rows)
    assert [cell is None for cell in table.cells[2]] == [False, False, True, True]


@pytest.mark.parametrize("form", [formats.text, formats.markdown, formats.latex])
def test_a_table_states_its_rule_for_ties(run_set, tmp_path, form):
    assert "one standard deviation of the best (over the seeds, the smaller of the two;" in form(
        tables(run_set, "accuracy")
    )
    alone = comparison.tables(group([read_run(make_run(tmp_path / "run"))]), ["accuracy"])
    assert "standard deviation" not in form(alone)


def test_the_best_is_starred_in_text(run_set):
    assert (
        formats.text(tables(run_set, "accuracy")).count("*") == 3
    )  # two columns, and the caption that explains it


def test_a_metric_that_no_run_has_is_an_error(tmp_path):
    make_run(tmp_path / "run", "replay")
    with pytest.raises(UserError, match="None of these runs has preference"):
        tables(find_runs([tmp_path]), "preference")


def test_a_key_that_was_not_given_goes_without_saying(tmp_path):
    runs = [read_run(make_run(tmp_path / str(p), preset=p)) for p in (None, "paper")]
    assert {g.label for g in group(runs)} == {"cop2l", "cop2l (preset paper)"}
    runs.append(read_run(make_run(tmp_path / "older", seed=1)))
    del runs[2].config["options"]["preset"]  # a configuration without the key
    groups = group(runs)
    assert [(g.label, len(g.runs)) for g in groups] == [("cop2l", 2), ("cop2l (preset paper)", 1)]


def test_rows_and_columns_without_a_number_are_left_out(run_set):
    (table,) = tables(run_set, "preference")
    assert table.rows == ("cop2l",)
    assert len(table.columns) == 2
