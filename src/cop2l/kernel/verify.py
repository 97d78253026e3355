"""The decision: does a certificate hold? Nothing in it is believed that can be made again."""

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.kernel import exact
from cop2l.kernel.arithmetic import bound_follows, least_bounds, percent, upper_tail
from cop2l.kernel.arrays import Samples
from cop2l.kernel.building import many_constants, put_scale
from cop2l.kernel.counting import Facts, counts_and_parts, group_numbers, used_rows
from cop2l.kernel.exact import NONE, Examples, Rows, digest, model_input, sample, score, size_of
from cop2l.kernel.form import Content, Unreadable, canonical_json, content_digest, read_certificate, tensors_of
from cop2l.kernel.learning import ReferenceLearner, Sets, set_tensors
from cop2l.kernel.options import Refusal, require
from cop2l.kernel.samples import blocks_of, fingerprint, numbers
from cop2l.kernel.verdict import Verdict, claim_in_words, claim_subject, issuers_texts, quoted, statement_sentence

Known = dict[int, tuple[Examples, Facts]]
"""The samples that were given, and what is known of them."""
Say = Callable[[str], None]
UNCOMMITTED = "Seed, options, model, scale of its inputs, delta, claim and number of tasks were chosen before the data was seen."
OTHERS = "At most {} commitments, this one among them, were made for this data."
ALONE = "No other commitment was made for this data."
CASES = (
    "If the data is your own: the draws of each task are independent, as the certificate's assumptions say.",
    "If the issuer gave you the data: also, no row was invented, copied, altered or put in an order by one who knew the seed.",
)
COPYING = "Rows repeat, if they do, by a rule that looks at each row alone (theory.md, Repeated rows)."
UNLIKELY, MANY = 1e-6, 10**6  # a less likely test part speaks against the claim; the best of so many settings


@dataclass(frozen=True)
class Allowed:
    """What the auditor accepts."""

    count_repeats: bool = False
    """Accept recomputed bounds that count rows with equal answers as errors, where the stated bounds do not count them."""
    draws: bool = False
    """Rows that repeat are independent draws: discrete data."""
    operations: float = 1e14
    """More arithmetic than this is refused: about an hour of one processor core; MNIST by default takes a third."""


ALLOWED = Allowed()


def verify(
    folders: Path | Sequence[Path], samples: Samples | None = None, model: nn.Module | None = None, *,
    tests: Samples | None = None, loaded_for: str | None = None, commitment: str | None = None,
    allowed: Allowed = ALLOWED, say: Say = lambda _: None,
) -> Verdict:  # fmt: skip
    """Whether the certificate in a folder holds; several folders are the certificates of a run, in order, checked in one pass.

    The verdict speaks of the last one. `samples` maps task numbers to (x, y) or (x, y, groups): what the tasks were learned from,
    loaded for the certificate of digest `loaded_for`; `tests` are other examples of the tasks, which can only speak against it.
    `model` is the architecture, with the initial weights that its seed gives here. `commitment` is a hash that the auditor was
    handed before the data was seen. The certificate is never asked to fetch anything, nor to name code to run.
    `Unreadable` is raised where no verdict can be made.
    """

    def decide(verdict: Verdict) -> bool:
        run = check_text(verdict, [folders] if isinstance(folders, Path) else list(folders), loaded_for, allowed)
        last, kept = run[-1], check_commitment(verdict, run[-1], commitment)
        if model is None or last["options"].kind == "holdout":
            verdict.add_unverified("The model was not given, so neither its errors nor how it was learned could be checked.")
            return False
        known = check_samples(verdict, last, samples or {}, next(model.parameters()))
        if 1 in known:
            put_scale(last, known[1][0], model)
        if last["theta_0"] == digest(model.state_dict()):
            verdict.checked.append("The initial parameters are those of the model's seed.")
        elif kept:
            verdict.checked.append("The initial parameters have the hash that was committed to before.")
        else:  # what a seed gives, or what was promised before, does not depend on the data
            verdict.add_unverified("The initial parameters could not be made from the seed here: they may be fitted to the data.")
        if len(known) < len(last["records"]):
            verdict.add_unverified("Without the data of all tasks the model could not be learned again.")
            return False
        _check_work(last, model, exact.block_rows(known[1][0].x), allowed, say)
        return _check_learning(verdict, run, known, model, tests or {}, allowed, say)

    return complete_verdict(decide)


