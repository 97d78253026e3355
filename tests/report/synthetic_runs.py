"""Run directories with invented numbers, in the layout of docs/configuration.md: for tests only."""

import math
import random
from pathlib import Path

from cop2l.files import write_json, write_lines

CERTIFYING = "cop2l"
SKILL = {"cop2l": (0.02, 0.99), "replay": (0.035, 0.985), "finetuning": (0.6, 0.99)}
"""What a method loses per later task, and how well it learns a task at first; invented."""
OPTIONS = ("preset", "k", "omega", "epochs", "batch", "lr", "buffer", "stop")
SHARED = "Tasks share examples, so their samples are not independent."


def invented_task(chance: random.Random, task: int, tasks: int, error: float, certified: bool) -> dict:
    n = 10000 + 300 * task
    record = {
        "task": task,
        "n": n,
        "test_error": error,
        "test_n": 1000,
        "bounds": {"holdout": min(1, error * 1.1 + 0.012)},
    }
    if certified:
        picked = 130 + 12 * task + 25 * (tasks - task) + chance.randrange(20)
        missed = round(n * error * 0.9)
        share = (picked + missed) / n
        record |= {
            "compression": picked - 8,
            "evicted": 6 * (tasks - task),
            "errors": missed,
            "picked": picked,
            "errors_not_picked": missed,
            "iterations": 30 + 4 * task,
            "bounds": {
                "kl": min(1, 3.2 * share + 0.05),
                "preference": min(1, share + 1.4 * math.sqrt(share / n) + 0.01),
                "buffer": min(1, share + 0.06),
                **record["bounds"],
            },
        }
    return record


def make_run(
    folder: Path,
    method: str = "cop2l",
    seed: int = 0,
    *,
    stream: str = "mnist",
    scenario: str = "class-incremental",
    tasks: int = 5,
    finished_tasks: int | None = None,
    not_valid: tuple[str, ...] = (),
    **settings,
) -> Path:
    chance = random.Random(f"{method} {seed} {stream} {settings}")
    loss, start = SKILL.get(method, SKILL["replay"])
    certified = method == CERTIFYING
    luck = 1 + 0.3 * chance.random()
    matrix, records = [], []
    for s in range(1, (finished_tasks or tasks) + 1):
        row = []
        for t in range(1, s + 1):
            fall = loss * (1 - 0.5 ** (s - t)) * 2
            row.append(max(0.0, min(1.0, start - luck * fall - 0.004 * t + 0.006 * chance.random())))
        matrix.append(row)
        tasks_now = [invented_task(chance, t, s, 1 - row[t - 1], certified) for t in range(1, s + 1)]
        classes = {str(c): max(0.0, min(1.0, row[c // 2] + 0.01 * (-1) ** c)) for c in range(2 * s)}
        records.append(
            {"task": s, "accuracy": row, "classes": classes, "seconds": 3.0, "learn_seconds": 2.5}
            | {"peak_memory": 400_000_000 + s, "peak_cuda_allocated": None, "peak_cuda_reserved": None}
            | {"memory_used": 1990, "tasks": tasks_now}
        )
    config = {"method": method, "stream": stream, "scenario": scenario, "model": "mlp", "seed": seed}
    config |= {"memory": 2000, "hash": folder.name, "delta": 0.05, "holdout": 0.1}
    config["options"] = {"preset": "picking", "omega": 15} if certified else {}
    config["options"] |= settings.pop("options", {})
    config["options"] |= {key: settings.pop(key) for key in OPTIONS if key in settings}
    config |= settings
    write_json(folder / "config.json", config)
    environment = {"python": "3.12.1", "torch": "2.13.0", "cpu": "an invented CPU", "threads": 1}
    write_json(folder / "environment.json", environment)
    write_lines(folder / "records.jsonl", records)
    for s in range(1, len(matrix) + 1):
        write_json(folder / "certificates" / f"after-{s:02d}" / "certificate.json", {"schema": 1})
    if finished_tasks is None:
        last = matrix[-1]
        falls = [matrix[t][t] - last[t] for t in range(tasks - 1)]
        summary = {
            "accuracy": sum(last) / tasks,
            "forgetting": sum(falls) / len(falls) if falls else None,
            "plasticity": sum(row[-1] for row in matrix) / tasks,
            "seconds": 15.0 + seed,
            "tasks": records[-1]["tasks"],
            "matrix": matrix,
            "kind": "preference" if certified else "holdout",
            "not_valid": list(not_valid),
            **{
                key: config[key]
                for key in ("method", "stream", "scenario", "model", "seed", "memory", "delta")
            },
        }
        write_json(folder / "summary.json", summary)
    return folder


def make_runs(root: Path) -> Path:
    """Three methods with three seeds, a stream whose certificates are not valid, an unfinished run."""
    for method in SKILL:
        for seed in range(3):
            make_run(root / f"{method}-{seed}", method, seed)
    shared = {"stream": "permuted-mnist", "scenario": "domain-incremental"}
    make_run(root / "shared-0", "cop2l", 0, not_valid=(SHARED,), **shared)
    make_run(root / "shared-1", "replay", 0, not_valid=(SHARED,), **shared)
    make_run(root / "unfinished", "replay", 3, finished_tasks=2)
    return root
