"""The experiment: one visible loop over the tasks of a stream."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cop2l.experiments import measure
from cop2l.experiments.config import Config
from cop2l.experiments.directory import RunDirectory
from cop2l.experiments.environment import environment, threads
from cop2l.experiments.learners import device, load_stream, new_learner, resolved
from cop2l.experiments.watch import Watcher, Watchers


def run(config: Config, folder: str | Path, watchers: Sequence[Watcher] = ()) -> dict[str, Any]:
    """Learn every task; after each, evaluate on all tasks seen, certify, and store. Returns the summary.

    A run that was stopped goes on after its last finished task; one that is finished is not run again.
    """
    with RunDirectory(folder) as directory, threads(config.threads), Watchers(watchers) as watch:
        directory.check(config)
        if (finished := directory.summary) is not None:
            return finished
        stream = load_stream(config)
        learner, where = new_learner(config, stream), device(config)
        surroundings = environment(where, stream=stream.description, model=learner.model.description)
        directory.begin(
            resolved(config, stream, learner), surroundings, measure.space(learner, stream, config)
        )
        records = directory.resume(learner)
        watch.start(config, stream, records)
        for task in stream[learner.tasks_seen :]:
            began = time.perf_counter()
            meter = measure.Meter(where)
            learned, _ = measure.split(task, config)
            learner.learn(learned.x, learned.y, classes=stream.heads[task.t - 1], progress=watch.progress)
            record = {"task": task.t, "learn_seconds": time.perf_counter() - began}
            accuracies = measure.evaluate(learner, stream)
            certificate, bounds = measure.certify(learner, stream, config, accuracies["tasks"])
            record |= accuracies | bounds | {"seconds": time.perf_counter() - began} | meter.peaks(learner)
            trace = [measure.finite(step) for step in getattr(learner, "trace", [])]
            directory.store(record, trace, certificate, learner.save)
            records.append(record)
            watch.task(record)
        summary = measure.summarise(config, stream, records)
        directory.finish(summary)
        watch.finish(summary)
    return summary
