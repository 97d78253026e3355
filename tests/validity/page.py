"""results.json as a page, and what is wrong with it."""

from whole_runs import above

HEAD = ["runs", "violated", "rate (95 % interval)", "median bound / risk"]

TEXT = """\
# Validity: how often certificates failed in simulation

Made by `make validity` from tests/validity/results.json; do not edit. Every run draws its data anew, learns and
certifies through the public interface, and computes the exact risk of the resulting model as a sum over all
inputs that can occur. A run is *violated* if any of its statements, for any task and at any time, lies below
the risk. Intervals are Clopper and Pearson's; delta is {delta:g}.

**{verdict}**

## Every setting

All {settings} combinations of kind and buffer, stop, grid, scenario, one certificate or one after each of three
tasks, prior part, and old data at hand or gone (then statements from the memory are mixed in), with tasks of 24,
96 and 48 examples. Three worlds take turns: pure noise with a model that learns by heart (memory), pure noise
with a model that is another one after every update (waves), and something to learn (clouds). Bounds that pay for
many choices lie far above the risk here.

{by_claim}

{by_factor}

## Sharp cases

The risk lies just above the least bound that the kind can state for 40 examples, so that the rate is as large as
it can be for a model that does not learn, and is known: the last column.

{sharp}

## The luckiest of many predictors

Pure noise, a model that is nearly unrelated to itself after every update, one example picked at a time, and
early stopping that keeps the best of up to 24 iterations.

{searching}

## Hold-out

Half of every task withheld by marks, in all three scenarios, on pure noise.

{holdout}

## All families at once

Everything that can be claimed, in one certificate: tasks, their average, forgetting (lost, net, and its average), every class
and every group, of which one is empty. {family_runs} of the settings above, and hold-out certificates as above, fixed and
anytime. A run is violated if any of its statements lies below the truth.

{families}

The parts of the proofs that a certificate cannot do without: the exact chance that a statement fails, in a case made for it,
with one thing broken and as it should be. Each broken one must exceed its delta.

{cases}

## Exported programs

A program rounds otherwise than the model that it is made of, and its errors are counted again
([theory.md](../docs/theory.md), section 12). Here it keeps two significant bits of every parameter, so that it often answers
otherwise. All families that are claimed of programs, in {program_runs} of the settings above and in hold-out
certificates as above. A run is violated if any of the program's statements lies below the truth about the program.

{programs}

Sharp cases: two logits that eight bits put the other way round, so that the program makes the errors that the model does not.

{program_sharp}

Controls, as below:

{program_controls}

## Controls

The same path with one thing broken: each must be violated significantly more often than delta. Beside it, the
same run as it should be.

{controls}

## The memory and the marks

The threshold on marks is a closed formula of the memory, the number of tasks and how many examples of the task were
not picked when it was learned; after any given task the memory may hold too much with probability at most
{allowed:g}. The largest chance over memories of 1 to 3000 and up to ten tasks, computed exactly, is {largest:.4f}. In the
runs of every setting it happened {overflows} of {times} times. Simulated, a third of every sample and buffer being
picked, the largest of random losses:

{overflow}

Marks, as functions of (seed, purpose, task, row), must look uniform over seeds, and independent:

{marks}
"""


def faults(found):
    """In words: every rate that is significantly above delta and must not be, and every control that is not."""
    honest = {"all settings": found["all"], **found["claims"], **found["searching"], **found["holdout"]}
    for factor, levels in found["factors"].items():
        honest |= {f"{factor} {level}": one for level, one in levels.items()}
    for part in ("kinds", "holdout"):
        honest |= {f"all families, {name}": one for name, one in found["families"][part].items()}
    honest |= {f"sharp {named(one)}": one for one in found["sharp"]}
    for part in ("kinds", "holdout"):
        honest |= {f"programs, {name}": one for name, one in found["programs"][part].items()}
    honest |= {f"programs, sharp {named(one)}": one for one in found["programs"]["sharp"]}
    controls = found["controls"] | found["programs"]["controls"]
    honest |= {f"{name}, as it should be": both["as it should be"] for name, both in controls.items()}
    wrong = [f"VIOLATED beyond delta: {name}, {share(one)}." for name, one in honest.items() if above(one)]
    for name, both in controls.items():
        if not above(both["broken"]):
            wrong.append(f"The control does not fail: {name}, {share(both['broken'])}.")
    for name, one in found["families"]["cases"].items():
        if one["as it should be"] > one["delta"]:
            wrong.append(f"VIOLATED beyond delta: {name}, {one['as it should be']:.3f}.")
        if one["broken"] <= one["delta"]:
            wrong.append(f"The control does not fail: {name}, {one['broken']:.3f}.")
    chance, allowed = found["overflow"]["largest chance"], found["overflow"]["allowed"]
    if chance > allowed:
        wrong.append(f"The memory overflows with probability {chance:.4f}.")
    uneven = [name for name, p in found["marks"].items() if p < found["level"]]
    return wrong + [f"Marks are not as assumed: {name}." for name in uneven]


