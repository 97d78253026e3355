"""reproduction/tables.md, from runs alone."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cop2l.report.figures.figure import rate_text
from cop2l.report.groups import Spread
from cop2l.report.runs import Run
from reproduction import ablations, appendix, checks, claims, closed_form, exceeding, heads, search
from reproduction.certificates import bound_comparisons, contenders, stream_table, verdicts
from reproduction.explanations import Explanations
from reproduction.explanations import read as read_explanations
from reproduction.machines import Machines, ages
from reproduction.markdown import folded, paragraphs, published_rate, rate, table
from reproduction.numbers import STATUSES, Number, number_table, numbers, tally
from reproduction.order import order_table, standings
from reproduction.ours import AS_PUBLISHED, HYBRID, Sample, Setup, pick, samples, streams
from reproduction.pictures import Pictures
from reproduction.quotes import filled
from reproduction.references import accuracies, reference_table, references_of
from reproduction.verdict import RULES, Verdict

INTRODUCTION = """\
# The paper's numbers beside ours

- Paper: Comeau, Bazinet, Germain and Subakan, *Sample Compression for Self-Certified Continual Learning*. Table numbers
  below are the paper's.
{claims}
- Numbers in the paper's tables: {numbers}.
- Not run, other backbone: the weights of DINO ViT-S/16 and DINO ResNet50 could not be obtained. We use DINOv2 ViT-S/14
  (and a supervised ResNet50 for CIFAR-10): the order of the methods compares, absolute numbers do not.
