"""Attacks on `verify` as a hostile issuer would make them; the first table of reproduction/attacks.md.

python tests/torture/attacks.py                    every attack against this tree, recorded in results.json
python tests/torture/attacks.py OLD_SRC            the same against another source tree, recorded as `before`
python tests/torture/attacks.py lay NAME FOLDER    lay one attack, of the tree on PYTHONPATH, into a folder

An attack lays its files into a new folder, and says what the auditor types there after `verify`, what is claimed (the smallest
bound) and what is true. It uses only what both trees have.
"""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
LIE = "error at most 0.10 %"
LONGEST = 600
"""Seconds after which `verify` is ended."""
Rows = np.ndarray
Attempt = tuple[str, float | None, float | None]
"""What is typed after `verify`; what is claimed; what is true."""
ATTACKS: dict[str, tuple[str, Callable[[Path], Attempt]]] = {}
"""What is told of each attack, and the function that lays it."""
OUTSIDE = {
    "flipped_memory": "nothing beside the certificates was looked at, says the verdict",
    "fitted_scale": "assumed: the scale of the inputs was chosen before the data was seen",
    "ground_columns": "assumed: the order of the columns was not chosen by looking at results",
    "multiples_of_rows": "case B: no row was altered",
    "key_that_claims": "the lie stands in quotation marks, in the block of the issuer's texts",
}
"""Exit code 0 is right for these, by the sentence that the verdict prints."""


def attack(description: str) -> Callable[[Callable[[Path], Attempt]], Callable[[Path], Attempt]]:
    """Enter a function into the list."""

    def enter(lay: Callable[[Path], Attempt]) -> Callable[[Path], Attempt]:
        ATTACKS[lay.__name__] = description, lay
        return lay

    return enter


# ---- what an issuer does


def claimed(folder: Path) -> float:
    """The smallest bound of a certificate."""
    return min(one["value"] for one in json.loads((folder / "certificate.json").read_text())["statements"])


def issue(folder: Path, samples: dict[int, Any], model: Any, column: Any = None, **options: Any) -> float:
    """The certificate and the data by an issuer who pays for no copy; the smallest bound."""
    from cop2l import CoP2L

    if "repeats" in inspect.signature(CoP2L).parameters:
        options["repeats"] = True
    if options.pop("nothing_picked", False):
        options |= {"max_iterations": 0}
    learner = CoP2L(model, **{"preset": "picking", "memory": 10, "tasks": len(samples), **options})
    for x, y, *_ in samples.values():
        learner.learn(x, y, groups=column)
    learner.certify({t: pair[:2] for t, pair in samples.items()}).save(folder / "certificate")
    arrays = {
        f"{name}_{t}": part for t, pair in samples.items() for name, part in zip("xyg", pair, strict=False)
    }
    np.savez(folder / "data.npz", **arrays)
    return claimed(folder / "certificate")