def complete_verdict(decide: Callable[[Verdict], bool]) -> Verdict:
    """The only place where a verdict is completed. A refusal makes it invalid."""
    verdict = Verdict()
    try:
        verdict._complete = decide(verdict)
    except Unreadable:
        raise
    except Refusal as refusal:
        verdict.add_invalid(str(refusal))
    except Exception as error:  # of torch or of the model itself: examples that are not for it, or too little memory
        raise Unreadable(f"The model could not be run on this data here: {error!r:.200}") from error
    return verdict


def check_text(verdict: Verdict, folders: Sequence[Path], loaded_for: str | None, allowed: Allowed) -> list[Content]:
    """The certificates of one run: their form, their agreement, and the arithmetic of every statement."""
    run = [read_certificate(folder) for folder in folders]
    last, times = run[-1], [len(one["records"]) for one in run]
    # a statement is summed over its examples, and looked for among the parts of the records
    work = [4e6 * r["rows"] + 1e4 * len(one["statements"]) * (1 + len(r["parts"])) for one in run for r in one["records"]]
    limit(allowed, sum(work))
    verdict.statements, verdict.issuer = last["statements"], issuers_texts(last)
    verdict.claim, verdict.rows = claim_in_words(last, last["statements"]), claim_subject(last)
    require(loaded_for in (None, last["digest"]), "The data was loaded for another certificate than this one.")
    require(all(a < b for a, b in itertools.pairwise(times)), "The certificates of the run are not in the order of its tasks.")
    for one, time in zip(run, times, strict=True):
        for name in (*committed_by(last), "commitment", "not_valid"):
            require(one.get(name) == last.get(name), f"The certificates after tasks {time} and {times[-1]} differ in {name}.")
        for early, late in zip(one["records"], last["records"], strict=False):
            good = (early["fingerprint"], early["head"]) == (late["fingerprint"], late["head"])
            require(good, f"The certificates of the run speak of different data for task {early['task']}.")
        for claimed in one["statements"]:
            said = statement_sentence(claimed, one["records"])
            require(bound_follows(claimed, one), f"After task {time} a stated bound is smaller than its counts allow: {said}.")
    count = sum(len(one["statements"]) for one in run)
    verdict.checked.append(f"Every file has its form, every hash matches; bounds that follow from their counts: {count}.")
    for reason in last["not_valid"]:
        verdict.add_invalid(f"The certificate declares itself not valid: {quoted(reason, 600)}")
    parts = [part for record in last["records"] for part in record["parts"] if part["family"] == "groups" and part["n"]]
    if {*last["options"].groups} - {part["subject"] for part in parts}:
        verdict.add_unverified("A group is declared, and no example of it certifies.")
    state_bounds(verdict, last, last["statements"])
    verdict.assumed += [UNCOMMITTED, *CASES]
    if gone := sorted({claimed["task"] for claimed in last["statements"] if claimed["kind"] == "buffer" != last["options"].kind}):
        verdict.assumed.append(f"The data of tasks {gone} was gone at the time, and not to get a smaller bound.")
    for record in last["records"] if not last["options"].marked and last["options"].kind != "holdout" else ():
        if record["errors"] is None:
            verdict.add_unverified(f"Task {record['task']} has no bound: its data was gone when the certificate was issued.")
    return run


def state_bounds(verdict: Verdict, content: Content, statements: Sequence[Content]) -> None:
    """Put these bounds into the verdict, each with what it is if the certificate is the best of a million settings."""
    options = content["options"]
    fewer = {**content, "statements": statements, "options": replace(options, delta=max(1e-300, options.delta / MANY))}
    millions = least_bounds(fewer)
    verdict.statements = [{**one, "million": most["value"]} for one, most in zip(statements, millions, strict=True)]
    verdict.claim = claim_in_words(content, verdict.statements)


def committed_by(certificate: Mapping[str, Any]) -> Content:
    """The commitment that a certificate fulfils, made from its own fields: what may not be chosen after looking at the data."""
    fields = ("method", "settings", "scenario", "classes", "model", "data", "threads")
    number = certificate["machine"].partition(",")[0].removeprefix("bits ")
    found = {"format": "cop2l-commitment", "version": 3, **{name: certificate[name] for name in fields}}
    found |= {"options": certificate["options"].as_dict(), "theta_0": certificate.get("theta_0")}
    found["precision"] = certificate["machine"].rpartition(", ")[2]
    return found | {"bits": int(number) if number.isdecimal() and len(number) < 6 else None}


