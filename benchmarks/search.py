"""The search for settings of CoP2L: accuracy on a validation split, and certificates, of every setting in a file.

    python benchmarks/search.py reproduction/results/search.jsonl --out again.jsonl --workers 2

Each line of the file names a stream, its number of tasks, a model, a seed and the options; a line of results holds the
same and what came of it. A tenth of each task's training part is set aside for validation and never learned; the test
part is not read. Bounds are means over tasks, and `_worst` the largest.
"""

import argparse
import json
import math
import multiprocessing
import time
from pathlib import Path

import numpy as np

KINDS = ("kl", "kl-tight", "preference", "combined", "buffer")


def split(stream):
    """Every task as (x, y, x_validation, y_validation)."""
    rng = np.random.default_rng(123)
    parts = []
    for x, y, _ in stream:
        aside = rng.random(len(y)) < 0.1
        parts.append((x[~aside], y[~aside], x[aside], y[aside]))
    return parts


def tried(setting):
    """One setting's results."""
    import torch

    from cop2l.bounds import holdout_certificate
    from cop2l.certify.bounding import bounds_of
    from cop2l.certify.learner import CoP2L
    from cop2l.features import load_stream
    from cop2l.models import build

    torch.set_num_threads(1)
    start = time.perf_counter()
    stream = load_stream(setting["stream"], tasks=setting["tasks"])
    tasks = split(stream)
    model = build(
        setting["model"], inputs=tasks[0][0].shape[1:], classes=stream.classes, seed=setting["seed"]
    )
    learner = CoP2L(model, seed=setting["seed"], tasks=len(tasks), **setting["opts"])
    matrix = []
    for x, y, _, _ in tasks:
        learner.learn(x, y, progress=False)
        seen = tasks[: learner.tasks_seen]
        matrix.append([float((learner.predict(x).numpy() == y).mean()) for _, _, x, y in seen])
    records = learner.certify({t: task[:2] for t, task in enumerate(tasks, start=1)}).records
    found = {
        **{key: setting[key] for key in ("stream", "tasks", "model", "seed", "opts")},
        "acc": float(np.mean(matrix[-1])),
        "forg": float(np.mean([matrix[t][t] - matrix[-1][t] for t in range(len(tasks) - 1)])),
        "picked": float(np.mean([record["picked"] for record in records])),
        "missed": float(np.mean([record["missed"] / record["n"] for record in records])),
    }
    every = [bounds_of(record, learner.options, [one["iterations"] for one in records]) for record in records]
    bounds = {kind: [float(one[kind]) for one in every if kind in one] for kind in KINDS}
    if setting["opts"].get("max_iterations") == 0:  # nothing is ever picked: the certified part is a hold-out
        bounds["holdout"] = [
            float(holdout_certificate(record["n"], record["missed"], len(tasks), math.log(0.05)))
            for record in records
        ]
    for kind, values in bounds.items():
        if values:
            found |= {kind: float(np.mean(values)), f"{kind}_worst": max(values)}
    return found | {"sec": time.perf_counter() - start}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", type=Path, help="a file of JSON lines")
    parser.add_argument("--out", type=Path, required=True, help="where the results go, line by line")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    arguments = parser.parse_args()
    settings = [json.loads(line) for line in arguments.settings.read_text().splitlines()]
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool, arguments.out.open("w") as out:
        for number, found in enumerate(pool.imap(tried, settings), start=1):
            out.write(json.dumps(found) + "\n")
            out.flush()
            print(f"{number} of {len(settings)}: {found['stream']}, accuracy {found['acc']:.4f}")


if __name__ == "__main__":
    main()
