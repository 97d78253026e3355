"""Programs that round otherwise than the model they are made of: do the bounds hold that follow from counting their errors?"""

import copy
from functools import partial

import numpy as np
import torch
from torch import nn
from whole_runs import (
    DELTA,
    DOMAINS,
    GROUPS,
    ONE_HOT,
    SHARP,
    UNTOUCHED,
    Waves,
    coin,
    holdout,
    judged,
    learned,
    model_of,
    run,
    sharp_options,
    sharp_risk,
    tasks_of,
    truth,
    whole,
    world_of,
)

from cop2l.certify.bounding import statements
from cop2l.certify.learner import CoP2L
from cop2l.certify.program import answers_alone, wrong_rows
from cop2l.exporting import recount_errors
from cop2l.kernel.counting import counts_and_parts
from cop2l.kernel.learning import SET_NAMES, Sets

CLAIMED = {"claim": ("tasks", "average", "classes", "groups"), "groups": GROUPS}
"""All that is claimed of programs."""
ALONE = [(kind, tasks) for kind, tasks, picks in SHARP if kind != "holdout" and not picks]
MANY = 20


# ---- programs


def rounded(model, bits=2, seed=None):
    """The model with so many significant bits of its parameters: a function of the parameters alone, and a coarse one.

    `seed`: up or down at random, in proportion; otherwise to the nearest.
    """
    program, draw = copy.deepcopy(model).eval(), torch.Generator().manual_seed(seed or 0)
    for own in program.parameters():
        share, power = torch.frexp(own.data)
        up = 0.5 if seed is None else torch.rand(own.shape, generator=draw)
        own.data = torch.ldexp((share * 2**bits + up).floor() / 2**bits, power)
    return program


def sets_of(certificate):
    """What was picked of each task; nothing where all was withheld."""
    if certificate.options.kind == "holdout":
        return [Sets() for _ in certificate.records]
    kept = certificate.tensors["sets"]
    return [
        Sets(
            **{name: kept[f"{one['task']}/{name}"].numpy() for name in SET_NAMES},
            iterations=one["iterations"],
            stopped=one["stopped"],
        )
        for one in certificate.records
    ]


def with_groups(world, samples):
    return {t: (x, y, world.groups(x)) for t, (x, y, *_) in samples.items()}


def wrong_of(program, world, head):
    """Which inputs with which class a program misclassifies, asked for one at a time; `head`: among these classes alone."""
    with torch.no_grad():
        logits = np.stack([program(torch.from_numpy(x[None]))[0].numpy() for x in world.support])
    if head is not None:
        logits[:, np.setdiff1d(np.arange(world.classes), head)] = -np.inf
    return np.stack([~(logits[:, c] > np.delete(logits, c, 1).max(1)) for c in range(world.classes)], 1)


def truths(program, learner, world, found):
    """(truth, bound) for the records and statements of a program."""
    records, values = found
    own = learner.scenario == "task-incremental"
    now = [wrong_of(program, world, one["head"] if own else None) for one in records]
    return [(truth(one, world, records, now, None), one["value"]) for one in values]


def counted(program, certificate, samples):
    """The records and statements of a program, as an export has them."""
    return recount_errors(program, certificate.content, certificate.options, sets_of(certificate), samples)


def of_program(make, seen, learner, world, certificate, _, samples):
    """What is stated of the program that `make` makes of a learner's model; `seen` notes whether its counts are others."""
    program = make(learner.model)
    found = counted(program, certificate, with_groups(world, samples))
    strip = [
        [(r["errors_not_picked"], r["compressed"]) for r in records]
        for records in (found[0], certificate.records)
    ]
    seen.append(strip[0] != strip[1])
    return truths(program, learner, world, found)


# ---- whole runs


def recounted(setting, seed, seen=None):
    """One run of a setting, and the bounds of its rounded program."""
    return whole(setting, CLAIMED, seed, partial(of_program, rounded, [] if seen is None else seen))


def recounted_holdout(name, scenario, anytime, seed, seen=None):
    """The same for a hold-out of a method."""
    claims = partial(of_program, rounded, [] if seen is None else seen)
    return holdout(name, scenario, anytime, CLAIMED, seed, claims=claims)


# ---- sharp cases: the model says the second class, its program the first, and the rate of the program is known


