"""Whole runs through the public interface, on tasks whose true risk is a finite sum, and rates of violated statements."""

import itertools
import math
from dataclasses import dataclass
from functools import cache, partial
from statistics import median

import numpy as np
import torch
from scipy.stats import beta, binom
from torch import nn

from cop2l.bounds import anytime_log_delta, holdout_certificate
from cop2l.certificates.bounding import bound_of, log_delta
from cop2l.holdout.holdout import Holdout
from cop2l.kernel.exact import withheld_rows
from cop2l.kernel.options import Options
from cop2l.learner.cop2l import CoP2L
from cop2l.methods import method
from cop2l.models import build
from cop2l.randomness import marks
from cop2l.streams.clouds import synthetic

DELTA = 0.3
LEVEL = 1e-4
"""The level at which a rate is significantly above delta."""
SCENARIOS = ("class-incremental", "task-incremental", "domain-incremental")
DOMAINS = "domain-incremental"
SIZES = (24, 96, 48)
CELLS = 48
FAMILIES = ("tasks", "average", "forgetting", "classes", "groups")
GROUPS = ("a", "b", "nobody")
ALL = {"claim": FAMILIES, "groups": GROUPS}


# ---- rates


@dataclass(frozen=True)
class Run:
    """The outcome of one run: of all its statements, at all times."""

    violated: bool
    ratios: tuple[float, ...]
    """Bound over risk, for every statement."""
    overflow: tuple[bool, ...] = ()
    """After every task: whether the buffer holds more examples than the memory."""


def judged(statements, overflow=()):
    """The outcome of a run with these statements (risk, bound). The margin covers the rounding of the risk, which is a sum."""
    pairs = list(statements)
    ratios = tuple(bound / risk for risk, bound in pairs if risk > 0)
    return Run(any(risk > bound + 1e-12 for risk, bound in pairs), ratios, tuple(overflow))


def rate(runs):
    """Runs, violated runs, their share with its Clopper-Pearson interval (95 %), and the median of bound over risk."""
    n, violated = len(runs), sum(run.violated for run in runs)
    low = beta.ppf(0.025, violated, n - violated + 1) if violated else 0.0
    high = beta.ppf(0.975, violated + 1, n - violated) if violated < n else 1.0
    ratios = [ratio for run in runs for ratio in run.ratios]
    return {
        "runs": n,
        "violated": violated,
        "rate": violated / n,
        "interval": [float(low), float(high)],
        "ratio": median(ratios) if ratios else None,
    }


def print_rate(name, rates):
    """Print a rate for `pytest -s`, and return it."""
    print(f"{name}: {rates['violated']} of {rates['runs']} runs violated, bound / risk {rates['ratio']:.2f}")
    return rates


def above(rates, delta=DELTA):
    """Whether the runs were violated significantly more often than delta."""
    return bool(binom.sf(rates["violated"] - 1, rates["runs"], delta) < LEVEL)


# ---- worlds: tasks with known distributions


@dataclass(frozen=True, eq=False)
class World:
    """All possible inputs, and for every task the probability of each input with each class."""

    support: np.ndarray
    probability: np.ndarray
    heads: tuple[tuple[int, ...], ...]

    @property
    def classes(self):
        return self.probability.shape[2]

    def draw(self, task, n, random):
        """Independent examples of a task (from 1); `random` is independent of the seeds of a learner."""
        joint = self.probability[task - 1]
        cell = random.choice(joint.size, n, p=joint.ravel() / joint.sum())
        row, label = np.divmod(cell, joint.shape[1])
        return self.support[row], label.astype(np.int64)

    def risk(self, predict, task):
        """The exact probability that `predict` errs on a new example of a task."""
        return self.chance(task, self.errors(np.asarray(predict(self.support))))

    def errors(self, predicted):
        """A mask of inputs and classes: whether these predictions for the inputs misclassify them."""
        return np.asarray(predicted)[:, None] != np.arange(self.classes)

    def chance(self, task, event, condition=True):
        """The exact probability of an event (a mask of inputs and classes) on a new example of a task, given a condition."""
        joint = self.probability[task - 1]
        condition = np.broadcast_to(condition, joint.shape)
        return float(joint[event & condition].sum() / joint[condition].sum())

    def groups(self, x):
        """The recorded group of each example, a function of its input; the third group is empty."""
        place = {row.tobytes(): GROUPS[at % 2] for at, row in enumerate(self.support)}
        return np.array([place[row.tobytes()] for row in np.ascontiguousarray(x)])


