"""The report while its run goes on: a real server, a real run, and a page that changes."""

import asyncio
import json
import shutil
import subprocess
import sys
import threading
import urllib.request

import pytest

from cop2l.experiments import grid
from cop2l.experiments.directory import RunDirectory
from cop2l.experiments.run import run as experiment
from cop2l.files import read_lines, write_lines
from cop2l.service.watch import Watch, changes

TABLE = {"tasks": 4, "model": "mlp", "architecture": {"hidden": 16}, "memory": 60, "epochs": 5, "lr": 0.3}


def listen(server, heard):
    """Collect the events of a server until it ends."""
    with urllib.request.urlopen(f"{server.url}/events", timeout=120) as stream:
        for line in stream:
            if line.startswith(b"data: "):
                heard.append(json.loads(line.removeprefix(b"data: ")))


def test_the_page_follows_a_run(started, data, tmp_path, until):
    folder, heard = tmp_path / "run", []
    server = started("watch", folder)
    listener = threading.Thread(target=listen, args=(server, heard))
    listener.start()
    status, page = server.ask("/")
    assert (status, "Waiting for a run in" in page) == (200, True)
    assert "Waiting for a run in" in server.ask("/report")[1]
    words = [f"{key}={value}" for key, value in TABLE.items() if key != "architecture"]
    done = subprocess.run(
        [sys.executable, "-m", "cop2l", "run", str(data), *words, "--out", str(folder)],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    until(lambda: heard and heard[-1]["sentence"] == f"{folder}: 4 of 4 tasks learned, finished.")
    assert len({event["version"] for event in heard}) == len(heard) >= 2
    assert "Waiting" not in server.ask("/report")[1]
    assert str(folder) in server.ask("/report")[1]
    code, out, err = server.stop()  # with a listener that never hangs up
    assert (code, out, err) == (0, "Stopped.\n", "")
    listener.join(60)
    assert not listener.is_alive()


def stopped_after(folder, to, tasks):
    """The files of a run as they were after some of its tasks."""
    to.mkdir()
    shutil.copy(folder / "config.json", to)
    write_lines(to / "records.jsonl", [
        {key: value for key, value in line.items() if key != "sha256"}
        for line in read_lines(folder / "records.jsonl")[:tasks]
    ])  # fmt: skip
    for name in (f"after-{task:02d}" for task in range(1, tasks + 1)):
        if (folder / "certificates" / name).exists():
            shutil.copytree(folder / "certificates" / name, to / "certificates" / name)
    lines = sum(line["trace"] for line in read_lines(to / "records.jsonl"))
    write_lines(to / "trace.jsonl", read_lines(folder / "trace.jsonl")[:lines])
    return to


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    experiment(grid.single(TABLE | {"stream": str(data), "anytime": True}), folder)
    return folder


def test_an_unfinished_run_is_shown_as_it_stands(whole, tmp_path):
    records = read_lines(whole / "records.jsonl")
    folder = stopped_after(whole, tmp_path / "run", 2)
    watch = Watch([folder])
    assert watch.sentence() == f"{folder}: 2 of 4 tasks learned, not finished."
    page, version = watch.page(), watch.version()
    mean = 100 * sum(records[1]["accuracy"]) / 2
    assert f"{mean:.1f}" in page or f"{mean:.2f}" in page
    assert "is not finished" not in page
    assert (watch.page() is page, watch.version()) == (
        True,
        version,
    )  # nothing changed: nothing is made again
    shutil.rmtree(folder)
    stopped_after(whole, folder, 3)
    assert watch.version() != version
    assert watch.page() != page


def test_several_runs_and_runs_that_cannot_be_read(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "runs" / "whole")
    stopped_after(whole, tmp_path / "runs" / "half", 1)
    watch = Watch([tmp_path / "runs"])
    assert watch.sentence() == "1 of 2 runs finished."
    assert watch.page()
    (tmp_path / "runs" / "half" / "records.jsonl").write_text("{}\n{}\n")
    assert watch.sentence() == "1 of 2 runs finished."
    assert "half" in watch.page()


def test_nothing_is_written_and_no_lock_is_taken(whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with RunDirectory(whole):
        watch = Watch([whole, folder])
        assert watch.page()
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_folder_that_goes_while_it_is_looked_at_does_not_end_the_stream(whole):
    class Shaken(Watch):
        looks = 0

        def now(self):
            self.looks += 1
            if self.looks == 2:
                raise FileNotFoundError("it was replaced")
            return {"version": str(self.looks), "sentence": "as it is"}

    async def heard():
        watch = Shaken([whole])
        return [event async for event in changes(watch, lambda: watch.looks >= 3)]

    assert [json.loads(event.removeprefix("data: "))["version"] for event in asyncio.run(heard())] == [
        "1",
        "3",
    ]


@pytest.mark.browser
def test_a_browser_follows_by_itself(started, whole, tmp_path, chromium):
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    folder = stopped_after(whole, tmp_path / "run", 2)
    server = started("watch", folder)
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        tab, complaints, asked = browser.new_page(), [], []
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(server.url)
        frame = tab.frame_locator("iframe")
        frame.locator("h1").wait_for(timeout=60_000)
        api.expect(tab.locator("p[role=status]")).to_contain_text("2 of 4 tasks", timeout=60_000)
        before = frame.locator("#summary table").first.inner_text()
        shutil.copytree(whole, folder, dirs_exist_ok=True)
        api.expect(tab.locator("p[role=status]")).to_contain_text(
            "4 of 4 tasks learned, finished", timeout=60_000
        )
        api.expect(frame.locator("#summary table").first).not_to_have_text(before, timeout=60_000)
        browser.close()
    assert complaints == []
    assert {url.removeprefix(server.url) for url in asked} <= {"/", "/report", "/events", "/favicon.ico"}
