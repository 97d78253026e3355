"""The experiment: one visible loop over the tasks of a stream."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cop2l.certificates.commitment import commitment_hash, differing_keys
from cop2l.console import Watcher, Watchers
from cop2l.errors import UserError
from cop2l.experiments import measure
from cop2l.experiments.config import Config
from cop2l.experiments.directory import RunDirectory
from cop2l.experiments.environment import environment
from cop2l.experiments.learners import (
    check_stream,
    device,
    load_stream,
    new_learner,
    resolved_config,
    run_commitment,
)
from cop2l.experiments.records import Record, as_json
from cop2l.learner.ranks import Ranks
from cop2l.learner.state import threads
from cop2l.streams.task import Stream


def run(
    config: Config,
    folder: str | Path,
    watchers: Sequence[Watcher] = (),
    commitment: dict[str, Any] | None = None,
    ranks: Ranks | None = None,
) -> dict[str, Any]:
    """Learn every task; after each, evaluate on all tasks so far, certify what is due, and store. Returns the summary.

    A run that was stopped continues after its last finished task; a finished run is not run again. A run that differs from
    a `commitment` made before is refused; its certificates name the hash of the commitment. If ranks share
    the run, this is rank 0; the others `follow` (experiments/ranks.py).
    """
    digest = None if commitment is None else commitment_hash(commitment)
    with RunDirectory(folder) as directory, threads(config.threads), Watchers(watchers) as watch:
        directory.check(config, digest)
        if (finished := directory.summary()) is not None:
            return finished
        stream, learner, records = prepare(config, directory, commitment, watch.note, ranks)
        watch.start(config, stream, [as_json(record) for record in records])
        for task in stream[learner.tasks_seen :]:
            meter = measure.Meter(config)
            x, y, learn_kwargs = measure.learned_part(stream, task.t, config)
            learner.learn(x, y, progress=watch.progress, **learn_kwargs)
            meter.learned()
            learned = len(learner.state.tasks[-1].learned) if config.holdout else len(y)
            records.append(measure.evaluate(learner, stream, learned, records))
            certificate = measure.certify(learner, stream, config, records)
            meter.read(records[-1], learner)
            directory.store(records[-1], certificate, learner)
            watch.task(as_json(records[-1]))
        summary = as_json(measure.summarise(config, stream.description, records))
        directory.finish(summary)
        watch.finish(summary)
    return summary


def prepare(
    config: Config,
    directory: RunDirectory,
    commitment: dict[str, Any] | None = None,
    say: Callable[[str], None] = lambda _: None,
    ranks: Ranks | None = None,
) -> tuple[Stream, Any, list[Record]]:
    """The stream, the learner after its last finished task, and the records so far; config.json is written."""
    stream = load_stream(config)
    check_stream(config, stream)
    digest = None if commitment is None else commitment_hash(commitment)
    learner: Any = new_learner(config, stream, digest, say)
    if commitment is not None and (names := differing_keys(run_commitment(config, learner), commitment)):
        raise UserError(
            f"This run differs from the commitment in {', '.join(names[:10])}; use the values of the commitment."
        )
    space = measure.space(learner, stream, config)
    records = directory.resume(learner)
    settings = {**resolved_config(config, stream, learner), "commitment": digest}
    place = environment(
        device(config),
        stream=stream.description,
        model=learner.model.description,
    )
    directory.begin(settings, place, space)
    if ranks is not None:
        learner.engine.ranks = ranks
        ranks.broadcast(learner.tasks_seen)
    return stream, learner, records
