"""Predictions of a certified model, its certificate, and feedback into monitors, over HTTP."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from cop2l.audit.exported import certified_weights
from cop2l.audit.finding import find
from cop2l.certify.certificate import Certificate
from cop2l.certify.certificate import read as read_certificate
from cop2l.errors import UserError
from cop2l.experiments import life
from cop2l.files import Lock, parse
from cop2l.kernel.arithmetic import percent
from cop2l.kernel.form import TEXT_FILE, Unreadable
from cop2l.kernel.form import read as read_content
from cop2l.kernel.learning import digest
from cop2l.kernel.verdict import Verdict
from cop2l.monitor.monitor import Monitor, mistaken
from cop2l.monitor.words import claim_of, verdict
from cop2l.service import server
from cop2l.service.server import Problem, Request, Response

MOST_BYTES, MOST_ROWS, MOST_LETTERS, MOST_DIMENSIONS = 2**23, 1000, 1000, 16
WATCHED = ("tasks", "classes", "groups")
"""The families that single examples speak of. An average needs tasks that come at random; forgetting needs old parameters."""
ASKED = {"rows", "task"}
TOLD = {"rows", "predicted", "labels", "task", "groups"}
STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}
td,th{text-align:left;padding:.1rem .8rem .1rem 0}.alarm{font-weight:bold;color:#c22}pre{overflow-x:auto}"""


