"""The text about bounds, rates and assumptions in everything that cop2l prints, except the verdicts of the kernel."""

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal, localcontext
from typing import Any, NamedTuple

from cop2l.errors import UserError, printable_text

EXACT = Context(prec=1100)
"""Enough digits for every float and for 1 - delta."""


def percent(bound: float) -> str:
    """An upper bound in per cent with two digits, rounded up.

    >>> percent(0.03142), percent(0.03125), percent(1.0)
    ('3.15 %', '3.13 %', '100.00 %')
    """
    return f"{_scaled(bound, 100, 2, ROUND_CEILING)} %"


def interval(low: float, high: float) -> str:
    """An interval in per cent, rounded outwards.

    >>> interval(0.01643, 0.11283)
    '1.64 to 11.29'
    """
    return f"{_scaled(low, 100, 2, ROUND_FLOOR)} to {_scaled(high, 100, 2, ROUND_CEILING)}"


def measured_percent(rate: float) -> str:
    """A measured rate in per cent with two digits, rounded to the nearest.

    >>> measured_percent(0.951), measured_percent(-0.00001)
    ('95.10 %', '0.00 %')
    """
    return f"{rounded_text(rate, 2, '100')} %"


def rounded_text(value: float, digits: int, scale: str = "1") -> str:
    """A measured number times `scale`, rounded to the nearest, with no minus before a zero."""
    number = Decimal(repr(float(value))) * Decimal(scale)
    number = number.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_EVEN)
    return f"{abs(number) if number == 0 else number}"


def _scaled(value: float, scale: int, digits: int, rounding: str) -> Decimal:
    with localcontext(EXACT):
        return (Decimal(value) * scale).quantize(Decimal(1).scaleb(-digits), rounding)


def confidence(delta: float | Decimal) -> str:
    """The probability 1 - delta, not rounded.

    >>> confidence(0.05), confidence(1e-30)
    ('95 %', '1 - 1e-30')
    """
    exact = Decimal(str(delta))
    if exact < Decimal("1e-6"):
        return f"1 - {exact:e}"
    with localcontext(EXACT):
        return exact_percent(1 - exact)


def exact_percent(rate: float | Decimal) -> str:
    """A rate that a user typed, in per cent, not rounded.

    >>> exact_percent(0.05), exact_percent(0.12345678)
    ('5 %', '12.345678 %')
    """
    with localcontext(EXACT):
        return f"{(100 * Decimal(str(rate))).normalize():f} %"


class Names(NamedTuple):
    """The names of the tasks and the classes; empty if they have numbers only."""

    tasks: Sequence[str] = ()
    classes: Sequence[str] = ()

    @classmethod
    def from_description(cls, description: Mapping[str, Any] | None) -> "Names":
        """The names in the description of a stream, or in the data of a certificate."""
        lists = [(description or {}).get(key) for key in ("task_names", "class_names")]
        return cls(
            *([short_name(name) for name in names] if isinstance(names, list) else [] for names in lists)
        )

    def as_dict(self) -> dict[str, Any]:
        """The names, for JSON; classes named by their numbers are left out."""
        numbers = [str(number) for number in range(len(self.classes))]
        lists = {
            "task_names": list(self.tasks),
            "class_names": [] if self.classes == numbers else list(self.classes),
        }
        return {key: names for key, names in lists.items() if names}

    def task(self, number: int) -> str:
        """The name of a task in parentheses, to follow its number; empty if it has none."""
        return f' ("{self.tasks[number - 1]}")' if 0 < number <= len(self.tasks) else ""

    def task_number(self, label: Any) -> Any:
        """The number of a task, by its name or its number.

        >>> names = Names(["2019", "2020"], ["cat", "dog"])
        >>> names.task_number("2020"), names.task_number("2"), names.class_number("dog"), Names().task_number("Bern")
        (2, 2, 1, 'Bern')
        """
        return _number(label, self.tasks, 1, "task")

    def class_number(self, label: Any) -> Any:
        """The number of a class, by its name or its number."""
        return _number(label, self.classes, 0, "class")

    def with_names(self, sentence: str) -> str:
        """A sentence with the name behind the number of each task and class.

        >>> Names(["Bern", "Genf"], ["0", "dog"]).with_names("the error rate on class 1 of task 2")
        'the error rate on class 1 ("dog") of task 2 ("Genf")'
        """
        sentence = re.sub(r"\b[Tt]ask (\d{1,9})\b", lambda m: m[0] + self.task(int(m[1])), sentence)
        return re.sub(r"\bclass (\d{1,9})\b", lambda m: m[0] + self._class(int(m[1])), sentence)

    def _class(self, number: int) -> str:
        name = self.classes[number] if number < len(self.classes) else str(number)
        return "" if name == str(number) else f' ("{name}")'