def share(one):
    """A rate with its interval, as people read it."""
    low, high = one["interval"]
    return f"{one['rate']:.3f} ({low:.3f}–{high:.3f})"


def named(one):
    """A sharp case."""
    tasks, picks = one["tasks"], one["picks"]
    return f"{one['kind']}, {tasks} task{'s' * (tasks > 1)}, {picks or 'none'} picked of each"


def row(name, one, *more):
    """A line of a table of rates."""
    return [name, one["runs"], one["violated"], share(one), f"{one['ratio']:.2f}", *more]


def table(head, rows):
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def sharp_table(cases):
    """Sharp cases, with the rates that they must have."""
    rows = [row(named(one), one, f"{one['expected']:.3f}") for one in cases]
    return table(["case", *HEAD, "rate that must be"], rows)


def certificates_table(found):
    """CoP2L's kinds, and hold-outs of methods."""
    rows = [row(f"CoP2L, {kind}", one) for kind, one in found["kinds"].items()]
    rows += [row(f"{name}, hold-out", one) for name, one in found["holdout"].items()]
    return table(["certificate", *HEAD], rows)


def controls_table(controls):
    """Controls, broken and as they should be."""
    rows = [row(name, both["broken"], share(both["as it should be"])) for name, both in controls.items()]
    return table(["what is broken", *HEAD, "as it should be"], rows)


def page(found):
    """reproduction/validity.md."""
    kept, programs = found["overflow"], found["programs"]
    fine = f"No rate is significantly above delta (level {found['level']:g}), and every control is."
    factors = [(factor, levels) for factor, levels in found["factors"].items() if factor != "kind"]
    every = [row(f"{factor}: {level}", one) for factor, levels in factors for level, one in levels.items()]
    simulated = [
        [
            one["memory"],
            ", ".join(map(str, one["sizes"])),
            one["seeds"],
            ", ".join(map(str, one["after each task"])),
        ]
        for one in kept["simulated"]
    ]
    return TEXT.format(
        delta=found["delta"],
        verdict=" ".join(faults(found)) or fine,
        settings=found["settings"],
        by_claim=table(
            ["kind and buffer", *HEAD],
            [row("all", found["all"]), *(row(*one) for one in found["claims"].items())],
        ),
        by_factor=table(["setting", *HEAD], every),
        sharp=sharp_table(found["sharp"]),
        program_runs=programs["every"],
        programs=certificates_table(programs),
        program_sharp=sharp_table(programs["sharp"]),
        program_controls=controls_table(programs["controls"]),
        searching=table(["kind", *HEAD], [row(*one) for one in found["searching"].items()]),
        holdout=table(["method", *HEAD], [row(*one) for one in found["holdout"].items()]),
        family_runs=found["families"]["every"],
        families=certificates_table(found["families"]),
        cases=table(
            ["what is broken", "delta", "broken", "as it should be"],
            [
                [name, f"{one['delta']:g}", f"{one['broken']:.3f}", f"{one['as it should be']:.3f}"]
                for name, one in found["families"]["cases"].items()
            ],
        ),
        controls=controls_table(found["controls"]),
        allowed=kept["allowed"],
        largest=kept["largest chance"],
        overflows=kept["in whole runs"]["overflows"],
        times=kept["in whole runs"]["times"],
        overflow=table(["memory", "sizes of the tasks", "seeds", "overflows after each task"], simulated),
        marks=table(["marks", "p-value"], [[name, f"{p:.3f}"] for name, p in found["marks"].items()]),
    )