class Service:
    """What is served, without HTTP: a learner, its last certificate, and a monitor for each of its claims.

    alpha is shared by all monitors: if all claims are true, the probability that there is ever an alarm is at most alpha.
    """

    def __init__(
        self,
        source: str | Path,
        state: str | Path | None = None,
        *,
        alpha: float = 0.01,
        most_rows: int = MOST_ROWS,
    ) -> None:
        if not 0 < alpha < 1:
            raise UserError(f"alpha must be a number above 0 and below 1, for example 0.01, not {alpha!r}.")
        self.name, self.most_rows = str(source), most_rows
        self.learner: Any = life.load(source)
        self.shape = tuple((getattr(self.learner.model, "description", None) or {}).get("inputs", ()))
        self.file, self.certificate = _last(Path(source))
        self.monitors: list[Monitor] = []
        if self.file is not None and self.certificate is not None:
            if digest(certified_weights(read_content(self.file.parent))) != digest(
                self.learner.model.state_dict()
            ):
                raise UserError(
                    f"The learner in {source} is not the one that its last certificate is about; certify it, or finish its run."
                )
            # another certificate, other monitors
            folder = self._counts = (
                Path(state or Path(source) / "monitor") / self.certificate.content["digest"][:12]
            )
            stated = list(self.certificate.statements)
            own = [
                (number, s)
                for number, s in enumerate(stated)
                if s["family"] in WATCHED and 0 < s["value"] < 1
            ]
            self.monitors = [
                Monitor(
                    self.certificate,
                    s["family"],
                    s["task"],
                    s["subject"],
                    alpha=alpha / len(own),
                    state=folder / f"{s['family']}-{s['task']}-{number}.json",
                )
                for number, s in own
            ]

    @property
    def alarm(self) -> bool:
        """Whether any claim was ever refuted."""
        return any(monitor.alarm for monitor in self.monitors)

    def health(self) -> dict[str, Any]:
        """Whether it is well, and what the monitors found."""
        self._look_again()
        return {
            "status": "ok",
            "tasks": self.learner.tasks_seen,
            "certified": self.certificate is not None,
            "alarm": self.alarm,
            "monitors": [_found(monitor) for monitor in self.monitors],
        }

    def predict(self, body: bytes) -> dict[str, Any]:
        """Classes and, where the method has them, probabilities."""
        asked = _object(body, ASKED)
        x, task = self._rows(asked.get("rows")), self._task(asked.get("task"))
        if self.learner.scenario == "task-incremental" and task is None:
            raise Problem(422, f"Say which task these rows are of: task is 1 to {self.learner.tasks_seen}.")
        classes, shares = self._answers(x, task)
        return {"classes": classes, "probabilities": shares}

    def feedback(self, body: bytes) -> dict[str, Any]:
        """Count one batch of true labels, in every monitor that it speaks to; all of it is checked before anything is counted."""
        told = _object(body, TOLD)
        if not self.monitors:
            raise Problem(
                409,
                "There is no claim that feedback could refute: the model has no certificate, or an empty one.",
            )
        labels, groups = _column(told, "labels", self.most_rows), self._groups(told)
        if ("rows" in told) == ("predicted" in told):
            raise Problem(
                422, "Send the true labels with either the rows themselves or the classes predicted for them."
            )
        tasks = self._tasks(self._task(told.get("task")), labels)
        if "predicted" in told:
            predicted = _column(told, "predicted", self.most_rows)
        else:
            predicted = self._predicted(self._rows(told["rows"]), tasks)
        if len(predicted) != len(labels):
            raise Problem(
                422, f"There are {len(predicted)} examples and {len(labels)} labels; send one label for each."
            )
        classes = self.monitors[0].classes
        wrong = np.array([mistaken(a, b, classes) for a, b in zip(predicted, labels, strict=True)])
        if groups is not None and len(groups) != len(labels):
            raise Problem(
                422, f"There are {len(labels)} labels and {len(groups)} groups; send one group for each."
            )
        spoken = [(m, wrong[_about(m.statement, tasks, labels, groups)].tolist()) for m in self.monitors]
        spoken = [(monitor, errors) for monitor, errors in spoken if errors]
        if not spoken:
            raise Problem(
                422,
                "Nothing is claimed about these examples that feedback could refute; nothing was counted.",
            )
        counted = self._count(spoken)
        return {"examples": len(labels), "errors": int(wrong.sum()), "alarm": self.alarm, "monitors": counted}

    def _count(self, batches: Sequence[tuple[Monitor, list[bool]]]) -> list[dict[str, Any]]:
        """Count a batch in each monitor; servers that keep the same counts do so one after the other."""
        found: list[dict[str, Any]] = []
        try:
            with Lock(self._counts / ".feedback.lock", "another server counts ({holder})", server.WAIT):
                for monitor, errors in batches:
                    monitor.update(errors)
                    found.append(_found(monitor))
        except (UserError, OSError) as error:
            some = f"it was counted for {len(found)} of {len(batches)} claims: do not send it again"
            none = "nothing was counted: try again later"
            raise Problem(
                503, f"The batch could not be counted ({str(error).rstrip('.')}); {some if found else none}."
            ) from None
        return found

    def page(self) -> str:
        """What is served, for people."""
        self._look_again()
        said = self.certificate.sentences if self.certificate else ["This model has no certificate."]
        broken = [
            f"NOT VALID: {reason}" for reason in (self.certificate.not_valid if self.certificate else ())
        ]
        rows = "".join(
            f"<tr><td>{escape(claim_of(m.statement))} is at most {percent(m.bound)}</td><td>{m.n}</td><td>{m.errors}</td>"
            f"<td{' class=alarm' * m.alarm}>{'ALARM' if m.alarm else 'no alarm'}</td></tr>"
            for m in self.monitors
        )
        words = (
            verdict(next((m for m in self.monitors if m.alarm), self.monitors[0])) if self.monitors else ""
        )
        example = (
            json.dumps({"rows": [np.zeros(self.shape).tolist()]})
            if int(np.prod(self.shape)) <= 16
            else '{"rows": [[...]]}'
        )
        return (
            f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
            f"<title>cop2l serves {escape(self.name)}</title><style>{STYLE}</style><h1>{escape(self.name)}</h1>"
            f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in [*said, *broken])}</ul>"
            f"<h2>Feedback</h2><table><tr><th>claim<th>examples<th>errors<th></tr>{rows}</table>"
            f"<p{' class=alarm' * self.alarm}>{escape(words)}</p><h2>Ask</h2>"
            f"<pre>curl -H 'Content-Type: application/json' -d '{escape(example)}' .../predict</pre>"
            f"<ul><li>POST /predict: rows of shape {escape(str(list(self.shape)))}, at most {self.most_rows}; task, if"
            " task-incremental<li>POST /feedback: labels, with rows or predicted; task, groups"
            "<li><a href=certificate>GET /certificate</a><li><a href=health>GET /health</a></ul>"
        )

    def _look_again(self) -> None:
        """See what other servers have counted: an alarm is everybody's."""
        for monitor in self.monitors:
            monitor.reload()

    def _rows(self, rows: Any) -> np.ndarray:
        """Rows as an array of the model's inputs; flat rows take the model's shape."""
        if not isinstance(rows, list) or not rows:
            raise Problem(422, 'Send at least one row: {"rows": [[...], ...]}.')
        if len(rows) > self.most_rows:
            raise Problem(
                413, f"There are {len(rows)} rows, and at most {self.most_rows} are answered at once."
            )
        try:  # numpy would give every text the length of the longest
            found = np.array(rows) if _numeric(rows) else np.empty(0, object)
        except (ValueError, OverflowError):
            found = np.empty(0, object)
        if found.dtype.kind not in "iuf":
            raise Problem(422, "Rows must be lists of numbers, all of one shape.")
        with np.errstate(over="ignore"):
            found = found.astype(np.float32)
        if not np.isfinite(found).all():
            raise Problem(422, "Rows have a number that single precision cannot hold.")
        flat = (
            int(np.prod(self.shape)),
        )  # any other shape of this size would be another order of the numbers
        if self.shape and found.shape[1:] not in (self.shape, flat):
            raise Problem(
                422,
                f"A row has the shape {list(found.shape[1:])}; the model takes {list(self.shape)}"
                + (f", or {list(flat)}." if len(self.shape) > 1 else "."),
            )
        return found.reshape(len(rows), *self.shape) if self.shape else found

    def _task(self, task: Any) -> int | None:
        last = self.learner.tasks_seen
        if task is not None and (type(task) is not int or not 1 <= task <= last):
            raise Problem(422, f"task must be a whole number from 1 to {last}.")
        return task

    def _tasks(self, task: int | None, labels: Sequence[Any]) -> np.ndarray:
        """The task of each example: as it was told, or the only one that has its class."""
        assert self.certificate is not None
        if task is not None:
            return np.full(len(labels), task)
        owners: dict[Any, list[int]] = {}
        for record in self.certificate.records:
            for label in record["head"]:
                owners.setdefault(label, []).append(record["task"])
        found = [owners.get(label, []) if type(label) is int else [] for label in labels]
        if any(len(tasks) != 1 for tasks in found):
            raise Problem(
                422, f"Say which task these examples are of: task is 1 to {self.learner.tasks_seen}."
            )
        return np.array([tasks[0] for tasks in found])

    def _groups(self, told: Mapping[str, Any]) -> list[str] | None:
        """The group of each example, by a name that was declared, if any were; None if none is told."""
        assert self.certificate is not None
        if told.get("groups") is None:
            return None
        found = [str(name) for name in _column(told, "groups", self.most_rows)]
        declared = self.certificate.options.groups
        if declared and not {*found} <= {*declared}:
            raise Problem(
                422, f"A group is not among those that the certificate declares: {', '.join(declared):.300}."
            )
        return found

    def _answers(self, x: np.ndarray, task: int | None) -> tuple[list[int], list[list[float]] | None]:
        """Classes and, where the method has them, probabilities; a row whose logits are no numbers has neither."""
        shares = getattr(self.learner, "probabilities", None)
        found = None if shares is None else shares(x, task=task)
        if found is not None and not found.isfinite().all():
            raise Problem(
                422, "The model has no answer to a row: its numbers are too large for what it computes."
            )
        return self.learner.predict(x, task=task).tolist(), None if found is None else found.tolist()

    def _predicted(self, x: np.ndarray, tasks: np.ndarray) -> list[int]:
        """The classes that the model predicts, each for its own task where that matters."""
        if len(x) != len(tasks):
            raise Problem(422, f"There are {len(x)} rows and {len(tasks)} labels; send one label for each.")
        if self.learner.scenario != "task-incremental":
            return self._answers(x, None)[0]
        found = np.empty(len(x), np.int64)
        for task in np.unique(tasks):
            found[tasks == task] = self._answers(x[tasks == task], int(task))[0]
        return list(found.tolist())