def sign(folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Change the text of a certificate, and make all hashes again."""
    from cop2l.files import file_digest
    from cop2l.kernel.form import content_digest

    content = json.loads((folder / "certificate.json").read_text())
    change(content)
    content["files"] = {name: file_digest(folder / name) for name in content["files"]}
    content["digest"] = content_digest(content)
    (folder / "certificate.json").write_text(json.dumps(content))
    return folder


def run(folder: Path, x: Rows, y: Rows, x_test: Rows, y_test: Rows, **config: Any) -> Path:
    """A run directory, inputs as they are; its last certificate."""
    from cop2l.errors import UserError
    from cop2l.experiments import grid
    from cop2l.experiments.run import run as start

    single = getattr(grid, "single_run", None) or grid.single
    np.savez(folder / "data.npz", x=x, y=y, x_test=x_test, y_test=y_test)
    keys = {"stream": str(folder / "data.npz"), "model": "mlp", "architecture": {"hidden": 16}, "tasks": 1}
    keys |= {"method": "cop2l", "memory": 30, "epochs": 5, "lr": 0.3, "scale": ["none"], **config}
    try:
        start(single(keys), folder / "run")
    except UserError:
        del keys["repeats"]  # the other tree has no such word
        start(single(keys), folder / "run")
    return max((folder / "run" / "certificates").iterdir())


def noise(rows: int, columns: int = 6, classes: int = 2, seed: int = 0) -> tuple[Rows, Rows]:
    """Labels that nothing can predict."""
    draw = np.random.default_rng(seed)
    return draw.normal(size=(rows, columns)).astype(np.float32), draw.integers(0, classes, rows)


def clouds(rows: int, seed: int = 0) -> tuple[Rows, Rows]:
    """Four classes that can be told apart."""
    y = np.arange(rows) % 4
    return (np.random.default_rng(seed).normal(size=(rows, 6)) + 3 * np.eye(6)[y]).astype(np.float32), y


def linear(**options: Any) -> Any:
    from cop2l.models import build

    return build("linear", **{"inputs": (6,), "classes": 4, **options})


def network(**options: Any) -> Any:
    from cop2l.models import build

    return build("mlp", **{"inputs": (6,), "classes": 2, "hidden": 100, "dropout": 0.0, **options})


def honest(folder: Path, **options: Any) -> Path:
    """A certificate without a lie."""
    issue(folder, {1: clouds(120)}, linear(), max_iterations=2, epochs=2, **options)
    return folder / "certificate"


AUDITED = "certificate --data data.npz"
OF_RUN = "run --data data.npz --tasks 1"


# ---- what the sample is taken to be


def copies(folder: Path, hide: Callable[[Rows, Rows], Rows], model: Any, **options: Any) -> Attempt:
    """Forty rows of noise, 25 times each, every copy hidden."""
    x, y = noise(40)
    rows = np.arange(1000)
    data = {1: (hide(x[rows % 40], rows[:, None] // 40), y[rows % 40])}
    claim = issue(folder, data, model, **{"lr": 0.5, "epochs": 20, "k": 1, **options})
    return AUDITED, claim, 0.5


@attack("40 rows of noise, 25 times each, hidden in integers beyond single precision (2^30 + j)")
def integer_copies(folder: Path) -> Attempt:
    model = network(scale=[2.0**30, 1 / 12800])
    return copies(folder, lambda x, j: 2**30 + 128 * np.round(100 * x).astype(np.int64) + j, model)


@attack("the same in a model of half precision (2^15 + j)")
def integer_copies_in_half(folder: Path) -> Attempt:
    model = network(scale=[49152.0, 1 / 1600], hidden=400).half()
    return copies(folder, lambda x, j: 49152 + 32 * np.round(50 * x).astype(np.int64) + j - 12, model, lr=0.1)


@attack("copies that differ where the scale of the inputs holds outliers at its limit")
def clamp_copies(folder: Path) -> Attempt:
    (x, y), rows = noise(40), np.arange(1000)
    x, y, j = x[rows % 40], y[rows % 40], rows[:, None] // 40
    x = np.c_[x, np.where(j % 3 == np.arange(3), 1e6 + 1e3 * j, x[:, :3])].astype(np.float32)
    options = {"method": "finetuning", "holdout": 0.5, "scale": ["fitted"], "epochs": 20, "lr": 0.5}
    choices = {"architecture": {"hidden": 100, "dropout": 0.0}, "repeats": True}
    certificate = run(folder, x, y, x[:20], y[:20], **options, **choices)
    return f"{OF_RUN} --holdout 0.5", claimed(certificate), 0.5


@attack("4 hard rows, 11 times each, among 20 000: fewer repeats than were once tolerated")
def tolerated_repeats(folder: Path) -> Attempt:
    draw = np.random.default_rng(0)
    y = draw.integers(0, 8, 20_000)
    x = 0.3 * draw.normal(size=(20_000, 24))
    x[np.arange(20_000), y] += 6
    hard = np.arange(44) * 450
    x[hard], y[hard] = np.repeat(6 * draw.normal(size=(4, 24)), 11, 0), np.repeat(draw.integers(0, 8, 4), 11)
    options = {"method": "finetuning", "holdout": 0.5, "repeats": True, "epochs": 20, "lr": 0.1}
    choices = {"architecture": {"hidden": 64, "dropout": 0.0}}
    certificate = run(folder, x.astype(np.float32), y, x[:20], y[:20], **options, **choices)
    return f"{OF_RUN} --holdout 0.5", claimed(certificate), 44 / 20_000 * 7 / 8


def ordered(folder: Path, **config: Any) -> Attempt:
    """Hard rows where seed 0 learns, easy ones where it withholds; the test part is as the data was."""
    from cop2l.randomness import marks

    draw = np.random.default_rng(0)

    def drawn(rows: int) -> tuple[Rows, Rows, Rows]:
        label, hard = draw.integers(0, 2, rows), draw.random(rows) < 0.1
        x = draw.normal(size=(rows, 6)).astype(np.float32)
        x[np.arange(rows), label] += 8
        return x, np.where(hard, 1 - label, label), hard

    (x, y, hard), (x_test, y_test, _) = drawn(600), drawn(600)
    order = np.empty(600, np.int64)
    order[np.argsort(marks(0, "holdout", 1, n=600), kind="stable")] = np.argsort(hard, kind="stable")
    usual = {"method": "finetuning", "holdout": 0.5, "epochs": 10, "lr": 0.01}
    certificate = run(folder, x[order], y[order], x_test, y_test, **usual, **config)
    return f"{OF_RUN} --holdout 0.5", claimed(certificate), 0.1


@attack(
    "rows ordered so that seed 0 learns from the hard ones and withholds others; the test part says otherwise"
)
def ordered_rows(folder: Path) -> Attempt:
    return ordered(folder)


@attack("the same, claiming classes alone, so that no bound of a task can be compared with the test part")
def ordered_rows_of_classes(folder: Path) -> Attempt:
    return ordered(folder, claim=["classes"])


@attack("rows withheld as multiples of learned ones, which iCaRL's normalised features cannot tell apart")
def multiples_of_rows(folder: Path) -> Attempt:
    x, y = noise(60)
    x, y = np.concatenate([x * np.float32(2.0**i) for i in range(8)]), np.tile(y, 8)
    config = {"method": "icarl", "model": "linear", "architecture": {}, "holdout": 0.3, "memory": 1000}
    certificate = run(folder, x, y, x[:20], y[:20], repeats=True, **config)
    return f"{OF_RUN} --holdout 0.3", claimed(certificate), 0.5


# ---- what the predictor is taken to be


@attack("a hold-out model that answers every row by the mean of its batch; rows lie sorted by class")
def batch_mean(folder: Path) -> Attempt:
    import attack_models

    from cop2l.holdout.holdout import Holdout
    from cop2l.methods import method

    draw, y = np.random.default_rng(0), np.repeat([0, 1], 8192)
    x = (draw.normal(size=(len(y), 6)) + 0.05 * (2 * y[:, None] - 1)).astype(np.float32)
    np.savez(folder / "data.npz", x=x, y=y, x_test=x[:20], y_test=y[:20])
    model, data = attack_models.batch_mean(0), {"stream": "data.npz", "tasks": 1}
    learner = Holdout(
        method("finetuning")(model, epochs=1, lr=0.1), scale=False, tasks=1, data=data, repeats=True
    )
    with mock.patch("cop2l.holdout.holdout.check_alone"):  # the issuer does not look
        learner.learn(x, y, classes=[0, 1])
    learner.certify().save(folder / "certificate")
    words = f"{AUDITED} --tasks 1 --holdout 0.5 --model attack_models:batch_mean"
    return words, claimed(folder / "certificate"), 0.45


@attack(
    "a model that keeps what it was asked: once trained, right on rows that it knows, wrong on all others"
)
def asked_before(folder: Path) -> Attempt:
    import attack_models

    x, _ = noise(300)
    with mock.patch("cop2l.learner.cop2l.check_alone"):  # the issuer does not look
        claim = issue(folder, {1: (x, (x[:, 0] > 0).astype(int))}, attack_models.remembers(0), k=1, lr=1e-6)
    return f"{AUDITED} --model attack_models:remembers", claim, 1.0


@attack(
    "a hold-out whose stored predictor is one that learned the withheld rows, errors and bounds made again"
)
def withheld_rows_learned(folder: Path) -> Attempt:
    x, y = clouds(400)
    certificate = run(folder, x, y, x[:20], y[:20], method="finetuning", holdout=0.4)
    (folder / "run").rename(folder / "first")
    honest_one = folder / "first" / "certificates" / certificate.name
    learned = run(folder, x, y, x[:20], y[:20], method="finetuning", holdout=0.4, epochs=30)
    shutil.copyfile(learned / "learner.safetensors", honest_one / "learner.safetensors")
    stated = json.loads((learned / "certificate.json").read_text())
    sign(honest_one, lambda content: content.update({key: stated[key] for key in ("records", "statements")}))
    return "first --data data.npz --tasks 1 --holdout 0.4", claimed(honest_one), None


@attack("a scale of the inputs that was fitted to the labels: of pictures with 4 channels and one pixel")
def fitted_scale(folder: Path) -> Attempt:
    x, y = noise(32, columns=4, seed=8)
    own = linear(inputs=(4, 1, 1), classes=2).state_dict()
    weight, bias = (np.subtract(*own[f"head.{name}"].double().numpy()[::-1]) for name in ("weight", "bias"))
    wanted = 1e3 * np.linalg.lstsq(np.c_[x.astype(float), np.ones(32)], 2.0 * y - 1, rcond=None)[0]
    factor = wanted[:4] / weight
    shift = [float(bias - wanted[4]) / float(wanted[0]), 0.0, 0.0, 0.0]
    model = linear(inputs=(4, 1, 1), classes=2, scale=[shift, factor.tolist()])
    data = {1: (x.reshape(-1, 4, 1, 1), y)}
    return AUDITED, issue(folder, data, model, nothing_picked=True, lr=1e-6), 0.5


@attack("a saved learner whose memory has other labels, beside its honest certificate")
def flipped_memory(folder: Path) -> Attempt:
    from cop2l import CoP2L

    x, y = clouds(240)
    learner = CoP2L(linear(), preset="picking", memory=60, max_iterations=2, epochs=2, tasks=1)
    learner.learn(x, y)
    learner.certify({1: (x, y)})
    for part in learner.engine.buffer:
        part.y.copy_((part.y + 1) % 4)
    learner.save(folder / "learner")
    np.savez(folder / "data.npz", x_1=x, y_1=y)
    return "learner --data data.npz", None, None


# ---- seeds, and other choices after the data was seen


@attack("the seed of the initial weights ground apart from the learner's")
def ground_model_seed(folder: Path) -> Attempt:
    claims = {}
    for seed in range(1, 80):
        (folder / str(seed)).mkdir()
        model = linear(classes=2, seed=seed)
        claims[seed] = issue(folder / str(seed), {1: noise(60)}, model, nothing_picked=True)
    best = min(claims, key=claims.__getitem__)
    return f"{best}/certificate --data {best}/data.npz", claims[best], 0.5


@attack("the columns of a table in the order, of 40, that gives the least bound")
def ground_columns(folder: Path) -> Attempt:
    from cop2l.streams import load

    (x, y), names, claims = noise(60, seed=13), list("abcdef"), {}
    lines = (
        ",".join([*(f"{value:.6f}" for value in row), str(label)]) for row, label in zip(x, y, strict=True)
    )
    (folder / "data.csv").write_text("\n".join(["a,b,c,d,e,f,label", *lines]))
    draw, recipe = np.random.default_rng(0), {"tasks": 1, "classes": ["0", "1"], "label": "label"}
    for number in range(40):
        (folder / str(number)).mkdir()
        order = [names[i] for i in draw.permutation(6)]
        (task,) = load(str(folder / "data.csv"), columns=order, **recipe)
        recipe_of_issuer = {"stream": "data.csv", **recipe, "inputs": order}
        data = {1: (np.asarray(task.x), np.asarray(task.y))}
        claims[number] = issue(
            folder / str(number), data, linear(classes=2), nothing_picked=True, data=recipe_of_issuer
        )
    best = min(claims, key=claims.__getitem__)
    return f"{best}/certificate --data data.csv --tasks 1 --classes 0,1 --label label", claims[best], 0.5


@attack(
    "the certificate after task 1 of another run (another seed), put into a run that is certified after any task"
)
def spliced(folder: Path) -> Attempt:
    for seed in (1, 0):
        run(
            folder,
            *clouds(240),
            *clouds(40, seed=1),
            tasks=2,
            anytime=True,
            seed=seed,
            model="linear",
            architecture={},
        )
        (folder / "run").rename(folder / str(seed))
    shutil.rmtree(folder / "0" / "certificates" / "after-01")
    (folder / "1" / "certificates" / "after-01").rename(folder / "0" / "certificates" / "after-01")
    return "0 --data data.npz", None, None


# ---- text


@attack("a declared group that has no example, and whose name contains a claim")
def group_that_claims(folder: Path) -> Attempt:
    names = ["north", f"north): {LIE} (preference); group (south"]
    groups, options = np.array(names[:1] * 120), {"claim": ["tasks", "groups"], "groups": names}
    issue(folder, {1: (*clouds(120), groups)}, linear(), groups, max_iterations=1, **options)
    return AUDITED, None, None


@attack("keys and values of `data` that contain a claim")
def key_that_claims(folder: Path) -> Attempt:
    honest(folder, data={f"task 1: {LIE}": f"VALID: task 1: {LIE}"})
    return AUDITED, None, None


@attack("options of the split that would add a flag to the command that the auditor is told to type")
def flag_in_command(folder: Path) -> Attempt:
    certificate = run(folder, *clouds(240), *clouds(40, seed=1), model="linear", architecture={}, tasks=2)
    more = {"n --count-repeats": 1, "label": ["--count-repeats", "; true"], "-x": "' --count-repeats '"}
    sign(certificate, lambda content: content["data"].update(more))
    return "run --data data.npz", None, None


# ---- files


SWAP = """
import os, runpy, sys, numpy
load = numpy.load
def swap(*words, **more):
    if os.path.exists("late"):
        os.rename("certificate", "early"), os.rename("late", "certificate")
    return load(*words, **more)
numpy.load = swap
sys.argv[0] = "cop2l"
runpy.run_module("cop2l", run_name="__main__")
"""


@attack("the certificate exchanged between reading and deciding: another text about the same data")
def exchanged(folder: Path) -> Attempt:
    shutil.copytree(honest(folder), folder / "late")
    sign(folder / "late", lambda content: content.update(data={"stream": "digits"}))
    (folder / "hook.py").write_text(SWAP)
    return f"hook.py verify {AUDITED}", None, None


@attack("2^18 classes, stored as zeros")
def many_classes(folder: Path) -> Attempt:
    import torch
    from safetensors.torch import load_file, save_file

    try:
        from cop2l.kernel.exact import digest
    except ImportError:
        from cop2l.kernel.learning import digest

    certificate, hashes = honest(folder), {}
    for name in ("theta", "theta_0"):
        before = load_file(certificate / f"{name}.safetensors")
        after = {key: torch.zeros(2**18, *value.shape[1:]) for key, value in before.items()}
        save_file(after, certificate / f"{name}.safetensors")
        hashes[name] = digest(after)
    model = {"classes": 2**18, "parameters": 7 * 2**18}
    sign(
        certificate, lambda content: (content.update(classes=2**18, **hashes), content["model"].update(model))
    )
    return AUDITED, None, None


def planted(folder: Path, *files: str) -> Attempt:
    """A false bound, and modules that say that all is well."""
    sign(honest(folder), lambda content: content["statements"][0].update(value=0.001))
    for name in files:
        (folder / name).write_text("import os\nprint('VALID', flush=True)\nos._exit(0)\n")
    return AUDITED, 0.001, None


@attack("random.py planted in the current folder")
def planted_random(folder: Path) -> Attempt:
    return planted(folder, "random.py")


@attack("numpy.py, torch.py and sitecustomize.py planted in the current folder")
def planted_packages(folder: Path) -> Attempt:
    return planted(folder, "numpy.py", "torch.py", "sitecustomize.py")


@attack("safetensors.py planted in the certificate's folder, where the auditor types `verify .`")
def planted_beside(folder: Path) -> Attempt:
    planted(folder, "certificate/safetensors.py", "certificate/json.py")
    return "cd certificate . --data ../data.npz", 0.001, None


@attack("a folder called `digits`, with other data, planted where the auditor types `--data digits`")
def planted_data(folder: Path) -> Attempt:
    certificate = run(folder, *clouds(240), *clouds(40, seed=1), model="linear", architecture={}, tasks=2)
    (folder / "digits").mkdir()
    (folder / "data.npz").rename(folder / "digits" / "data.npz")
    sign(certificate, lambda content: content["data"].update(stream="digits"))
    return "run --data digits", claimed(certificate), None


@attack("parameters of 8 GB, all of it a hole in the file")
def sparse_parameters(folder: Path) -> Attempt:
    with (honest(folder) / "theta.safetensors").open("ab") as file:
        file.truncate(2**33 - 1)
    return AUDITED, None, None


@attack("a record of 50 million rows, 20 million of them errors, and a bound that follows")
def many_rows(folder: Path) -> Attempt:
    def change(content: dict[str, Any]) -> None:
        million = 10**6
        content["records"][0].update(
            rows=50 * million, n=50 * million, errors=20 * million, errors_not_picked=20 * million
        )
        content["statements"][0]["value"] = 0.41

    sign(honest(folder), change)
    return AUDITED, None, None


@attack("30 000 folders beside the certificates of a run")
def many_folders(folder: Path) -> Attempt:
    certificate = run(folder, *clouds(240), *clouds(40, seed=1), model="linear", architecture={}, tasks=2)
    for number in range(30_000):
        (certificate.parent / f"x{number}").mkdir()
    return "run --data data.npz", None, None


# ---- the auditor


def audited(attempt: Attempt, folder: Path) -> dict[str, Any]:
    """What `verify` does: its exit code, and whether the lie stands in its output outside quotation marks."""
    arguments = attempt[0].split()
    if arguments[0] == "cd":
        folder, arguments = folder / arguments[1], arguments[2:]
    start = arguments if arguments[0] == "hook.py" else ["-m", "cop2l", "verify", *arguments]
    try:
        how: Any = {"cwd": folder, "capture_output": True, "text": True, "check": False, "timeout": LONGEST}
        done = subprocess.run([sys.executable, *start], **how)
        code, output = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        code, output = 124, ""
    lines = [re.sub(r'"(\\.|[^"\\])*"', "", line) for line in output.splitlines()]
    result = {
        "code": code,
        "lie": any(LIE in line for line in lines),
        "claim": attempt[1],
        "truth": attempt[2],
    }
    return result | {"output": output}


def laid(name: str, folder: Path) -> dict[str, Any]:
    """One attack, laid and audited with the tree on the path."""
    return audited(ATTACKS[name][1](folder), folder)


def main(arguments: list[str]) -> int:
    """All attacks against a source tree; 1 if one inside the threat model has exit code 0."""
    if arguments[:1] == ["lay"]:
        print(json.dumps(laid(arguments[1], Path(arguments[2]))))
        return 0
    source, when = (Path(arguments[0]), "before") if arguments else (HERE.parents[1] / "src", "after")
    paths = os.pathsep.join(map(str, (source.resolve(), HERE)))
    environ = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    results = json.loads(RESULTS.read_text())
    table, broke = results.setdefault("attacks", {}), False
    for name, (description, _) in ATTACKS.items():
        with tempfile.TemporaryDirectory() as scratch:
            start = [sys.executable, str(HERE / "attacks.py"), "lay", name, scratch]
            done = subprocess.run(start, env=environ, cwd=HERE, capture_output=True, text=True, check=False)
        result = json.loads(done.stdout.splitlines()[-1]) if not done.returncode else {"code": None}
        print(name, result["code"], done.stderr[-300:], flush=True)
        bounds = {key: result[key] for key in ("claim", "truth") if result.get(key) is not None}
        table[name] = {
            **table.get(name, {}),
            "told": description,
            when: result["code"],
            f"lie {when}": result.get("lie"),
            **bounds,
        }
        broke |= when == "after" and not result["code"] and name not in OUTSIDE
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    return int(broke)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
