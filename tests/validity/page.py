"""results.json as the page reproduction/validity.md, and the faults in it."""

from whole_runs import above

HEAD = ["runs", "violated", "rate (95 % interval)", "median bound / risk"]

TEXT = """\
# Validity: how often certificates failed in simulation

Made by `make validity` from tests/validity/results.json; do not edit. Every run draws new data, learns and
certifies through the public interface, and computes the exact risk of the resulting model as a sum over all
possible inputs. A run is *violated* if any of its statements, for any task and at any time, lies below
the risk. Intervals are those of Clopper and Pearson; delta is {delta:g}.

**{verdict}**

## Every setting

All {settings} combinations of kind and buffer, stop, grid, scenario, one certificate or one after each of three
tasks, and old data at hand or gone (then some statements come from the memory alone), with tasks of 24,
96 and 48 examples. Three problems take turns: pure noise with a model that memorises (memory), pure noise
with a model whose predictions change with every update (waves), and a learnable problem (clouds). Bounds that pay for
many choices lie far above the risk here.

{by_claim}

{by_factor}

## Sharp cases

The risk lies just above the least bound of the kind for 40 examples. So the rate is as large as possible for a model that
does not learn, and theory gives it (last column).

{sharp}

## Hold-out

Half of every task withheld by marks, in all three scenarios, on pure noise.

{holdout}

## All families at once

All families in one certificate: tasks, their average, forgetting (lost, net, and its average), every class
and every group, of which one is empty. {family_runs} of the settings above, and hold-out certificates as above, fixed and
anytime. A run is violated if any of its statements lies below the truth.

{families}

The assumptions of the proofs: the exact probability that a statement fails in a constructed case, with one assumption broken,
and intact. Each broken case must exceed its delta.

{cases}

## Exported programs

A program rounds otherwise than its model, and its errors are counted again
([theory.md](../docs/theory.md), section 12). Here it keeps two significant bits of every parameter, so that its answers often
differ. All families that can be claimed of programs, in {program_runs} of the settings above and in hold-out
certificates as above. A run is violated if any of the program's statements lies below the truth about the program.

{programs}

Sharp cases: two logits whose order changes by rounding to eight bits, so that the program errs where the model does not.

{program_sharp}

Controls, as below:

{program_controls}

## Controls

One assumption is broken: each rate must be significantly above delta. The last column has the same run, intact.

{controls}

## The memory and the marks

The threshold on marks is a formula of the memory, the number of tasks and the number of examples of the task that were
not picked when it was learned. After any given task the buffer may exceed the memory with probability at most
{allowed:g}. The largest probability over memories of 1 to 3000 and up to ten tasks, computed exactly, is {largest:.4f}. In the
runs of every setting it happened {overflows} of {times} times. In a simulation, where the third of every sample and buffer
with the largest random losses is picked:

{overflow}

Marks are functions of (seed, purpose, task, row). Tests that they are uniform over seeds and independent:

{marks}
"""


def faults(results):
    """Sentences: every rate that is significantly above delta and must not be, and every control that is not."""
    intact = {
        "all settings": results["all"],
        **results["claims"],
        **results["holdout"],
    }
    for factor, levels in results["factors"].items():
        intact |= {f"{factor} {level}": rates for level, rates in levels.items()}
    for part in ("kinds", "holdout"):
        intact |= {f"all families, {name}": rates for name, rates in results["families"][part].items()}
    intact |= {f"sharp {case_name(case)}": case for case in results["sharp"]}
    for part in ("kinds", "holdout"):
        intact |= {f"programs, {name}": rates for name, rates in results["programs"][part].items()}
    intact |= {f"programs, sharp {case_name(case)}": case for case in results["programs"]["sharp"]}
    controls = results["controls"] | results["programs"]["controls"]
    intact |= {f"{name}, intact": both["as it should be"] for name, both in controls.items()}
    sentences = [
        f"VIOLATED beyond delta: {name}, {share(rates)}." for name, rates in intact.items() if above(rates)
    ]
    for name, both in controls.items():
        if not above(both["broken"]):
            sentences.append(f"The control does not fail: {name}, {share(both['broken'])}.")
    for name, case in results["families"]["cases"].items():
        if case["as it should be"] > case["delta"]:
            sentences.append(f"VIOLATED beyond delta: {name}, {case['as it should be']:.3f}.")
        if case["broken"] <= case["delta"]:
            sentences.append(f"The control does not fail: {name}, {case['broken']:.3f}.")
    chance, allowed = results["overflow"]["largest chance"], results["overflow"]["allowed"]
    if chance > allowed:
        sentences.append(f"The memory overflows with probability {chance:.4f}.")
    uneven = [name for name, p in results["marks"].items() if p < results["level"]]
    return sentences + [f"Marks are not as assumed: {name}." for name in uneven]


