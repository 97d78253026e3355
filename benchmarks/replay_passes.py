"""How many passes and which batch WeightedReplay needs: every rule that was tried, on development data.

`python benchmarks/replay_passes.py [--problems NAME ...]` appends every run to benchmarks/results/replay_passes.jsonl and prints
a table. The data are scikit-learn's generated problems, and its digits, iris and wine. A seed draws the weights and the halves of
the data: one is learned, on the other errors are counted. Seconds are of one core.
"""

import argparse
import itertools
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn import datasets

from cop2l.methods.weighted_replay import WeightedReplay
from cop2l.models import build

RESULTS = Path(__file__).parent / "results" / "replay_passes.jsonl"


def classification(rows, classes, seed, **options):
    """Clusters of 20 columns, 10 of them informative."""
    return datasets.make_classification(
        rows, 20, n_informative=10, n_classes=classes, class_sep=1.5, random_state=seed, **options
    )


def shifted():
    """Three domains, each shifted and rescaled."""
    x, y = classification(3000, 3, 105)
    draws, domain = np.random.default_rng(105), np.arange(3000) % 3
    return x * draws.uniform(0.5, 2, (3, 20))[domain] + draws.normal(0, 2, (3, 20))[domain], y, domain


PROBLEMS = {
    "iris": (lambda: datasets.load_iris(return_X_y=True), 1),
    "wine": (lambda: datasets.load_wine(return_X_y=True), 1),
    "300 rows": (lambda: classification(300, 3, 101), 1),
    "moons": (lambda: datasets.make_moons(400, noise=0.25, random_state=102), 1),
    "digits": (lambda: datasets.load_digits(return_X_y=True), 1),
    "digits, 5 tasks": (lambda: datasets.load_digits(return_X_y=True), 5),
    "3000 rows": (lambda: classification(3000, 5, 103), 1),
    "4 % positives": (lambda: classification(6000, 2, 104, weights=[0.96]), 1),
    "three domains": (shifted, 3),
    "hastie": (lambda: datasets.make_hastie_10_2(12_000, random_state=106), 1),
    "20 000 rows, 5 tasks": (lambda: classification(20_000, 10, 107), 5),
    "20 small tasks": (lambda: classification(4000, 20, 108), 20),
    "10 small tasks": (lambda: classification(4000, 20, 111), 10),
    "100 000 rows": (lambda: classification(100_000, 5, 109), 1),
    "400 000 rows": (lambda: classification(400_000, 5, 112), 1),
    "1 000 000 rows": (lambda: classification(1_000_000, 5, 110), 1),
}
"""The data of each problem, (x, y) or (x, y, domain), and its number of tasks."""


@dataclass(frozen=True)
class Rule:
    """Passes: visits / rows, from `least` to 200, or most / rows if that is less; batch: rows / steps, from 64 to `largest`."""

    visits: int
    least: int = 20
    most: float = np.inf
    steps: int = 1
    largest: int = 64
    stored: bool = False
    """Whether rows are all that are trained on, stored ones too, and not those of the task alone."""

    def __call__(self, task, stored):
        rows = task + stored * self.stored
        passes = min(max(self.visits // rows, self.least), 200, max(self.most // rows, 1))
        return int(passes), min(max(rows // self.steps, 64), self.largest)


RULES = {
    "30 000 / rows": Rule(30_000),
    "60 000 / rows": Rule(60_000),
    "chosen": Rule(60_000, most=10**7, steps=1000, largest=256),
    "chosen, batch to 128": Rule(60_000, most=10**7, steps=1000, largest=128),
    "chosen, batch rows / 256": Rule(60_000, most=10**7, steps=256, largest=256),
    "chosen, batch rows / 256, to 5 * 10^6": Rule(60_000, most=5 * 10**6, steps=256, largest=256),
    "30 000 / all rows": Rule(30_000, stored=True),
    "60 000 / all rows": Rule(60_000, stored=True),
    "120 000 / all rows": Rule(120_000, stored=True),
    "240 000 / all rows": Rule(240_000, stored=True),
    "60 000 / all rows, at least 10": Rule(60_000, least=10, stored=True),
    "60 000 / all rows, batch all rows / 64 to 128": Rule(60_000, steps=64, largest=128, stored=True),
    "60 000 / all rows, batch all rows / 256": Rule(60_000, steps=256, largest=256, stored=True),
    "60 000 / all rows, batch all rows / 1000": Rule(60_000, steps=1000, largest=256, stored=True),
    "60 000 / all rows to 10^7, batch all rows / 256": Rule(60_000, 20, 10**7, 256, 256, True),
    "60 000 / all rows to 5 * 10^6, batch all rows / 256": Rule(60_000, 20, 5 * 10**6, 256, 256, True),
}
"""The rules by their passes and batch (64 if there is none); the first is that of the former default preset."""


def tasks_of(problem):
    """The (x, y) of each task, the number of classes and the scenario."""
    make, count = PROBLEMS[problem]
    x, y, *domain = make()
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(np.unique(y, return_inverse=True)[1])
    classes = int(y.max()) + 1
    part = torch.tensor(domain[0]) if domain else y * count // classes
    scenario = "domain-incremental" if domain else "class-incremental"
    return [(x[part == t], y[part == t]) for t in range(count)], classes, scenario


def measure(tasks, classes, scenario, rule, seed):
    """The errors on the half of each task that is not learned."""
    draws = np.random.default_rng(seed)
    halves = [torch.tensor(draws.permutation(len(y)) < len(y) // 2) for _, y in tasks]
    first = tasks[0][0][halves[0]]
    tasks = [((x - first.mean(0)) / first.std(0).clamp(min=1e-6), y) for x, y in tasks]
    model = build("mlp", inputs=first.shape[1:], classes=classes, seed=seed)
    learner, begin = WeightedReplay(model, seed=seed, scenario=scenario), time.process_time()
    for (x, y), half in zip(tasks, halves, strict=True):
        epochs, batch = rule(int(half.sum()), learner.memory_used)
        learner.options = replace(learner.options, epochs=epochs, batch=batch)
        learner.learn(x[half], y[half])
    seconds = round(time.process_time() - begin, 2)
    judged = [(x[~half], y[~half]) for (x, y), half in zip(tasks, halves, strict=True)]
    errors = [int((learner.predict(x) != y).sum()) for x, y in judged]
    return {"rows": [len(y) for _, y in judged], "errors": errors, "seconds": seconds}


def show(table):
    """Print errors in % and seconds, means over tasks and seeds."""
    table["error"] = [100 * np.mean(np.divide(e, n)) for e, n in zip(table.errors, table.rows, strict=True)]
    means = table.groupby(["problem", "rule"], sort=False)[["error", "seconds"]].mean().unstack()
    for name in ("error", "seconds"):
        print(name, means[name].round(2).to_string(), sep="\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", nargs="*", default=[*PROBLEMS], choices=[*PROBLEMS])
    parser.add_argument("--rules", nargs="*", default=[*RULES], choices=[*RULES])
    parser.add_argument("--seeds", nargs="*", default=[0, 1, 2], type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    RESULTS.touch()
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    for problem in arguments.problems:
        data = tasks_of(problem)
        for rule, seed in itertools.product(arguments.rules, arguments.seeds):
            key = {"problem": problem, "rule": rule, "seed": seed}
            if not any(key.items() <= row.items() for row in rows):
                rows.append(key | measure(*data, RULES[rule], seed))
                with RESULTS.open("a") as lines:
                    lines.write(json.dumps(rows[-1]) + "\n")
    show(pd.DataFrame(rows))


if __name__ == "__main__":
    main()
