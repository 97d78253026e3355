"""Hold-outs: methods run in processes that get no withheld rows to learn and no labels to predict; they need not be right."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import nn

from cop2l.kernel import arrays, exact, verify
from cop2l.kernel.arrays import Samples
from cop2l.kernel.building import model_for, stored_tensors, where
from cop2l.kernel.exact import Rows, digest, sample
from cop2l.kernel.form import HOLDOUT_FILES, Content, Unreadable, canonical_json, open_regular
from cop2l.kernel.learning import Sets
from cop2l.kernel.options import Options, require
from cop2l.kernel.samples import numbers
from cop2l.kernel.verdict import Verdict
from cop2l.kernel.verify import ALLOWED, Allowed, Known, Say

OWN = ("delta", "siblings", "seed", "kind", "claim", "shares", "groups", "tasks")
"""The options that a hold-out certificate has; the others are those of the method, in `settings`."""
PREDICTS = ("tasks", "classes", "heads", "outputs", "tasks_seen")  # of a stored learner, beside its tensors


def verify_holdout(
    folders: Sequence[Path], withheld: Samples, learned: Samples, scratch: Path, model: str | None = None, *,
    tests: Samples | None = None, loaded_for: str | None = None, commitment: str | None = None,
    allowed: Allowed = ALLOWED, say: Say = lambda _: None,
) -> Verdict:  # fmt: skip
    """Whether the hold-out certificates of a run hold, from the withheld examples of its tasks and the learned ones.

    `model` names the auditor's function for a model that is not cop2l's own; `scratch` is an empty private folder.
    """

    def decide(verdict: Verdict) -> bool:
        run = verify.check_text(verdict, folders, loaded_for, allowed)
        last = run[-1]
        require(last["options"].kind == "holdout", "This is not a hold-out certificate.")
        own = Options(**{name: getattr(last["options"], name) for name in OWN})
        require(last["options"] == own, "A hold-out certificate states options that only CoP2L has; they must be the defaults.")
        verify.check_commitment(verdict, last, commitment)
        known = verify.check_samples(verdict, last, withheld, torch.empty(0))
        if not known:
            verdict.add_unverified("Without the withheld examples nothing was counted.")
            return False
        blind = Blind(scratch, model, last, allowed.operations, say)
        again = blind.learn(learned)
        paid, found = True, None
        for one in run if again or "forgetting" not in last["options"].claim else ():
            found = _count(one, known, learned, blind, again)
            paid = paid and found[2]
        for one in run if again else ():
            _compare(verdict, one, again[len(one["records"])])
        if found is not None:
            verdict.checked.append("The errors on the withheld examples were counted again: they are as stated.")
            verify.check_repeats(verdict, last, found[0], found[1], paid, allowed)
        if tests:
            predicted = blind.predict(last["folder"] / HOLDOUT_FILES[0], {t: x for t, (x, *_) in tests.items() if t in known})
            labels = {t: numbers(tests[t][1]) for t in predicted}
            verify.check_tests(verdict, last["records"], {t: (own != labels[t], labels[t]) for t, own in predicted.items()})
        if not again:
            verdict.add_unverified("That the withheld examples were not learned from was not checked: give the data as a stream.")
            return False
        verdict.checked.append("Learning again, in a process without the withheld rows, gave the same predictor, bit for bit.")
        return len(known) == len(last["records"])

    return verify.complete_verdict(decide)


def _count(
    one: Content, known: Known, learned: Samples, blind: "Blind", again: Mapping[int, Path]
) -> tuple[list[int], list[Content], bool]:
    """The errors of a certificate, and which withheld rows its model cannot tell from another: see `paid_counts`."""
    last, forgets = len(one["records"]), "forgetting" in one["options"].claim
    parts = {t: pair for t, pair in known.items() if t <= last}
    require(len(parts) == last, "The withheld examples of a task were not given.")
    now = blind.predict(one["folder"] / HOLDOUT_FILES[0], {t: S.x for t, (S, _) in parts.items()})
    for t, (S, facts) in parts.items():
        if forgets and "wrong" not in facts:
            facts["wrong"] = blind.predict(again[t], {t: S.x})[t] != facts["labels"]
    wrong = [now[t] != facts["labels"] for t, (_, facts) in parts.items()]
    model = predicting_model(one, blind.model)
    keys, used = [], []
    with exact.exact_arithmetic(one["threads"]):
        for t, (S, _) in parts.items():
            rows = [x for x in (learned[t][0] if t in learned else None, S.x) if x is not None]
            own = [exact.answer_keys(model, sample(x, torch.zeros(len(x)).long(), t, 0)) for x in rows]
            keys.append(np.concatenate(own))
            used.append(np.arange(len(keys[-1])) < len(keys[-1]) - len(S))
    masks = [mask[~own] for mask, own in zip(exact.repeated_answers(keys, used), used, strict=True)]
    return verify.paid_counts(one, [Sets()] * last, wrong, masks, [facts for _, facts in parts.values()])


def predicting_model(certificate: Content, given: str | None) -> nn.Module:
    """The model of a stored learner, with its parameters."""
    model = model_for(certificate, given, *where(certificate))
    if model is None:
        raise Unreadable("The model is the issuer's own; give the function that builds it with --model.")
    model.load_state_dict(stored_tensors(*where(certificate)))
    return model


def _compare(verdict: Verdict, one: Content, made: Path) -> None:
    """Whether the stored predictor is the one that was learned without the withheld examples."""
    stored, again = (_predictor(file) for file in (one["folder"] / HOLDOUT_FILES[0], made))
    if stored != again:
        here = exact.machine(predicting_model(one, None)) if one["model"].get("name") else one["machine"]
        sentence = f"Learning again without the withheld rows gives another predictor after task {len(one['records'])}."
        if here == one["machine"]:
            verdict.add_invalid(sentence)
        else:
            verdict.add_unverified(f"{sentence} But it was made on another machine, quoted below; this one is: {here}.")


def _predictor(file: Path) -> tuple[str, str]:
    """What a stored learner predicts by: its tensors, and what it says of classes."""
    with open_regular(file), safe_open(file, framework="pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        note = json.loads((opened.metadata() or {}).get("cop2l", "{}")).get("note", {})
    note["heads"] = [sorted(head) for head in note.get("heads") or ()]  # sets of classes, in whatever order
    return digest(tensors), canonical_json({name: note.get(name) for name in PREDICTS})


@dataclass
class Blind:
    """A method that runs in processes of its own, each of which is given files and nothing else."""

    folder: Path
    model: str | None
    certificate: Content
    operations: float
    say: Say

    def run(self, command: str, given: Path, made: Path, file: Path | None = None) -> None:
        """Have it done; what it cannot do is said."""
        made.mkdir()
        words = [command, given, made, self.certificate["folder"], *([file] if file else [])]
        own = ["--model", self.model] if self.model else []
        done = subprocess.run(
            [sys.executable, "-P", "-m", "cop2l.audit.blind", *map(str, words), *own, "--limit", str(self.operations)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        why = " ".join(done.stderr.strip().splitlines()[-1:])
        require(done.returncode != 1, f"The method cannot be run as it is stated: {why!r:.300}")
        if done.returncode:  # too little memory, or no model: nothing is known of the certificate
            raise Unreadable(f"The method cannot be run again: {why!r:.300}")

    def learn(self, samples: Samples) -> dict[int, Path]:
        """The learner after each task, learned from these rows."""
        if len(samples) < len(self.certificate["records"]):
            return {}
        given, made = self.folder / "learned", self.folder / "made"
        given.mkdir()
        arrays.write_arrays(given, self.certificate["digest"], samples)
        self.say("learning again, without the withheld rows")
        self.run("learn", given, made)
        return {t: made / f"after-{t}.safetensors" for t in samples}

    def predict(self, file: Path, rows: Mapping[int, Any]) -> dict[int, Rows]:
        """The classes of these rows; refused if they depend on what is predicted together."""
        number = len([*self.folder.iterdir()])
        given, made, scattered = self.folder / f"rows-{number}", self.folder / f"classes-{number}", np.random.default_rng(0)
        given.mkdir()
        orders, found = {}, {}
        for t, x in rows.items():
            n = len(x)
            few = [scattered.integers(n, size=1) for _ in range(8)]
            orders[t] = [*few, scattered.permutation(n)[: max(1, n // 3)], scattered.permutation(n), np.arange(n)]
            for i, order in enumerate(orders[t]):
                np.save(given / f"order-{t}-{i}.npy", order)
        arrays.write_arrays(given, self.certificate["digest"], {t: (x, np.zeros(len(x), np.int64)) for t, x in rows.items()})
        self.run("predict", given, made, file)
        for t, own in orders.items():
            with open_regular(made / f"{t}.npz") as opened:
                stored = np.load(opened)
                classes = [stored[f"{i}"] for i in range(len(own))]
            good = all(one.shape == order.shape and one.dtype == np.int64 for one, order in zip(classes, own, strict=True))
            require(good, f"The method predicts no classes for task {t}.")
            found[t] = classes[-1]
            good = all((found[t][order] == one).all() for order, one in zip(own, classes, strict=True))
            require(good, f"What is predicted for a row of task {t} depends on the rows that are predicted with it.")
        return found
