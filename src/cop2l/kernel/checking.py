"""Checks the certificates of a run: whatever can be computed again is computed again."""

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
from cop2l.kernel.arithmetic import bound_follows, least_bounds, percent, prepared, upper_tail
from cop2l.kernel.arrays import Samples
from cop2l.kernel.building import many_constants, set_scale, stored_shapes, stored_tensors
from cop2l.kernel.counting import Facts, Recount, group_numbers, recount, used_rows
from cop2l.kernel.exact import NO_ROWS, Examples, Rows, digest, model_input, parameter_count, sample, score
from cop2l.kernel.form import Content, Unreadable, canonical_json, content_digest, read_content
from cop2l.kernel.learning import ReferenceLearner, set_tensors
from cop2l.kernel.options import Refusal, UserError, require
from cop2l.kernel.samples import blocks_of, fingerprint, numbers
from cop2l.kernel.verdict import Verdict, claim_lines, claim_subject, issuers_texts, quoted, statement_sentence

CheckedSamples = dict[int, tuple[Examples, Facts]]
"""For each task its sample, which has the stated fingerprint, and facts about its rows."""
Say = Callable[[str], None]
"""Prints a sentence about progress."""
UNCOMMITTED = "Seed, options, model, any constant scale, delta, claim and number of tasks were chosen before the data was seen."
SIBLINGS = "At most {} commitments, this one among them, were made for this data."
NO_SIBLING = "No other commitment was made for this data."
CASE_ASSUMPTIONS = (
    "If the data is your own: the draws of each task are independent, as the certificate's assumptions say.",
    "If the issuer gave you the data: also, no row was invented, copied, altered or put in an order by one who knew the seed.",
)
REPEATS_BY_RULE = (
    "A copy of a row has its label and group; how often a row is copied was not chosen by looking at data (theory.md, 14)."
)
MIN_PROBABILITY = 1e-6
"""Test errors with a smaller probability speak against a bound."""
SETTINGS = 10**6
"""Beside each bound stands the bound for the best of this many settings."""


@dataclass(frozen=True)
class Policy:
    """The auditor's choices."""

    count_repeats: bool = False
    """Accept recomputed bounds that count repeated rows as errors, if the stated bounds do not count them."""
    draws: bool = False
    """Repeated rows are independent draws of discrete data."""
    operations: float = 1e14
    """Refuse more arithmetic than this: about an hour of one processor core; MNIST by default takes a third."""

    @property
    def seconds(self) -> float:
        """The check ends after this time: three times that of as much arithmetic, and a minute."""
        return 60 + self.operations / 1e10


DEFAULT_POLICY = Policy()


def check_certificates(
    folders: Sequence[Path], samples: Samples | None = None, model: nn.Module | None = None, *,
    prepared: Samples | None = None, tests: Samples | None = None, commitment: str | None = None,
    policy: Policy = DEFAULT_POLICY, say: Say = lambda _: None,
) -> Verdict:  # fmt: skip
    """The verdict on the CoP2L certificates of a run, in order: on the last one, and on the agreement of the others with it.

    samples      for each task (x, y) or (x, y, groups)
    model        the architecture, with the initial weights that its seed gives here
    prepared     rows of the first task that were set aside, and may set the scale of the inputs
    tests        other examples of the tasks, which can only speak against the certificate
    commitment   a hash that the auditor was handed before the data was seen

    A certificate makes the checker neither fetch data nor run code. `Unreadable` is raised if no verdict is possible.
    """

    def decide(verdict: Verdict) -> bool:
        run = check_text(verdict, folders, policy)
        last, committed = run[-1], check_commitment(verdict, run[-1], commitment)
        if model is None or last["options"].kind == "holdout":
            verdict.unverified.append("The model was not given, so neither its errors nor how it was learned could be checked.")
            return False
        checked_samples = check_samples(verdict, last, samples or {}, next(model.parameters()))
        if 1 in (prepared or {}):
            x, y, *_ = (prepared or {})[1]
            set_scale(last, sample(x, torch.as_tensor(numbers(y)), 1, last["options"].seed), model)
        # neither the weights of a seed nor committed weights depend on the data
        if last["theta_0"] == digest(model.state_dict()):
            verdict.checked.append("The initial parameters are those of the model's seed.")
        elif committed:
            verdict.checked.append("The initial parameters have the hash that was committed to before.")
        else:
            sentence = "The initial parameters could not be made from the seed here: they may be fitted to the data."
            verdict.unverified.append(sentence)
        if len(checked_samples) < len(last["records"]):
            verdict.unverified.append("Without the data of all tasks the model could not be learned again.")
            return False
        _check_work(last, model, checked_samples[1][0], policy, say)
        return _check_learning(verdict, run, checked_samples, model, tests or {}, policy, say)

    return complete_verdict(decide)


