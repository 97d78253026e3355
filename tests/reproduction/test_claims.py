from pathlib import Path

import pytest
from synthetic_runs import make_run

from cop2l.files import read_json, write_json
from cop2l.report.published import Published
from cop2l.report.runs import find
from reproduction.claims import verdicts
from reproduction.document import document, sources
from reproduction.explanations import Explanations
from reproduction.machines import ages
from reproduction.numbers import both, jointly, numbers
from reproduction.ours import samples
from reproduction.pictures import Pictures
from reproduction.published import Printed
from reproduction.verdict import STEPS, Pair, Verdict, replays

PAPER = {"k": 8, "omega": 15.0, "epochs": 10, "batch": 256, "lr": 0.001, "buffer": "uniform", "stop": "kl"}
AS_PAPER = {"preset": "paper", "holdout": 0, "device": "cpu", **PAPER}
AS_REPLAY = {"holdout": 0, "device": "cpu", "epochs": 20, "batch": 128, "lr": 0.01}
CNN = {"model": "cnn", "k": 48, "omega": 25.0, "epochs": 25, "lr": 0.0009}
NAMES = ("bounds", "accuracy", "forgetting", "stopping", "omega", "order", "cost")


@pytest.fixture
def made(tmp_path):
    """Add runs, one for each accuracy."""

    def add(method, accuracies, changes=None, *, worst=0.5, **summary):
        settings = (AS_PAPER if method == "cop2l" else AS_REPLAY) | (changes or {})
        for seed, accuracy in enumerate(accuracies):
            folder = make_run(tmp_path / str(len(list(tmp_path.iterdir()))), method, seed, **settings)
            old = read_json(folder / "summary.json")
            tasks = [t | {"bounds": t["bounds"] | {"kl": 0.3}} for t in old["tasks"]]
            tasks[-1]["bounds"]["kl"] = worst
            new = {"forgetting": 0.05, "plasticity": 0.97, "accuracy": accuracy, **summary}
            write_json(folder / "summary.json", old | {"tasks": tasks} | new)
        return tmp_path

    return add


def judged(root):
    runs = find([root]).finished()
    return dict(zip(NAMES, verdicts(samples(runs), runs), strict=True))


@pytest.mark.parametrize(
    ("outcomes", "word"),
    [
        ([1, 1, 0], "holds"),
        ([1, 0], "holds in part"),
        ([1, 1, 1, -1], "holds in part"),
        ([1, -1], "holds in part"),
        ([1, -1, -1], "does not hold"),
        ([0, 0, -1], "does not hold"),
        ([0, 0], "cannot tell"),
        ([], "cannot tell"),
    ],
)
def test_the_word(outcomes, word):
    assert Verdict("", outcomes, "", "", []).word == word


def test_a_gap_counts_beyond_the_noise(made):
    made("cop2l", (0.950, 0.952))
    root = made("replay", (0.940, 0.942))
    (pair,) = replays(samples(find([root]).finished()), STEPS)
    assert pair.gap("accuracy") == pytest.approx(0.01)
    assert [pair.outcome("accuracy"), Pair(*reversed(pair)).outcome("accuracy")] == [1, -1]
    assert pair.outcome("forgetting") == 0
    made("replay", (0.92, 0.98), {"lr": 0.1})
    (wide,) = replays(samples(find([root]).finished()), STEPS)
    assert wide.rival.changes == (("lr", 0.1),)
    assert wide.outcome("accuracy") == 0


@pytest.mark.parametrize(("rival", "outcome"), [(0.895, 0), (0.885, 1), (1.0, 0)])
def test_a_single_seed_is_taken_to_deviate_by_two_points(made, rival, outcome):
    made("cop2l", (0.945,))
    (pair,) = replays(samples(find([made("replay", (rival,))]).finished()), set())
    assert pair.outcome("accuracy") == outcome  # beyond 2 x sqrt(2) x 2 points or not


def test_a_bound_of_one_is_vacuous(made):
    root = made("cop2l", (0.95, 0.95), worst=0.999)
    assert judged(root)["bounds"].word == "holds"
    assert "at most 99.90 %" in judged(root)["bounds"].sentence
    made("cop2l", (0.95,), CNN, worst=1.0)
    assert judged(root)["bounds"].outcomes == [-1, 1]  # cnn before mlp
    assert judged(root)["bounds"].word == "holds in part"
    made("cop2l", (0.95,), CNN | {"stream": "fashion-mnist"}, worst=1.0, not_valid=["the backbone saw it"])
    assert len(judged(root)["bounds"].outcomes) == 2


def test_the_best_replay_is_the_rival(made):
    made("cop2l", (0.950, 0.952))
    root = made("replay", (0.90, 0.902))
    assert judged(root)["accuracy"].word == "holds"
    made("replay", (0.99, 0.992), {"holdout": 0.5})
    assert judged(root)["accuracy"].word == "holds"
    made("replay", (0.97, 0.972), {"lr": 0.1})
    found = judged(root)["accuracy"]
    assert found.word == "does not hold"
    assert "accuracy -2.00 on average" in found.sentence
    assert "on all but 1, on 1 of 1 streams (0 level, 0 the other way), accuracy +5.00" in found.sentence


