"""The default settings on data as it comes, beside scikit-learn on all data at once, and beside holding out half of it.

`python benchmarks/own_data.py DATA FEATURES [--seeds 3] [--only NAME ...]` appends every run to
benchmarks/results/own_data.jsonl and prints the table of docs/results.md. DATA holds mnist/ and fashion-mnist/, FEATURES the
.npz files of features. None of these problems chose a setting.
"""

import argparse
import gzip
import json
import tempfile
import time
import warnings
from pathlib import Path
from statistics import fmean

import numpy as np
from sklearn import datasets
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cop2l.bounds import holdout_certificate
from cop2l.experiments import grid
from cop2l.experiments.learners import load_stream
from cop2l.experiments.run import run

RESULTS = Path(__file__).parent / "results" / "own_data.jsonl"
DELTA = 0.05


def gaps(_):
    """Breast cancer as a CSV file, a fifth of whose values are missing."""
    x, y = datasets.load_breast_cancer(return_X_y=True)
    x[np.random.default_rng(11).random(x.shape) < 0.2] = np.nan
    return table(x, y)


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
    rows = [
        f"{a:.1f},{i:.0f},city{c},plan{p},{int(s > 0)}"
        for a, i, c, p, s in zip(age, income, city, plan, score, strict=True)
    ]
    return "age,income,city,plan,label\n" + "\n".join(rows).replace("nan", "") + "\n"


def rare(_):
    """4 % positives among 4000 rows of 20 columns."""
    return datasets.make_classification(
        4000, 20, n_informative=8, weights=[0.96], flip_y=0.01, class_sep=1.5, random_state=13
    )


def wild(_):
    """Six classes in 16 columns of sizes from 1e-6 to 1e6, three of them heavy-tailed."""
    x, y = datasets.make_classification(
        3600, 16, n_informative=10, n_classes=6, class_sep=1.6, random_state=14
    )
    draws = np.random.default_rng(14)
    x[:, :3] = np.sinh(2 * x[:, :3])
    return x * 10.0 ** draws.uniform(-6, 6, 16) + draws.normal(size=16), y


def quantiles(_):
    """Three shells around the origin in eight columns: no linear model separates them."""
    return datasets.make_gaussian_quantiles(n_samples=3000, n_features=8, n_classes=3, random_state=15)


def seasons(_):
    """The same question in three seasons, which shift and rescale the ten columns: the domains."""
    draws, n = np.random.default_rng(16), 3600
    domain, base = np.arange(n) % 3, draws.normal(size=(n, 10))
    y = ((base**2).sum(1) > 9.34).astype(int)
    return base * draws.uniform(0.5, 2, (3, 10))[domain] + draws.normal(0, 2, (3, 10))[domain], y, domain


def subjects(_):
    """Documents of thirty words on six subjects, as text."""
    return documents(17, 2400, [1 / 6] * 6, 30, 0.25)


def spam(_):
    """Short messages, a tenth of them of one kind, as text."""
    return documents(18, 2400, [0.9, 0.1], 15, 0.35)


def mnist(paths):
    """4000 digits of 28 x 28 pixels."""
    return idx(paths.data / "mnist", 20_000, 4000)


def turned(paths):
    """Digits, upright, on their side and upside down: the domains."""
    x, y = idx(paths.data / "mnist", 30_000, 3600)
    domain = np.arange(len(y)) % 3
    return np.stack([np.rot90(one, turns) for one, turns in zip(x, domain, strict=True)]), y, domain


def fashion(paths):
    """4000 pictures of clothes."""
    return idx(paths.data / "fashion-mnist", 20_000, 4000)


def clothes(paths):
    """3000 other pictures of clothes."""
    return idx(paths.data / "fashion-mnist", 40_000, 3000)


def cifar10(paths):
    """DINOv2 features of 4000 pictures of CIFAR-10 at 70 pixels."""
    return features(paths.features / "cifar10-dinov2-vits14-70.npz", 4000)


def cifar100(paths):
    """DINOv2 features of pictures of 20 classes of CIFAR-100 at 70 pixels."""
    return features(paths.features / "cifar100-dinov2-vits14-70.npz", 4000, 20)