def complete_verdict(decide: Callable[[Verdict], bool]) -> Verdict:
    """The verdict that `decide` fills in, and completes by returning True; a refusal makes it invalid."""
    verdict = Verdict()
    try:
        verdict._complete = decide(verdict)
    except Refusal as refusal:
        verdict.invalid.append(str(refusal))
    except UserError:
        raise
    except Exception as error:  # of torch or of the model itself: examples that are not for it, or too little memory
        raise Unreadable(f"The model could not be run on this data here: {error!r:.200}") from error
    return verdict


def check_text(verdict: Verdict, folders: Sequence[Path], policy: Policy) -> list[Content]:
    """Check the text of the certificates of a run: form, hashes, agreement, and the arithmetic of every statement."""
    run = [read_content(folder) for folder in folders]
    last, times = run[-1], [len(content["records"]) for content in run]
    # the arithmetic of a statement is a sum over its examples, and it searches the parts of its record
    sizes = [(record["rows"], 1 + len(record["parts"])) for content in run for record in content["records"]]
    require_within_limit(policy, sum(4e6 * rows + 1e8 * number + 1e4 * number**2 for rows, number in sizes))
    verdict.statements, verdict.issuer = last["statements"], issuers_texts(last)
    verdict.claim, verdict.rows = claim_lines(last, last["statements"]), claim_subject(last)
    require(all(a < b for a, b in itertools.pairwise(times)), "The certificates of the run are not in the order of its tasks.")
    for content, time in zip(run, times, strict=True):
        for name in (*commitment_of(last), "commitment", "not_valid"):
            require(content.get(name) == last.get(name), f"The certificates after tasks {time} and {times[-1]} differ in {name}.")
        for early, late in zip(content["records"], last["records"], strict=False):
            same = (early["fingerprint"], early["head"]) == (late["fingerprint"], late["head"])
            require(same, f"The certificates of the run speak of different data for task {early['task']}.")
        prepared_content = prepared(content)
        for statement in content["statements"]:
            bound = statement_sentence(statement, content["records"])
            follows = bound_follows(statement, prepared_content)
            require(follows, f"After task {time} a stated bound is smaller than its counts allow: {bound}.")
    count = sum(len(content["statements"]) for content in run)
    verdict.checked.append(f"Every file has its form, every hash matches; bounds that follow from their counts: {count}.")
    for reason in last["not_valid"]:
        verdict.invalid.append(f"The certificate declares itself not valid: {quoted(reason, 600)}")
    parts = [part for record in last["records"] for part in record["parts"] if part["family"] == "groups" and part["n"]]
    if {*last["options"].groups} - {part["subject"] for part in parts}:
        verdict.unverified.append("A group is declared, and no example of it certifies.")
    state_bounds(verdict, last, last["statements"])
    verdict.assumed += [UNCOMMITTED, *CASE_ASSUMPTIONS]
    if without_data := sorted({s["task"] for s in last["statements"] if s["kind"] == "buffer" != last["options"].kind}):
        verdict.assumed.append(f"The data of tasks {without_data} was gone, not left out to get a smaller bound.")
    for record in last["records"] if not last["options"].uses_marks and last["options"].kind != "holdout" else ():
        if record["errors"] is None:
            verdict.unverified.append(f"Task {record['task']} has no bound: its data was gone when the certificate was issued.")
    return run


