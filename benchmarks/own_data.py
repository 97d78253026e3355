"""The default settings on 15 problems, beside scikit-learn on all tasks at once, also with half of the data held out.

`python benchmarks/own_data.py DATA FEATURES [--seeds 3]` appends every run to benchmarks/results/own_data.jsonl and prints the
table of docs/results.md. DATA holds mnist/ and fashion-mnist/, FEATURES the .npz files of features. None of these problems chose
a setting. A seed draws the test part (a fifth), the prior part, the weights and the halves.
`--samples N` draws N new samples of `text, a tenth spam` instead. It compares each bound with the error on 10 000 further
messages: benchmarks/results/own_data_samples.jsonl.
"""

import argparse
import gzip
import json
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd
from scipy.stats import binom
from sklearn import datasets
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cop2l.bounds import holdout_certificate
from cop2l.experiments import grid
from cop2l.experiments.learners import load_stream
from cop2l.experiments.run import run

RESULTS = Path(__file__).parent / "results"
DELTA = 0.05


def gaps(_):
    """Breast cancer as a CSV file, a fifth of whose values are missing."""
    x, y = datasets.load_breast_cancer(return_X_y=True)
    x[np.random.default_rng(11).random(x.shape) < 0.2] = np.nan
    return pd.DataFrame(x).add_prefix("c").assign(label=y)


def mixed(_):
    """Customers: two numbers with gaps, two categories, and whether they leave."""
    draws, n = np.random.default_rng(12), 3000
    age, income = draws.uniform(18, 90, n), np.exp(draws.normal(10, 1, n))
    city, plan = draws.integers(0, 12, n), draws.integers(0, 3, n)
    score = (
        (age - 50) / 15 * (plan - 1)
        + 0.8 * np.log(income / 2e4)
        + draws.normal(size=12)[city]
        + draws.normal(0, 0.5, n)
    )
    age[draws.random(n) < 0.15] = np.nan
    return pd.DataFrame(
        {
            "age": age.round(1),
            "income": income.round(),
            "city": [f"city{c}" for c in city],
            "plan": [f"plan{p}" for p in plan],
            "label": (score > 0).astype(int),
        }
    )


def wild(_):
    """Six classes in 16 columns of scales from 1e-6 to 1e6, three of them heavy-tailed."""
    x, y = datasets.make_classification(
        3600, 16, n_informative=10, n_classes=6, class_sep=1.6, random_state=14
    )
    draws = np.random.default_rng(14)
    x[:, :3] = np.sinh(2 * x[:, :3])
    return x * 10.0 ** draws.uniform(-6, 6, 16) + draws.normal(size=16), y


def seasons(_):
    """Three domains, which shift and rescale ten columns."""
    draws, n = np.random.default_rng(16), 3600
    domain, base = np.arange(n) % 3, draws.normal(size=(n, 10))
    y = ((base**2).sum(1) > 9.34).astype(int)
    return base * draws.uniform(0.5, 2, (3, 10))[domain] + draws.normal(0, 2, (3, 10))[domain], y, domain


def spam(_, sample=None):
    """Short messages, a tenth of them of one kind."""
    return documents(18, [0.9, 0.1], 15, 0.35, sample)


def turned(paths):
    """Three domains of digits: upright, turned by 90 degrees and by 180 degrees."""
    x, y = idx(paths.data / "mnist", 30_000, 3600)
    domain = np.arange(len(y)) % 3
    return np.stack([np.rot90(picture, turns) for picture, turns in zip(x, domain, strict=True)]), y, domain