def heads_of(scenario, tasks):
    same = scenario == "domain-incremental"
    return tuple((0, 1) if same else (2 * t, 2 * t + 1) for t in range(tasks))


def coin(support, scenario, tasks, p=0.5):
    """Labels that are independent of the inputs: the second class of the head with probability p."""
    heads = heads_of(scenario, tasks)
    probability = np.zeros((tasks, len(support), max(map(max, heads)) + 1))
    for t, (first, second) in enumerate(heads):
        probability[t, :, first], probability[t, :, second] = (1 - p) / len(support), p / len(support)
    return World(support, probability, heads)


ONE_HOT = np.eye(CELLS, dtype=np.float32)
CODES = np.random.default_rng(7).normal(size=(CELLS, 8)).astype(np.float32)


@cache
def world_of(name, scenario, tasks):
    """`memory`: pure noise, and a model that memorises; `waves`: pure noise, and a model whose predictions change with every
    update; `clouds`: a learnable problem."""
    if name == "clouds":
        stream = synthetic(
            tasks=tasks, n=1, n_test=1, dimensions=2, levels=7, noise=1.5, scenario=scenario, problem=3
        )
        return World(stream.support, stream.probability, stream.heads)
    return coin(ONE_HOT if name == "memory" else CODES, scenario, tasks)


class Waves(nn.Module):
    """Logits that change with the smallest change of the weights: each update gives a nearly unrelated predictor."""

    def __init__(self, classes, seed):
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(classes, CODES.shape[1], generator=draw))

    def forward(self, x):
        return 2 * torch.sin(9 * nn.functional.linear(x, self.weight))


class Always(nn.Module):
    """Predicts the first class of a head for every input, until it is trained."""

    def __init__(self, classes):
        super().__init__()
        self.bias = nn.Parameter(-torch.arange(classes, dtype=torch.float32))

    def forward(self, x):
        return self.bias + 0 * x[:, :1]


def model_of(name, classes, seed):
    if name == "waves":
        return Waves(classes, seed)
    if name == "clouds":
        return build("mlp", inputs=(2,), classes=classes, seed=seed, hidden=16)
    return build("linear", inputs=(CELLS,), classes=classes, seed=seed)


# ---- one run


def tasks_of(world, sizes, random):
    return {t: world.draw(t, n, random) for t, n in enumerate(sizes, 1)}


def learned(learner, world, samples):
    """Learn task after task; yields the number of tasks seen after each."""
    for t, (x, y) in samples.items():
        groups = world.groups(x) if learner.options.groups else None
        learner.learn(x, y, classes=world.heads[t - 1], groups=groups)
        yield t


def model_claims(learner, world, certificate, errors_then=None, samples=None):
    """(truth, bound) for every statement of a certificate about the model.

    errors_then: for each task the errors just after it was learned, as a mask of inputs and classes.
    """
    last = len(certificate.records)
    errors_now = [world.errors(predictions(learner, world, task)) for task in range(1, last + 1)]
    for statement in certificate.statements:
        yield truth(statement, world, certificate.records, errors_now, errors_then), statement["value"]


def predictions(learner, world, task):
    """The predicted classes of all inputs of a task."""
    head_task = task if learner.scenario == "task-incremental" else None
    return np.asarray(learner.predict(world.support, task=head_task))


def truth(statement, world, records, errors_now, errors_then):
    """The exact value of the quantity that a statement bounds."""
    family, task, subject = statement["family"], statement["task"], statement["subject"]
    if task is None:
        tasks = range(1, len(records) + (family == "average"))
        of_task = {"family": "tasks" if family == "average" else family, "subject": "lost"}
        values = [truth({**of_task, "task": t}, world, records, errors_now, errors_then) for t in tasks]
        return float(np.average(values, weights=[records[t - 1]["n"] for t in tasks]))
    errors = errors_now[task - 1]
    if family == "forgetting":
        lost = world.chance(task, errors & ~errors_then[task - 1])
        return lost - (world.chance(task, ~errors & errors_then[task - 1]) if subject == "net" else 0.0)
    if family == "classes":
        return world.chance(task, errors, (np.arange(world.classes) == subject)[None, :])
    if family == "groups":
        members = world.groups(world.support) == subject
        return world.chance(task, errors, members[:, None]) if members.any() else 0.0
    return world.chance(task, errors)


