"""The decision: does a certificate hold? Nothing in it is believed that can be made again."""

import copy
import itertools
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.kernel import exact
from cop2l.kernel.arithmetic import follows
from cop2l.kernel.exact import Examples, Rows, digest, sample, score, seen, size_of, threshold
from cop2l.kernel.form import ASSUMPTIONS, Content, Unreadable, read, tensors_of
from cop2l.kernel.learning import SET_NAMES, Plain, Sets
from cop2l.kernel.options import Options, Refusal, require
from cop2l.kernel.samples import Copies, blocks_of, fingerprint, numbers
from cop2l.kernel.verdict import Verdict, claim_in_words, in_words
from cop2l.randomness import marks

Samples = Mapping[int, tuple[Any, ...]]
Facts = dict[str, Any]
"""What is known of a task's rows, as far as claims need it: `labels`, numbers of `groups`, which were `wrong` after the task."""
Known = dict[int, tuple[Examples, Facts]]
"""The samples that were given, and what is known of them."""
Say = Callable[[str], None]
UNCOMMITTED = "Seed, options, delta, the claim and the number of tasks were chosen before the data was seen."
BITS = 3
"""The number of this specification of the learned bits: it grows when `learning` gives other ones."""


@dataclass(frozen=True)
class Allowed:
    """What the auditor accepts."""

    repeated: float = 0.002
    """The share of a task's rows that may repeat another of its rows. A copy is no independent draw; public data sets have a
    few (CIFAR-100 up to 1 in 500 of a task), and copies of a share r of the rows move a counted error rate by at most r."""
    shared: int = 0
    """How many rows of a task an earlier task may have too."""
    operations: float = 1e14
    """More arithmetic than this is refused: about an hour of one processor core; MNIST by default takes a third."""


ALLOWED = Allowed()


def processor() -> str:
    """The processor's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    found = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(found, "") or platform.processor() or "unknown"  # which starts a process


def machine(model: nn.Module) -> str:
    """What must be equal for the bits to be made again; the number of threads is set, and the rest changes no bits."""
    like, cpu = next(model.parameters()), torch.backends.cpu.get_cpu_capability()
    device = torch.cuda.get_device_name(like.device) if like.device.type == "cuda" else like.device.type
    system = f"{platform.system()} {platform.machine()}, {processor()}, {cpu}"
    return f"bits {BITS}, torch {torch.__version__}, {system}, {device}, {str(like.dtype).removeprefix('torch.')}"


def outside_heads(heads: Sequence[Sequence[int]], classes: int, scenario: str, device: Any) -> Tensor | None:
    """Task-incremental: row t says which classes do not belong to task t's head (row 0 is unused). Otherwise None."""
    outside = (~np.isin(np.arange(classes), head) for head in ([], *heads))
    return torch.from_numpy(np.stack([*outside])).to(device) if scenario == "task-incremental" else None


def outputs_of(model: nn.Module, S: Examples) -> int:
    """How many classes the model tells apart."""
    return int(model.eval()(seen(model, S.take(np.zeros(2, np.int64)).x)).shape[1])


def counts(options: Options, last: int, task: int, sets: Sets, event: Rows, among: Any = True, gone: bool = False) -> Content:
    """The integers of the bounds of a task, or of the rows `among` it, after task `last`.

    `event` marks the rows that are misclassified (or lost). If the data is gone it marks those of the buffer alone, which has
    every example that was never picked and is `selected`: by a threshold that nothing picked can move, and that is no larger
    than the buffer's. That is enough for |c n R_t|, and nothing else is counted.
    """
    rows, certified = len(event), exact.certified_rows(len(event), task, options)
    selected = certified & (marks(options.seed, "mark", task, n=rows) < threshold(int(certified.sum()), last, options))
    first, second, picked = np.zeros((3, rows), bool)
    first[sets.first] = second[sets.second] = picked[sets.picked] = True
    found = {
        "n": certified, "prior": ~certified, "compression": first, "evicted": second, "picked": picked,
        "errors": None if gone else event & certified & ~first & ~second,
        "missed": None if gone else event & certified & ~picked,
        "selected": selected if options.marked else None,
        "compressed": selected & (event | picked) if options.marked else None,
    }  # fmt: skip
    integers = {name: None if mask is None else int((mask & among).sum()) for name, mask in found.items()}
    return {**integers, "iterations": sets.iterations, "stopped": sets.stopped}