PROBLEMS = {
    "breast cancer, 20 % missing": (gaps, "tasks=1"),
    "customers, categories and gaps": (mixed, "tasks=1"),
    "4 % positives": (
        lambda _: datasets.make_classification(
            4000, 20, n_informative=8, weights=[0.96], flip_y=0.01, class_sep=1.5, random_state=13
        ),
        "tasks=1",
    ),
    "columns from 1e-6 to 1e6": (wild, "tasks=3"),
    "shells": (
        lambda _: datasets.make_gaussian_quantiles(
            n_samples=3000, n_features=8, n_classes=3, random_state=15
        ),
        "tasks=1",
    ),  # no linear model separates them
    "three seasons": (seasons, "scenario=domain-incremental"),
    "text, six subjects": (lambda _: documents(17, [1 / 6] * 6, 30, 0.25), "tasks=3 text=text"),
    "text, a tenth spam": (spam, "tasks=1 text=text"),
    "MNIST": (lambda paths: idx(paths.data / "mnist", 20_000, 4000), "tasks=5"),
    "MNIST turned": (turned, "scenario=domain-incremental"),
    "Fashion-MNIST": (lambda paths: idx(paths.data / "fashion-mnist", 20_000, 4000), "tasks=5"),
    "Fashion-MNIST, tasks known": (
        lambda paths: idx(paths.data / "fashion-mnist", 40_000, 3000),
        "tasks=5 scenario=task-incremental",
    ),
    "features of CIFAR-10": (lambda paths: features(paths, "cifar10-dinov2-vits14-70", 4000), "tasks=5"),
    "features of CIFAR-100": (
        lambda paths: features(paths, "cifar100-dinov2-vits14-70", 4000, 20),
        "tasks=4",
    ),
    "features of dogs, tasks known": (
        lambda paths: features(paths, "imagewoof-dinov2-vits14-224", 3000),
        "tasks=5 scenario=task-incremental",
    ),
}
"""The data of each problem, and the overrides of its run beside the path. Declared before any of them was run."""


def documents(seed, shares, length, subject_share, sample=None):
    """2400 texts; `subject_share` of their words come from the distribution of their subject, the label.

    `sample`, a number and a size: another sample of the same distributions.
    """
    draws, vocabulary = np.random.default_rng(seed), 1500
    y, common = draws.choice(len(shares), 2400, p=shares), draws.dirichlet(np.full(vocabulary, 0.1))
    subjects = [
        (1 - subject_share) * common + subject_share * draws.dirichlet(np.full(vocabulary, 0.05))
        for _ in shares
    ]
    if sample is not None:
        number, size = sample
        draws = np.random.default_rng((seed, number))
        y = draws.choice(len(shares), size, p=shares)
    texts = [
        " ".join(f"w{word}" for word in draws.choice(vocabulary, length, p=subjects[subject]))
        for subject in y
    ]
    return pd.DataFrame({"text": texts, "label": y})


def idx(folder, start, count):
    """Training pictures and labels from `start` on."""
    files = ("train-images-idx3-ubyte.gz", 16), ("train-labels-idx1-ubyte.gz", 8)
    pixels, labels = (
        np.frombuffer(gzip.decompress((folder / name).read_bytes()), np.uint8, offset=offset)
        for name, offset in files
    )
    return pixels.reshape(-1, 28, 28)[start : start + count], labels[start : start + count].astype(int)


def features(paths, name, count, classes=None):
    """A sample of stored features."""
    stored = np.load(paths.features / f"{name}.npz")
    x, y = (
        stored[next(name for name in names if name in stored)]
        for names in (("x", "x_train"), ("y", "y_train"))
    )
    rows = np.flatnonzero(y < (classes or y.max() + 1))
    rows = np.random.default_rng(19).permutation(rows)[:count]
    return x[rows].astype(np.float32), y[rows].astype(int)


def write(folder, data):
    """The path of a file with the data of a problem."""
    if isinstance(data, pd.DataFrame):
        data.to_csv(path := folder / "own.csv", index=False, float_format="%.6g")
        return path
    x = data[0] if data[0].dtype == np.uint8 else data[0].astype(np.float32)
    np.savez(path := folder / "own.npz", **dict(zip(("x", "y", "domain"), (x, *data[1:]), strict=False)))
    return path


def learn(path, overrides, folder):
    """The configuration of a run; and its seconds on one core, with the test error and the bound of each task."""
    begin = time.process_time()
    config = grid.single_run(grid.read_configuration(path), grid.overrides(overrides.split()))
    summary = run(config, folder / "run")
    seconds, errors = round(time.process_time() - begin, 1), [1 - share for share in summary["matrix"][-1]]
    bounds = [row["bounds"][summary["kind"]] for row in summary["tasks"]]
    return config, {"seconds": seconds, "errors": errors, "bounds": bounds}