def state_bounds(verdict: Verdict, content: Content, statements: Sequence[Content]) -> None:
    """Put these bounds into the verdict, each beside its value if the certificate is the best of a million settings."""
    options = content["options"]
    delta = max(1e-300, options.delta / SETTINGS)
    millions = least_bounds({**content, "statements": statements, "options": replace(options, delta=delta)})
    verdict.statements = [{**bound, "million": larger["value"]} for bound, larger in zip(statements, millions, strict=True)]
    verdict.claim = claim_lines(content, verdict.statements)


def commitment_of(certificate: Mapping[str, Any]) -> Content:
    """The commitment that a certificate fulfils: its fields that may not be chosen after looking at the data."""
    fields = ("method", "settings", "scenario", "classes", "model", "threads")
    bits = certificate["machine"].partition(",")[0].removeprefix("bits ")
    return {
        "format": "cop2l-commitment", "version": 3, **{name: certificate[name] for name in fields},
        "data": None if certificate["data"] is None else {k: v for k, v in certificate["data"].items() if k != "kept"},
        "options": certificate["options"].as_dict(), "theta_0": certificate.get("theta_0"),
        "precision": certificate["machine"].rpartition(", ")[2],
        "bits": int(bits) if bits.isdecimal() and len(bits) < 6 else None,
    }  # fmt: skip


def check_commitment(verdict: Verdict, certificate: Content, commitment: str | None) -> bool:
    """Whether the certificate fulfils the commitment; without one, it is unverified that the seeds were not chosen."""
    options, data = certificate["options"], certificate["data"] or {}
    if commitment is None:
        settings = certificate["settings"] or {}
        seeds = {"model": certificate["model"].get("seed"), "learner": settings.get("seed")}
        if different := {name: seed for name, seed in seeds.items() if seed not in (None, options.seed)}:
            verdict.unverified.append(f"Seeds other than {options.seed} need a commitment: {canonical_json(different):.100}.")
        split_seeds = [key for key in ("seed", "class_seed", "order_seed") if data.get(key) not in (None, 0)]
        verdict.assumed += [f"Not chosen by looking at results: {', '.join(split_seeds)}."] * bool(split_seeds)
        if many_constants(certificate):
            verdict.unverified.append("The inputs are scaled by many shifts and factors, which may have been fitted to the data.")
        if certificate["commitment"]:
            verdict.assumed.append("The certificate names a commitment: if you were handed it before, give it with --commitment.")
        return False
    require(certificate["commitment"] in (None, commitment), "The certificate names another commitment than the one given.")
    same = content_digest(commitment_of(certificate)) == commitment
    require(same, "The certificate is not what was committed to: method, options, seeds, model, threads or split differ.")
    siblings = SIBLINGS.format(options.siblings) if options.siblings > 1 else NO_SIBLING
    verdict.assumed[verdict.assumed.index(UNCOMMITTED)] = siblings
    if certificate["scenario"] == "task-incremental":
        verdict.assumed.append("The classes of each task, which no commitment names, were declared before any data was seen.")
    verdict.checked.append(f"Method, options, seeds, model and split are those that were committed to ({commitment}).")
    return True