def counts_and_parts(
    options: Options, last: int, task: int, sets: Sets, wrong: Rows, facts: Facts, gone: bool = False
) -> Content:
    """All integers of a task: its own, those of every class and group, and of what was lost and gained, as far as claimed."""
    count, found = partial(counts, options, last, task, sets, gone=gone), list[tuple[str, Any, Content]]()
    if "classes" in options.claim:
        found += [("classes", int(label), count(wrong, facts["labels"] == label)) for label in np.unique(facts["labels"])]
    found += [("groups", name, count(wrong, facts["groups"] == number)) for number, name in enumerate(options.groups)]
    if "forgetting" in options.claim and task < last:
        before = facts["wrong"]
        found += [("forgetting", "lost", count(wrong & ~before)), ("forgetting", "gained", count(~wrong & before))]
    return {**count(wrong), "parts": [{"family": family, "subject": subject, **part} for family, subject, part in found]}


def group_numbers(groups: Any, options: Options, rows: int) -> np.ndarray | None:
    """The number of each example's group, counted in the declared names; None if no groups are declared."""
    if not options.groups:
        return None
    known = {name: number for number, name in enumerate(options.groups)}
    found = np.array([known.get(str(name), -1) for name in ([] if groups is None else groups)], np.int64)
    require(len(found) == rows, f"Groups must be given for each of the {rows} examples; there are {len(found)}.")
    require((found >= 0).all(), f"An example has a group that is not declared; declared are {', '.join(known):.200}.")
    return found


def verify(
    folders: Path | Sequence[Path], samples: Samples | None = None, model: nn.Module | None = None, *,
    start: str | None = None, allowed: Allowed = ALLOWED, say: Say = lambda _: None,
) -> Verdict:  # fmt: skip
    """Whether the certificate in a folder holds; several folders are the certificates of a run, in order, checked in one pass.

    The verdict speaks of the last one. `samples` maps task numbers to (x, y) or (x, y, groups): what the tasks were learned from.
    `model` is the architecture, with the initial weights that its seed gives here. `start` is a hash of initial weights that the
    auditor was handed before the data was seen. The certificate is never asked to fetch anything, nor to name code to run.
    `Unreadable` is raised where no verdict can be made.
    """

    def decide(verdict: Verdict) -> bool:
        run = _stated(verdict, [folders] if isinstance(folders, Path) else list(folders), allowed)
        if model is None or run[-1]["options"].kind == "holdout":
            verdict.doubt("The model was not given, so neither its errors nor how it was learned could be checked.")
            return False
        if run[-1]["theta_0"] == start:
            verdict.checked.append("The initial parameters have the hash that was committed to before.")
        elif run[-1]["theta_0"] == digest(model.state_dict()):
            verdict.checked.append("The initial parameters are those of the model's seed.")
        else:  # what a seed gives, or what was promised before, does not depend on the data
            verdict.doubt("The initial parameters are not those that a seed gives here: they may have been fitted to the data.")
        known = _checked_samples(verdict, run[-1], samples or {}, allowed, next(model.parameters()))
        if len(known) < len(run[-1]["records"]):
            verdict.doubt("Without the data of all tasks the model could not be learned again.")
            return False
        _check_work(run[-1], model, exact.block_rows(known[1][0].x), allowed, say)
        return _check_learning(verdict, run, known, model, say)

    return _decided(decide)


