"""Checks hold-out certificates. The method runs in processes without withheld rows to learn and without labels to predict.

Its code need not be right for a bound to hold.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import nn

from cop2l.kernel import arrays, checking, exact
from cop2l.kernel.arrays import Samples
from cop2l.kernel.building import model_for, parameter_location, stored_tensors
from cop2l.kernel.checking import DEFAULT_POLICY, CheckedSamples, Policy, Say
from cop2l.kernel.counting import Recount, recount
from cop2l.kernel.exact import Rows, digest
from cop2l.kernel.form import HOLDOUT_FILES, Content, Unreadable, canonical_json, open_regular
from cop2l.kernel.learning import Sets
from cop2l.kernel.options import Options, require
from cop2l.kernel.samples import numbers
from cop2l.kernel.verdict import Verdict

HOLDOUT_OPTIONS = ("delta", "siblings", "seed", "kind", "claim", "shares", "groups", "tasks", "memory")
"""The options of a hold-out certificate; those of the method are in `settings`."""
KEPT = (
    "The data of past tasks was gone when the certificate was issued, not left out to get a smaller bound.",
    "No withheld row is a near-copy of a learned one: without the learned rows only equal inputs were found.",
)
AFTER = "after-{}.safetensors"
"""The file of the learner after a task."""
HARMLESS_NOTES = ("columns", "commitment", "data", "issued", "machines", "not_valid", "repeats", "void")
"""The notes of a stored learner that no class depends on that it predicts for an array."""
OTHER_COLUMNS = "The stored learner sorts columns by names that the certificate does not state, so they were not checked."


def split(certificate: Content, tasks: Samples) -> tuple[Samples, Samples]:
    """The rows that were learned from, and the others: those that CoP2L set aside, or the withheld ones that certify."""
    recipe, options, last = certificate["data"] or {}, certificate["options"], len(certificate["records"])
    is_holdout = options.kind == "holdout"
    share, most = recipe.get("holdout" if is_holdout else "prepare"), recipe.get("keep_withheld")
    if share is None:
        return tasks, {}
    require(type(share) is float and 0 < share < 1, "No such share can be withheld.")
    masks = {t: exact.withheld_rows(len(y), t, share, options.seed) for t, (_, y, *_) in tasks.items() if is_holdout or t == 1}
    withheld = {t: np.flatnonzero(mask) for t, mask in masks.items()}
    learned = {t: np.flatnonzero(~masks[t]) if t in masks else np.arange(len(y)) for t, (_, y, *_) in tasks.items()}
    if is_holdout and recipe.get("kept") and last > 1:
        require(type(most) is int and most >= 0, "The certificate does not state how many withheld rows were kept.")
        each = int(most or 0) // (last - 1)
        withheld |= {t: exact.kept_rows(mask, t, each, options.seed) for t, mask in masks.items() if t < last}
    return arrays.take_rows(tasks, learned), arrays.take_rows(tasks, withheld)


def check_holdouts(
    folders: Sequence[Path], withheld: Samples, learned: Samples, scratch: Path, model: str | None = None, *,
    tests: Samples | None = None, commitment: str | None = None,
    policy: Policy = DEFAULT_POLICY, say: Say = lambda _: None,
) -> Verdict:  # fmt: skip
    """The verdict on the hold-out certificates of a run, from the withheld examples of its tasks and the learned ones.

    `model` names the auditor's function for a model that is not cop2l's own; `scratch` is an empty private folder.
    """

    def decide(verdict: Verdict) -> bool:
        run = checking.check_text(verdict, folders, policy)
        last = run[-1]
        require(last["options"].kind == "holdout", "This is not a hold-out certificate.")
        options = Options(**{name: getattr(last["options"], name) for name in HOLDOUT_OPTIONS})
        same = last["options"] == options
        require(same, "A hold-out certificate states options that only CoP2L has; they must be the defaults.")
        checking.check_commitment(verdict, last, commitment)
        samples = checking.check_samples(verdict, last, withheld, torch.empty(0))
        if not samples:
            verdict.unverified.append("Without the withheld examples nothing was counted.")
            return False
        if (last["data"] or {}).get("kept"):
            verdict.assumed += KEPT
        method = BlindMethod(scratch, model, last, policy.operations, say)
        if len(samples) < len(last["records"]):
            _count_some(verdict, last, samples, method)
            return False
        learners = method.learn(learned)
        countable = learners or "forgetting" not in last["options"].claim
        recounts = [_recount(content, samples, learned, method, learners) for content in run] if countable else []
        for content in run:
            if learners:
                _compare_predictors(verdict, content, learners / AFTER.format(len(content["records"])), model)
        if recounts:
            verdict.checked.append("The errors on the withheld examples were counted again: they are as stated.")
            checking.check_repeats(verdict, run, recounts, policy)
        if tests:
            inputs = {t: x for t, (x, *_) in tests.items() if t in samples}
            classes = method.predict(last["folder"] / HOLDOUT_FILES[0], inputs)
            labels = {t: numbers(tests[t][1]) for t in classes}
            checking.check_tests(verdict, last["records"], {t: (classes[t] != y, y) for t, y in labels.items()})
        if not learners:
            sentence = "That the withheld examples were not learned from was not checked: give the data as a stream."
            verdict.unverified.append(sentence)
            return False
        verdict.checked.append("Learning again, in a process without the withheld rows, gave the same predictor, bit for bit.")
        return len(samples) == len(last["records"])

    return checking.complete_verdict(decide)


def _count_some(verdict: Verdict, content: Content, samples: CheckedSamples, method: "BlindMethod") -> None:
    """Count the errors on the withheld examples of some tasks again: with the others missing nothing can be learned again."""
    classes = method.predict(content["folder"] / HOLDOUT_FILES[0], {t: S.x for t, (S, _) in samples.items()})
    for t, (_, facts) in samples.items():
        errors = int((classes[t] != facts["labels"]).sum())
        require(errors <= content["records"][t - 1]["errors"], f"Task {t} has {errors} errors, more than the certificate states.")
    tasks = ", ".join(map(str, samples))
    verdict.checked.append(f"The errors on the withheld examples of task {tasks} were counted again: not more than stated.")


def _recount(
    content: Content, samples: CheckedSamples, learned: Samples, method: "BlindMethod", learners: Path | None
) -> Recount:
    """Count the errors of a certificate again, and the withheld rows that repeat another.

    These are rows that the model cannot tell from another. If only some withheld rows were kept, the learned rows were gone when
    the certificate was issued: then a row repeats a learned one if it has the same inputs.
    """
    last, forgetting = len(content["records"]), "forgetting" in content["options"].claim
    some_kept = bool((content["data"] or {}).get("kept"))
    parts = {t: pair for t, pair in samples.items() if t <= last}
    require(len(parts) == last, "The withheld examples of a task were not given.")
    classes = method.predict(content["folder"] / HOLDOUT_FILES[0], {t: S.x for t, (S, _) in parts.items()})
    unknown = {t: S.x for t, (S, facts) in parts.items() if forgetting and "wrong" not in facts}
    for t, before in (method.predict(learners, unknown) if learners and unknown else {}).items():
        samples[t][1]["wrong"] = before != samples[t][1]["labels"]
    errors = [classes[t] != facts["labels"] for t, (_, facts) in parts.items()]
    model, unused = (predicting_model(content, method.model) for _ in range(2))
    keys, used = [], []
    with exact.exact_arithmetic(content["threads"]):
        exact.check_alone(model, [S.x for S, _ in parts.values()], unused, bits=False)
        for t, (S, _) in parts.items():
            inputs = [x for x in (learned[t][0] if t in learned and not some_kept else None, S.x) if x is not None]
            keys.append(np.concatenate([exact.answer_keys(model, x) for x in inputs]))
            used.append(np.arange(len(keys[-1])) < len(keys[-1]) - len(S))
    repeats = [mask[~of_learned] for mask, of_learned in zip(exact.repeated_answers(keys, used), used, strict=True)]
    if some_kept:
        dtype = next(model.parameters()).dtype
        learned_keys = {key for x, *_ in learned.values() for key in exact.input_keys(x, dtype)}
        copied = [[key in learned_keys for key in exact.input_keys(S.x, dtype)] for S, _ in parts.values()]
        repeats = [mask | np.array(copies, bool) for mask, copies in zip(repeats, copied, strict=True)]
    return recount(content, [Sets()] * last, errors, repeats, [facts for _, facts in parts.values()])


def new_model(certificate: Mapping[str, Any], function: str | None) -> nn.Module:
    """The model of a certificate, with its initial weights."""
    model = model_for(certificate, function, *parameter_location(certificate))
    if model is None:
        raise Unreadable("The model is the issuer's own; give the function that builds it with --model.")
    return model


def predicting_model(certificate: Mapping[str, Any], function: str | None) -> nn.Module:
    """The model of a certificate, with its certified parameters."""
    model = new_model(certificate, function)
    model.load_state_dict(stored_tensors(*parameter_location(certificate)))
    return model


def _compare_predictors(verdict: Verdict, content: Content, learner: Path, function: str | None) -> None:
    """Compare the stored predictor with the one that was learned without the withheld examples."""
    *stored, columns = _predictor(content["folder"] / HOLDOUT_FILES[0])
    if columns not in (None, (content["data"] or {}).get("inputs")):  # the loader compares these with the data
        verdict.unverified.append(OTHER_COLUMNS)
    if stored == _predictor(learner)[:2]:
        return
    machine = exact.machine(new_model(content, function))
    sentence = f"Learning again without the withheld rows gives another predictor after task {len(content['records'])}."
    if machine == content["machine"]:
        verdict.invalid.append(sentence)
    else:
        verdict.unverified.append(f"{sentence} But it was made on another machine, quoted below; this one is: {machine}.")


def _predictor(file: Path) -> list[Any]:
    """All that the predictions of a stored learner depend on: its tensors, its notes, and the names of its columns."""
    with open_regular(file), safe_open(file, framework="pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        note = json.loads((opened.metadata() or {}).get("cop2l", "{}")).get("note", {})
    note["heads"] = [sorted(head) for head in note.get("heads") or ()]  # the order of classes in a head has no meaning
    note["model"] = {**(note.get("model") or {}), "class": None}  # the auditor may import it by another name
    notes = {name: value for name, value in note.items() if name not in HARMLESS_NOTES}
    return [digest(tensors), canonical_json(notes), note.get("columns")]


def watch(parent: int | None, seconds: float, folder: Path) -> None:
    """End this process, and remove its folder, when its parent has ended, even if it was killed, or after so many seconds."""
    end = time.monotonic() + seconds

    def look() -> None:
        while parent in (None, os.getppid()) and time.monotonic() < end:
            time.sleep(0.5)
        if time.monotonic() >= end:
            print(f"cop2l: the check takes more than the {seconds:.0f} seconds that --limit allows.", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(3)

    threading.Thread(target=look, daemon=True).start()


def unlabelled(inputs: Mapping[int, Any]) -> Samples:
    """Samples with these inputs, in which every label is 0."""
    return {t: (x, np.zeros(len(x), np.int64)) for t, x in inputs.items()}


@dataclass
class BlindMethod:
    """A method that runs in separate processes, which get files and nothing else."""

    folder: Path
    model: str | None
    certificate: Content
    operations: float
    say: Say

    def run(self, command: str, samples: Samples, file: Path | None = None) -> Path:
        """Run a command of `cop2l.audit.blind` on these rows, in a separate process; the folder of what it writes."""
        number = len([*self.folder.iterdir()])
        rows, out = self.folder / f"rows-{number}", self.folder / f"{command}-{number}"
        rows.mkdir()
        out.mkdir()
        arrays.write_arrays(rows, self.certificate["digest"], samples)
        paths = [rows, out, self.certificate["folder"], *([file] if file else [])]
        options = [f"--limit={self.operations}", f"--parent={os.getpid()}", *(["--model", self.model] if self.model else [])]
        process = subprocess.run(
            [sys.executable, "-P", "-m", "cop2l.audit.blind", command, *map(str, paths), *options],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        reason = " ".join(process.stderr.strip().splitlines()[-1:])
        require(process.returncode != 1, f"The method cannot be run as it is stated: {reason!r:.300}")
        if process.returncode:  # too little memory, or no model: this says nothing about the certificate
            raise Unreadable(f"The method cannot be run again: {reason!r:.300}")
        return out

    def learn(self, samples: Samples) -> Path | None:
        """The folder with a file of the learner after each task, learned from these rows; None if a task is missing."""
        if len(samples) < len(self.certificate["records"]):
            return None
        self.say("learning again, without the withheld rows")
        return self.run("learn", samples)

    def predict(self, file: Path, inputs: Mapping[int, Any]) -> dict[int, Rows]:
        """The classes that a stored learner predicts of these rows, or for each task the one that was stored after it."""
        out, predicted = self.run("predict", unlabelled(inputs), file), dict[int, Rows]()
        for t, x in inputs.items():
            with open_regular(out / f"{t}.npy") as opened:
                predicted[t] = np.load(opened)
            good = predicted[t].shape == (len(x),) and predicted[t].dtype == np.int64
            require(good, f"The method predicts no classes for task {t}.")
        return predicted