def check_samples(verdict: Verdict, certificate: Mapping[str, Any], samples: Samples, parameter: Tensor) -> CheckedSamples:
    """The given samples, on the device of `parameter`; refused if they are not the data of the certificate."""
    checked_samples, options = CheckedSamples(), certificate["options"]
    for record in certificate["records"]:
        task, size = record["task"], record["rows"]
        x, y, groups, *_ = (*samples.get(task, ()), None, None, None)
        if y is None or (options.groups and groups is None):
            verdict.unverified.append(f"The {'data' if y is None else 'group of each example'} of task {task} was not given.")
            continue
        labels = numbers(y)
        good = labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer) and len(x) == len(labels) == size
        require(good, f"The data of task {task} does not have the {size} labelled examples that the certificate states.")
        is_known = np.isin(labels, record["head"]).all() or (options.kind == "holdout" and "classes" not in options.claim)
        require(is_known, f"The data of task {task} has labels outside the classes of the task.")
        facts = {"labels": labels.astype(np.int64), "groups": group_numbers(groups, options, size)}
        good = fingerprint(size, blocks_of(x, labels), facts["groups"]) == record["fingerprint"]
        require(good, f"The data of task {task} is not the data of the certificate: its fingerprint differs.")
        checked_samples[task] = sample(x, torch.from_numpy(facts["labels"]).to(parameter.device), task, options.seed), facts
    verdict.checked += [f"Tasks whose data has the stated fingerprints: {len(checked_samples)}."] * bool(checked_samples)
    return checked_samples


