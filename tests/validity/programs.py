"""Exported programs that round otherwise than their model, and bounds from counting their errors."""

import copy
from functools import partial

import numpy as np
import torch
from torch import nn
from whole_runs import (
    DOMAINS,
    GROUPS,
    ONE_HOT,
    SHARP,
    Waves,
    coin,
    holdout,
    judged,
    model_of,
    run,
    run_setting,
    sharp_options,
    sharp_risk,
    tasks_of,
    truth,
    untouched,
    world_of,
)

from cop2l.certificates import bounding
from cop2l.certificates.program import answers_alone, wrong_rows
from cop2l.exporting import recount_errors
from cop2l.kernel.counting import counts_and_parts
from cop2l.kernel.learning import SET_NAMES, Sets

CLAIMED = {"claim": ("tasks", "average", "classes", "groups"), "groups": GROUPS}
"""The families that can be claimed of programs."""
ALONE = [(kind, tasks) for kind, tasks, picks in SHARP if kind != "holdout" and not picks]
PROGRAMS = 20


# ---- programs


def rounded(model, bits=2, seed=None):
    """The model with its parameters rounded to `bits` significant bits: to the nearest, or with a seed up or down at random."""
    program, draw = copy.deepcopy(model).eval(), torch.Generator().manual_seed(seed or 0)
    for parameter in program.parameters():
        mantissa, power = torch.frexp(parameter.data)
        up = 0.5 if seed is None else torch.rand(parameter.shape, generator=draw)
        parameter.data = torch.ldexp((mantissa * 2**bits + up).floor() / 2**bits, power)
    return program


def sets_of(certificate):
    """The compression sets of each task; empty for a hold-out certificate."""
    if certificate.options.kind == "holdout":
        return [Sets() for _ in certificate.records]
    tensors = certificate.tensors["sets"]
    return [
        Sets(
            **{name: tensors[f"{record['task']}/{name}"].numpy() for name in SET_NAMES},
            iterations=record["iterations"],
            stopped=record["stopped"],
        )
        for record in certificate.records
    ]


def with_groups(world, samples):
    return {t: (x, y, world.groups(x)) for t, (x, y, *_) in samples.items()}


def errors_of(program, world, head):
    """The errors of a program as a mask of inputs and classes, one input at a time; within a head, if it is given."""
    with torch.no_grad():
        logits = np.stack([program(torch.from_numpy(x[None]))[0].numpy() for x in world.support])
    if head is not None:
        logits[:, np.setdiff1d(np.arange(world.classes), head)] = -np.inf
    return np.stack([~(logits[:, c] > np.delete(logits, c, 1).max(1)) for c in range(world.classes)], 1)


def truths(program, learner, world, records, statements):
    """(truth, bound) for the records and statements of a program."""
    by_head = learner.scenario == "task-incremental"
    errors = [errors_of(program, world, record["head"] if by_head else None) for record in records]
    return [(truth(one, world, records, errors, None), one["value"]) for one in statements]


def counted(program, certificate, samples):
    """The records and statements of a program, as an export has them."""
    return recount_errors(program, certificate.content, certificate.options, sets_of(certificate), samples)


def program_claims(make, differs, learner, world, certificate, _, samples):
    """(truth, bound) for the program that `make` makes of a model; appends to `differs` whether its counts are others."""
    program = make(learner.model)
    records, statements = counted(program, certificate, with_groups(world, samples))
    counts, model_counts = (
        [(record["errors_not_picked"], record["compressed"]) for record in part]
        for part in (records, certificate.records)
    )
    differs.append(counts != model_counts)
    return truths(program, learner, world, records, statements)


# ---- whole runs


def recounted(setting, seed, differs=None):
    """One run of a setting, and the bounds of its rounded program."""
    claims = partial(program_claims, rounded, [] if differs is None else differs)
    return run_setting(setting, CLAIMED, seed, claims)


def recounted_holdout(name, scenario, anytime, seed, differs=None):
    """The same for a hold-out of a method."""
    claims = partial(program_claims, rounded, [] if differs is None else differs)
    return holdout(name, scenario, anytime, CLAIMED, seed, claims=claims)


# ---- sharp cases: the model predicts the second class, its program the first; the rate of the program is known