def run(world, model, samples, scenario, *, old_data_gone=False, claims=model_claims, **options):
    """Learn the samples; certify at the end or, without a fixed number of tasks, after every task.

    `claims` gives (truth, bound) of the statements about the model, or about a program exported from it.
    """
    learner = CoP2L(model, repeats=True, preset="picking", scenario=scenario, delta=DELTA, **options)
    statements, overflow, errors_then = [], [], []
    for t in learned(learner, world, samples):
        errors_then.append(world.errors(predictions(learner, world, t)))
        overflow.append(learner.memory_used > learner.options.memory)
        if learner.options.tasks in (None, t):
            data = {s: samples[s] for s in range(t if old_data_gone else 1, t + 1)}
            statements += claims(learner, world, learner.certify(data), errors_then, samples)
    return judged(statements, overflow if learner.options.uses_marks else ())


# ---- every setting: the product of all choices

CLAIMS = [
    ("uniform", "kl"),
    *(("threshold", kind) for kind in ("kl", "preference", "buffer")),
]
FACTORS = {
    "kind": ("kl", "preference", "buffer"),
    "buffer": ("uniform", "threshold"),
    "stop": ("kl", "preference", "none"),
    "grid": (False, True),
    "scenario": SCENARIOS,
    "times": ("fixed", "anytime"),
    "old data": ("at hand", "gone"),
    "world": ("memory", "waves", "clouds"),
}
COMMON = {
    "memory": 80, "k": 3, "omega": 2.0, "batch": 16, "epochs": 2, "lr": 0.5, "max_iterations": 6,
}  # fmt: skip


