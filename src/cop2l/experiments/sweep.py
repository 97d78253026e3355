"""Many runs, in local processes or on a Ray cluster. A run that fails does not stop the others."""

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from cop2l.console import advice_in_one_line
from cop2l.errors import UserError, missing_extra
from cop2l.experiments.config import Config
from cop2l.experiments.grid import run_names
from cop2l.experiments.records import SUMMARY
from cop2l.files import write_text


@dataclass(frozen=True)
class Job:
    """One run of a sweep: its configuration, its directory, and a name that differs from the others."""

    config: Config
    folder: Path
    name: str

    @property
    def finished(self) -> bool:
        return (self.folder / SUMMARY).exists()


@dataclass(frozen=True)
class Ended:
    """A run that ended: its summary, or its error."""

    job: Job
    summary: dict[str, Any] | None
    error: str | None


def jobs(configs: Sequence[Config], folder: str | Path) -> list[Job]:
    """The jobs of some configurations; the directory of each is named by its hash."""
    return [Job(c, Path(folder) / c.hash, name) for c, name in zip(configs, run_names(configs), strict=True)]


def overview(jobs: Sequence[Job], failed: Sequence[Ended]) -> list[dict[str, Any]]:
    """The state of each run of a sweep, for JSON."""
    errors = {outcome.job.folder: outcome.error for outcome in failed}
    return [
        {
            "folder": str(job.folder),
            "name": job.name,
            "finished": job.finished,
            "error": errors.get(job.folder),
        }
        for job in jobs
    ]


Answer = tuple[dict[str, Any] | None, str | None]
"""A summary or an error."""


def attempt(config: Config, folder: str) -> Answer:
    """Run one configuration; returns its summary, or its error in a sentence (the traceback is in error.txt)."""
    from cop2l.experiments.run import run

    try:
        summary = run(config, folder)
    except UserError as error:
        return None, str(error)
    except Exception as error:
        file = Path(folder) / "error.txt"
        with contextlib.suppress(OSError):
            write_text(file, traceback.format_exc())
        return None, f"{type(error).__name__}: {error} (see {file})"
    (Path(folder) / "error.txt").unlink(missing_ok=True)
    return summary, None


def warm_context() -> Any:
    """A multiprocessing context that starts quickly: where possible, it forks a process that has imported torch."""
    methods = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    context.set_forkserver_preload(["cop2l.experiments.run", "torch._inductor.config"])
    return context


def locally(todo: Sequence[Job], workers: int) -> Generator[Ended, None, None]:
    """Run jobs in local processes, `workers` at a time, one process per run."""
    context = warm_context()
    waiting = list(reversed(todo))
    running: dict[Any, tuple[Job, Any]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.pop()
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(
                    target=_work, args=(job.config, str(job.folder), sender), daemon=True
                )
                process.start()
                sender.close()
                running[receiver] = job, process
            ready: Any
            for ready in wait(list(running)):
                job, process = running.pop(ready)
                answer: Answer | None = None
                with contextlib.suppress(EOFError):
                    answer = ready.recv()
                ready.close()
                process.join()
                died = f"The process ended without a result (exit code {process.exitcode})."
                yield Ended(job, *(answer or (None, died)))
    finally:
        for _, process in running.values():
            process.terminate()
            process.join()


def _work(config: Config, folder: str, answer: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent ends the others
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with advice_in_one_line():
        answer.send(attempt(config, folder))


def _end_with_parent() -> None:
    """Wait until the sweep itself has ended, in whatever way, and end this process too."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(143)


def on_ray(todo: Sequence[Job], address: str | None) -> Generator[Ended, None, None]:
    """Run jobs on a Ray cluster, or on a new local one without an address; all nodes must see the same folders."""
    try:
        ray: Any = import_module("ray")
    except ImportError:
        raise missing_extra("ray", "ray", "--ray") from None
    dashboard = {} if address else {"include_dashboard": False}
    try:
        ray.init(address=address, log_to_driver=False, **dashboard)
    except (ConnectionError, RuntimeError) as error:
        raise UserError(
            f"Cannot join a Ray cluster at {address} ({error}); start it. If it needs a token, set"
            " RAY_AUTH_MODE=token and RAY_AUTH_TOKEN."
        ) from error
    try:
        waiting: dict[Any, Job] = {}
        for job in todo:
            needs = {"num_cpus": job.config.threads, "num_gpus": int(job.config.device.startswith("cuda"))}
            remote = ray.remote(max_retries=0, **needs)(attempt)
            waiting[remote.remote(job.config, str(job.folder.resolve()))] = job
        while waiting:
            (ready, *_), _ = ray.wait(list(waiting), num_returns=1)
            job = waiting.pop(ready)
            try:
                answer = ray.get(ready)
            except ray.exceptions.RayError as error:
                answer = None, f"{type(error).__name__}: {str(error).splitlines()[0]}"
            yield Ended(job, *answer)
    finally:
        ray.shutdown()