def check_commitment(verdict: Verdict, certificate: Content, commitment: str | None) -> bool:
    """Whether the certificate keeps the commitment that was handed over before; seeds that nothing fixed: cannot tell."""
    options, data = certificate["options"], certificate["data"] or {}
    if commitment is None:
        settings = certificate["settings"] or {}
        own = {"model": certificate["model"].get("seed"), "learner": settings.get("seed"), "hold-out": data.get("holdout_seed")}
        if other := {name: seed for name, seed in own.items() if seed not in (None, options.seed)}:
            verdict.add_unverified(f"Seeds other than {options.seed} need a commitment: {canonical_json(other):.100}.")
        drawn = [key for key in ("seed", "class_seed", "order_seed") if data.get(key) not in (None, 0)]  # of the split
        verdict.assumed += [f"Not chosen by looking at results: {', '.join(drawn)}."] * bool(drawn)
        if many_constants(certificate):
            verdict.add_unverified("The inputs are scaled by many shifts and factors, which may have been fitted to the data.")
        if certificate["commitment"]:
            verdict.assumed.append("The certificate names a commitment: if you were handed it before, give it with --commitment.")
        return False
    require(certificate["commitment"] in (None, commitment), "The certificate names another commitment than the one given.")
    kept = content_digest(committed_by(certificate)) == commitment
    require(kept, "The certificate is not what was committed to: method, options, seeds, model, threads or split differ.")
    verdict.assumed[verdict.assumed.index(UNCOMMITTED)] = OTHERS.format(options.siblings) if options.siblings > 1 else ALONE
    if certificate["scenario"] == "task-incremental":
        verdict.assumed.append("The classes of each task, which no commitment names, were declared before any data was seen.")
    verdict.checked.append(f"Method, options, seeds, model and split are those that were committed to ({commitment}).")
    return True


def check_samples(verdict: Verdict, certificate: Content, samples: Samples, like: Tensor) -> Known:
    """The sample of every task that was given, if it is what the certificate was counted on."""
    known, options = Known(), certificate["options"]
    for record in certificate["records"]:
        task, size = record["task"], record["rows"]
        x, y, groups, *_ = (*samples.get(task, ()), None, None, None)
        if y is None or (options.groups and groups is None):
            verdict.add_unverified(f"The {'data' if y is None else 'group of each example'} of task {task} was not given.")
            continue
        labels = numbers(y)
        good = labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer) and len(x) == len(labels) == size
        require(good, f"The data of task {task} does not have the {size} labelled examples that the certificate states.")
        require(np.isin(labels, record["head"]).all(), f"The data of task {task} has labels outside the classes of the task.")
        facts = {"labels": labels.astype(np.int64), "groups": group_numbers(groups, options, size)}
        good = fingerprint(size, blocks_of(x, labels), facts["groups"]) == record["fingerprint"]
        require(good, f"The data of task {task} is not the data of the certificate: its fingerprint differs.")
        known[task] = sample(x, torch.from_numpy(facts["labels"]).to(like.device), task, options.seed), facts
    verdict.checked += [f"Tasks whose data has the stated fingerprints: {len(known)}."] * bool(known)
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
    limit(allowed, operations)


def limit(allowed: Allowed, operations: float) -> None:
    """Refuse what takes longer than allowed."""
    if operations > allowed.operations:
        raise Unreadable(f"Verification takes about {operations:.1e} operations; --limit allows {allowed.operations:.1e}.")