def reference(classifier, stream, seed):
    """Test accuracy of a scikit-learn model on all tasks at once, and its bound by half the rows, learned from the others."""
    train, test = (
        [(task.x.reshape(len(task.y), -1), np.asarray(task.y)) for task in part]
        for part in (stream.train, stream.test)
    )
    draws, model = np.random.default_rng(seed), make_pipeline(StandardScaler(), classifier)
    first = [draws.permutation(len(y)) < len(y) // 2 for _, y in train]
    halves = (
        [(x[k == half], y[k == half]) for (x, y), k in zip(train, first, strict=True)]
        for half in (True, False)
    )

    def mistakes(learned, judged):
        """The errors of the model on each task and its rows; predictions are within the head if task-incremental."""
        model.fit(*map(np.concatenate, zip(*learned, strict=True)))
        for (x, y), head in zip(judged, stream.heads, strict=True):
            chances = model.predict_proba(x)
            if stream.scenario == "task-incremental":
                chances[:, ~np.isin(model.classes_, head)] = -1
            yield int((model.classes_[chances.argmax(1)] != y).sum()), len(y)

    accuracy = 1 - fmean(errors / n for errors, n in mistakes(train, test))
    bounds = [holdout_certificate(n, errors, len(train), np.log(DELTA)) for errors, n in mistakes(*halves)]
    return accuracy, fmean(map(float, bounds))


def measure(paths, problem, seed):
    """One problem with one seed: accuracies and bounds, means over tasks."""
    make, overrides = PROBLEMS[problem]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        config, row = learn(write(folder, make(paths)), f"{overrides} seed={seed} stream_seed={seed}", folder)
        stream = load_stream(config)
    row["rows"], row["test rows"] = ([len(task.y) for task in part] for part in (stream.train, stream.test))
    models = {"logistic": LogisticRegression(max_iter=500), "mlp": MLPClassifier(random_state=seed)}
    for name, model in models.items():
        row[f"{name} accuracy"], row[f"{name} bound"] = reference(model, stream, seed)
    return row


def measure_sample(sample):
    """The bound from one more sample of the messages, and the error on 10 000 further ones."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for part, number, size in (("train", sample, 1920), ("test", 10**6 + sample, 10_000)):
            spam(None, (number, size)).to_csv(folder / f"{part}.csv", index=False)
        return learn(folder, "tasks=1 text=text", folder)[1]


def complete(name, keys, measure_key):
    """The rows of a file of results; those that are missing are measured and appended."""
    (file := RESULTS / name).touch()
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for key in keys:
        if not any(key.items() <= row.items() for row in rows):
            rows.append(key | measure_key(**key))
            with file.open("a") as lines:
                lines.write(json.dumps(rows[-1]) + "\n")
    return pd.DataFrame(rows)


def main():
    """Measure what is not in the results yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("features", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.samples:
        keys = [{"sample": number} for number in range(arguments.samples)]
        table = complete("own_data_samples.jsonl", keys, measure_sample)
        errors, bounds = table.errors.str[0], table.bounds.str[0]
        print(
            f"{len(table)} samples: mean error {errors.mean():.4f}, mean bound {bounds.mean():.4f}; {sum(errors > bounds)} above."
        )
    else:
        keys = [{"problem": name, "seed": seed} for seed in range(arguments.seeds) for name in PROBLEMS]
        show(complete("own_data.jsonl", keys, partial(measure, arguments)))


def show(table):
    """Print the table (means over seeds, in %), and how many problems meet the goals."""
    tests = table[["errors", "bounds", "test rows"]].explode(["errors", "bounds", "test rows"]).astype(float)
    counts = (tests.errors * tests["test rows"]).round()
    refuted = binom.sf(counts - 1, tests["test rows"], tests.bounds) < DELTA
    table["accuracy"], table["bound"] = 1 - table.errors.map(fmean), table.bounds.map(fmean)
    table["rows"] = table.rows.map(sum)
    table = table.groupby("problem", sort=False).mean(numeric_only=True)
    best = table[["logistic accuracy", "mlp accuracy"]].max(axis=1)
    table["half held out"] = table[["logistic bound", "mlp bound"]].min(axis=1)
    ratio = table.bound / table["half held out"]
    names = ["accuracy", "logistic accuracy", "mlp accuracy", "bound", "half held out"]
    print("| problem | rows |", " | ".join(names), "| seconds |\n|---|---|---|---|---|---|---|---|")
    for name, row in table.iterrows():
        print(
            f"| {name} | {row.rows:.0f} |",
            *(f"{100 * row[key]:.1f} |" for key in names),
            f"{row.seconds:.0f} |",
        )
    print(
        f"\nWithin 3 points of the better of the two on {sum(table.accuracy >= best - 0.03)} of {len(table)}; bound at most that"
        f" of half held out on {sum(ratio <= 1)}; more than 15 % above it on {sum(ratio > 1.15)}. Of {len(tests)} test errors"
        f" {sum(tests.errors > tests.bounds)} lie above their bound, {sum(refuted)} of them significantly."
    )


if __name__ == "__main__":
    main()
