"""The runs of a stage of the search for settings, on development streams; reproduction/search.md shows the results.

    python -m benchmarks.search reproduction/settings/stage-1.toml --data FOLDER --out reproduction/settings/tried.jsonl

A stage names streams of declared.toml beside it, seeds and tries. Each value of a list is tried; `times` multiplies the
paper's settings for the stream. A try may name a preset, a model, or a method with a hold-out. FOLDER may hold NAME.npz with
x_train, y_train and, for features, scale; other data is searched where cop2l finds its data. Each run is a process with one
thread, and appends one line of results when it ends; runs that are in the file already are not repeated.
"""

import argparse
import functools
import json
import math
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np

from reproduction.tries import identity, jobs, read, recorded, tries


def training_part(name, folder):
    """The training part of a data set, or of its features, as (x, y, how x is prepared)."""
    from cop2l.features.load import labelled as features
    from cop2l.features.store import find_entry
    from cop2l.streams.datasets import DATASETS
    from cop2l.streams.loading import labelled
    from cop2l.streams.pictures import Scaled

    if not (folder / f"{name}.npz").is_file():
        dataset, _, backbone = name.partition("-dinov2")
        data = features(find_entry(f"{dataset}@dinov2{backbone}")) if backbone else labelled(name)
        return data.x, data.y, data.prepare
    with np.load(folder / f"{name}.npz") as stored:
        x, y = stored["x_train"], stored["y_train"].astype(np.int64)
        if "scale" in stored:
            order = np.argsort(y, kind="stable")
            return (x * stored["scale"]).astype(np.float32)[order], y[order], None
    published = DATASETS.get(name)
    return x, y, Scaled(published.mean, published.std) if published else Scaled(top=16)


@functools.cache
def parts(name, data, file):
    """Every task of a stream as (x, y, x_validation, y_validation), the number of classes and the scenario."""
    from cop2l.streams import Labelled, split_into_tasks
    from cop2l.streams.domains import domain_stream

    declared = read(Path(file))
    stream = declared["streams"][name]
    x, y, prepare = training_part(stream["data"], Path(data))
    x, y = x[: stream.get("rows")], y[: stream.get("rows")]
    names = tuple(map(str, range(int(y.max()) + 1)))
    data_set = Labelled(name, x, y, x[:0], y[:0], names, **({"prepare": prepare} if prepare else {}))
    if "domains" in stream:
        tasks = domain_stream(data_set, stream["domains"], tasks=stream["tasks"], images="disjoint")
    else:
        tasks = split_into_tasks(data_set, "class-incremental", tasks=stream["tasks"])
    split = []
    for x, y, t in tasks:
        validation = np.random.default_rng([2026, t]).random(len(y)) < declared["validation"]
        split.append((x[~validation], y[~validation], x[validation], y[validation]))
    return split, tasks.classes, tasks.scenario


def run(job):
    """The line of one job: its settings and its results."""
    import torch

    from cop2l.errors import UserError

    work, data, file, device = job
    torch.set_num_threads(1)
    tasks, classes, scenario = parts(work["stream"], data, file)
    about = (work, read(Path(file))["streams"][work["stream"]], tasks[0][0].shape[1:], classes, scenario)
    clock = time.process_time if device == "cpu" else time.perf_counter
    share, method = work["options"].get("holdout", 0), "method" in work["options"]
    matrix, seconds, learned, withheld = [], 0.0, {}, {}
    try:
        if device != "cpu":  # so that loading the libraries' kernels is not measured
            learner_of(*about, device).learn(*(part[::20] for part in tasks[0][:2]), progress=False)
        learner = learner_of(*about, device)
        for t, (x, y, _, _) in enumerate(tasks, start=1):
            mask = np.random.default_rng([2027, work["seed"], t]).random(len(y)) < share
            learned[t], withheld[t] = (x[~mask], y[~mask]), (x[mask], y[mask])
            start = clock()
            learner.learn(*learned[t], progress=None if method else False)
            seconds += clock() - start
            past = tasks[: learner.tasks_seen]
            matrix.append([float((learner.predict(x).numpy() == y).mean()) for _, _, x, y in past])
        delta = work["options"]["delta"]
        claim = holdout_claim(learner, withheld, delta) if method else cop2l_claim(learner, learned)
    except (UserError, ValueError, RuntimeError) as error:  # training may diverge, which is a result
        return work | {"error": str(error), "seconds": round(seconds, 2), "machine": machine(device)}
    return work | {
        "accuracy": float(np.mean(matrix[-1])),
        "forgetting": float(np.mean([matrix[t][t] - matrix[-1][t] for t in range(len(tasks) - 1)])),
        **claim,
        "seconds": round(seconds, 2),
        "machine": machine(device),
    }