def _check_work(certificate: Content, model: nn.Module, first: Examples, policy: Policy, say: Say) -> None:
    """Refuse more arithmetic than the policy allows, before anything is learned; `first` is the sample of the first task."""
    options, scored, trained = certificate["options"], 0, 0
    for record in certificate["records"]:
        stopped = record["stopped"]
        scored += (stopped + 2) * (record["rows"] + options.memory) + 2 * (stopped + 10) * exact.block_rows(first.x)
        trained += options.epochs * (options.k * stopped * (stopped + 1) // 2 + options.batch * stopped)
    per_example = 4 * exact.multiplications(model, first.take(np.zeros(1, int)).x) + 300 * certificate["classes"]
    # logits, steps, and the sets of every earlier task take time, too
    operations = per_example * (scored + 3 * trained) + 1e7 * trained / options.batch + 1e6 * len(certificate["records"]) ** 2
    say(f"verification takes about {operations:.1e} operations ({scored} examples scored, {trained} trained on, and once more)")
    require_within_limit(policy, operations)


def require_within_limit(policy: Policy, operations: float) -> None:
    """Refuse more arithmetic than the policy allows."""
    if operations > policy.operations:
        raise Unreadable(f"Verification takes about {operations:.1e} operations; --limit allows {policy.operations:.1e}.")


def _checked_tensors(certificate: Content, name: str, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The stored tensors, if they have the names, shapes and types of the expected ones; on the devices of these."""
    file = certificate["folder"] / f"{name}.safetensors"
    shapes = {key: tuple(value.shape) for key, value in expected.items()}
    require(stored_shapes(file, "") == shapes, f"{file.name} does not have the tensors and shapes that it must have.")
    tensors = stored_tensors(file)
    same_types = all(tensors[key].dtype == expected[key].dtype for key in expected)
    require(same_types, f"{file.name} does not have the types that it must have.")
    require(digest(tensors) == certificate[name], f"The hash of {name} in the certificate is not that of {file.name}.")
    return {key: value.to(expected[key].device) for key, value in tensors.items()}


def _check_learning(
    verdict: Verdict, run: Sequence[Content], samples: CheckedSamples, model: nn.Module, tests: Samples, policy: Policy, say: Say
) -> bool:
    """Whether counting with the stored parameters, learning again and rebuilding give all that every certificate states."""
    last, device, machine = run[-1], next(model.parameters()).device, exact.machine(model)
    options, records, parts = last["options"], last["records"], [S for S, _ in samples.values()]
    other_machines = {name for content in run for name in (content["machine"], *content["earlier"])} - {machine}
    model.load_state_dict(_checked_tensors(last, "theta_0", model.state_dict()))
    masked_classes = exact.head_masks([record["head"] for record in records], last["classes"], last["scenario"], device)
    unused, rebuilt = copy.deepcopy(model), copy.deepcopy(model)
    learner, rebuilder = (ReferenceLearner(module, options, masked_classes) for module in (model, rebuilt))
    try:
        with exact.exact_arithmetic(last["threads"]):
            answers = {}  # all errors are counted before learning again, which may change state outside a state_dict
            for content in run:
                last_model = exact.fresh_model(unused, _checked_tensors(content, "theta", unused.state_dict()))
                learned = parts[: len(content["records"])]
                exact.check_alone(last_model, [S.x for S in learned], unused)
                errors = [score(last_model, S, masked_classes)[1] for S in learned]
                answers[len(learned)] = errors, [exact.answer_keys(last_model, S.x) for S in learned]
            sizes = int(last_model(model_input(last_model, parts[0].take(np.zeros(2, int)).x)).shape[1]), parameter_count(model)
            stated = last["classes"], last["model"].get("parameters")
            require(stated == sizes, f"Outputs and parameters of the model are {sizes}, not {stated!r:.60}.")
            check_tests(verdict, records, _test_errors(last_model, masked_classes, tests, len(records)))
            recounts = _learn_again(learner, run, samples, answers, unused, bool(other_machines), say)
            _rebuild(rebuilder, learner, parts)
        require(digest(rebuilt.state_dict()) == last["theta"], "The model rebuilt from the compression sets is another one.")
    except Refusal as refusal:
        if not other_machines:
            raise
        verdict.unverified.append(f"{refusal} But it was made on another machine, quoted below; this one is: {machine}.")
        return False
    check_repeats(verdict, run, recounts, policy)
    picked = sum(len(s.compression) + len(s.evicted) for s in learner.sets)
    verdict.checked += [
        f"All errors of {len(run)} certificate{'s' * (len(run) > 1)} were counted with the stored parameters, as stated.",
        "Learning again from all the data gave the same sets and parameters, bit for bit;",
        f"so did rebuilding from {picked} picked examples and the numbers of iterations alone.",
    ]
    return True


def _learn_again(
    learner: ReferenceLearner, run: Sequence[Content], samples: CheckedSamples,
    answers: Mapping[int, tuple[Sequence[Rows], Sequence[Rows]]], unused: nn.Module, elsewhere: bool, say: Say,
) -> list[Recount]:  # fmt: skip
    """Learn all tasks; after each that has a certificate compare sets, messages, parameters and counts."""
    model, masked_classes, options = learner.model, learner.masked_classes, learner.options
    certificates, recounts = {len(content["records"]): content for content in run}, list[Recount]()
    for t, (S, facts) in samples.items():
        say(f"learning task {t} of {len(samples)} again")
        longest = run[-1]["records"][t - 1]["stopped"]
        learner.learn(S, longest=2 * longest + 64 if elsewhere else longest)
        content = certificates.get(t)
        if "forgetting" in options.claim and content is None:
            facts["wrong"] = score(exact.fresh_model(unused, model.state_dict()), S, masked_classes)[1]
        elif "forgetting" in options.claim:
            facts["wrong"] = answers[t][0][-1]
        if content is None:
            continue
        for name, tensors in (("theta", model.state_dict()), ("sets", set_tensors(learner.sets))):
            require(digest(tensors) == content[name], f"Learning again gives another {name} than that stated after task {t}.")
            _checked_tensors(content, name, tensors)
        used = [used_rows(len(samples[i][0]), sets) for i, sets in enumerate(learner.sets, 1)]
        errors, keys = answers[t]
        repeats, all_facts = exact.repeated_answers(keys, used), [facts for _, facts in samples.values()]
        recounts.append(recount(content, learner.sets, errors, repeats, all_facts))
    return recounts


def check_repeats(verdict: Verdict, run: Sequence[Content], recounts: Sequence[Recount], policy: Policy) -> None:
    """Rows that the model cannot tell from another must count as errors, unless the data is discrete (theory.md)."""
    last, (numbers_of_repeats, records) = run[-1], recounts[-1]
    repeats = ", ".join(f"{count} of task {task}" for task, count in enumerate(numbers_of_repeats, 1) if count)
    if not repeats:
        verdict.checked.append("The model gives each row other outputs, so no row is a copy of another.")
        return
    has_theorem = last["options"].kind != "kl"
    if policy.draws:
        verdict.assumed.append(f"Rows that repeat another ({repeats}) are independent draws of discrete data.")
        return
    verdict.assumed.append(REPEATS_BY_RULE)
    if has_theorem and all(full == content["records"] for content, (_, full) in zip(run, recounts, strict=True)):
        verdict.rows.append(f"Rows that the model cannot tell from another count as errors: {repeats}.")
        return
    content = {**last, "records": records}
    statements = least_bounds(content)
    if policy.count_repeats and has_theorem:
        verdict.rows.append(f"Rows that the model cannot tell from another count as errors in these bounds: {repeats}.")
        state_bounds(verdict, content, statements)
        return
    largest = percent(max(statement["value"] for statement in statements))
    remedy = f"where they count as errors the largest bound is {largest}: accept it with --count-repeats"
    why = remedy if has_theorem else "no theorem for bounds of this kind covers them"
    sentence = f"Rows that the model cannot tell from another: {repeats}; {why}. Discrete data: --repeats-are-draws."
    verdict.unverified.append(sentence)


def check_tests(verdict: Verdict, records: Sequence[Content], test_errors: Mapping[int, tuple[Rows, Rows]]) -> None:
    """Compare bounds with the errors and labels of test parts, which can speak against a bound and are no evidence for it."""
    shown = ", ".join(f"{errors.sum()} of {len(errors)}" for errors, _ in test_errors.values())
    verdict.rows += [f"errors on test parts: {shown}"] * bool(shown)
    n = sum(record["n"] for record in records)
    for statement in verdict.statements:
        (errors, labels), bound = test_errors.get(statement["task"], (NO_ROWS, NO_ROWS)), statement["value"]
        if statement["family"] == "classes":
            errors = errors[labels == statement["subject"]]
        elif statement["family"] == "average" and len(test_errors) == len(records) and all(record["n"] for record in records):
            errors = np.concatenate([of_task for of_task, _ in test_errors.values()])
            # tasks may have other weights here than in the sample
            bound *= max(len(test_errors[record["task"]][0]) / record["n"] for record in records) * n / max(1, len(errors))
        elif statement["family"] != "tasks":
            continue
        if (p := upper_tail(bound, len(errors), int(errors.sum()))) < MIN_PROBABILITY:
            shown = f"{errors.sum()} errors of {len(errors)} have probability {p:.0e}"
            sentence = statement_sentence(statement, records)
            verdict.unverified.append(f"The test part speaks against a bound: {shown} if {sentence}.")


def _test_errors(model: nn.Module, masked_classes: Tensor | None, tests: Samples, last: int) -> dict[int, tuple[Rows, Rows]]:
    """For the test part of each task up to `last`, the mask of the misclassified rows, and the labels."""
    device = next(model.parameters()).device
    parts = {t: sample(x, torch.as_tensor(numbers(y)).long().to(device), t, 0) for t, (x, y, *_) in tests.items() if t <= last}
    return {t: (score(model, S, masked_classes)[1], S.y.cpu().numpy()) for t, S in parts.items()}


def _rebuild(rebuilder: ReferenceLearner, learner: ReferenceLearner, parts: Sequence[Examples]) -> None:
    """Rebuild theta_T from the compression sets and the messages alone."""
    examples = [part.take(np.union1d(sets.compression, sets.evicted)) for part, sets in zip(parts, learner.sets, strict=True)]
    rebuilder.sizes = learner.sizes
    rebuilder.reconstruct(learner.sets, examples)
