"""Figures: the numbers behind them, and the pictures."""

import pytest
from synthetic_runs import make_run

from cop2l.bounds import clopper_pearson
from cop2l.errors import UserError
from cop2l.files import read_json, write_json
from cop2l.report import theme
from cop2l.report.figures import FIGURES, draw
from cop2l.report.figures.figure import rate_text, save
from cop2l.report.groups import by_benchmark, group, spread
from cop2l.report.metric import KINDS
from cop2l.report.runs import read_run

SIGNS = {"png": b"\x89PNG", "svg": b"<svg", "pdf": b"%PDF"}


@pytest.fixture(scope="module")
def mnist(run_set):
    return by_benchmark(run_set.runs)[0]


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_draws(mnist, name, tmp_path):
    figure = FIGURES[name](mnist)
    save([figure], tmp_path / "figure.svg")
    svg = (tmp_path / "figure.svg").read_text()
    assert "var(--" not in svg
    assert figure.title in svg
    assert "role-legend" in svg
    assert all(panel.description.endswith(".") for panel in figure.panels)
    assert figure.rows
    assert all(len(row) == len(figure.header) for row in figure.rows)


@pytest.mark.parametrize("kind", SIGNS)
def test_pictures_are_what_their_names_say(run_set, kind, tmp_path):
    path = tmp_path / "new" / f"figure.{kind}"
    save(draw("progress", run_set.runs), path)
    assert path.read_bytes().startswith(SIGNS[kind])
    assert list(path.parent.iterdir()) == [path]


def luminance(colour):
    """WCAG's relative luminance of #rrggbb."""
    shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first, second):
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("side", [0, 1], ids=["light", "dark"])
def test_text_and_marks_stand_out_from_their_ground(side):
    colours = {name: pair[side] for name, pair in theme.COLOURS.items()}
    for name in ("ink", "muted", "accent", "alarm"):
        assert contrast(colours[name], colours["ground"]) >= 4.5
        assert contrast(colours[name], colours["surface"]) >= 4.5
    assert contrast(colours["alarm"], colours["alarm-ground"]) >= 4.5
    for name in theme.SERIES:
        assert contrast(colours[name], colours["ground"]) >= 3


def test_the_bound_figure_shows_means_over_seeds(mnist):
    figure = FIGURES["bounds"](mnist)
    ours = next(g for g in mnist if g.method == "cop2l")
    expected = spread(run.tasks[2].bounds["preference"] for run in ours.runs)
    row = next(row for row in figure.rows if row[:2] == ("cop2l", "3"))
    assert row[figure.header.index("preference")] == rate_text(expected, upwards=True)
    (points,) = [
        [r for r in rows if r.get("series") == "certified bound" and r["x"] == 3]
        for rows in figure.panels[0].spec["datasets"].values()
        if "series" in rows[0]
    ]
    assert points == [
        {
            "x": 3,
            "series": "certified bound",
            "mean": expected.mean,
            "low": expected.mean - expected.sd,
            "high": expected.mean + expected.sd,
        }
    ]


def test_not_valid_stands_in_the_title(run_set):
    (shared,) = [
        groups for groups in by_benchmark(run_set.runs) if groups[0].benchmark.stream == "permuted-mnist"
    ]
    assert [panel.title for panel in FIGURES["bounds"](shared).panels] == [
        "cop2l – not valid",
        "replay – not valid",
    ]


def test_forgetting_is_that_of_the_summary(mnist):
    figure = FIGURES["progress"](mnist)
    last = next(row for row in figure.rows if row[:2] == ("replay", "5"))
    replay = next(g for g in mnist if g.method == "replay")
    assert last[2] == rate_text(spread(run.accuracy for run in replay.runs))
    assert last[3] == rate_text(spread(run.forgetting for run in replay.runs))


def test_a_varied_setting_can_be_drawn(tmp_path):
    runs = [
        read_run(make_run(tmp_path / f"{method}{m}", method, memory=m))
        for method in ("cop2l", "replay")
        for m in (1000, 3000)
    ]
    (figure,) = draw("against", runs, key="memory", metric="preference")
    assert [row[:2] for row in figure.rows] == [("cop2l", "1000"), ("cop2l", "3000")]
    runs[-1].not_valid = runs[1].not_valid = ["Tasks share examples."]
    (figure,) = draw("against", runs, key="memory", metric="preference")
    assert [row[:2] for row in figure.rows] == [("cop2l", "1000"), ("cop2l – not valid", "3000")]
    with pytest.raises(UserError, match="--key"):
        draw("against", runs)
    with pytest.raises(UserError, match="not a rate"):
        draw("against", runs, key="memory", metric="seconds")
    with pytest.raises(UserError, match="nothing to show in the figure"):
        draw("against", runs, key="omega")


def test_only_the_certified_bound_is_drawn_unless_asked(tmp_path):
    group_of_one = group([read_run(make_run(tmp_path / "run"))])
    figure, all_bounds = FIGURES["bounds"](group_of_one), FIGURES["all-bounds"](group_of_one)
    assert [key.label for key in figure.keys] == ["test error", "certified bound"]
    assert [key.label for key in all_bounds.keys] == ["test error", *(kind.label for kind in KINDS.values())]
    assert figure.rows == all_bounds.rows  # the table has all_bounds kind
    drawn = [row for rows in figure.panels[0].spec["datasets"].values() for row in rows if "high" in row]
    assert {row["series"] for row in drawn} == {"test error", "certified bound"}


def test_a_flat_line_looks_flat(tmp_path):
    folder = make_run(tmp_path / "run", "replay", tasks=2)
    summary = read_json(folder / "summary.json")
    write_json(folder / "summary.json", summary | {"matrix": [[0.95], [0.95, 0.94]]})
    (panel,) = FIGURES["progress"](group([read_run(folder)])).panels
    low, high = panel.spec["layer"][1]["encoding"]["y"]["scale"]["domain"]
    assert (low, high) == pytest.approx((0.8, 1.0))


def test_the_band_of_one_run_is_the_interval_of_its_test(tmp_path):
    folder = make_run(tmp_path / "run")
    figure = FIGURES["bounds"](group([read_run(folder)]))
    rows = [
        row
        for own in figure.panels[0].spec["datasets"].values()
        for row in own
        if row.get("series") == "test error"
    ]
    for row, task in zip(rows, read_run(folder).tasks, strict=True):
        assert (row["low"], row["high"]) == clopper_pearson(round(task.test_error * task.test_n), task.test_n)
    assert "95 % interval (Clopper and Pearson)" in figure.caption


def test_figures_without_data_are_left_out(tmp_path):
    replay = group([read_run(make_run(tmp_path / "run", "replay"))])
    with pytest.raises(UserError, match="did you mean 'bounds'"):
        draw("bound", replay[0].runs)
