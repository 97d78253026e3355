"""docs/reproduction.md, from runs alone."""

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
from reproduction.numbers import Number, number_table, numbers, sweep_command, tally
from reproduction.order import order_table, standings
from reproduction.ours import AS_PUBLISHED, DEFAULT, HYBRID, Sample, Setup, pick, samples, streams
from reproduction.pictures import Pictures
from reproduction.quotes import filled
from reproduction.references import accuracies, reference_table, references_of
from reproduction.verdict import RULES

INTRODUCTION = """\
# Reproduction

Every number that the paper publishes, beside what this code gives. The page is made by `python -m reproduction` from run
directories (condensed in `reproduction/results`), and never filled in by hand: `python -m reproduction` makes it again,
and the command in a row makes the runs behind it."""

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
are explained in [configuration.md](configuration.md#presets)."""

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
    every = numbers(found, given.explanations)
    notes = given.explanations.notes
    return (
        paragraphs(
            INTRODUCTION,
            ages(given.runs),
            "## The paper's claims",
            "\n".join(verdict.text for verdict in claims.verdicts(found, given.runs)),
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
        head = f"### {TITLES[scenario]}: {dataset}, {tasks} tasks"
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
        " seeds, and box plots. `kl` is the paper's formula."
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
            " shuffled before they are cut (`class_seed`), the tasks have other classes too; `order_seed` and"
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
    default = bound_comparisons(found, "CoP2L, our default")
    hybrid = bound_comparisons(found, "CoP2L, hybrid", search.CHOSEN_ON["hybrid"])
    parts = [
        "## Beyond the paper",
        "### Our presets against the paper's CoP2L and against hold-out",
        (
            "Differences in points: for accuracy, more is better for the preset; for bounds (the claimed one; mean over"
            " tasks / worst task), less is."
        ),
        "**`cop2l`**, the default: every example may be learned from, and picks are paid for.",
        verdicts(default) if default else ablations.NOT_RUN,
        notes.get("cop2l", ""),
        "**`hybrid`**: a share of each task trains freely, the rest certifies, and is picked from where that pays.",
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
    Setup("permuted-mnist, disjoint", "", "domain-incremental", 10, "mlp"),
    Setup("cifar10", "dinov2-vits14-224", "class-incremental", 5, "linear"),
    Setup("cifar100", "dinov2-vits14-224", "class-incremental", 10, "linear"),
)


def headline(given: Sources) -> str:
    """A few rows for a front page."""
    found = samples(given.runs)
    every = numbers(found, given.explanations)
    lines = []
    for stream in HEADLINE:
        sample, default, hybrid = (pick(found, stream, "cop2l", c) for c in (AS_PUBLISHED, DEFAULT, HYBRID))
        held = pick(found, stream, "replay", (("holdout", 0.5),))
        if sample is None or hybrid is None:
            continue
        paper = [n for n in every if sample in n.ours and n.metric == "accuracy"]
        bad = any(run.not_valid for run in hybrid.runs)
        chosen = {preset: stream.pictures in search.CHOSEN_ON[preset] for preset in search.CHOSEN_ON}
        lines.append(
            (
                stream.name + ("†" if bad else ""),
                published_rate(paper[0].paper) if paper else "–",
                rate(sample.spread("accuracy")),
                _bound(sample.spread("kl")),
                *_claim(default, chosen["cop2l"]),
                *_claim(hybrid, chosen["hybrid"]),
                _bound(held.spread("holdout")) if held else "–",
                f"`{sweep_command((default or hybrid).runs)}`",
            )
        )
    header = (
        "stream",
        "paper's accuracy",
        "ours, paper's settings",
        "its bound (paper's formula)",
        "cop2l, our default: accuracy",
        "its bound",
        "hybrid: accuracy",
        "its bound",
        "Replay, half held out: bound",
        "command",
    )
    return table(header, lines) + "\n"


def _claim(sample: Sample | None, chosen: bool) -> tuple[str, str]:
    """Accuracy and claimed bound, marked where the settings were chosen on these pictures."""
    if sample is None:
        return "–", "–"
    return rate(sample.spread("accuracy")), _bound(sample.spread("bound")) + "‡" * chosen


def _bound(value: Spread | None) -> str:
    return "–" if value is None else rate_text(value.mean, upwards=True)