def learner_of(work, stream, inputs, classes, scenario, device):
    """A new learner with a run's options: CoP2L, or another method."""
    from cop2l.learner.cop2l import CoP2L
    from cop2l.methods import method
    from cop2l.models import build

    options, architecture = dict(work["options"]), dict(stream.get("architecture", {}))
    name, seed = options.pop("model", stream["model"]), work["seed"]
    if "hidden" in options:
        architecture["hidden"] = options.pop("hidden")
    model = build(name, inputs=inputs, classes=classes, seed=seed, **architecture).to(device)
    if "method" not in options:
        preset = options.pop("preset", "paper")
        return CoP2L(model, scenario=scenario, preset=preset, seed=seed, **options)
    name = options.pop("method")
    options = {key: value for key, value in options.items() if key not in ("holdout", "tasks", "delta")}
    return method(name)(model, scenario=scenario, seed=seed, **options)


def cop2l_claim(learner, learned):
    """The bounds of CoP2L, and the counts that they come from."""
    certificate = learner.certify(learned)
    records, sets = certificate.records, learner.engine.sets
    return {
        "bounds": [float(certificate.bounds[t]) for t in learned],
        "n": [record["n"] for record in records],
        "own": [len(task.own_picks) for task in sets],
        "picked": [record["picked"] for record in records],
        "errors_not_picked": [record["errors_not_picked"] for record in records],
        "kept": [task.iterations for task in sets],
        "stopped": [task.stopped for task in sets],
    }


def holdout_claim(learner, withheld, delta):
    """The hold-out bounds of another method, and the counts that they come from."""
    from cop2l.bounds import holdout_certificate

    errors = [int((learner.predict(x).numpy() != y).sum()) for x, y in withheld.values()]
    n, zeros = [len(y) for _, y in withheld.values()], [0] * len(withheld)
    bounds = [
        float(holdout_certificate(*counts, len(withheld), math.log(delta)))
        for counts in zip(n, errors, strict=True)
    ]
    return {"bounds": bounds, "n": n, "own": zeros, "picked": zeros, "errors_not_picked": errors}


def machine(device):
    """Processor, device and version of torch."""
    import torch

    from cop2l.kernel.exact import processor

    gpu = f", {torch.cuda.get_device_name()}" if device == "cuda" else ""
    return f"{processor()}, {os.cpu_count()} processors{gpu}, torch {torch.__version__}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stages", nargs="+", type=Path, help="TOML files, run one after the other")
    parser.add_argument("--data", type=Path, required=True, help="folder of NAME.npz")
    parser.add_argument("--out", type=Path, required=True, help="where the results go, line by line")
    parser.add_argument("--streams", nargs="+", help="only these streams of the stages")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where models learn")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--limit", type=float, help="seconds after which unfinished runs are given up")
    arguments = parser.parse_args()
    file = arguments.stages[0].parent / "declared.toml"
    declared, started, out = read(file), time.monotonic(), arguments.out
    stages, finished = [read(path) for path in arguments.stages], recorded(out)
    work = [job for stage in stages for settings in tries(stage) for job in jobs(settings, stage, declared)]
    work = [job for job in work if job["stream"] in (arguments.streams or declared["streams"])]
    missing = list({identity(job): job for job in work if identity(job) not in finished}.values())
    calls = [(job, str(arguments.data), str(file), arguments.device) for job in missing]
    print(f"{len(missing)} of {len(work)} runs to make")
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool, out.open("a") as results:
        lines = pool.imap_unordered(run, calls)
        for number in range(1, len(calls) + 1):
            left = None if arguments.limit is None else started + arguments.limit - time.monotonic()
            try:
                line = lines.next(left if left is None or left > 0 else 0)
            except multiprocessing.TimeoutError:
                print(f"{arguments.limit:g} seconds are over: {len(calls) - number + 1} runs were not made")
                break
            results.write(json.dumps(line) + "\n")
            results.flush()
            result = (
                line.get("error") or f"accuracy {line['accuracy']:.4f}, bound {np.mean(line['bounds']):.4f}"
            )
            title = f"{number}/{len(calls)} {line['stream']} seed {line['seed']}"
            print(f"{title}: {result}, {line['seconds']} s", flush=True)


if __name__ == "__main__":
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    main()