def verify_holdout(
    folder: Path, withheld: Samples, predict: Callable[[Any, int], Any], relearned: Mapping[int, Any] | None = None,
    allowed: Allowed = ALLOWED,
) -> Verdict:  # fmt: skip
    """Whether a hold-out certificate holds: errors on the withheld examples are counted again with the stored predictor.

    `predict(x, task)` gives class numbers. That nothing withheld was learned from is the issuer's word, unless the caller has
    learned again without it and got the stored predictor: `relearned` then has the classes that were predicted for the withheld
    examples of each task just after it was learned.
    """

    def decide(verdict: Verdict) -> bool:
        certificate = _stated(verdict, [folder], allowed)[0]
        options, records = certificate["options"], certificate["records"]
        require(options.kind == "holdout", "This is not a hold-out certificate.")
        known = _checked_samples(verdict, certificate, withheld, allowed, torch.empty(0))
        for task, (S, facts) in known.items() if relearned is not None or "forgetting" not in options.claim else ():
            before = (relearned or {}).get(task, facts["labels"])
            wrong, facts["wrong"] = (numbers(found) != facts["labels"] for found in (predict(S.x, task), before))
            found = counts_and_parts(options, len(records), task, Sets(), wrong, facts)
            good = found == {name: records[task - 1][name] for name in found}
            require(good, f"Task {task} has {found['errors']} errors in its withheld part, or other counts than stated.")
            verdict.checked.append(f"The errors on the withheld examples of task {task} were counted again: they are as stated.")
        if relearned is None:
            verdict.doubt("That the withheld examples were not learned from is the issuer's word.")
            return False
        verdict.checked.append("Learning again without the withheld examples gave the same predictor, bit for bit.")
        return len(known) == len(records)

    return _decided(decide)


def _decided(decide: Callable[[Verdict], bool]) -> Verdict:
    """The only place where a verdict is completed. A refusal is a fault."""
    verdict = Verdict()
    try:
        verdict._complete = decide(verdict)
    except Unreadable:
        raise
    except Refusal as refusal:
        verdict.fault(str(refusal))
    except Exception as error:  # of torch or of the model itself: examples that are not for it, or too little memory
        raise Unreadable(f"The model could not be run on this data here: {error!r:.200}") from error
    return verdict


def _stated(verdict: Verdict, folders: Sequence[Path], allowed: Allowed) -> list[Content]:
    """The certificates of one run: their form, their agreement, and the arithmetic of every statement."""
    run = [read(folder) for folder in folders]
    last, times = run[-1], [len(one["records"]) for one in run]
    # a statement is summed over its examples, and looked for among the parts of the records
    work = [1e6 * r["rows"] + 1e4 * len(one["statements"]) * (1 + len(r["parts"])) for one in run for r in one["records"]]
    _limit(allowed, sum(work))
    verdict.claim, verdict.statements = claim_in_words(last), last["statements"]
    require(all(a < b for a, b in itertools.pairwise(times)), "The certificates of the run are not in the order of its tasks.")
    for one, time in zip(run, times, strict=True):
        for name in ("method", "options", "scenario", "classes", "model", "data", "theta_0", "commitment", "not_valid"):
            require(one.get(name) == last.get(name), f"The certificates after tasks {time} and {times[-1]} differ in {name}.")
        for early, late in zip(one["records"], last["records"], strict=False):
            good = (early["fingerprint"], early["head"]) == (late["fingerprint"], late["head"])
            require(good, f"The certificates of the run speak of different data for task {early['task']}.")
        for stated in one["statements"]:
            said = in_words(stated, one["records"])
            require(follows(stated, one), f"After task {time} a stated bound is smaller than its counts allow: {said}.")
    verdict.checked.append("Every file has the documented form, and every hash matches.")
    verdict.checked.append(f"{sum(len(r['statements']) for r in run)} bounds follow from the stated counts (signs at 60 digits).")
    for reason in last["not_valid"]:
        verdict.fault(f"The certificate declares itself not valid: {reason}")
    verdict.word += [UNCOMMITTED, *(f"Assumption: {sentence}" for sentence in ASSUMPTIONS)]
    if gone := sorted({stated["task"] for stated in last["statements"] if stated["kind"] == "buffer" != last["options"].kind}):
        verdict.word.append(f"The data of tasks {gone} was gone when the certificate was issued, and not to get a smaller bound.")
    for record in last["records"] if not last["options"].marked and last["options"].kind != "holdout" else ():
        if record["errors"] is None:
            verdict.doubt(f"Task {record['task']} has no bound: its data was gone when the certificate was issued.")
    return run