class Close(nn.Module):
    """Two logits so close that rounding to eight bits exchanges their order."""

    def __init__(self):
        super().__init__()
        self.left = nn.Parameter(torch.tensor([1.004, 1.0035]))
        self.right = nn.Parameter(torch.tensor([1.0, 1.0035]))

    def forward(self, x):
        return self.left * self.right + 0 * x[:, :1]


def sharp_program(kind, tasks, seed, n=40):
    """One run in which the bound of a program fails as often as possible."""
    world = coin(ONE_HOT, DOMAINS, tasks, sharp_risk(kind, tasks, 0, n))
    samples = tasks_of(world, [n] * tasks, np.random.default_rng([seed, 7]))
    claims = partial(program_claims, partial(rounded, bits=8), [])
    options = {
        **sharp_options(0),
        "kind": kind,
        "tasks": tasks,
        "seed": seed,
        "data": {"stream": "synthetic"},
    }
    return run(world, Close(), samples, DOMAINS, claims=claims, **options)


# ---- controls: one assumption is broken; each must be violated more often than delta


def certified(world, seed, n, model=None):
    """A learner that trained nothing; the world, the withheld half of its one task, and the certificate."""
    (sample,) = tasks_of(world, (n,), np.random.default_rng([seed, 8])).values()
    learner, withheld, certificate = untouched(world, model or model_of("memory", 2, seed), sample, seed)
    return learner, world, withheld, certificate


def best_program(seed, broken):
    """The program with the least bound, of many that round up or down at random."""
    learner, world, samples, certificate = certified(world_of("waves", DOMAINS, 1), seed, 57, Waves(2, seed))
    candidates = []
    for number in range(PROGRAMS if broken else 1):
        program = rounded(learner.model, seed=number)
        candidates.append((program, *counted(program, certificate, samples)))
    program, records, statements = min(candidates, key=lambda candidate: candidate[2][0]["value"])
    return judged(truths(program, learner, world, records, statements))


def agreeing_rows(seed, broken):
    """Broken: errors are counted only where program and model agree."""
    learner, world, samples, certificate = certified(world_of("waves", DOMAINS, 1), seed, 57, Waves(2, seed))
    program, (x, y) = rounded(learner.model), samples[1]
    records, statements = counted(program, certificate, samples)
    if broken:
        options, (sets,) = certificate.options, sets_of(certificate)
        first, second = (net(torch.from_numpy(x)).argmax(1).numpy() for net in (program, learner.model))
        errors = wrong_rows(answers_alone(program, x), y, None) & (first == second)
        records = [{**records[0], **counts_and_parts(options, 1, 1, sets, errors, np.zeros_like(errors), {})}]
        statements = bounding.statements(options, records)
    return judged(truths(program, learner, world, records, statements))


def by_heart(seed, broken):
    """Broken: the program has a table of the examples that its errors are counted on."""
    learner, world, samples, certificate = certified(world_of("memory", DOMAINS, 1), seed, 57)
    program, (x, y) = rounded(learner.model), samples[1]
    if broken:
        table = torch.zeros(len(ONE_HOT), 2).index_put_(
            (torch.from_numpy(x).argmax(1), torch.from_numpy(y)), torch.tensor(1.0), accumulate=True
        )
        program = lambda inputs: table[inputs.argmax(1)] + torch.tensor([0.5, 0.0])  # noqa: E731
    return judged(truths(program, learner, world, *counted(program, certificate, samples)))


def not_counted(seed, broken):
    """Broken: the bounds of the model are read as those of its program."""
    learner, world, samples, certificate = certified(coin(ONE_HOT, DOMAINS, 1, 0.7), seed, 57, Close())
    program = rounded(learner.model, bits=8)
    records, statements = counted(program, certificate, samples)
    if broken:
        records, statements = certificate.records, certificate.statements
    return judged(truths(program, learner, world, records, statements))


CONTROLS = {
    f"the best of {PROGRAMS} programs by their bounds": best_program,
    "errors counted where program and model agree": agreeing_rows,
    "a program that has a table of the counted examples": by_heart,
    "the bounds of the model taken for the program's": not_counted,
}


def control(name, broken, seed):
    """One run of a control: broken, or intact."""
    return CONTROLS[name](seed, broken)
