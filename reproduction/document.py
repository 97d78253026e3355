"""reproduction/tables.md, from runs alone."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cop2l.report.figures.figure import rate_text
from cop2l.report.groups import Spread
from cop2l.report.runs import Run
from reproduction import ablations, appendix, checks, claims, closed_form, exceeding, heads, search
from reproduction.certificates import compare_bounds, comparison_table, contenders, stream_table
from reproduction.explanations import Explanations
from reproduction.explanations import read as read_explanations
from reproduction.machines import Machines, ages
from reproduction.markdown import folded, paragraphs, published_rate, rate, table
from reproduction.numbers import STATUSES, Number, Status, compare_numbers, joint_tally, number_table
from reproduction.order import order_table, standings
from reproduction.ours import AS_PUBLISHED, DEFAULT, Change, Sample, Setup, pick, samples_of, streams
from reproduction.pictures import Pictures
from reproduction.quotes import with_numbers
from reproduction.references import accuracies, reference_table, references_of
from reproduction.verdict import RULES, Verdict

INTRODUCTION = """\
# The paper's numbers beside ours

- Paper: Comeau, Bazinet, Germain and Subakan, *Sample Compression for Self-Certified Continual Learning*. Tables
  are numbered as in the paper.
{claims}
- The numbers in the paper's tables: {numbers}.
- Not run with the paper's backbones: the weights of DINO ViT-S/16 and DINO ResNet50 could not be obtained. We use
  DINOv2 ViT-S/14, and a supervised ResNet50 for CIFAR-10. Compare the order of the methods, not the absolute numbers.
- Not run at all: most of EMNIST (no data), and most of CSReL, CCLIS and La-MAML (too expensive). Each table says what is
  missing.
- Do not compare times: our machines are others, and we compute the features once instead of in the training loop.
- `python -m reproduction` makes this page from `reproduction/results`. The command in a row makes its runs."""

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

LEGEND = """\
Numbers are in per cent, mean ± standard deviation over seeds, with the number of seeds in parentheses.

| status | meaning |
|---|---|
| *reproduced* | with the paper's model, within 2 combined standard deviations (ours counts up to 2 points) or 1 point |
| *better*, *differs* | further away, on the better or on the worse side; the reason, if it is known |
| *other backbone* | ours is DINOv2 ViT-S/14 at 224 px and at 70 px, or for the DINO ResNet50 a supervised ResNet50 at 64 px |
| *other hardware* | times: the paper's are of an RTX 4090, ours of the machine in the row |
| *not run* | what is missing is below the table |

Plasticity is accuracy + (T - 1)/T x forgetting. Where it is below the paper's by the same rule, less was learned: then less
forgetting is not *better* but *differs*, and forgetting is *reproduced* only if the accuracy is.

