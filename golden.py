"""python golden.py OLD_SRC NEW_SRC [--device cuda] [--only NAME ...]: do two source trees learn and claim the same, bit for bit?

OLD_SRC and NEW_SRC are folders that hold `cop2l`, or what `golden.py --record > FILE.json` wrote with such a tree. Each
setting runs once per tree, on this machine (bits depend on the machine, so no hashes are stored). Compared: learned
parameters, sets, counted integers, bounds, accuracies, exit codes of `verify`.
"""

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

COMMANDS = {
    "picking": "digits PICKING",
    "paper": "digits PAPER",
    "mlp-head": "digits PICKING model=mlp-head tasks=2 max_iterations=6",
    "linear-task-incremental": "digits PICKING model=linear scenario=task-incremental",
    "paper-task-incremental-kl": "digits PAPER model=linear scenario=task-incremental stop=kl k=16",
    "domain": "synthetic PICKING scenario=domain-incremental",
    "domain-paper-anytime": "synthetic PAPER scenario=domain-incremental anytime=true",
    "adam-threshold": "digits PICKING optimiser=adam lr=0.01 buffer=threshold",
    "stop-none-grid": "synthetic PICKING stop=none max_iterations=20 grid=true",
    "families": "digits PICKING claim=tasks,average,forgetting,classes shares=3,1,1,1",
    "holdout-replay": "digits method=replay holdout=0.2",
    "holdout-slda": "digits method=slda holdout=0.2 model=linear",
    "holdout-joint-reversed": "digits method=joint holdout=0.2 order=reversed class_seed=3",
    "holdout-der": "synthetic method=der++ holdout=0.3",
    "holdout-ewc": "synthetic method=ewc holdout=0.3",
    "holdout-icarl": "digits method=icarl holdout=0.2 tasks=2",
    "csv-replay": "TABLE tasks=2 method=replay holdout=0.3 lr=0.03",
    "pictures-cnn-paper": "PICTURES tasks=2 model=cnn PAPER lr=0.01 max_iterations=2 k=16 epochs=1 scale=none",
    "pictures-permuted": "PICTURES data.domains=permuted images=disjoint tasks=3 PICKING max_iterations=20 lr=0.03 scale=none",
}
"""`cop2l run` with these words; TABLE and PICTURES are files made here."""
PRESETS = {
    "PICKING": "method=cop2l preset=picking lr=0.1 omega=2.0",
    "PAPER": "method=cop2l preset=paper lr=0.1 omega=2.0",
}
"""Options that configurations may set, written out."""
VERIFIED = {
    "picking": "digits", "linear-task-incremental": "digits --scenario task-incremental", "domain-paper-anytime":
    "synthetic --scenario domain-incremental", "families": "digits", "holdout-slda": "digits --holdout 0.2",
    "holdout-replay": "digits --holdout 0.2", "csv-replay": "TABLE --label label --tasks 2 --holdout 0.3",
    "paper": "digits --tasks 2",
}  # fmt: skip
"""`cop2l verify` of these with the data so named: the exit code; the last is wrong on purpose."""
BASE = {
    "preset": "picking",
    "memory": 60,
    "k": 4,
    "epochs": 2,
    "lr": 0.1,
    "batch": 16,
    "max_iterations": 12,
    "omega": 4.0,
}
LEARNERS = {
    "api-anytime-resumed": ("linear", {**BASE}, "class-incremental"),
    "api-uniform-kl": ("linear", {**BASE, "buffer": "uniform", "kind": "kl", "stop": "kl", "tasks": 3}, "class-incremental"),
    "api-mlp-adam-task-incremental": ("mlp", {**BASE, "optimiser": "adam", "lr": 0.01, "tasks": 3}, "task-incremental"),
    "api-forgetting": ("linear", {**BASE, "claim": ("tasks", "forgetting")}, "class-incremental"),
    "api-sgd-grid": ("mlp", {**BASE, "lr": 0.02, "grid": True, "tasks": 3}, "class-incremental"),
}  # fmt: skip
"""CoP2L in Python on three tasks of clouds, saved and loaded after each; if anytime, the data of task 1 is gone in the end."""
ADAM = ("adam-threshold", "api-mlp-adam-task-incremental")
REPLAY = ("holdout-replay", "holdout-der", "csv-replay")
CHANGED = dict.fromkeys((*ADAM, *REPLAY), ("",))
"""These learn other bits: Adam divides by bias corrections that are computed on the device now; Replay and DER++ replay a
full batch also beside the last batch of an epoch, which may have fewer examples of the task; the inputs of a method's own data
are scaled by all rows that it learns from."""
REMOVED = (
    "memory_used",  # counts the kept withheld rows
    "kept",
    "holdout_seed",
    "prior",
    "balance",
    "ridge",
    "shrinkage",
    "start",
    "pick_omega",
    "kl-tight",
    "combined",
)
"""Options, counts and kinds that are gone."""
NEVER = (
    "seconds",
    "peak",
    "cuda",
    "made",
    "sha256",
    "commitment",
    "digest",
    "files",
    "time",
    "version",
    "environment",
    "machine",  # names the version of the bits, which grows with Adam's
)


def clouds(rows, width, classes, seed):
    """Gaussian clouds, one per class."""
    draw = np.random.default_rng(seed)
    y = draw.integers(0, classes, rows)
    centres = np.random.default_rng(77).normal(size=(classes, width))
    return (centres[y] * 0.5 + draw.normal(size=(rows, width))).astype(np.float32), y


def expanded(command):
    """A command with the options of its presets written out."""
    for name, options in PRESETS.items():
        command = command.replace(name, options)
    return command