def dogs(paths):
    """DINOv2 features of 3000 pictures of ten breeds."""
    return features(paths.features / "imagewoof-dinov2-vits14-224.npz", 3000)


PROBLEMS = {
    "breast cancer, 20 % missing": (gaps, "tasks=1"),
    "customers, categories and gaps": (mixed, "tasks=1"),
    "4 % positives": (rare, "tasks=1"),
    "columns from 1e-6 to 1e6": (wild, "tasks=3"),
    "shells": (quantiles, "tasks=1"),
    "three seasons": (seasons, "scenario=domain-incremental"),
    "text, six subjects": (subjects, "tasks=3 text=text"),
    "text, a tenth spam": (spam, "tasks=1 text=text"),
    "MNIST": (mnist, "tasks=5"),
    "MNIST turned": (turned, "scenario=domain-incremental"),
    "Fashion-MNIST": (fashion, "tasks=5"),
    "Fashion-MNIST, tasks known": (clothes, "tasks=5 scenario=task-incremental"),
    "features of CIFAR-10": (cifar10, "tasks=5"),
    "features of CIFAR-100": (cifar100, "tasks=4"),
    "features of dogs, tasks known": (dogs, "tasks=5 scenario=task-incremental"),
}
"""Declared before any of them was run; beside the words only the path is given."""


def table(x, y):
    """A CSV file; a gap is empty."""
    names = ",".join(f"c{i}" for i in range(x.shape[1]))
    rows = [
        ",".join([*("" if np.isnan(v) else f"{v:.6g}" for v in row), str(label)])
        for row, label in zip(x, y, strict=True)
    ]
    return "\n".join([f"{names},label", *rows, ""])


def documents(seed, n, shares, length, own):
    """A CSV file of texts; `own` of a document's words are of its subject."""
    draws, words = np.random.default_rng(seed), 1500
    y, common = draws.choice(len(shares), n, p=shares), draws.dirichlet(np.full(words, 0.1))
    subjects = [(1 - own) * common + own * draws.dirichlet(np.full(words, 0.05)) for _ in shares]
    texts = [
        " ".join(f"w{word}" for word in draws.choice(words, length, p=subjects[subject])) for subject in y
    ]
    return "\n".join(
        ["text,label", *(f"{text},{subject}" for text, subject in zip(texts, y, strict=True)), ""]
    )


def idx(folder, start, count):
    """Training pictures and labels from `start` on."""
    files = ("train-images-idx3-ubyte.gz", 16), ("train-labels-idx1-ubyte.gz", 8)
    pixels, labels = (
        np.frombuffer(gzip.decompress((folder / name).read_bytes()), np.uint8, offset=offset)
        for name, offset in files
    )
    return pixels.reshape(-1, 28, 28)[start : start + count], labels[start : start + count].astype(int)


def features(file, count, classes=None):
    """A sample of stored features."""
    stored = np.load(file)
    x, y = (
        stored[next(name for name in names if name in stored)]
        for names in (("x", "x_train"), ("y", "y_train"))
    )
    some = np.flatnonzero(y < (classes or y.max() + 1))
    some = np.random.default_rng(19).permutation(some)[:count]
    return x[some].astype(np.float32), y[some].astype(int)


def write(folder, made):
    """The problem as a file."""
    if isinstance(made, str):
        path = Path(folder) / "own.csv"
        path.write_text(made)
        return path
    path, names = Path(folder) / "own.npz", ("x", "y", "domain")
    x = made[0] if made[0].dtype == np.uint8 else made[0].astype(np.float32)
    np.savez(path, **dict(zip(names, (x, *made[1:]), strict=False)))
    return path