def application(service: Service, host: str = "127.0.0.1", most_bytes: int = MOST_BYTES) -> Any:
    """The HTTP application of a service."""
    alone = server.Alone()

    async def predict(request: Request) -> Response:
        return server.JSONResponse(await alone.run(service.predict, await server.posted(request, most_bytes)))

    async def feedback(request: Request) -> Response:
        return server.JSONResponse(
            await alone.run(service.feedback, await server.posted(request, most_bytes))
        )

    async def health(_: Request) -> Response:
        return server.JSONResponse(await alone.run(service.health))

    async def certificate(_: Request) -> Response:
        if service.file is None:
            raise Problem(404, "This model has no certificate.")
        return Response(service.file.read_bytes(), media_type="application/json")

    async def page(_: Request) -> Response:
        text, policy = await alone.run(service.page), "default-src 'none'; style-src 'unsafe-inline'"
        return Response(text, media_type="text/html", headers={"Content-Security-Policy": policy})

    return server.application(
        {
            "/": ("GET", page),
            "/health": ("GET", health),
            "/certificate": ("GET", certificate),
            "/predict": ("POST", predict),
            "/feedback": ("POST", feedback),
        },
        host,
    )


def _last(source: Path) -> tuple[Path | None, Certificate | None]:
    """The text of the last certificate, and the certificate; none if none was issued."""
    try:
        folders, _ = find(source, Verdict())
    except Unreadable:
        folders = []
    return (folders[-1] / TEXT_FILE, read_certificate(folders[-1])) if folders else (None, None)