def _checked_samples(verdict: Verdict, certificate: Content, samples: Samples, allowed: Allowed, like: Tensor) -> Known:
    """The sample of every task that was given, if it is what was learned from; copies may show that rows are not independent."""
    copies, known, options = Copies(like.dtype), Known(), certificate["options"]
    for record in certificate["records"]:
        task, size = record["task"], record["rows"]
        x, y, groups, *_ = (*samples.get(task, ()), None, None, None)
        if y is None or (options.groups and groups is None):
            verdict.doubt(f"The {'data' if y is None else 'group of each example'} of task {task} was not given.")
            continue
        labels = numbers(y)
        good = labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer) and len(x) == len(labels) == size
        require(good, f"The data of task {task} does not have the {size} labelled examples that the certificate states.")
        require(np.isin(labels, record["head"]).all(), f"The data of task {task} has labels outside the classes of the task.")
        facts = {"labels": labels.astype(np.int64), "groups": group_numbers(groups, options, size)}
        good = fingerprint(size, blocks_of(x, labels), facts["groups"]) == record["fingerprint"]
        require(good, f"The data of task {task} is not the data of the certificate: its fingerprint differs.")
        repeated, shared = copies.add(x, labels)
        if repeated or shared:
            verdict.claim.append(f"Task {task}: {repeated} of {size} rows repeat another, {shared} are rows of an earlier task.")
        if repeated > allowed.repeated * size:
            verdict.doubt(f"{repeated} of the {size} rows of task {task} repeat another, so they are no independent draws.")
        if shared > allowed.shared:
            verdict.doubt(f"{shared} of the {size} rows of task {task} are rows of an earlier task too.")
        known[task] = sample(x, torch.from_numpy(facts["labels"]).to(like.device), task, options.seed), facts
    verdict.checked += [f"The data of {len(known)} tasks has the stated fingerprints."] * bool(known)
    return known