def reference(model, stream, half, seed):
    """Accuracy, mean over tasks, of a scikit-learn model on all tasks at once; if `half`, its hold-out bound on the rest."""
    parts = [(task.x.reshape(len(task.y), -1), np.asarray(task.y)) for task in stream]
    draws = np.random.default_rng(seed)
    kept = [draws.permutation(len(y)) < (len(y) // 2 if half else len(y)) for _, y in parts]
    model.fit(
        *(np.concatenate([part[i][own] for part, own in zip(parts, kept, strict=True)]) for i in (0, 1))
    )
    judged = (
        [(x[~own], y[~own]) for (x, y), own in zip(parts, kept, strict=True)]
        if half else [(task.x.reshape(len(task.y), -1), np.asarray(task.y)) for task in stream.test]
    )  # fmt: skip
    wrong = [int((predict(model, x, stream, t) != y).sum()) for t, (x, y) in enumerate(judged)]
    if not half:
        return 1 - fmean(count / len(y) for count, (_, y) in zip(wrong, judged, strict=True))
    tasks = len(parts)
    sizes = [len(y) for _, y in judged]
    return fmean(
        float(holdout_certificate(n, count, tasks, np.log(DELTA)))
        for count, n in zip(wrong, sizes, strict=True)
    )


def predict(model, x, stream, task):
    """The most probable class, of the task's own where tasks are known."""
    chances = model.predict_proba(x)
    if stream.scenario == "task-incremental":
        chances[:, ~np.isin(model.classes_, stream.heads[task])] = -1
    return model.classes_[chances.argmax(1)]


def measure(name, paths, seed):
    """One problem with one seed: accuracies and bounds, means over tasks."""
    make, words = PROBLEMS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = write(folder, make(paths))
        config = grid.single_run(
            grid.read_configuration(path), grid.overrides([*words.split(), f"seed={seed}"])
        )
        begin = time.process_time()
        summary = run(config, Path(folder) / "run")
        seconds = time.process_time() - begin
        stream = load_stream(config)
    found = {
        "problem": name, "seed": seed, "rows": sum(len(task.y) for task in stream), "seconds": round(seconds, 1),
        "accuracy": fmean(summary["matrix"][-1]), "bound": fmean(row["bounds"][summary["kind"]] for row in summary["tasks"]),
    }  # fmt: skip
    for label, classifier in (
        ("logistic", LogisticRegression(max_iter=500)),
        ("mlp", MLPClassifier(random_state=seed)),
    ):
        model = make_pipeline(StandardScaler(), classifier)
        found[f"{label} accuracy"] = reference(model, stream, False, seed)
        found[f"{label} bound"] = reference(model, stream, True, seed)
    return found


def main():
    """Measure what is not in the results yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("features", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(PROBLEMS))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    done = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    for seed in range(given.seeds):
        for name in given.only:
            if not any((one["problem"], one["seed"]) == (name, seed) for one in done):
                done.append(measure(name, given, seed))
                with RESULTS.open("a") as file:
                    file.write(json.dumps(done[-1]) + "\n")
    show(done)


def show(done):
    """The table: means over seeds, in %."""
    print(
        "| problem | rows | accuracy | logistic | MLP | bound | half held out | seconds |\n|---|---|---|---|---|---|---|---|"
    )
    near = tight = loose = 0
    names = [name for name in PROBLEMS if any(one["problem"] == name for one in done)]
    for name in names:
        own = [one for one in done if one["problem"] == name]
        mean = {key: fmean(one[key] for one in own) for key in own[0] if key not in ("problem", "seed")}
        held = min(mean["logistic bound"], mean["mlp bound"])
        near += mean["accuracy"] >= max(mean["logistic accuracy"], mean["mlp accuracy"]) - 0.03
        tight += mean["bound"] <= held
        loose += mean["bound"] > 1.15 * held
        cells = [
            f"{100 * mean[key]:.1f}" for key in ("accuracy", "logistic accuracy", "mlp accuracy", "bound")
        ]
        print(
            f"| {name} | {mean['rows']:.0f} |",
            " | ".join(cells),
            f"| {100 * held:.1f} | {mean['seconds']:.0f} |",
        )
    print(
        f"\nWithin 3 points of the better of the two on {near} of {len(names)}; bound at most that of the better of the two,"
        f" learned from half, on {tight}; more than 15 % above it on {loose}."
    )


if __name__ == "__main__":
    main()
