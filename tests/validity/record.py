"""`make validity`: simulates thousands of whole runs, and writes results.json and reproduction/validity.md."""

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
    SHARP,
    control,
    holdout,
    rate,
    run_setting,
    settings,
    sharp,
    sharp_rate,
)

from cop2l.learner import cop2l as learner

EVERY = 8
"""All families are claimed in one of so many settings."""
RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[2] / "reproduction" / "validity.md"


def run_job(job):
    """One run in a process of the pool; as in conftest.py, the learner does not look for shared rows."""
    torch.set_num_threads(1)
    learner.shared_row_findings = lambda *_: []
    function, *arguments = job
    return function(*arguments)


def runs(times, number, function, *arguments):
    """`number` jobs, multiplied by `times`, each with its seed."""
    return [(function, *arguments, seed) for seed in range(max(1, round(number * times)))]


def rates(run_all, jobs_of):
    """One rate for each key, from one pass over all jobs."""
    outcomes = iter(run_all([job for jobs in jobs_of.values() for job in jobs]))
    return {key: rate([next(outcomes) for _ in jobs]) for key, jobs in jobs_of.items()}


def results(run_all, times=1.0):
    """All simulations; `run_all` maps jobs to their runs, and `times` multiplies their numbers."""
    rates_of, jobs = partial(rates, run_all), partial(runs, times)
    all_settings = [setting for turn in range(max(1, round(times))) for setting in settings(turn)]
    outcomes = run_all([(run_setting, setting, {}, seed) for seed, setting in enumerate(all_settings)])
    pairs = list(zip(all_settings, outcomes, strict=True))
    overflows = [overflow for run in outcomes for overflow in run.overflow]
    by_factor = {
        factor: {
            str(level): rate([run for setting, run in pairs if setting[factor] == level]) for level in levels
        }
        for factor, levels in FACTORS.items()
    }
    claims = list(dict.fromkeys((setting["kind"], setting["buffer"]) for setting in all_settings))
    by_claim = {
        f"{kind}, {buffer} buffer": rate(
            [run for s, run in pairs if (s["kind"], s["buffer"]) == (kind, buffer)]
        )
        for kind, buffer in claims
    }
    sharply = rates_of({case: jobs(200, sharp, *case) for case in SHARP})
    broken = {(name, True): jobs(100, control, name, True) for name in CONTROLS}
    intact = {(name, False): jobs(100, control, name, False) for name in CONTROLS}
    controlled = rates_of(broken | intact)
    methods = {
        (name, anytime): [job for s in SCENARIOS for job in jobs(25, holdout, name, s, anytime, {})]
        for name in METHODS
        for anytime in (False, True)
    }
    sampled = all_settings[:: round(max(1, EVERY / times))]
    sampled_outcomes = run_all([(run_setting, s, ALL, 10**4 + seed) for seed, s in enumerate(sampled)])
    claims_all = {
        kind: rate([run for s, run in zip(sampled, sampled_outcomes, strict=True) if s["kind"] == kind])
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
        "all": rate(outcomes),
        "claims": by_claim,
        "factors": by_factor,
        "sharp": [
            {"kind": kind, "tasks": tasks, "picks": picks, "expected": sharp_rate(kind, tasks, picks), **rates}
            for (kind, tasks, picks), rates in sharply.items()
        ],
        "holdout": {
            f"{name}, {'after every task' if anytime else 'after the last task'}": rates
            for (name, anytime), rates in rates_of(methods).items()
        },
        "controls": {
            name: {"broken": controlled[name, True], "as it should be": controlled[name, False]} for name in CONTROLS
        },
        "families": {
            "every": len(sampled),
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
            "in whole runs": {"times": len(overflows), "overflows": sum(overflows)},
        },
        "marks": mark_p_values(),
        "programs": of_programs(run_all, times),
    }  # fmt: skip


def of_programs(run_all, times=1.0):
    """The simulations of exported programs."""
    rates_of, jobs = partial(rates, run_all), partial(runs, times)
    all_settings = [setting for turn in range(max(1, round(times))) for setting in settings(turn)]
    sampled = all_settings[:: round(max(1, EVERY / times))]
    of_kind = {
        kind: [
            (programs.recounted, s, 2 * 10**4 + seed) for seed, s in enumerate(sampled) if s["kind"] == kind
        ]
        for kind in FACTORS["kind"]
    }
    withheld = {
        name: [
            job
            for s in SCENARIOS
            for anytime in (True, False)
            for job in jobs(20, programs.recounted_holdout, name, s, anytime)
        ]
        for name in METHODS
    }
    sharply = rates_of({case: jobs(200, programs.sharp_program, *case) for case in programs.ALONE})
    controlled = rates_of(
        {
            (name, broken): jobs(100, programs.control, name, broken)
            for name in programs.CONTROLS
            for broken in (True, False)
        }
    )
    return {
        "every": len(sampled),
        "kinds": rates_of(of_kind),
        "holdout": rates_of(withheld),
        "sharp": [
            {"kind": kind, "tasks": tasks, "picks": 0, "expected": sharp_rate(kind, tasks, 0), **rates}
            for (kind, tasks), rates in sharply.items()
        ],
        "controls": {
            name: {"broken": controlled[name, True], "as it should be": controlled[name, False]}
            for name in programs.CONTROLS
        },
    }


def main():
    """Simulate, write results and page, and print the faults; exit code 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=float, default=1.0, help="multiplies the numbers of runs")
    parser.add_argument(
        "--page", action="store_true", help="only write reproduction/validity.md, from results.json"
    )
    parser.add_argument("--programs", action="store_true", help="simulate only programs; other results stay")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    if not arguments.page:
        with get_context("spawn").Pool(arguments.processes) as pool:
            run_all = partial(pool.map, run_job, chunksize=8)
            if arguments.programs:
                simulated = json.loads(RESULTS.read_text()) | {
                    "programs": of_programs(run_all, arguments.times)
                }
            else:
                simulated = results(run_all, arguments.times)
        RESULTS.write_text(json.dumps(simulated, indent=1) + "\n")
    recorded = json.loads(RESULTS.read_text())
    PAGE.write_text(page(recorded))
    print(
        "\n".join(faults(recorded))
        or "No rate of certificates is significantly above delta, and every control is."
    )
    return 1 if faults(recorded) else 0


if __name__ == "__main__":
    sys.exit(main())