def share(rates):
    """A rate with its interval."""
    low, high = rates["interval"]
    return f"{rates['rate']:.3f} ({low:.3f}–{high:.3f})"


def case_name(case):
    """The name of a sharp case."""
    tasks, picks = case["tasks"], case["picks"]
    return f"{case['kind']}, {tasks} task{'s' * (tasks > 1)}, {picks or 'none'} picked of each"


def row(name, rates, *cells):
    """A line of a table of rates."""
    return [name, rates["runs"], rates["violated"], share(rates), f"{rates['ratio']:.2f}", *cells]


def table(head, rows):
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def sharp_table(cases):
    """Sharp cases, with the rates that theory gives."""
    rows = [row(case_name(case), case, f"{case['expected']:.3f}") for case in cases]
    return table(["case", *HEAD, "rate by theory"], rows)


def certificates_table(results):
    """The kinds of CoP2L, and hold-outs of methods."""
    rows = [row(f"CoP2L, {kind}", rates) for kind, rates in results["kinds"].items()]
    rows += [row(f"{name}, hold-out", rates) for name, rates in results["holdout"].items()]
    return table(["certificate", *HEAD], rows)


def controls_table(controls):
    """Controls, broken and intact."""
    rows = [row(name, both["broken"], share(both["as it should be"])) for name, both in controls.items()]
    return table(["what is broken", *HEAD, "intact"], rows)


def page(results):
    """The content of reproduction/validity.md."""
    overflow, programs = results["overflow"], results["programs"]
    no_fault = f"No rate is significantly above delta (level {results['level']:g}), and every control is."
    factors = [(factor, levels) for factor, levels in results["factors"].items() if factor != "kind"]
    by_factor = [
        row(f"{factor}: {level}", rates) for factor, levels in factors for level, rates in levels.items()
    ]
    simulated = [
        [
            case["memory"],
            ", ".join(map(str, case["sizes"])),
            case["seeds"],
            ", ".join(map(str, case["after each task"])),
        ]
        for case in overflow["simulated"]
    ]
    return TEXT.format(
        delta=results["delta"],
        verdict=" ".join(faults(results)) or no_fault,
        settings=results["settings"],
        by_claim=table(
            ["kind and buffer", *HEAD],
            [row("all", results["all"]), *(row(*item) for item in results["claims"].items())],
        ),
        by_factor=table(["setting", *HEAD], by_factor),
        sharp=sharp_table(results["sharp"]),
        program_runs=programs["every"],
        programs=certificates_table(programs),
        program_sharp=sharp_table(programs["sharp"]),
        program_controls=controls_table(programs["controls"]),
        holdout=table(["method", *HEAD], [row(*item) for item in results["holdout"].items()]),
        family_runs=results["families"]["every"],
        families=certificates_table(results["families"]),
        cases=table(
            ["what is broken", "delta", "broken", "intact"],
            [
                [name, f"{case['delta']:g}", f"{case['broken']:.3f}", f"{case['as it should be']:.3f}"]
                for name, case in results["families"]["cases"].items()
            ],
        ),
        controls=controls_table(results["controls"]),
        allowed=overflow["allowed"],
        largest=overflow["largest chance"],
        overflows=overflow["in whole runs"]["overflows"],
        times=overflow["in whole runs"]["times"],
        overflow=table(["memory", "sizes of the tasks", "seeds", "overflows after each task"], simulated),
        marks=table(["marks", "p-value"], [[name, f"{p:.3f}"] for name, p in results["marks"].items()]),
    )
