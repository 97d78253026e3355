"""Own data as it comes, with the neutral settings and with fixed ones: accuracy, and what is certified of the worst task.

`python benchmarks/own_data.py [SEEDS]` prints the table of docs/results.md. Needs scikit-learn; some minutes for each seed.
"""

import sys
import tempfile
import warnings
from pathlib import Path
from statistics import fmean

import numpy as np
from sklearn import datasets

from cop2l.experiments import grid
from cop2l.experiments.run import run

warnings.simplefilter("ignore")
FIXED = ("scale=none", "lr=0.001")
"""What the neutral settings were before: Adam with one step for all data, on inputs as they are."""
FIXED_REPLAY = ("scale=none", "lr=0.01")


def columns(n=600):
    """Four clouds in ten columns of sizes from 1e-4 to 1e5, most far from 0; one more is heavy-tailed noise, one constant."""
    draws = np.random.default_rng(0)
    y, sizes = np.arange(n) % 4, 10.0 ** np.arange(-4, 6)
    x = (2 * draws.normal(size=(4, 10)))[y] + draws.normal(size=(n, 10)) + 20 * draws.normal(size=10)
    return np.column_stack([x * sizes, 1e4 * np.exp(2 * draws.normal(size=n)), np.full(n, 7.0)]), y


def words(n=1200, vocabulary=1500):
    """TF-IDF of documents of forty words on four subjects."""
    draws = np.random.default_rng(0)
    y, common = np.arange(n) % 4, draws.dirichlet(np.full(vocabulary, 0.05))
    subjects = [0.8 * common + 0.2 * draws.dirichlet(np.full(vocabulary, 0.02)) for _ in range(4)]
    counts = np.stack([draws.multinomial(40, subjects[subject]) for subject in y])
    weighted = counts * (np.log((1 + n) / (1 + (counts > 0).sum(0))) + 1)
    return weighted / np.linalg.norm(weighted, axis=1, keepdims=True), y


def pictures():
    """The 8 x 8 digits with values from 0 to 255."""
    x, y = datasets.load_digits(return_X_y=True)
    return (255 / 16 * x).round().reshape(-1, 8, 8), y


def wine():
    """A table of 178 rows whose columns reach from 0.1 to 1680."""
    return datasets.load_wine(return_X_y=True)


DATA = {
    "columns from 1e-4 to 1e5": (columns, ()),
    "TF-IDF, linear head": (words, ("model=linear",)),
    "pictures from 0 to 255": (pictures, ()),
    "wine, one task": (wine, ("tasks=1",)),
}
RUNS = {
    "neutral": (),
    "as they are, lr 0.001": FIXED,
    "neutral, preset=cop2l": ("preset=cop2l", "prior=0.15"),
    "Replay, neutral": ("method=replay",),
    "Replay as it is, lr 0.01": ("method=replay", *FIXED_REPLAY),
}


def measured(path, words, seeds):
    """Mean accuracy, and the mean of the largest bounds, over seeds."""
    accuracy, bound = [], []
    for seed in range(seeds):
        config = grid.single(grid.read(path), grid.overrides([*words, f"seed={seed}"]))
        with tempfile.TemporaryDirectory() as folder:
            summary = run(config, Path(folder) / "run")
        accuracy.append(fmean(summary["matrix"][-1]))
        bound.append(max((row["bounds"].get(summary["kind"], 1) for row in summary["tasks"]), default=1))
    return f"{100 * fmean(accuracy):.1f}" + (
        "" if "method=replay" in words else f" / {100 * fmean(bound):.1f}"
    )


def main():
    """Print the table, row by row."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print("| data |", " | ".join(RUNS), "|\n|---|" + "---|" * len(RUNS))
    with tempfile.TemporaryDirectory() as folder:
        for name, (make, more) in DATA.items():
            x, y = make()
            path = str(Path(folder) / "own.npz")
            np.savez(path, x=x.astype(np.float32), y=y)
            print(
                f"| {name} |",
                *(f"{measured(path, (*more, *words), seeds)} |" for words in RUNS.values()),
                flush=True,
            )


if __name__ == "__main__":
    main()
