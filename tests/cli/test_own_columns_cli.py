"""A table with IDs and years on the command line, and the spellings of an option."""

import json
from pathlib import Path

import numpy as np
import pytest

from cop2l import cli
from cop2l.cli import main
from cop2l.files import read_json

pytest.importorskip("pyarrow")
pytestmark = pytest.mark.usefixtures("somewhere")


def people(path, years, rows=120):
    """People of two classes that differ in size, with a city and an ID."""
    draw, lines = np.random.default_rng(years[0]), ["ID,size,city,year,label"]
    for i in range(rows * len(years)):
        size, city = 3 * (i % 2) + draw.normal() / 2, ("Bern", "Rom")[int(draw.integers(2))]
        lines.append(f"K-{i:04},{size:.3f},{city},{years[i // rows]},{('no', 'yes')[i % 2]}")
    Path(path).write_text("\n".join(lines))


@pytest.mark.filterwarnings("always::cop2l.errors.Advice")
def test_columns_are_dropped_by_every_command_and_years_come_in_order(capsys):
    people("people.csv", [2021, 2019])
    assert main(["run", "people.csv", "domain=year"]) == 2
    assert capsys.readouterr().err.endswith(" To leave out such columns, add drop=ID.\n")
    run = ["run", "people.csv", "--domain", "year", "--drop=ID", "lr=0.003", "anytime=true", "--out", "here"]
    assert main(run) == 0
    assert (
        "on people.csv (domain-incremental, 2 tasks: 2019, 2021), " in capsys.readouterr().out.splitlines()[0]
    )
    assert read_json("here/config.json")["data"] == {"domain": "year", "drop": "ID"}
    assert main(["show", "here", "--json"]) == 0
    recipe = json.loads(capsys.readouterr().out)["data"]
    assert (recipe["drop"], recipe["inputs"]) == ("ID", ["size", "city"])

    split = ["--domain", "year", "--scenario", "domain-incremental", "--tasks", "2"]
    assert main(["verify", "here", "--data", "people.csv", *split, "drop=ID"]) == 0
    capsys.readouterr()
    assert main(["verify", "here", "--data", "people.csv", *split]) == 2
    assert "--drop ID" in capsys.readouterr().out

    people("later.csv", [2022])
    assert main(["learn", "here", "--data", "later.csv", "--out", "grown"]) == 0
    assert '3 ("2022")' in capsys.readouterr().out
    Path("new.csv").write_text("size,city\n0.1,Bern\n2.9,Ulm\n900,Rom\n")  # without what was dropped
    assert main(["predict", "grown", "--data", "new.csv", "--out", "answers.csv"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Warning: new.csv differs from what was learned: 'size' is far outside ")
    assert line.endswith(" in 1 of 3 rows; 'city' is unknown ('Ulm') in 1 of 3 rows; check these columns.")
    header, *answers = Path("answers.csv").read_text().split()
    assert (header, answers[:2]) == ("predicted", ["no", "yes"])

    rows = [f"{answer},yes,{row}" for answer, row in zip(answers, ("1,Bern", "2,Ulm", "3,Rom"), strict=True)]
    Path("feedback.csv").write_text("\n".join(["predicted,label,size,city", *rows]))
    main(["monitor", "grown", "--task", "2022", "--state", "state.json", "feedback.csv"])
    assert (
        "Warning: feedback.csv differs from what was learned: 'city' is unknown ('Ulm') in 1 of 3 rows;"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "typed",
    [
        ["--lr", "0.1", "my.csv", "--label=x"],
        ["my.csv", "label=x", "lr=0.1"],
        ["my.csv", "--label", "x", "--lr=0.1"],
    ],
)
def test_options_and_changes_may_be_spelled_alike(typed):
    parsed = cli.parse_arguments(["run", *typed, "--out", "here"])
    assert (parsed.config, parsed.out, sorted(parsed.overrides)) == ("my.csv", "here", ["label=x", "lr=0.1"])
    parsed = cli.parse_arguments(
        ["verify", "here", "label=x", "--option", "label=n", "text_size=64", "data=my.csv"]
    )
    assert (parsed.label, parsed.option, parsed.text_size, parsed.data) == ("x", ["label=n"], 64, "my.csv")


def test_help_names_the_options_of_own_data(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    shown = capsys.readouterr().out
    assert all(
        f"\n  {option}=" in shown
        for option in ("label", "columns", "drop", "text", "domain", "group", "size")
    )