def files(folder):
    """The data sets that the settings name."""
    x, y = clouds(900, 3, 4, 5)
    rows = [
        ",".join([*(f"{value:.4f}" for value in row), f"k{label}"]) for row, label in zip(x, y, strict=True)
    ]
    (folder / "table.csv").write_text("\n".join(["a,b,c,label", *rows, ""]))
    x, y = clouds(900, 196, 6, 6)
    np.savez(folder / "pictures.npz", x=(np.clip(x, -4, 4) / 8 + 0.5).reshape(-1, 1, 14, 14), y=y)
    return {"TABLE": "table.csv", "PICTURES": "pictures.npz"}


def learned(name, folder, device):
    """One of LEARNERS: its certificate and parameters."""
    import torch

    from cop2l import CoP2L
    from cop2l.models import build

    kind, options, scenario = LEARNERS[name]
    model = build(kind, inputs=(64,), classes=6, seed=1).to(device)
    learner, data = CoP2L(model, scenario=scenario, seed=2, **options), {}
    for task in (1, 2, 3):
        x, y = clouds(400, 64, 6, task)
        own = y // 2 == task - 1 if scenario == "task-incremental" else y >= 0
        x, y = torch.from_numpy(x[own]), torch.from_numpy(y[own])
        learner.learn(x, y, classes=sorted(set(y.tolist())))
        data[task] = (x, y)
        learner.save(folder / "state")
        learner = CoP2L.load(folder / "state")
    if options.get("tasks") is None:
        del data[1]
    learner.certify(data).save(folder / "certificate")
    return learner.predict(data[3][0], task=3 if scenario == "task-incremental" else None).tolist()


def flat(value, path=""):
    """Nested JSON as {path: value}."""
    if isinstance(value, dict):
        return {k: v for key in value for k, v in flat(value[key], f"{path}.{key}").items()}
    if isinstance(value, list) and any(isinstance(entry, dict | list) for entry in value):
        return {k: v for i, entry in enumerate(value) for k, v in flat(entry, f"{path}[{i}]").items()}
    return {path: value}


def content(folder):
    """Everything compared that a folder holds, by file and path."""
    from safetensors.numpy import load_file

    found = {}
    for file in sorted(folder.rglob("*")):
        name = str(file.relative_to(folder))
        if file.suffix == ".safetensors" and "certificate" in name:
            found |= {f"{name}:{key}": value.tobytes().hex() for key, value in load_file(file).items()}
        elif file.name in ("certificate.json", "summary.json"):
            found |= flat(json.loads(file.read_text()), f"{name}:")
        elif file.name == "records.jsonl":
            found |= flat([json.loads(line) for line in file.read_text().splitlines()], f"{name}:")
    return {key: value for key, value in found.items() if compared(key)}


def compared(key):
    """Whether a value is compared."""
    parts = key.replace("[", ".").split(":")[-1].split(".")
    return not any(word in part for word in (*NEVER, *REMOVED) for part in parts)


def record(only, device):
    """Run the settings with the cop2l of this process; print what they give as JSON."""
    import torch

    from cop2l.cli import main
    from cop2l.experiments.config import FIELDS

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    results, folder = {}, Path(tempfile.mkdtemp())
    names = files(folder)
    os.chdir(folder)
    for name in only or [*COMMANDS, *LEARNERS]:
        print(name, file=sys.stderr, flush=True)
        out = folder / name
        try:
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()) as errors,
            ):
                if name in LEARNERS:
                    results[name] = {"predicted": learned(name, out, device), **content(out)}
                    continue
                words = [names.get(word, word) for word in expanded(COMMANDS[name]).split()]
                words += ["prepare=0"] * (
                    "prepare" in FIELDS and name.startswith("pictures")
                )  # CoP2L of own data
                code = main(["run", *words, f"device={device}", "--out", str(out)])
                results[name] = {"exit": code, **content(out)}
                if name in VERIFIED:
                    data = [names.get(word, word) for word in VERIFIED[name].split()]
                    results[name]["verify"] = main(["verify", str(out), "--data", *data])
            if code:
                print(f"  {errors.getvalue()[-300:]}", file=sys.stderr)
        except Exception as error:  # a setting that fails must fail in both trees, and is shown
            results[name] = {"exit": f"{type(error).__name__}: {error}"[:200]}
            print(f"  {results[name]['exit']}", file=sys.stderr)
    print(json.dumps(results))


def main():
    """Run both trees and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", nargs="*")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    if given.record:
        return record(given.only, given.device)
    options = ["--record", "--device", given.device, *(["--only", *given.only] if given.only else [])]
    command = [sys.executable, "-P", __file__, *options]
    running = [
        ["cat", tree] if tree.endswith(".json") else ["env", f"PYTHONPATH={Path(tree).resolve()}", *command]
        for tree in given.trees
    ]
    started = [subprocess.Popen(words, stdout=subprocess.PIPE) for words in running]
    old, new = (json.loads(process.communicate()[0]) for process in started)
    old = {name: values for name, values in old.items() if name in new}
    changed = [
        f"{name}: {key}: {str(old[name].get(key))[:60]} -> {str(new[name].get(key))[:60]}"
        for name in old for key in sorted(old[name].keys() | new[name].keys()) if old[name].get(key) != new[name].get(key)
        and compared(key)
        and not any(word in key for word in CHANGED.get(name, ()))
    ]  # fmt: skip
    failed = [name for name in old if old[name].get("exit", 0) != 0]
    print("\n".join(changed[:200]))
    print(
        f"{len(old)} settings, {sum(map(len, old.values()))} values, {len(failed)} settings fail in the old tree {failed}:",
        end=" ",
    )
    print(f"{len(changed)} CHANGED" if changed else "the same bits")
    return int(bool(changed or failed))


if __name__ == "__main__":
    sys.exit(main())