def _object(body: bytes, known: set[str]) -> Mapping[str, Any]:
    try:
        found = parse(body)
    except ValueError:
        raise Problem(400, "The body is not JSON of plain numbers and texts.") from None
    if not isinstance(found, dict) or set(found) - known:
        raise Problem(422, f"Send a JSON object with these fields only: {', '.join(sorted(known))}.")
    return found


def _column(told: Mapping[str, Any], name: str, most: int) -> list[Any]:
    found = told.get(name)
    if (
        not isinstance(found, list)
        or not 0 < len(found) <= most
        or any(isinstance(v, list | dict) for v in found)
    ):
        raise Problem(422, f"{name} must be a list with one entry for each example, 1 to {most} of them.")
    if any(isinstance(v, str) and len(v) > MOST_LETTERS for v in found):
        raise Problem(422, f"{name} has a name of more than {MOST_LETTERS} letters.")
    return [int(v) if isinstance(v, float) and v.is_integer() else v for v in found]  # 1.0 is class 1


def _numeric(rows: list[Any], depth: int = MOST_DIMENSIONS) -> bool:
    """Whether lists of lists hold nothing but numbers."""
    kinds = set(map(type, rows))
    return kinds <= {int, float} or (
        kinds == {list} and depth > 0 and all(_numeric(r, depth - 1) for r in rows)
    )


def _about(
    statement: Mapping[str, Any], tasks: np.ndarray, labels: Sequence[Any], groups: Sequence[Any] | None
) -> np.ndarray:
    """Which examples a statement speaks of."""
    mine: np.ndarray = tasks == statement["task"]
    if statement["family"] == "classes":
        mine = mine & np.array([str(label) == str(statement["subject"]) for label in labels])
    if statement["family"] == "groups":
        named = [None] * len(labels) if groups is None else groups
        mine = mine & np.array([group == statement["subject"] for group in named])
    return mine


def _found(monitor: Monitor) -> dict[str, Any]:
    """What a monitor found, for JSON."""
    stated = {name: monitor.statement[name] for name in ("family", "task", "subject")}
    return {
        **stated,
        "bound": monitor.bound,
        "n": monitor.n,
        "errors": monitor.errors,
        "evidence": monitor.evidence,
        "alarm": monitor.alarm,
    }


def serve(
    source: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    state: str | Path | None = None,
    alpha: float = 0.01,
    most_rows: int = MOST_ROWS,
) -> None:
    """Serve a run or a saved learner until Ctrl-C."""
    if most_rows < 1:
        raise UserError(f"--rows must be at least 1, not {most_rows}.")
    service = Service(source, state, alpha=alpha, most_rows=most_rows)
    server.run(application(service, host), host, port, f"Serving {source}")
