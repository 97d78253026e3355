"""`make validity`: thousands of whole runs; what was found goes to results.json and, as tables, to reproduction/validity.md."""

import argparse
import json
import sys
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import programs
import torch
from family_cases import exact_cases
from marks_and_memory import ALLOWED, OVERFLOWS, largest_overflow, mark_p_values, simulated_overflow
from page import faults, page
from whole_runs import (
    ALL,
    CONTROLS,
    DELTA,
    FACTORS,
    LEVEL,
    METHODS,
    SCENARIOS,
    SEARCHES,
    SHARP,
    control,
    holdout,
    rate,
    searching,
    settings,
    sharp,
    sharp_rate,
    whole,
)

from cop2l.certify import learner

EVERY = 8
"""All families are claimed in one setting of so many."""
RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[2] / "reproduction" / "validity.md"


def called(job):
    """One run, in a process of its own kind; as in conftest.py, the issuer does not look for shared rows."""
    torch.set_num_threads(1)
    learner.shared_row_findings = lambda *_: []
    function, *arguments = job
    return function(*arguments)


def runs(times, number, function, *arguments):
    """So many jobs, each with its seed."""
    return [(function, *arguments, seed) for seed in range(max(1, round(number * times)))]


def rates(everything, jobs_of):
    """One rate for each key, from one pass over all jobs."""
    found = iter(everything([job for jobs in jobs_of.values() for job in jobs]))
    return {key: rate([next(found) for _ in jobs]) for key, jobs in jobs_of.items()}


def results(everything, times=1.0):
    """All simulations; `everything` maps jobs to their runs, and `times` multiplies their numbers."""
    rates_of, jobs = partial(rates, everything), partial(runs, times)
    every = [setting for turn in range(max(1, round(times))) for setting in settings(turn)]
    found = everything([(whole, setting, {}, seed) for seed, setting in enumerate(every)])
    pairs = list(zip(every, found, strict=True))
    overflow = [one for run in found for one in run.overflow]
    by_factor = {
        factor: {
            str(level): rate([run for setting, run in pairs if setting[factor] == level]) for level in levels
        }
        for factor, levels in FACTORS.items()
    }
    claims = list(dict.fromkeys((setting["kind"], setting["buffer"]) for setting in every))
    by_claim = {
        f"{kind}, {buffer} buffer": rate(
            [run for s, run in pairs if (s["kind"], s["buffer"]) == (kind, buffer)]
        )
        for kind, buffer in claims
    }
    sharply = rates_of({case: jobs(200, sharp, *case) for case in SHARP})
    many = {
        "a second certificate at one time, from the memory": 4000,
        "the least of all kinds and a hold-out": 200,
    }
    broken = {(name, True): jobs(many.get(name, 100), control, name, True) for name in CONTROLS}
    intact = {(name, False): jobs(100, control, name, False) for name in CONTROLS}
    controlled = rates_of(broken | intact)
    methods = {
        (name, anytime): [job for s in SCENARIOS for job in jobs(25, holdout, name, s, anytime, {})]
        for name in METHODS
        for anytime in (False, True)
    }
    some = every[:: round(max(1, EVERY / times))]
    of_all = everything([(whole, setting, ALL, 10**4 + seed) for seed, setting in enumerate(some)])
    claims_all = {
        kind: rate([run for s, run in zip(some, of_all, strict=True) if s["kind"] == kind])
        for kind in FACTORS["kind"]
    }
    withheld = {
        name: [job for s in SCENARIOS for a in (False, True) for job in jobs(20, holdout, name, s, a, ALL)]
        for name in METHODS
    }
    return {
        "delta": DELTA,
        "level": LEVEL,
        "settings": len(list(settings())),
        "all": rate(found),
        "claims": by_claim,
        "factors": by_factor,
        "sharp": [
            {"kind": kind, "tasks": tasks, "picks": picks, "expected": sharp_rate(kind, tasks, picks), **one}
            for (kind, tasks, picks), one in sharply.items()
        ],
        "searching": rates_of({kind: jobs(200, searching, kind) for kind in SEARCHES}),
        "holdout": {
            f"{name}, {'after every task' if anytime else 'after the last task'}": one
            for (name, anytime), one in rates_of(methods).items()
        },
        "controls": {
            name: {"broken": controlled[name, True], "as it should be": controlled[name, False]} for name in CONTROLS
        },
        "families": {
            "every": len(some),
            "kinds": claims_all,
            "holdout": rates_of(withheld),
            "cases": exact_cases(),
        },
        "overflow": {
            "allowed": ALLOWED,
            "largest chance": largest_overflow(),
            "simulated": [
                {"memory": memory, "sizes": sizes, "seeds": 2000, "after each task": simulated_overflow(memory, sizes, 2000)}
                for memory, sizes in OVERFLOWS.items()
            ],
            "in whole runs": {"times": len(overflow), "overflows": sum(overflow)},
        },
        "marks": mark_p_values(),
        "programs": of_programs(everything, times),
    }  # fmt: skip


def of_programs(everything, times=1.0):
    """The simulations of exported programs."""
    rates_of, jobs, both = partial(rates, everything), partial(runs, times), (True, False)
    every = [setting for turn in range(max(1, round(times))) for setting in settings(turn)]
    some = every[:: round(max(1, EVERY / times))]
    of_kind = {
        kind: [(programs.recounted, s, 2 * 10**4 + seed) for seed, s in enumerate(some) if s["kind"] == kind]
        for kind in FACTORS["kind"]
    }
    withheld = {
        name: [
            job
            for s in SCENARIOS
            for anytime in both
            for job in jobs(20, programs.recounted_holdout, name, s, anytime)
        ]
        for name in METHODS
    }
    sharply = rates_of({case: jobs(200, programs.sharp_program, *case) for case in programs.ALONE})
    controlled = rates_of(
        {
            (name, broken): jobs(100, programs.control, name, broken)
            for name in programs.CONTROLS
            for broken in both
        }
    )
    return {
        "every": len(some),
        "kinds": rates_of(of_kind),
        "holdout": rates_of(withheld),
        "sharp": [
            {"kind": kind, "tasks": tasks, "picks": 0, "expected": sharp_rate(kind, tasks, 0), **one}
            for (kind, tasks), one in sharply.items()
        ],
        "controls": {
            name: {"broken": controlled[name, True], "as it should be": controlled[name, False]}
            for name in programs.CONTROLS
        },
    }


def main():
    """Simulate, record, and say whether all is as it should be; exit code 1 if not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=float, default=1.0, help="so many times as many runs")
    parser.add_argument("--page", action="store_true", help="only write reproduction/validity.md again")
    parser.add_argument(
        "--programs", action="store_true", help="simulate only programs again; the rest stays"
    )
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args()
    if not chosen.page:
        with get_context("spawn").Pool(chosen.processes) as pool:
            everything = partial(pool.map, called, chunksize=8)
            if chosen.programs:
                found = json.loads(RESULTS.read_text()) | {"programs": of_programs(everything, chosen.times)}
            else:
                found = results(everything, chosen.times)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    found = json.loads(RESULTS.read_text())
    PAGE.write_text(page(found))
    print("\n".join(faults(found)) or "Every rate is as it should be.")
    return 1 if faults(found) else 0


if __name__ == "__main__":
    sys.exit(main())
