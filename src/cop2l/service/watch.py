"""The report page while its runs go on: made again whenever their files change, and shown without reloading by hand.

The report is a page of its own that may load nothing; so it stands in a frame, and the page around it listens and reloads it.
"""

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any

from cop2l.audit.finding import NUMBERED
from cop2l.certify.certificate import read as read_certificate
from cop2l.errors import UserError
from cop2l.experiments import config as configuration
from cop2l.experiments.measure import summarise
from cop2l.files import read_json, read_lines
from cop2l.report import runs
from cop2l.report.page import page
from cop2l.service import server
from cop2l.service.server import Request, Response

EVERY = 0.5
"""Seconds between two looks at the files."""
ALIVE = 15.0
"""Seconds after which a silent stream says that it is still there."""
STYLE = """html,body{height:100%;margin:0}body{display:flex;flex-direction:column;color-scheme:light dark}
p{font:15px/1.4 system-ui,sans-serif;margin:0;padding:.4rem 1rem;border-bottom:1px solid #8886}
iframe{flex:1;border:0;width:100%}"""
SCRIPT = """
const line = document.querySelector("p"), frame = document.querySelector("iframe");
const events = new EventSource("events");
let shown = frame.dataset.version;
events.onmessage = event => {
  const now = JSON.parse(event.data);
  line.textContent = now.sentence;
  document.title = now.sentence;
  if (now.version === shown) return;
  const top = frame.contentWindow.scrollY;
  frame.onload = () => frame.contentWindow.scrollTo(0, top);
  frame.contentWindow.location.reload();
  shown = now.version;
};
events.onerror = () => { line.textContent = "The server is gone; the page shows what was last seen."; };
"""


class Watch:
    """The runs under some paths, and the page about them as they stand."""

    def __init__(self, paths: Sequence[str | Path], over: Sequence[str] = ("seed",)) -> None:
        self.paths, self.over = list(map(Path, paths)), list(over)
        self._made: tuple[str, str] = ("", "")

    def version(self) -> str:
        """A text that changes whenever a file that the page is made of does."""
        seen = []
        for folder in self._folders():
            for name in ("config.json", "records.jsonl", "summary.json"):
                file = folder / name
                if file.exists():
                    about = file.stat()
                    seen.append(f"{file} {about.st_size} {about.st_mtime_ns}")
        return hashlib.sha256("\n".join(seen).encode()).hexdigest()[:16]

    def sentence(self) -> str:
        """How far the runs are."""
        folders = self._folders()
        if not folders:
            return f"Waiting for a run in {', '.join(map(str, self.paths))}."
        done = [_progress(folder) for folder in folders]
        if len(done) == 1:
            learned, tasks, finished = done[0]
            state = "finished" if finished else "not finished"
            return f"{folders[0]}: {learned} of {tasks or '?'} tasks learned, {state}."
        return f"{sum(finished for *_, finished in done)} of {len(done)} runs finished."

    def now(self) -> dict[str, str]:
        """What a browser must know to follow."""
        return {"version": self.version(), "sentence": self.sentence()}

    def page(self) -> str:
        """The report on what is there so far; made once for each version."""
        version = self.version()
        if self._made[0] != version:
            self._made = (version, self._page())
        return self._made[1]

    def _page(self) -> str:
        found = [_so_far(folder) for folder in self._folders()]
        whole = runs.Found(
            tuple(one for one in found if isinstance(one, runs.Run)),
            tuple(one for one in found if isinstance(one, runs.LeftOut)),
        )
        if whole.runs:
            return page(whole, self.over)
        said = [left.sentence for left in whole.left_out] or [self.sentence()]
        lines = "".join(f"<p>{escape(sentence)}</p>" for sentence in said)
        return f"<!doctype html><meta charset=utf-8><title>cop2l watch</title>{lines}"

    def _folders(self) -> list[Path]:
        return [folder for path in self.paths if path.exists() for folder in runs.folders(path)]


def _progress(folder: Path) -> tuple[int, int | None, bool]:
    """Tasks learned, tasks in all, and whether the run is finished."""
    try:
        learned = len(read_lines(folder / "records.jsonl"))
        tasks = read_json(folder / "config.json").get("tasks") if (folder / "config.json").exists() else None
    except UserError:  # the page says what is wrong
        learned, tasks = 0, None
    return learned, tasks, (folder / "summary.json").exists()


def _so_far(folder: Path) -> runs.Run | runs.LeftOut:
    """A run as it stands: one that is not finished is shown as if it ended with its last task."""
    found = runs.read(folder)
    if isinstance(found, runs.Run) or found.state != "unfinished":
        return found
    try:
        stored, records = read_json(folder / "config.json"), read_lines(folder / "records.jsonl")
        if not records:
            return found
        chosen = configuration.Config(**{k: v for k, v in stored.items() if k in configuration.FIELDS})
        now = runs.read(folder, summarise(chosen, stored["scenario"], _not_valid(folder), records))
    except (UserError, KeyError, TypeError):
        return found
    return now if isinstance(now, runs.Run) else found  # it is being written at this moment


def _not_valid(folder: Path) -> list[str]:
    issued = [path for path in (folder / "certificates").glob("*") if NUMBERED.fullmatch(path.name)]
    return (
        list(read_certificate(max(issued, key=lambda path: int(path.name[6:]))).not_valid) if issued else []
    )


def application(watch: Watch, host: str = "127.0.0.1") -> Any:
    """The HTTP application: the page around, the report in it, and the stream of changes."""
    alone = server.Alone()
    script = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{script}'; connect-src 'self'; frame-src 'self'"

    async def around(_: Request) -> Response:
        now = await server.run_in_threadpool(watch.now)
        text = (
            "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
            f"<title>cop2l watch</title><style>{STYLE}</style><p role=status>{escape(now['sentence'])}</p>"
            f"<iframe src=report title='The report' data-version={now['version']}></iframe><script>{SCRIPT}</script></html>"
        )
        return Response(text, media_type="text/html", headers={"Content-Security-Policy": policy})

    async def report(_: Request) -> Response:
        return Response(await alone.run(watch.page), media_type="text/html")

    async def events(request: Request) -> Response:
        ending = getattr(request.app.state, "ending", lambda: False)
        return server.StreamingResponse(changes(watch, ending), media_type="text/event-stream")

    return server.application(
        {"/": ("GET", around), "/report": ("GET", report), "/events": ("GET", events)}, host
    )


async def changes(watch: Watch, ending: Callable[[], bool]) -> AsyncIterator[str]:
    """One event at once, and one whenever something changes."""
    before, now, silent = None, None, 0.0
    while not ending():
        with suppress(OSError):  # a folder that went while it was looked at
            now = await server.run_in_threadpool(watch.now)
        if now != before:
            before, silent = now, 0.0
            yield f"data: {json.dumps(now)}\n\n"
        elif silent >= ALIVE:
            silent = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(EVERY)
        silent += EVERY


def watch(
    paths: Sequence[str | Path], *, host: str = "127.0.0.1", port: int = 8001, over: Sequence[str] = ("seed",)
) -> None:
    """Show the report on runs, live, until Ctrl-C."""
    shown = Watch(paths, over)
    server.run(application(shown, host), host, port, f"Watching {', '.join(map(str, paths))}")