def settings(turn=0):
    """Every combination of the factors; the worlds take turns."""
    names = [name for name in FACTORS if name not in ("kind", "buffer", "world")]
    for number, ((buffer, kind), *values) in enumerate(
        itertools.product(CLAIMS, *(FACTORS[name] for name in names))
    ):
        world = FACTORS["world"][(number + number // 3 + turn) % 3]
        yield {"buffer": buffer, "kind": kind, **dict(zip(names, values, strict=True)), "world": world}


def run_setting(setting, claim_options, seed, claims=model_claims):
    """One run of a setting; the data and the learner's seed are functions of `seed`."""
    random = np.random.default_rng([seed, 1])
    world = world_of(setting["world"], setting["scenario"], len(SIZES))
    model = model_of(setting["world"], world.classes, seed=seed)
    options = {name: setting[name] for name in ("buffer", "kind", "stop", "grid")}
    tasks = len(SIZES) if setting["times"] == "fixed" else None
    return run(
        world,
        model,
        tasks_of(world, SIZES, random),
        setting["scenario"],
        old_data_gone=setting["old data"] == "gone",
        claims=claims,
        **{**COMMON, **options, **claim_options, "tasks": tasks, "seed": 10**6 + seed},
    )


# ---- sharp cases: the risk lies just above the least possible bound, and the rate is known

SHARP = [
    *itertools.product(("kl", "preference", "buffer", "holdout"), (1, 3), (0,)),
    *itertools.product(("preference", "buffer"), (1, 3), (1,)),
]
"""The kind, the number of tasks, and the number of picks of each task."""


def sharp_options(picks):
    """Options with which every task picks `picks` examples, one after the other, and later tasks pick none of them."""
    return {
        "stop": "none", "grid": True, "memory": 10**4, "k": 1, "lr": 1e-6, "gamma": 1e-9, "omega": 1e-9,
        "max_iterations": picks,
    }  # fmt: skip


@cache
def sharp_risk(kind, tasks, picks, n):
    """A risk just above the bound of a task without errors beyond the picks."""
    if kind == "holdout":
        return float(holdout_certificate(n, 0, tasks, math.log(DELTA))) + 1e-9
    record = {
        "n": n, "iterations": picks, "errors": 0, "compression": picks, "evicted": 0,
        "errors_not_picked": 0, "picked": picks, "selected": n, "compressed": picks,
    }  # fmt: skip
    options = Options(kind=kind, tasks=tasks, delta=DELTA, **sharp_options(picks))
    bound = bound_of(kind, record, 1, options, [picks] * tasks, log_delta(options, tasks))
    return float(bound) + 1e-9


def sharp_rate(kind, tasks, picks, n=40):
    """The rate that theory gives. The picks are errors first, so a bound fails if at most `picks` examples are errors."""
    return 1 - (1 - float(binom.cdf(picks, n, sharp_risk(kind, tasks, picks, n)))) ** tasks


def sharp(kind, tasks, picks, seed, n=40):
    """One run in which `kind` fails as often as possible: a constant prediction, and errors at the rate `sharp_risk`."""
    world = coin(ONE_HOT, DOMAINS, tasks, sharp_risk(kind, tasks, picks, n))
    samples = tasks_of(world, [n] * tasks, np.random.default_rng([seed, 2]))
    if kind != "holdout":
        return run(
            world, Always(2), samples, DOMAINS, **sharp_options(picks), kind=kind, tasks=tasks, seed=seed
        )
    errors = {t: int(y.sum()) for t, (_, y) in samples.items()}
    bounds = [float(holdout_certificate(n, count, tasks, math.log(DELTA))) for count in errors.values()]
    return judged((world.risk(lambda x: np.zeros(len(x), int), t), bounds[t - 1]) for t in errors)


# ---- hold-out: any method, a part of every task withheld in advance

METHODS = ("finetuning", "replay", "joint", "gdumb")


def holdout(name, scenario, anytime, claim_options, seed, sizes=(40, 60, 50), claims=model_claims):
    """One run of a method with half of every task withheld, certified after the last task or after each.

    Past tasks are certified by all their withheld rows or, if the seed is odd, by the few that are kept.
    """
    world = world_of("memory", scenario, len(sizes))
    options = {"memory": 30, "seed": seed, "scenario": scenario, "epochs": 2, "lr": 0.5}
    learner = withholding(
        method(name)(model_of("memory", world.classes, seed), **options),
        keep_withheld=20 if seed % 2 else 10**6,
        tasks=None if anytime else len(sizes),
        **claim_options,
    )
    errors_then, statements = [], []
    for t in learned(learner, world, tasks_of(world, sizes, np.random.default_rng([seed, 4]))):
        errors_then.append(world.errors(predictions(learner, world, t)))
        if learner.options.tasks in (None, t):
            statements += claims(learner, world, learner.certify(), errors_then, kept_samples(learner))
    return judged(statements)


def withholding(learner, **options):
    """A hold-out on inputs that are drawn from few values."""
    return Holdout(
        learner, delta=DELTA, repeats=True, scale=False, data={"stream": "synthetic"}, **options
    )  # fmt: skip


def kept_samples(learner):
    """The rows that certify if no data is given again."""
    return {t: (task.x.numpy(), task.y.numpy()) for t, task in enumerate(learner.state.tasks, 1)}


def untouched(world, model, sample, seed, **options):
    """A learner that trained nothing on its one task, the withheld half of this sample, and the certificate."""
    learner = withholding(
        method("finetuning")(model, seed=seed, scenario=DOMAINS, epochs=1, lr=1e-12), tasks=1, **options
    )
    learner.learn(*sample)
    return learner, kept_samples(learner), learner.certify()


# ---- controls: one assumption is broken; each must be violated more often than delta

PICKING = {
    "buffer": "threshold", "stop": "preference", "kind": "preference", "k": 1, "epochs": 10, "batch": 16, "lr": 2.0,
    "omega": 2.0, "max_iterations": 16, "grid": True, "memory": 10**4,
}  # fmt: skip


def run_samples(samples, options, seed, model=None):
    """A run on these samples, which may violate what the certificate assumes."""
    world = world_of("memory", DOMAINS, len(samples))
    model = model or model_of("memory", 2, seed)
    return run(world, model, samples, DOMAINS, **options, tasks=len(samples), seed=seed)


def noise(sizes, seed):
    return tasks_of(world_of("memory", DOMAINS, len(sizes)), sizes, np.random.default_rng([seed, 5]))


def oversampled(options, seed, broken):
    """Every example eight times in its task."""
    copies = 8 if broken else 1
    samples = noise((15, 15) if broken else (120, 120), seed)
    return run_samples(
        {t: (np.repeat(x, copies, axis=0), np.repeat(y, copies)) for t, (x, y) in samples.items()},
        options,
        seed,
    )


def shared_rows(options, seed, broken, tasks):
    """Tasks with the same rows."""
    samples = noise((40,) * tasks, seed)
    return run_samples({t: samples[1 if broken else t] for t in samples}, options, seed)


def fitted_start(options, seed, broken):
    """Initial parameters that were trained on the data."""
    samples, model = noise((40, 40), seed), model_of("memory", 2, seed)
    x, y = (np.concatenate(column) for column in zip(*samples.values(), strict=True))
    optimiser = torch.optim.SGD(model.parameters(), lr=5.0)
    for _ in range(50 if broken else 0):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimiser.step()
    return run_samples(samples, options, seed, model)


def best_of_commitments(seed, broken):
    """The run with the least sum of bounds, of twenty on the same data whose seeds were committed to before it was drawn.

    Broken: each commitment says that it is the only one; intact: that it is one of twenty.
    """
    world, samples, runs = world_of("memory", DOMAINS, 1), noise((57,), seed), []
    for number in range(20):
        run_seed = 20 * seed + number
        model = model_of("memory", 2, run_seed)
        learner, _, certificate = untouched(world, model, samples[1], run_seed, siblings=1 if broken else 20)
        bound = certificate.bounds[1]
        runs.append((bound, number, [(world.risk(learner.predict, 1), bound)]))
    return judged(min(runs)[2])


UNTOUCHED = {**PICKING, "stop": "none", "max_iterations": 0}
"""Nothing is trained and nothing is picked."""


def every_task(seed, broken):
    """A report after each of six tasks, each with the delta for a number of tasks fixed in advance."""
    world, statements, withheld = world_of("waves", DOMAINS, 6), [], {}
    learner = method("finetuning")(Waves(2, seed), seed=seed, scenario=DOMAINS, epochs=2, lr=0.5)
    for t, (x, y) in tasks_of(world, (57,) * 6, np.random.default_rng([seed, 6])).items():
        mask = withheld_rows(57, t, 0.5, seed)
        withheld[t] = x[mask], y[mask]
        learner.learn(x[~mask], y[~mask])
        share = math.log(DELTA) if broken else anytime_log_delta(math.log(DELTA), t)
        for task, (x, y) in withheld.items():
            errors = int((learner.predict(x).numpy() != y).sum())
            bound = float(holdout_certificate(len(y), errors, t, share))
            statements.append((world.risk(learner.predict, task), bound))
    return judged(statements)


def arranged(seed, broken):
    """Rows in an order that suits the marks: the examples in memory are classified correctly."""
    world, samples = coin(ONE_HOT, DOMAINS, 1), noise((200,), seed)
    x, y = samples[1]
    if broken:
        place = np.argsort(marks(seed, "mark", 1, n=len(y)))
        x, y = x.copy(), y.copy()
        x[place], y[place] = x[np.argsort(y)], np.sort(y)
    options = {**UNTOUCHED, "kind": "buffer", "memory": 100}
    return run(world, Always(2), {1: (x, y)}, DOMAINS, **options, tasks=1, seed=seed)


CONTROLS = {
    "rows eight times in a task; preference": partial(oversampled, PICKING),
    "rows shared between tasks; preference": partial(shared_rows, {**PICKING, "k": 4}, tasks=2),
    "initial parameters fitted to the data; nothing picked": partial(fitted_start, UNTOUCHED),
    "initial parameters fitted to the data; preference": partial(fitted_start, PICKING),
    "initial parameters fitted to the data; kl": partial(fitted_start, {**UNTOUCHED, "kind": "kl"}),
    "best of twenty commitments, each made as if it were the only one": best_of_commitments,
    "a report after every task, delta for a fixed number": every_task,
    "rows arranged to suit the marks; buffer": arranged,
}


def control(name, broken, seed):
    """One run of a control: broken, or intact."""
    return CONTROLS[name](seed, broken)