class Close(nn.Module):
    """Two logits that are so close that eight bits put them the other way round."""

    def __init__(self):
        super().__init__()
        self.one = nn.Parameter(torch.tensor([1.004, 1.0035]))
        self.other = nn.Parameter(torch.tensor([1.0, 1.0035]))

    def forward(self, x):
        return self.one * self.other + 0 * x[:, :1]


def sharp_program(kind, tasks, seed, n=40):
    """One run in which the bound of a program fails as often as it can; that of the model is about something else."""
    world = coin(ONE_HOT, DOMAINS, tasks, sharp_risk(kind, tasks, 0, n))
    samples, seen = tasks_of(world, [n] * tasks, np.random.default_rng([seed, 7])), []
    claims = partial(of_program, partial(rounded, bits=8), seen)
    options = {
        **sharp_options(0),
        "kind": kind,
        "tasks": tasks,
        "seed": seed,
        "data": {"stream": "synthetic"},
    }
    return run(world, Close(), samples, DOMAINS, claims=claims, **options)


# ---- controls: the same path with one thing broken; each must be violated more often than delta


def certified(world, seed, n, model=None):
    """A learner of one task that learned nothing from it, the task's world and sample, and the certificate."""
    samples = tasks_of(world, (n,), np.random.default_rng([seed, 8]))
    options = {**UNTOUCHED, "tasks": 1, "seed": seed}
    learner = CoP2L(
        model or model_of("memory", 2, seed),
        repeats=True,
        data={"stream": "synthetic"},
        preset="picking",
        scenario=DOMAINS,
        delta=DELTA,
        **options,
    )
    list(learned(learner, world, samples))
    return learner, world, samples, learner.certify(samples)


def best_program(seed, broken):
    """The one with the least bound, of many that round up or down at random."""
    learner, world, samples, certificate = certified(world_of("waves", DOMAINS, 1), seed, 57, Waves(2, seed))
    made = [rounded(learner.model, seed=number) for number in range(MANY if broken else 1)]
    found = [counted(program, certificate, samples) for program in made]
    best = min(range(len(made)), key=lambda number: found[number][1][0]["value"])
    return judged(truths(made[best], learner, world, found[best]))


def agreeing_rows(seed, broken):
    """Errors of the program where it says what the model says; what it says otherwise is taken for rounding."""
    learner, world, samples, certificate = certified(world_of("waves", DOMAINS, 1), seed, 57, Waves(2, seed))
    program, (x, y) = rounded(learner.model), samples[1]
    found = counted(program, certificate, samples)
    if broken:
        options, (sets,) = certificate.options, sets_of(certificate)
        says, said = (made(torch.from_numpy(x)).argmax(1).numpy() for made in (program, learner.model))
        wrong = wrong_rows(answers_alone(program, x), y, None) & (says == said)
        records = [{**found[0][0], **counts_and_parts(options, 1, 1, sets, wrong, {})}]
        found = records, statements(options, records)
    return judged(truths(program, learner, world, found))


def by_heart(seed, broken):
    """A program with a table of the examples that its errors are counted on."""
    learner, world, samples, certificate = certified(world_of("memory", DOMAINS, 1), seed, 57)
    program, (x, y) = rounded(learner.model), samples[1]
    if broken:
        table = torch.zeros(len(ONE_HOT), 2).index_put_(
            (torch.from_numpy(x).argmax(1), torch.from_numpy(y)), torch.tensor(1.0), accumulate=True
        )
        program = lambda asked: table[asked.argmax(1)] + torch.tensor([0.5, 0.0])  # noqa: E731
    return judged(truths(program, learner, world, counted(program, certificate, samples)))


def not_counted(seed, broken):
    """The model's own bounds, taken for its program's."""
    learner, world, samples, certificate = certified(coin(ONE_HOT, DOMAINS, 1, 0.7), seed, 57, Close())
    program = rounded(learner.model, bits=8)
    found = counted(program, certificate, samples)
    if broken:
        found = certificate.records, certificate.statements
    return judged(truths(program, learner, world, found))


CONTROLS = {
    f"the best of {MANY} programs by their bounds": best_program,
    "errors counted where program and model agree": agreeing_rows,
    "a program that has a table of the counted examples": by_heart,
    "the bounds of the model taken for the program's": not_counted,
}


def control(name, broken, seed):
    """One run of a control: with one thing broken, or the same run as it should be."""
    return CONTROLS[name](seed, broken)