@pytest.mark.parametrize(("accuracy", "word"), [(0.95, "holds"), (0.90, "cannot tell")])
def test_less_forgetting_at_a_lower_accuracy_is_level(made, accuracy, word):
    made("cop2l", (accuracy, accuracy), forgetting=0.01, plasticity=0.95)
    found = judged(made("replay", (0.94, 0.94), forgetting=0.08, plasticity=0.99))["forgetting"]
    assert found.word == word
    assert "Less forgetting on 1 of 1 streams" in found.sentence
    assert found.sentence.endswith("(plasticity) on 1")


def test_with_and_without(made):
    made("cop2l", (0.95, 0.95))
    made("cop2l", (0.95, 0.95), {"stop": "none"}, worst=0.8)
    made("cop2l", (0.95,), {"memory": 1000})
    made("cop2l", (0.80,), {"memory": 1000, "omega": 1.0}, forgetting=0.3)
    found = judged(made("cop2l", (0.945,), {"omega": 1.0}))
    assert found["stopping"].outcomes == [0, 0, 1]
    assert found["stopping"].word == "holds in part"
    assert "bound -6.00 on average" in found["stopping"].sentence
    assert sorted(found["omega"].outcomes) == [0, 0, 1, 1]
    assert sorted(len(own) for own in found["omega"].behind) == [1, 1, 1, 2]


def test_orders_that_were_not_run_are_level(made):
    for order, (ours, replay) in enumerate([(0.95, 0.90), (0.94, 0.95), (0.95, 0.99)]):
        made("cop2l", (ours,), {"class_seed": order})
        root = made("replay", (replay,), {"class_seed": order})
    found = judged(root)["order"]
    assert found.outcomes == [1, 0]
    assert "classes shuffled: 0.58 and 4.51 over 3 orders, ahead of Replay in 1" in found.sentence
    assert "tasks reordered: not run" in found.sentence
    assert "(1 seed each; 6 runs, 0 of the present code)" in found.text


@pytest.mark.parametrize(("seconds", "word"), [(30, "does not hold"), (15, "cannot tell"), (4, "holds")])
def test_times_on_one_machine(made, seconds, word):
    made("cop2l", (0.95,), seconds=seconds)
    root = made("replay", (0.95,), seconds=10)
    assert judged(root)["cost"].word == word
    path = next(path for path in root.glob("*/environment.json"))
    write_json(path, read_json(path) | {"cpu": "another"})
    assert judged(root)["cost"].word == "cannot tell"


def test_the_age_of_runs(made):
    made("cop2l", (0.95,), {"claim": "preference"})
    root = made("icarl", (0.95, 0.94))
    said = ages(find([root]).finished())
    assert "Of the 3 runs behind this page, 1 are of the present code (1 of cop2l); the other 2" in said
    assert said.endswith("older runs: iCaRL (2).")


def test_the_page_opens_with_the_verdicts(made):
    runs = find([made("cop2l", (0.95,))]).finished()
    text = document(sources(runs, None), Pictures(None, Path()))
    first, *_ = text.split("## How to read the tables")
    assert first.count("\n- **") == len(NAMES)
    assert "- **Beats Replay: cannot tell.** Not run." in first


@pytest.mark.parametrize(
    ("accuracy", "forgetting", "plasticity", "before", "after"),
    [
        (0.95, 0.00, 0.950, "better", "differs"),  # nothing forgotten, because less was learned
        (0.97, 0.02, 0.986, "better", "better"),
        (0.14, 0.05, 0.180, "reproduced", "differs"),  # it did not learn
        (0.95, 0.05, 0.960, "reproduced", "reproduced"),  # both are
        (0.90, 0.05, 0.990, "reproduced", "reproduced"),
    ],
)
def test_forgetting_is_judged_with_what_was_learned(made, accuracy, forgetting, plasticity, before, after):
    root = made("cop2l", (accuracy,), forgetting=forgetting, plasticity=plasticity)
    (sample,) = samples(find([root]).finished())
    row = Printed("class-incremental", "mnist", 5, "cop2l", "mlp", "forgetting", Published(0.05, 0.001))
    status, words = jointly(sample, row, Published(0.95, 0.001), before)
    assert status == after
    assert bool(words) == (before != after)


def test_rows_that_reproduce_both_numbers(made):
    made("cop2l", (0.9512,), forgetting=0.0335, plasticity=0.978)
    root = made("replay", (0.9448,), forgetting=0.5, plasticity=0.9)
    every = numbers(samples(find([root]).finished()), Explanations())
    assert "of 2 methods run with the same model, 1 reproduce both numbers" in both(every)