def _stored(certificate: Content, name: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The stored tensors, of the types and shapes of others and where those are; nothing larger is ever read."""
    file = certificate["folder"] / f"{name}.safetensors"
    found = tensors_of(file, {key: tuple(value.shape) for key, value in like.items()})
    require(all(found[key].dtype == like[key].dtype for key in like), f"{file.name} does not have the types that it must have.")
    require(digest(found) == certificate[name], f"The hash of {name} in the certificate is not that of {file.name}.")
    return {key: value.to(like[key].device) for key, value in found.items()}


def _check_learning(
    verdict: Verdict, run: Sequence[Content], known: Known, model: nn.Module, tests: Samples, allowed: Allowed, say: Say
) -> bool:
    """Whether counting with the stored parameters, learning again and rebuilding give all that is stated, at every time."""
    last, like, here = run[-1], next(model.parameters()), exact.machine(model)
    options, records, parts = last["options"], last["records"], [S for S, _ in known.values()]
    other = sorted({there for one in run for there in (one["machine"], *one["earlier"])} - {here})
    model.load_state_dict(_stored(last, "theta_0", model.state_dict()))
    masked_classes = exact.head_masks([record["head"] for record in records], last["classes"], last["scenario"], like.device)
    untouched, rebuilt = copy.deepcopy(model), copy.deepcopy(model)
    plain, again = (ReferenceLearner(own, options, masked_classes) for own in (model, rebuilt))
    try:
        with exact.exact_arithmetic(last["threads"]):
            counted = {}  # before anything is learned: what a model keeps beside its parameters cannot help it
            for one in run:
                fresh = _fresh_model(untouched, _stored(one, "theta", untouched.state_dict()))
                counted[len(one["records"])] = [_count_errors(fresh, S, masked_classes) for S in parts[: len(one["records"])]]
            made = int(fresh(model_input(fresh, parts[0].take(np.zeros(2, np.int64)).x)).shape[1]), size_of(fresh)
            stated = last["classes"], last["model"].get("parameters")
            require(stated == made, f"Outputs and parameters of the model are {made}, not {stated!r:.60}.")
            check_tests(verdict, records, _test_errors(fresh, masked_classes, tests, len(records)))
            repeated = _learn_again(plain, run, known, counted, untouched, bool(other), say)
            _rebuild(again, plain, parts)
        require(digest(rebuilt.state_dict()) == last["theta"], "The model rebuilt from the compression sets is another one.")
    except Refusal as refusal:
        if not other or isinstance(refusal, Unreadable):
            raise
        verdict.add_unverified(f"{refusal} But it was made on another machine, quoted below; this one is: {here}.")
        return False
    check_repeats(verdict, last, *repeated, allowed)
    picked, free = sum(len(one.compression) + len(one.evicted) for one in plain.sets), sum(record["prior"] for record in records)
    verdict.checked += [
        f"All errors of {len(run)} certificate{'s' * (len(run) > 1)} were counted with the stored parameters, as stated.",
        "Learning again from all the data gave the same sets and parameters, bit for bit;",
        f"so did rebuilding from {picked} picked and {free} prior examples and the numbers of iterations alone.",
    ]
    return True


def _fresh_model(untouched: nn.Module, theta: Mapping[str, Tensor]) -> nn.Module:
    """These parameters in a model that was never used."""
    own = copy.deepcopy(untouched)
    own.load_state_dict(dict(theta))
    return own


def _count_errors(model: nn.Module, S: Examples, masked_classes: Tensor | None) -> tuple[Rows, Rows]:
    """Which rows are misclassified, and numbers that are equal where rows are answered alike."""
    exact.check_alone(model, S, masked_classes)
    return score(model, S, masked_classes)[1], exact.answer_keys(model, S)


def _learn_again(
    plain: ReferenceLearner, run: Sequence[Content], known: Known, counted: Mapping[int, Sequence[tuple[Rows, Rows]]],
    untouched: nn.Module, elsewhere: bool, say: Say,
) -> tuple[list[int], list[Content], bool]:  # fmt: skip
    """Learn all tasks; after each that has a certificate compare sets, messages, parameters and counts: see `paid_counts`."""
    model, masked_classes, options = plain.model, plain.masked_classes, plain.options
    at, found, paid = {len(one["records"]): one for one in run}, None, True
    for t, (S, facts) in known.items():
        say(f"learning task {t} of {len(known)} again")
        longest = run[-1]["records"][t - 1]["stopped"]
        exact.check_alone(model, S, masked_classes)
        plain.learn(S, longest=2 * longest + 64 if elsewhere else longest)
        if "forgetting" in options.claim:
            own = t in at
            fresh = model if own else _fresh_model(untouched, model.state_dict())
            facts["wrong"] = counted[t][-1][0] if own else score(fresh, S, masked_classes)[1]
        if t not in at:
            continue
        for name, made in (("theta", model.state_dict()), ("sets", set_tensors(plain.sets))):
            require(digest(made) == at[t][name], f"Learning again gives another {name} than that stated after task {t}.")
            _stored(at[t], name, made)
        used = [used_rows(options, i, len(known[i][0]), sets) for i, sets in enumerate(plain.sets, 1)]
        masks = exact.repeated_answers([keys for _, keys in counted[t]], used)
        every = [facts for _, facts in known.values()]
        found = paid_counts(at[t], plain.sets, [wrong for wrong, _ in counted[t]], masks, every)
        paid = paid and found[2]
    assert found is not None
    return found[0], found[1], paid


def paid_counts(
    one: Content, sets: Sequence[Sets], wrong: Sequence[Rows], repeated: Sequence[Rows], facts: Sequence[Facts]
) -> tuple[list[int], list[Content], bool]:
    """How many rows repeat in each task, the records in which they count as errors, and whether these are what is stated.

    Refused if a record is neither what the errors give nor what errors and repeats give.
    """
    records, paid, last = [], True, len(one["records"])
    for claimed, own, rows, mask, more in zip(one["records"], sets, wrong, repeated, facts, strict=False):
        gone = claimed["errors"] is None
        plain, full = (
            counts_and_parts(one["options"], last, claimed["task"], own, event, more, gone) for event in (rows, rows | mask)
        )
        said = {name: claimed[name] for name in plain}
        good = f"The counts of task {claimed['task']} after task {last} are not those that the data gives."
        require(said in (plain, full), good)
        paid = paid and said == full
        records.append(claimed | full)
    return [int(mask.sum()) for mask in repeated], records, paid


def check_repeats(
    verdict: Verdict, last: Content, repeated: Sequence[int], records: Sequence[Content], paid: bool, allowed: Allowed
) -> None:
    """Rows that the model cannot tell from another must count as errors, unless the data is discrete (theory.md)."""
    said = ", ".join(f"{count} of task {task}" for task, count in enumerate(repeated, 1) if count)
    if not said:
        verdict.checked.append("No two rows are answered alike, bit for bit: there are no copies among them.")
        return
    proved = last["options"].kind not in ("kl", "kl-tight")
    if allowed.draws:
        verdict.assumed.append(f"Rows that repeat another ({said}) are independent draws of discrete data.")
        return
    verdict.assumed.append(COPYING)
    if paid and proved:
        verdict.rows.append(f"Rows that the model cannot tell from another count as errors: {said}.")
        return
    content = {**last, "records": records}
    statements = least_bounds(content)
    worst = max(one["value"] for one in statements)
    if allowed.count_repeats and proved:
        verdict.rows.append(f"Rows that the model cannot tell from another count as errors in these bounds: {said}.")
        state_bounds(verdict, content, statements)
        return
    more = f"where they count as errors the largest bound is {percent(worst)}: accept it with --count-repeats"
    why = more if proved else "no theorem for bounds of this kind covers them"
    verdict.add_unverified(f"Rows that the model cannot tell from another: {said}; {why}. Discrete data: --repeats-are-draws.")


def check_tests(verdict: Verdict, records: Sequence[Content], found: Mapping[int, tuple[Rows, Rows]]) -> None:
    """Other examples of a task, which are wrong and their labels, can speak against bounds; they are no evidence for them."""
    said = ", ".join(f"{wrong.sum()} of {len(wrong)}" for wrong, _ in found.values())
    verdict.rows += [f"errors on test parts: {said}"] * bool(said)
    n = sum(record["n"] for record in records)
    for one in verdict.statements:
        (wrong, labels), bound = found.get(one["task"], (NONE, NONE)), one["value"]
        if one["family"] == "classes":
            wrong = wrong[labels == one["subject"]]
        elif one["family"] == "average" and len(found) == len(records) and all(record["n"] for record in records):
            wrong = np.concatenate([own for own, _ in found.values()])  # tasks may have other weights than in the sample
            bound *= max(len(found[record["task"]][0]) / record["n"] for record in records) * n / max(1, len(wrong))
        elif one["family"] != "tasks":
            continue
        if (p := upper_tail(bound, len(wrong), int(wrong.sum()))) < UNLIKELY:
            said = f"{wrong.sum()} errors of {len(wrong)} have probability {p:.0e}"
            verdict.add_unverified(f"The test part speaks against a bound: {said} if {statement_sentence(one, records)}.")


def _test_errors(model: nn.Module, masked_classes: Tensor | None, tests: Samples, last: int) -> dict[int, tuple[Rows, Rows]]:
    device = next(model.parameters()).device
    parts = {t: sample(x, torch.as_tensor(numbers(y)).long().to(device), t, 0) for t, (x, y, *_) in tests.items() if t <= last}
    return {t: (score(model, S, masked_classes)[1], S.y.cpu().numpy()) for t, S in parts.items()}


def _rebuild(again: ReferenceLearner, plain: ReferenceLearner, parts: Sequence[Examples]) -> None:
    """Rebuild theta_T from the compression sets, the prior examples and the messages alone."""
    known = [part.take(np.union1d(sets.compression, sets.evicted)) for part, sets in zip(parts, plain.sets, strict=True)]
    free = [np.flatnonzero(~exact.certified_rows(len(part), t, plain.options)) for t, part in enumerate(parts, 1)]
    priors = [part.take(rows) if plain.options.prior else None for part, rows in zip(parts, free, strict=True)]
    again.sizes = plain.sizes
    again.reconstruct(plain.sets, known, priors)