def _check_work(certificate: Content, model: nn.Module, block: int, allowed: Allowed, say: Say) -> None:
    """Refuse before anything is learned if it would take more arithmetic than is allowed; examples are scored in blocks."""
    options, scored, trained = certificate["options"], 0, 0
    for record in certificate["records"]:
        stopped, free = record["stopped"], record["prior"] + options.prior_memory_size
        scored += (stopped + 2) * (record["rows"] + options.memory) + 2 * (stopped + 10) * block
        trained += options.epochs * (options.k * stopped * (stopped + 1) // 2 + (free + options.batch) * stopped)
        trained += options.prior_passes(record["rows"]) * (free + options.batch) if options.prior else 0
    # a logit and a step cost something too
    operations = (4 * size_of(model) + 300 * certificate["classes"]) * (scored + 3 * trained) + 1e7 * trained / options.batch
    say(f"verification takes about {operations:.1e} operations ({scored} examples scored, {trained} trained on, and once more)")
    _limit(allowed, operations)


def _limit(allowed: Allowed, operations: float) -> None:
    if operations > allowed.operations:
        raise Unreadable(f"Verification takes about {operations:.1e} operations, and {allowed.operations:.1e} are allowed.")


def _stored(certificate: Content, name: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The stored tensors, of the types and shapes of others and where those are; nothing larger is ever read."""
    file = certificate["folder"] / f"{name}.safetensors"
    found = tensors_of(file, {key: tuple(value.shape) for key, value in like.items()})
    require(all(found[key].dtype == like[key].dtype for key in like), f"{file.name} does not have the types that it must have.")
    require(digest(found) == certificate[name], f"The hash of {name} in the certificate is not that of {file.name}.")
    return {key: value.to(like[key].device) for key, value in found.items()}


def _check_learning(verdict: Verdict, run: Sequence[Content], known: Known, model: nn.Module, say: Say) -> bool:
    """Whether learning again gives all that is stated, at the time of every certificate, and so does rebuilding."""
    last, like, here = run[-1], next(model.parameters()), machine(model)
    options, records, parts = last["options"], last["records"], [S for S, _ in known.values()]
    other = sorted({there for one in run for there in (one["machine"], *one["earlier"])} - {here})
    model.load_state_dict(_stored(last, "theta_0", model.state_dict()))
    stated, made = (last["classes"], last["model"].get("parameters")), (outputs_of(model, parts[0]), size_of(model))
    require(stated == made, f"The model has {made[0]} outputs and {made[1]} parameters, not {stated[0]} and {stated[1]!r:.40}.")
    outside = outside_heads([record["head"] for record in records], last["classes"], last["scenario"], like.device)
    plain, again = (Plain(own, options, outside) for own in (model, copy.deepcopy(model)))
    try:
        with exact.exact_arithmetic(last["threads"]):
            _learn_again(plain, run, known, bool(other), say)
            _rebuild(again, plain, parts)
        require(digest(again.model.state_dict()) == last["theta"], "The model rebuilt from the compression sets is another one.")
    except Refusal as refusal:
        if not other or isinstance(refusal, Unreadable):
            raise
        verdict.doubt(f"{refusal} But it was made on another machine: {other[0]}; this one is: {here}.")
        return False
    picked, free = sum(len(one.first) + len(one.second) for one in plain.sets), sum(record["prior"] for record in records)
    verdict.checked += [
        "Learning again from all the data gave the same sets and parameters, bit for bit.",
        f"All errors of {len(run)} certificate{'s' * (len(run) > 1)} were counted again: they are as stated.",
        f"The model was rebuilt, bit for bit, from {picked} picked and {free} set-aside examples and the messages alone.",
    ]
    return True


def _learn_again(plain: Plain, run: Sequence[Content], known: Known, elsewhere: bool, say: Say) -> None:
    """Learn all tasks; after each that has a certificate compare sets, messages, parameters and counts."""
    model, outside, at = plain.model, plain.outside, {len(one["records"]): one for one in run}
    for t, (S, facts) in known.items():
        say(f"learning task {t} of {len(known)} again")
        longest = run[-1]["records"][t - 1]["stopped"]
        exact.check_alone(model, S, outside)
        plain.learn(S, longest=2 * longest + 64 if elsewhere else longest)
        exact.check_alone(model, S, outside)
        facts["wrong"] = score(model, S, outside)[1]
        if t not in at:
            continue
        for name, made in (("theta", model.state_dict()), ("sets", set_tensors(plain.sets))):
            require(digest(made) == at[t][name], f"Learning again gives another {name} than that stated after task {t}.")
            _stored(at[t], name, made)
        for stated in at[t]["records"]:
            i, (part, more) = stated["task"], known[stated["task"]]
            wrong = facts["wrong"] if i == t else score(model, part, outside)[1]
            found = counts_and_parts(plain.options, t, i, plain.sets[i - 1], wrong, more, stated["errors"] is None)
            good = found == {name: stated[name] for name in found}
            require(good, f"The counts of task {i} after task {t} are not those that the data gives.")


def _rebuild(again: Plain, plain: Plain, parts: Sequence[Examples]) -> None:
    """Rebuild theta_T from the compression sets, the set-aside examples and the messages alone."""
    known = [part.take(np.union1d(sets.first, sets.second)) for part, sets in zip(parts, plain.sets, strict=True)]
    free = [np.flatnonzero(~exact.certified_rows(len(part), t, plain.options)) for t, part in enumerate(parts, 1)]
    priors = [part.take(rows) if plain.options.prior else None for part, rows in zip(parts, free, strict=True)]
    again.sizes = plain.sizes
    again.reconstruct(plain.sets, known, priors)


def set_tensors(sets: Sequence[Sets]) -> dict[str, Tensor]:
    """The sets of all tasks as tensors: what a certificate's file holds, and what is hashed."""
    return {f"{t}/{name}": torch.from_numpy(getattr(one, name).copy()) for t, one in enumerate(sets, 1) for name in SET_NAMES}