def _number(label: Any, names: Sequence[str], first: int, noun: str) -> Any:
    """The number of a name or of a number; any other label is refused if there are names."""
    if (text := str(label)) in names:
        return first + list(names).index(text)
    if names and label is not None and not text.isdecimal():
        raise UserError(
            f"There is no {noun} named {text!r}; choose one of: {', '.join(map(repr, names[:20]))}."
        )
    return int(text) if text.isdecimal() else label


def short_name(name: object) -> str:
    """A name as it is stored and printed: only printable letters, at most 80."""
    return printable_text(str(name))[:80]


def duration(seconds: float) -> str:
    """A time in seconds, minutes or hours.

    >>> duration(3.21), duration(75), duration(7500)
    ('3.2 s', '1 min 15 s', '2 h 5 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, remainder = divmod(round(seconds), 60)
    return f"{minutes} min {remainder} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def count(number: int, noun: str) -> str:
    """A number and its noun.

    >>> count(1, "run"), count(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listing(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> listing(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def as_typed(value: Any) -> str:
    """A value as you type it on the command line; an empty table is empty text.

    >>> as_typed(None), as_typed(True), as_typed(0.05), as_typed(["tasks"]), as_typed({})
    ('none', 'true', '0.05', 'tasks', '')
    """
    if isinstance(value, list | tuple | dict):
        return ",".join(map(as_typed, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


STATEMENTS = {
    "tasks": "The error rate on task {task} is at most {value}",
    "average": "The error rate averaged over the {tasks} tasks{weighted} is at most {value}{mean}",
    "classes": "Of class {subject} in task {task} at most {value} is misclassified",
    "groups": "Of group {subject} in task {task} at most {value} is misclassified",
    "lost": "At most {value} of task {task} was right when it was learned and is wrong now",
    "net": "The error rate on task {task} rose by at most {value} since it was learned",
    "forgetting": "Averaged over the tasks before the last{weighted} at most {value} was right then and is wrong now",
}


def statement_sentence(statement: Mapping[str, Any], sizes: Sequence[int]) -> str:
    """A statement of a certificate about new examples, without the full stop; sizes: of the tasks."""
    key = statement["family"]
    if key == "forgetting" and statement["task"]:
        key = statement["subject"]
    weighted = ", weighted by examples," * (len(set(sizes)) > 1)
    mean = ", the mean of the tasks' own bounds" * (statement["kind"] != "holdout")
    value = percent(statement["value"]).replace(" %", " points" if key == "net" else " %")
    fields = {**statement, "value": value, "mean": mean, "weighted": weighted, "tasks": len(sizes)}
    return STATEMENTS[key].format(**fields)


P_VALUE = "The p-value is the probability of so many test errors, or more, if the true error were the claim."


def tasks_above_claim(rows: Iterable[Mapping[str, Any]], kind: str | None) -> list[tuple[float, str]]:
    """The p-value and a sentence for each task whose test error is above its claim, the bound of a kind.

    >>> tasks_above_claim([{"task": 2, "test_error": 0.051, "test_n": 1000, "bounds": {"kl": 0.05}}], "kl")[0][1]
    'Task 2: the test error, 5.10 %, is above the claim, 5.01 %: p-value 0.46 (51 of 1000 test examples).'
    """
    from cop2l.bounds import binomial_upper_tail

    above = []
    for row in rows:
        rate, n, bound = row["test_error"], row["test_n"] or 0, row["bounds"].get(kind, 1.0)
        if (errors := round((rate or 0) * n)) > n * bound:
            p = binomial_upper_tail(errors, n, bound)
            rates = f"the test error, {measured_percent(rate)}, is above the claim, {percent(bound)}"
            sentence = f"Task {row['task']}: {rates}: p-value {p:.2g} ({errors} of {n} test examples)."
            above.append((p, sentence))
    return above


REFUTES = 0.001
"""A p-value up to this one refutes the claim."""


def refuted_tasks(rows: Sequence[dict[str, Any]], claim: str | None) -> list[str]:
    """A sentence for each claim that the test part refutes."""
    above = tasks_above_claim(rows, claim)
    return [f"The test part refutes the claim. {sentence}" for p, sentence in above if p <= REFUTES]


def averages(summary: dict[str, Any]) -> str:
    """The averages of a finished run, in one line."""
    parts = [f"average accuracy {measured_percent(summary['accuracy'])}"]
    if summary["forgetting"] is not None:
        parts.append(f"forgetting {measured_percent(summary['forgetting'])}")
    return ", ".join(
        [*parts, f"plasticity {measured_percent(summary['plasticity'])}", duration(summary["seconds"])]
    )


def bound_text(result: Any, tasks: int, delta: float, task: int | None, *, anytime: bool) -> str:
    """A `cop2l.bounds.Bound` in a sentence, and its terms."""
    where = f" on task {task} of {tasks}" if task else f" on this task, one of {tasks}," * (tasks > 1)
    probability = f"With probability at least {confidence(delta)} over the draw of the data"
    lines = [f"{probability}, the error rate{where} is at most {percent(result.value)}."]
    if result.reason:
        lines.append(f"That says nothing: {result.reason[0].lower()}{result.reason[1:]}")
    if anytime:
        lines.append("The same probability covers all tasks at once, at every time a certificate is issued.")
    elif tasks > 1:
        lines.append(f"The same probability covers all {tasks} tasks at once, after task {tasks}.")
    terms = {name: f"{x}" if isinstance(x, int) else f"{x:.6g}" for name, x in result.terms.items()}
    terms["bound"] = f"{_scaled(result.value, 1, 9, ROUND_CEILING):f}"
    width = max(map(len, terms))
    lines += ["", f"The terms of the {result.kind} bound:"]
    return "\n".join(lines + [f"  {name:<{width}}  {value}" for name, value in terms.items()])


HEADS = ("task", "certified on", "picked", "errors", "error <=", "kind")
"""The columns of the table of a certificate; that of a run has the test error before the last two."""


def aligned(rows: Sequence[Sequence[Any]]) -> list[str]:
    """Rows as lines of columns that end at the same place; None is a dash."""
    texts = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return ["  ".join(map(str.rjust, row, widths)) for row in texts]


def all_hold(delta: float, when: str = "") -> str:
    """The sentence under a table of claims: with which probability they hold."""
    probability = f"With probability at least {confidence(delta)} over the draw of the data"
    return f"{probability}, all statements {when}hold at once."


def certificate_text(method: str, holdout: float) -> str:
    """What certifies a run.

    >>> certificate_text("replay", 0.5), certificate_text("cop2l", 0.0)
    ('hold-out certificate on half of each task', 'certified by all examples that it does not pick')
    """
    if method == "cop2l":
        return "certified by all examples that it does not pick"
    share = "half" if holdout == 0.5 else f"{100 * holdout:g} %"
    return f"hold-out certificate on {share} of each task" if holdout else "no certificate"


def run_table(summary: dict[str, Any], remark: str | None = None) -> str:
    """A finished run as text: a line per task with the claimed bound, the averages, and the other claims."""
    tasks, kind, names = summary["tasks"], summary["kind"], Names.from_description(summary)
    rows = [(*HEADS[:-2], "test error", *HEADS[-2:]), *(_task_cells(row, kind, names) for row in tasks)]
    columns = [column for column in zip(*rows, strict=True) if {*column[1:]} != {None}]
    invalid = [f"NOT VALID: {reason}" for reason in summary["not_valid"] if kind]
    table = [*aligned([*zip(*columns, strict=True)]), averages(summary)]
    sentences = [*([remark] if remark else []), *summary["sentences"]]
    if not summary["not_valid"] and (summary["sentences"] or any(kind in row["bounds"] for row in tasks)):
        sentences.append(all_hold(summary["delta"]))
    sentences += _beside_claim(tasks, kind)
    return "\n".join([*map(names.with_names, invalid), *table, *map(names.with_names, sentences)])


def _task_cells(row: dict[str, Any], kind: str | None, names: Names) -> list[Any]:
    """The cells of a task in the table of a run; None if a number does not apply."""
    counts = [row["n"], row["picked"], row.get("errors_not_picked")]
    if row["picked"] is None:  # trained on all but the withheld examples
        withheld = row.get("holdout", {})
        counts = [withheld.get("n"), None, withheld.get("errors")]
    bound = row["bounds"].get(kind)
    claim = [None, None] if bound is None else [percent(bound), kind]
    task = f"{row['task']}{names.task(row['task'])}"
    return [task, *counts, measured_percent(row["test_error"]), *claim]


def _beside_claim(rows: Sequence[dict[str, Any]], claim: str | None) -> list[str]:
    """A sentence for each test error above the claim."""
    above = [sentence for _, sentence in tasks_above_claim(rows, claim)]
    return [*above, P_VALUE] if above else []


ALARM = (
    "ALARM: the claim is refuted at level {alpha}. Either it was wrong from the start or the data has drifted; "
    "these look alike. Find out which, and certify again on new data."
)
NO_ALARM = (
    "NO ALARM: the feedback does not refute the claim. That does not prove it: too little feedback, or an error rate "
    "just above the bound, looks the same."
)
FEEDBACK_ASSUMPTIONS = (
    "Which examples get feedback, in which order and when, does not depend on whether the answer was right.",
    "The answers are those of the certified parameters, and nothing was learned from these examples before.",
    "Every example is counted once; a batch is looked at only at its end, and where it ends does not depend on its answers.",
    "This monitor is never begun again; several monitors share alpha (two of them: half of it for each).",
)
OF_AVERAGES = "Tasks come at random, with the weights of the average that is claimed."
OF_FORGETTING = (
    "An error here is an example that was classified correctly after its task and is misclassified now."
)


def claim_of(statement: dict[str, Any]) -> str:
    """The quantity that a statement of a certificate bounds."""
    family, task, subject = statement["family"], statement["task"], statement["subject"]
    of_task = f" of task {task}" if task else ""
    return {
        "tasks": f"the error rate on task {task}" if task else "the error rate",
        "average": "the error rate averaged over the tasks",
        "classes": f"the error rate on class {subject}{of_task}",
        "groups": f"the error rate on group {subject}{of_task}",
        "forgetting": f"the share{of_task or ' of the tasks, averaged,'} that was right when it was learned and is wrong now",
    }[family]


def feedback_assumptions(statement: dict[str, Any]) -> list[str]:
    """The assumptions of a monitor's alarm."""
    family, is_average = statement["family"], not statement["task"]
    assumptions = [*FEEDBACK_ASSUMPTIONS]
    assumptions += [OF_AVERAGES] * (family == "average" or (family == "forgetting" and is_average))
    return assumptions + [OF_FORGETTING] * (family == "forgetting")


def monitor_verdict(monitor: Any) -> str:
    """Whether a monitor raised an alarm, and what that means."""
    return ALARM.format(alpha=monitor.alpha) if monitor.alarm else NO_ALARM


def monitor_report(monitor: Any) -> str:
    """The counts of a monitor, its verdict, and its assumptions."""
    state = monitor.as_dict()
    n, errors, batches, alarmed_at = (state[name] for name in ("n", "errors", "batches", "alarmed_at"))
    start, errors_before = state["since"]
    share = f" ({measured_percent(errors / n)})" if n else ""
    is_typed = monitor.statement["kind"] is None  # a bound from the command line is not rounded
    bound = exact_percent(monitor.bound) if is_typed else percent(monitor.bound)
    lines = [
        f"The claim: {monitor.names.with_names(claim_of(monitor.statement))} is at most {bound}.",
        f"Feedback so far: {count(n, 'example')} in {batches} batch{'es' * (batches != 1)}, {count(errors, 'error')}{share}.",
        f"Evidence against the claim: {monitor.evidence:.3g}; the alarm is at {1 / monitor.alpha:g}."
        + (f" It came after {alarmed_at} examples, and stays." if alarmed_at is not None else ""),
        *(
            [f"Most of it since example {start}: {errors - errors_before} errors in {n - start}."]
            if start and alarmed_at
            else []
        ),
        monitor_verdict(monitor),
        f"If the claim is true, the probability that there is ever an alarm is at most {monitor.alpha}, provided that:",
    ]
    return "\n".join([*lines, *(f"  - {sentence}" for sentence in feedback_assumptions(monitor.statement))])