- Not run, too expensive or no data: most of EMNIST, CSReL, CCLIS and La-MAML. Each row says what is missing.
- Times are not comparable: other hardware, and features are computed once instead of in the training loop.
- `python -m reproduction` makes this page from `reproduction/results`. The command in a row makes the runs behind it."""

TABLES = {
    ("class-incremental", "cifar10", 5): 8,
    ("class-incremental", "cifar100", 10): 9,
    ("class-incremental", "cifar100", 20): 10,
    ("class-incremental", "tinyimagenet", 40): 11,
    ("class-incremental", "mnist", 5): 12,
    ("class-incremental", "fashion-mnist", 5): 13,
    ("class-incremental", "emnist-letters", 13): 14,
    ("task-incremental", "cifar10", 5): 15,
    ("task-incremental", "cifar100", 10): 16,
    ("task-incremental", "cifar100", 20): 17,
    ("task-incremental", "tinyimagenet", 40): 18,
    ("task-incremental", "imagenette", 5): 19,
    ("task-incremental", "imagewoof", 5): 20,
    ("domain-incremental", "permuted-mnist", 10): 21,
    ("domain-incremental", "rotated-mnist", 10): 22,
}
"""The number of each table in the paper; Table 1 summarises tables 8 to 11 and 15 to 18."""

STATUS = """\
**Status.** *reproduced*: within 2 combined standard deviations (ours counts up to 2 points) or 1 point of the paper,
with the same model. *better*: further away, on the better side. *differs*: further away, on the worse side, with the
reason if it is known. Where less was learned (plasticity, which is accuracy + (T - 1)/T x forgetting, lies below the
paper's by the same rule), less forgetting is not *better* but *differs*, and forgetting is *reproduced* only together
with the accuracy. *other backbone*: the paper's frozen backbone (DINO ViT-S/16 at 64 px) cannot be had here; we
use DINOv2 ViT-S/14 at 224 and at 70 px, and for the DINO ResNet50 the supervised ResNet50 of Keras at 64 px (CIFAR-10
alone), so that absolute numbers do not compare, and the order of the methods and the gaps to Replay do.
*other hardware*: times; the paper's are of an RTX 4090 with the backbone inside the loop, ours of
the machine named in the row on cached features. *not run*: with what is missing. Ours is mean ± standard deviation
over seeds, whose number is in parentheses; all numbers are in per cent unless they say otherwise. † marks
certificates that are not valid, because the backbone saw the data or because tasks share pictures. ‡ marks streams
of pictures on which the settings of `hybrid` were chosen: there its certificates do not pay for the choice. The presets
are explained in [configuration.md](../docs/configuration.md#presets)."""

SEARCH = "[How the settings were chosen](search.md): the streams, the rule, every try and the decision."

TITLES = {
    "class-incremental": "Class-incremental",
    "task-incremental": "Task-incremental",
    "domain-incremental": "Domain-incremental",
}


@dataclass(frozen=True)
class Sources:
    """Everything the document is made of."""

    runs: tuple[Run, ...]
    explanations: Explanations


def sources(runs: Sequence[Run], folder: Path | None) -> Sources:
    """The runs, and what a folder of results says about them: explanations.toml."""
    return Sources(
        tuple(runs),
        filled(read_explanations(folder / "explanations.toml" if folder else None), samples(runs)),
    )


def document(given: Sources, pictures: Pictures) -> str:
    """The whole document."""
    found, machines = samples(given.runs), Machines(given.runs)
    every, judged = numbers(found, given.explanations), claims.verdicts(found, given.runs)
    notes = given.explanations.notes
    return (
        paragraphs(
            introduction(judged, every),
            ages(given.runs),
            "## The paper's claims",
            "\n".join(verdict.text for verdict in judged),
            RULES,
            "## How to read the tables",
            STATUS,
            "Machines; a run uses one thread of its machine.",
            machines.table(),
            "How many of the numbers in the paper's tables have which status:",
            tally(every),
            *published_tables(every, found, machines, given.explanations),
            "## With a trainable layer under the head",
            heads.section(found, every),
            notes.get("heads", ""),
            *bound_figures(found, pictures, notes.get("bounds", "")),
            "## Checks",
            "Runs with a setting that the paper does not state, made to find out why a number differs.",
            checks.section(found, every, machines),
            notes.get("checks", ""),
            *analyses(found, given.runs, machines, pictures, notes),
            *beyond(found, machines, given, notes),
            surprises(given.explanations),
        )
        + "\n"
    )


def introduction(judged: Sequence[Verdict], every: Sequence[Number]) -> str:
    """Which claims hold, which numbers are reproduced, and what could not be run."""
    by_word: dict[str, list[str]] = {}
    for verdict in judged:
        by_word.setdefault(verdict.word, []).append(verdict.claim)
    counts = Counter(number.status for number in every)
    return INTRODUCTION.format(
        claims="\n".join(f"- Claims, {word}: {'; '.join(names).lower()}." for word, names in by_word.items()),
        numbers=", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status]),
    )


def published_tables(
    every: Sequence[Number], found: Sequence[Sample], machines: Machines, why: Explanations
) -> list[str]:
    """A section for every published table."""
    parts = ["## The published tables", why.notes.get("tables", "")]
    for scenario, dataset, tasks in dict.fromkeys(number.title for number in every):
        shown = [number for number in every if number.title == (scenario, dataset, tasks)]
        references = references_of(found, scenario, dataset, tasks)
        means = accuracies(references)
        order = order_table(shown, means, why)
        rows = number_table(shown, machines, standings(shown, means))
        number = TABLES.get((scenario, dataset, tasks))
        head = f"### {f'Table {number}. ' if number else ''}{TITLES[scenario]}: {dataset}, {tasks} tasks"
        if order:
            intro = (
                "Average accuracy; in parentheses the place (1 + how many are better by more than 2 combined standard"
                " deviations, so that places are shared) and the gap to Replay in points."
            )
            every_row = paragraphs(rows, reference_table(references, machines))
            rows = folded(f"All {len(shown)} numbers, with commands", every_row)
            parts.append(paragraphs(head, intro, order, rows))
        else:
            parts.append(paragraphs(head, rows))
    return parts


def bound_figures(found: Sequence[Sample], pictures: Pictures, note: str) -> list[str]:
    """The per-task bounds of every stream."""
    intro = (
        "Bounds on every task after the last one, against the test error: a band of one standard deviation over the"
        " seeds. `kl` is the paper's formula."
    )
    shown = [pictures.bounds(found, stream) for stream in streams(found)]
    over = [pictures.bounds_by_memory(found, stream) for stream in streams(found)]
    return ["## Bounds task by task", intro, note, *filter(None, shown), *filter(None, over)]


def analyses(
    found: Sequence[Sample],
    runs: Sequence[Run],
    machines: Machines,
    pictures: Pictures,
    notes: Mapping[str, str],
) -> list[str]:
    """The analyses of the paper's appendix."""
    weights = ablations.weighed(found)
    sizes = ablations.varied(found, {"memory"}, ("cop2l", "replay"))
    return [
        "## Analyses of the appendix",
        "### The weight of replayed examples (omega)",
        ablations.omega(found, machines),
        *(pictures.against_memory("omega", own) for own in weights.values()),
        notes.get("omega", ""),
        "### Buffer size",
        ablations.buffer_size(found, machines),
        *(pictures.against_memory("buffer", own) for own in sizes.values()),
        notes.get("buffer-size", ""),
        "### Task order",
        (
            "Average cumulative accuracy after each task, mean ± standard deviation over the orders. Where the classes are"
            " shuffled before they are split (`class_seed`), the tasks have other classes too; `order_seed` and"
            " `order=reversed` change the order of the tasks alone."
        ),
        ablations.task_order(runs),
        *pictures.task_order(runs),
        notes.get("task-order", ""),
        "### Memory",
        appendix.memory_cost(runs),
        notes.get("memory", ""),
        "### Early stopping",
        appendix.early_stopping(found),
        notes.get("early-stopping", ""),
        "### Class by class",
        appendix.class_wise(found),
        *pictures.classes(found),
        notes.get("class-wise", ""),
        "### Plasticity against forgetting",
        appendix.plasticity(found),
        *pictures.plasticity(found),
        notes.get("plasticity", ""),
    ]


def beyond(
    found: Sequence[Sample],
    machines: Machines,
    given: Sources,
    notes: Mapping[str, str],
) -> list[str]:
    """What the paper does not have: other certificates, another preset, and the search that led to it."""
    default = bound_comparisons(found, "CoP2L, preset picking")
    hybrid = bound_comparisons(found, "CoP2L, hybrid", search.CHOSEN_ON["hybrid"])
    parts = [
        "## Beyond the paper",
        "### Our presets against the paper's CoP2L and against hold-out",
        (
            "Differences in points: for accuracy, more is better for the preset; for bounds (the claimed one; mean over"
            " tasks / worst task), less is."
        ),
        "**`cop2l`**: no prior examples; the bound pays for every pick.",
        verdicts(default) if default else ablations.NOT_RUN,
        notes.get("cop2l", ""),
        "**`hybrid`**: a share of each task are prior examples, the rest certifies, with picks where they pay.",
        verdicts(hybrid) if hybrid else ablations.NOT_RUN,
        notes.get("hybrid", ""),
        "### Frozen features: learners in closed form",
        closed_form.section(found, machines) or ablations.NOT_RUN,
        notes.get("closed-form", ""),
        "### Test errors above their claims",
        exceeding.section(given.runs),
        "### Every certificate on every stream",
        (
            "Mean over tasks / worst task, means over seeds; the claim is bold. The last but one column divides the claim"
            " by the test error."
        ),
    ]
    certifying = [stream for stream in streams(found) if contenders(found, stream)]
    parts += [paragraphs(f"**{s.name}**", stream_table(found, s, machines)) for s in certifying]
    return [*parts, "### The search for the settings", SEARCH]


def surprises(why: Explanations) -> str:
    """The most surprising differences, and what explains them."""
    if not why.surprises:
        return ""
    items = [f"{i}. **{s['title']}** {s['text']}" for i, s in enumerate(why.surprises, 1)]
    return paragraphs("## The five most surprising differences, and what explains them", "\n".join(items))


HEADLINE = (
    Setup("mnist", "", "class-incremental", 5, "mlp"),
    Setup("fashion-mnist", "", "class-incremental", 5, "mlp"),
    Setup("cifar10", "dinov2-vits14-224", "class-incremental", 5, "linear"),
    Setup("cifar100", "dinov2-vits14-224", "class-incremental", 10, "linear"),
)


def headline(given: Sources) -> str:
    """The five columns of the README."""
    found = samples(given.runs)
    every = numbers(found, given.explanations)
    lines = []
    for stream in HEADLINE:
        published, ours = (pick(found, stream, "cop2l", changes) for changes in (AS_PUBLISHED, HYBRID))
        if published is None or ours is None:
            continue
        paper = [n for n in every if published in n.ours and n.metric == "accuracy"]
        bound = _bound(ours.spread("bound")) + "‡" * (stream.pictures in search.CHOSEN_ON["hybrid"])
        lines.append(
            (
                stream.name + "†" * any(run.not_valid for run in ours.runs),
                published_rate(paper[0].paper) if paper else "–",
                rate(ours.spread("accuracy")),
                _bound(published.spread("kl")),
                bound,
            )
        )
    header = ("stream", "accuracy, paper", "accuracy, ours", "bound, paper's formula", "bound, ours")
    return table(header, lines) + "\n"


def _bound(value: Spread | None) -> str:
    return "–" if value is None else rate_text(value.mean, upwards=True)