- †: the certificates are not valid, because the backbone saw the data or because tasks share pictures.
- ‡: the settings of `picking` were chosen on these pictures, and its certificates do not pay for the choice.
- The presets are explained in [configuration.md](../docs/configuration.md#presets).
- iCaRL with a linear head trains nothing: it is herded nearest-mean."""

PLACES = """\
On another backbone, a table begins with the average accuracies. In parentheses are the place (1 + the number of methods that
are better by more than 2 combined standard deviations) and the gap to Replay in points."""

SEARCH = "[How the settings were chosen](search.md): the streams, the rule, the tries and the decision."

CLAIMS = {
    "holds": "Claims of the paper that hold",
    "does not hold": "Claims that do not hold",
    "holds in part": "Claims that hold in part",
    "cannot tell": "Claims that our runs can neither support nor refute",
}
COUNTED: dict[Status, str] = {
    "reproduced": "reproduced",
    "better": "better",
    "differs": "worse",
    "other backbone": "on another backbone",
    "other hardware": "times on other hardware",
    "not run": "not run",
}
"""How the introduction calls the statuses."""
TITLES = {
    "class-incremental": "Class-incremental",
    "task-incremental": "Task-incremental",
    "domain-incremental": "Domain-incremental",
}


@dataclass(frozen=True)
class Sources:
    """The content of the document: runs, samples of them, and explanations."""

    runs: tuple[Run, ...]
    samples: tuple[Sample, ...]
    explanations: Explanations
    numbers: tuple[Number, ...]
    machines: Machines

    def note(self, section: str) -> str:
        """The paragraph of explanations.toml for a section; empty if there is none."""
        return self.explanations.notes.get(section, "")


def sources(runs: Sequence[Run], folder: Path | None) -> Sources:
    """Runs, with the explanations.toml of a folder of results."""
    samples = samples_of(runs)
    explanations = read_explanations(folder / "explanations.toml" if folder else None)
    explanations = with_numbers(explanations, samples)
    numbers = tuple(compare_numbers(samples, explanations))
    return Sources(tuple(runs), tuple(samples), explanations, numbers, Machines(runs))


def document(content: Sources, pictures: Pictures) -> str:
    """The whole document."""
    judged = claims.verdicts(content.samples, content.runs)
    return (
        paragraphs(
            introduction(judged, content.numbers),
            ages(content.runs),
            "## The paper's claims",
            "\n".join(verdict.text for verdict in judged),
            "The rules:",
            RULES,
            "## How to read the tables",
            LEGEND,
            "Machines; a run uses one thread of its machine.",
            content.machines.table(),
            "## The published tables",
            content.note("tables"),
            joint_tally(content.numbers),
            PLACES,
            *published_tables(content),
            "## With a trainable layer under the head",
            heads.section(content.samples, content.numbers),
            content.note("heads"),
            *bound_figures(content.samples, pictures, content.note("bounds")),
            "## Checks",
            "Runs with other settings than the paper's, made to find out why a number differs.",
            checks.section(content.samples, content.numbers),
            content.note("checks"),
            *setting_analyses(content, pictures),
            *measurement_analyses(content, pictures),
            *beyond(content),
            surprises(content.explanations),
        )
        + "\n"
    )


def introduction(judged: Sequence[Verdict], numbers: Sequence[Number]) -> str:
    """Which claims hold, which numbers are reproduced, and what could not be run."""
    by_word: dict[str, list[str]] = {}
    for verdict in judged:
        by_word.setdefault(verdict.word, []).append(verdict.claim[0].lower() + verdict.claim[1:])
    counts = Counter(number.status for number in numbers)
    return INTRODUCTION.format(
        claims="\n".join(f"- {CLAIMS[word]}: {'; '.join(names)}." for word, names in by_word.items()),
        numbers=", ".join(f"{counts[status]} {COUNTED[status]}" for status in STATUSES if counts[status]),
    )


def published_tables(content: Sources) -> list[str]:
    """A section for each published table."""
    parts = []
    for scenario, dataset, tasks in dict.fromkeys(number.title for number in content.numbers):
        shown = [number for number in content.numbers if number.title == (scenario, dataset, tasks)]
        references = references_of(content.samples, scenario, dataset, tasks)
        order = order_table(shown, accuracies(references), content.explanations)
        rows = number_table(shown, content.machines, standings(shown))
        number = TABLES.get((scenario, dataset, tasks))
        head = f"### {f'Table {number}. ' if number else ''}{TITLES[scenario]}: {dataset}, {tasks} tasks"
        if order:
            rows = paragraphs(rows, reference_table(references, content.machines))
            parts.append(paragraphs(head, order, folded("All numbers, with commands", rows)))
        else:
            parts.append(paragraphs(head, rows))
    return parts


def bound_figures(samples: Sequence[Sample], pictures: Pictures, note: str) -> list[str]:
    """The bounds on every task, for each stream."""
    intro = (
        "Bounds on every task after the last one, and the test error. Bands: one standard deviation over the seeds. `kl` is the"
        " paper's formula."
    )
    figures = [pictures.bounds(samples, stream) for stream in streams(samples)]
    by_memory = [pictures.bounds_by_memory(samples, stream) for stream in streams(samples)]
    return ["## Bounds task by task", intro, note, *filter(None, figures), *filter(None, by_memory)]


def setting_analyses(content: Sources, pictures: Pictures) -> list[str]:
    """The analyses of the paper's appendix that vary a setting."""
    samples, runs = content.samples, content.runs
    by_weight = ablations.weighed(samples).values()
    by_memory = ablations.varied(samples, {"memory"}, ("cop2l", "replay")).values()
    return [
        "## Analyses of the appendix",
        "### The weight of replayed examples (omega)",
        ablations.omega(samples),
        *(pictures.against_memory("omega", stream_samples) for stream_samples in by_weight),
        content.note("omega"),
        "### Buffer size",
        ablations.buffer_size(samples),
        *(pictures.against_memory("buffer", stream_samples) for stream_samples in by_memory),
        content.note("buffer-size"),
        "### Task order",
        (
            "Average accuracy after each task, mean ± standard deviation over the orders. With `class_seed` the classes are"
            " shuffled before they are split, so the tasks have other classes too. `order_seed` and `order=reversed` only"
            " change the order of the tasks."
        ),
        ablations.task_order(runs),
        *pictures.task_order(runs),
        content.note("task-order"),
        "### Early stopping",
        "The paper's ResNet18 was not run: its weights could not be obtained.",
        appendix.early_stopping(samples),
        content.note("early-stopping"),
    ]


def measurement_analyses(content: Sources, pictures: Pictures) -> list[str]:
    """The analyses of the paper's appendix that measure more."""
    samples = content.samples
    return [
        "### Memory",
        appendix.memory_cost(content.runs),
        content.note("memory"),
        "### Class by class",
        "The paper's numbers are of its ResNet50. The commands are in Table 8.",
        appendix.class_wise(samples),
        *pictures.classes(samples),
        content.note("class-wise"),
        "### Plasticity against forgetting",
        appendix.plasticity(samples),
        *pictures.plasticity(samples),
        content.note("plasticity"),
    ]


def beyond(content: Sources) -> list[str]:
    """Our preset, other certificates and other learners, and the search for the settings."""
    samples = content.samples
    picking = compare_bounds(samples, "CoP2L, preset picking", search.CHOSEN_ON)
    certifying = [stream for stream in streams(samples) if contenders(samples, stream)]
    return [
        "## Beyond the paper",
        "### `picking` against the paper's CoP2L and against hold-out",
        (
            "The number of `picking` minus that of the other certificate, in points: a positive accuracy and a negative bound"
            " favour `picking`. Bounds are the claimed ones, mean over tasks / worst task."
        ),
        comparison_table(picking) if picking else ablations.NOT_RUN,
        content.note("cop2l"),
        "### Frozen features: learners in closed form",
        closed_form.section(samples, content.machines) or ablations.NOT_RUN,
        content.note("closed-form"),
        "### Test errors above their claims",
        exceeding.section(content.runs),
        "### Every certificate on every stream",
        "Mean over tasks / worst task, means over seeds. The claim is bold.",
        *(paragraphs(f"**{s.name}**", stream_table(samples, s, content.machines)) for s in certifying),
        "### The search for the settings",
        SEARCH,
    ]


def surprises(explanations: Explanations) -> str:
    """The most surprising differences, and what explains them."""
    if not explanations.surprises:
        return ""
    items = [f"{i}. **{s['title']}** {s['text']}" for i, s in enumerate(explanations.surprises, 1)]
    return paragraphs("## The five most surprising differences", "\n".join(items))


HEADLINE: dict[Setup, tuple[str, tuple[Change, ...]]] = {
    Setup("mnist", "", "class-incremental", 5, "mlp"): ("weighted-replay", (("holdout", 0.5),)),
    Setup("fashion-mnist", "", "class-incremental", 5, "mlp"): ("replay", (("holdout", 0.5),)),
    Setup("cifar10", "dinov2-vits14-224", "class-incremental", 5, "linear"): ("slda", (("holdout", 0.8),)),
    Setup("cifar100", "dinov2-vits14-224", "class-incremental", 10, "linear"): ("slda", (("holdout", 0.8),)),
}
"""Streams of the table of README.md, each with its hold-out: its settings were not chosen on the data of the stream."""


def headline(content: Sources) -> str:
    """The table of README.md."""
    lines = []
    for stream, (method, changes) in HEADLINE.items():
        paper = pick(content.samples, stream, "cop2l", AS_PUBLISHED)
        printed = [n for n in content.numbers if paper in n.samples and n.metric == "accuracy"]
        is_comparable = printed and printed[0].status != "other backbone"
        picking, holdout = (
            pick(content.samples, stream, *which) for which in (("cop2l", DEFAULT), (method, changes))
        )
        is_tuned = stream.pictures in search.CHOSEN_ON
        lines.append(
            (
                stream.name,
                published_rate(printed[0].paper) if is_comparable else "–",
                _accuracy_and_bound(paper),
                "–" if is_tuned else _accuracy_and_bound(picking),
                f"`{method}`, {dict(changes)['holdout']:g}: {_accuracy_and_bound(holdout)}",
            )
        )
    header = (
        "stream",
        "published accuracy",
        "`preset=paper`",
        "`preset=picking`",
        "hold-out: method, share withheld",
    )
    return table(header, lines) + "\n"


def _accuracy_and_bound(sample: Sample | None) -> str:
    bound = sample.spread("bound") if sample else None
    return "–" if sample is None else f"{rate(sample.spread('accuracy'))} / {_bound(bound)}"


def _bound(value: Spread | None) -> str:
    return "–" if value is None else rate_text(value.mean, upwards=True)
