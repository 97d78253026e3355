"""A model behind an address: a real process, real requests, and bodies that nobody should send."""

import json
import re
import select
import shlex
import shutil
import signal
import socket
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from cop2l.cli import main
from cop2l.errors import UserError
from cop2l.experiments import life
from cop2l.files import Lock
from cop2l.service import server
from cop2l.service.serve import Service
from cop2l.service.server import Problem

DOCS = (Path(__file__).parents[2] / "docs" / "service.md").read_text(encoding="utf-8")
CORNERS = [[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 4.0]]


@pytest.fixture(scope="module")
def served(run, server_class, tmp_path_factory):
    """One server for the requests that change nothing."""
    server = server_class("serve", run, "--rows", 50, "--state", tmp_path_factory.mktemp("monitors"))
    yield server
    code, out, err = server.stop()
    assert (code, err) == (0, "")
    assert out.endswith("Stopped.\n")


def test_predictions_are_the_learners(served, run):
    status, found = served.json("/predict", {"rows": CORNERS})
    learner = life.load(run)
    x = np.array(CORNERS, np.float32)
    assert (status, found["classes"]) == (200, learner.predict(x).tolist())
    assert np.allclose(found["probabilities"], learner.probabilities(x), atol=1e-6)
    assert found["classes"] == [0, 1, 2, 3]


def test_the_certificate_is_the_file_and_the_page_says_it_in_words(served, run):
    issued = max((run / "certificates").iterdir()) / "certificate.json"
    assert served.ask("/certificate") == (200, issued.read_text())
    status, page = served.ask("/")
    assert status == 200
    assert "The error rate on task 1 is at most" in page
    assert "no alarm" in page
    assert "<script" not in page
    assert served.json("/health")[1] | {"monitors": []} == {
        "status": "ok", "tasks": 2, "certified": True, "alarm": False, "monitors": [],
    }  # fmt: skip


HOSTILE = {
    "no JSON": (b"{", 400),
    "not text": (b"\xff\xfe", 400),
    "nothing": (b"", 400),
    "a number": (b"3", 422),
    "deep": (b"[" * 100_000, 400),
    "deep rows": (b'{"rows": ' + b"[" * 200 + b"1" + b"]" * 200 + b"}", 422),
    "twice": (b'{"rows": [[0, 0]], "rows": [[1, 1]]}', 400),
    "NaN": (b'{"rows": [[NaN, 0]]}', 400),
    "infinite": (b'{"rows": [[1e999, 0]]}', 400),
    "beyond single precision": (b'{"rows": [[1e300, 0]]}', 422),
    "a huge integer": (b'{"rows": [[' + b"9" * 3000 + b", 0]]}", 422),
    "an endless integer": (b'{"rows": [[' + b"9" * 100_000 + b", 0]]}", 400),
    "texts": (b'{"rows": [["1", "2"]]}', 422),
    "truth values": (b'{"rows": [[true, false]]}', 422),
    "a truth value": (b'{"rows": [[true, 2]]}', 422),
    "too large to compute with": (b'{"rows": [[3e38, 3e38]]}', 422),
    "a text among numbers": (b'{"rows": [[0, "1"]]}', 422),
    "nulls": (b'{"rows": [[null, 0]]}', 422),
    "ragged": (b'{"rows": [[0, 0], [0]]}', 422),
    "wide": (b'{"rows": [[0, 0, 0]]}', 422),
    "empty": (b'{"rows": []}', 422),
    "an object": (b'{"rows": {"0": [0, 0]}}', 422),
    "another field": (b'{"rows": [[0, 0]], "path": "/etc/passwd"}', 422),
    "another task": (b'{"rows": [[0, 0]], "task": 3}', 422),
    "a task that is text": (b'{"rows": [[0, 0]], "task": "1"}', 422),
    "too many rows": (json.dumps({"rows": [[0, 0]] * 51}).encode(), 413),
    "too long": (b" " * (2**23 + 1), 413),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("path", ["/predict", "/feedback"])
def test_a_bad_body_is_refused_in_one_sentence(served, path, name):
    body, expected = HOSTILE[name]
    status, found = served.json(path, body)
    assert 400 <= status < 500
    if path == "/predict":
        assert status == expected
    assert list(found) == ["error"]
    assert re.fullmatch(r"[A-Z{].*[.}]|rows .*\.|labels .*\.|task .*\.", found["error"])
    assert "Traceback" not in found["error"]
    assert "\n" not in found["error"]


def test_other_bad_requests_are_refused_in_one_sentence(served):
    assert served.json("/predict", b"{}", kind="text/plain")[0] == 415
    assert served.json("/nothing") == (404, {"error": "There is nothing at /nothing; see GET /."})
    assert served.json("/predict")[0] == 405
    assert served.json("/", {}, method="DELETE")[0] == 405
    status, found = served.json("/health", headers={"Host": "evil.example"})
    assert (status, found["error"][:11]) == (421, "This server")
    assert served.json("/health", headers={"Host": "localhost"})[0] == 200
    assert served.json("/health", headers={"Host": "[::1]:80"})[0] == 200
    for strange in ("[", "]", ":", "localhost.evil.example", "127.0.0.1:80:80", "a@localhost"):
        assert served.json("/health", headers={"Host": strange})[0] == 421
        assert served.json("/nothing", headers={"Host": strange})[0] == 404
    assert served.json("/health/", headers={"Host": "evil.example"})[0] == 404  # no redirection to that name


def raw(served, content):
    """The answer to some bytes; nothing if the server hangs up."""
    with socket.create_connection(served.address, timeout=60) as line, suppress(ConnectionError):
        line.sendall(content)
        with suppress(OSError):  # the server may have hung up already
            line.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: line.recv(65536), b""))
    return b""


def test_what_is_no_request_harms_nobody(served):
    chunked = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert b"400" in raw(served, b"\x00\x01\x02\r\n\r\n")[:20]
    assert (
        b"413"
        in raw(served, chunked + b"".join([b"10000\r\n" + b" " * 0x10000 + b"\r\n"] * 130) + b"0\r\n\r\n")[
            :20
        ]
    )
    raw(served, chunked + b"5\r\n{")  # it ends in the middle
    raw(served, b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 200_000 + b"\r\n\r\n")
    assert served.json("/health")[0] == 200


def test_many_at_once_get_their_own_answers(served):
    def ask(number):
        return served.json("/predict", {"rows": [CORNERS[number % 4]] * (1 + number % 7)})[1]["classes"]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(40)))
    assert found == [[number % 4] * (1 + number % 7) for number in range(40)]


def test_feedback_is_counted_for_good_and_an_alarm_is_shown(started, run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    server = started("serve", folder)
    status, found = server.json("/feedback", {"rows": CORNERS, "labels": [0, 1, 2, 3]})
    assert (status, found["errors"], found["alarm"]) == (200, 0, False)
    assert [(one["task"], one["n"], one["errors"]) for one in found["monitors"]] == [(1, 2, 0), (2, 2, 0)]
    status, found = server.json("/feedback", {"predicted": [0, 1], "labels": [0, 0], "task": 1})
    assert [(one["task"], one["n"], one["errors"]) for one in found["monitors"]] == [(1, 4, 1)]
    for bad in (
        {"labels": [0]},
        {"labels": [0], "rows": CORNERS},
        {"labels": [0], "predicted": [0], "rows": CORNERS[:1]},
        {"labels": [0, 9], "predicted": [0, 0]},
        {"labels": [0, "cat"], "predicted": [0, 0], "task": 1},
        {"labels": [0, 1], "predicted": [0], "task": 1},
        {"labels": [0, 7], "predicted": [0, 0], "task": 1},
        {"labels": [[0]], "predicted": [0]},
        {"labels": [0], "predicted": [0], "groups": []},
        {"labels": [0], "rows": [[3e38, 3e38]]},
    ):
        status, found = server.json("/feedback", bad)
        assert (status, list(found)) == (422, ["error"]), bad
    assert server.stop()[0] == 0

    server = started("serve", folder)  # what was counted stays, and what was refused was not counted
    assert [one["n"] for one in server.json("/health")[1]["monitors"]] == [4, 2]
    assert "ALARM" not in server.ask("/")[1].replace("NO ALARM", "")
    for _ in range(3):
        server.json("/feedback", {"predicted": [1] * 40, "labels": [0] * 40, "task": 1})
    found = server.json("/health")[1]
    assert (found["alarm"], [one["alarm"] for one in found["monitors"]]) == (True, [True, False])
    assert "ALARM: the claim is refuted" in server.ask("/")[1]
    code, out, err = server.stop(signal.SIGTERM)
    assert (code, out, err) == (0, "Stopped.\n", "")
    assert main(["verify", str(folder)]) == 2  # the counts in it are no damage: without data nobody can tell


def test_a_long_text_takes_no_more_memory_than_it_has(run, tmp_path):
    """Numpy gives every text of an array the length of the longest: 8 MiB would become 32 GB."""
    service = Service(run, tmp_path)
    body = json.dumps({"rows": ["a" * 10**6] + ["b"] * 99}).encode()
    tracemalloc.start()
    try:
        with pytest.raises(Problem, match="lists of numbers"):
            service.predict(body)
        assert tracemalloc.get_traced_memory()[1] < 10**8
    finally:
        tracemalloc.stop()


def test_numbers_in_another_order_are_no_row(run, tmp_path):
    """A picture with its channels last has as many numbers as the same with its channels first."""
    service = Service(run, tmp_path)
    service.shape = (1, 2)
    answer = service.predict(json.dumps({"rows": [[[4.0, 0.0]]]}).encode())["classes"]
    assert service.predict(json.dumps({"rows": [[4.0, 0.0]]}).encode())["classes"] == answer
    with pytest.raises(Problem, match=r"the shape \[2, 1\]; the model takes \[1, 2\], or \[2\]"):
        service.predict(json.dumps({"rows": [[[4.0], [0.0]]]}).encode())


def test_servers_of_the_same_counts_see_each_other_and_count_one_after_the_other(run, tmp_path, monkeypatch):
    one, other = Service(run, tmp_path), Service(run, tmp_path)
    batch = json.dumps({"predicted": [0, 1], "labels": [0, 0], "task": 1}).encode()
    one.feedback(batch)
    assert other.health()["monitors"][0]["n"] == 2
    assert "<td>2</td>" in other.page()
    monkeypatch.setattr(server, "WAIT", 0.1)
    (lock,) = tmp_path.glob("*/.feedback.lock")
    with Lock(lock, "busy"), pytest.raises(Problem, match="nothing was counted: try again later") as refused:
        other.feedback(batch)
    assert refused.value.status == 503
    other.feedback(batch)
    assert one.health()["monitors"][0]["n"] == 4


def test_a_batch_that_was_counted_in_part_is_not_to_be_sent_again(run, tmp_path, monkeypatch):
    def full(errors):
        raise UserError("The disk is full.")

    service = Service(run, tmp_path)
    batch = json.dumps({"predicted": [0, 2], "labels": [0, 2]}).encode()
    with monkeypatch.context() as patched:
        patched.setattr(service.monitors[1], "update", full)
        with pytest.raises(Problem, match="counted for 1 of 2 claims: do not send it again"):
            service.feedback(batch)
    with monkeypatch.context() as patched:
        patched.setattr(service.monitors[0], "update", full)
        with pytest.raises(Problem, match="nothing was counted"):
            service.feedback(batch)
    assert [monitor.n for monitor in service.monitors] == [1, 0]


@contextmanager
def answering(routes, host="127.0.0.1"):
    """A server in this process, and its address."""
    with socket.create_server(("127.0.0.1", 0)) as opened:
        app = server.application(routes, host)
        running = server.uvicorn.Server(server.config(app))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [opened]})
        thread.start()
        try:
            yield opened.getsockname()
        finally:
            running.should_exit = True
            thread.join(60)


async def much(_):
    return server.Response(b"x" * 2**26)


def ended(line):
    """What comes until the server hangs up; an error of the test if it never does."""
    line.settimeout(60)
    with suppress(ConnectionError):
        return b"".join(iter(lambda: line.recv(65536), b""))
    return b""


def test_who_does_not_ask_or_does_not_listen_is_cut_off(monkeypatch, until):
    monkeypatch.setattr(server, "WAIT", 0.3)
    with answering({"/": ("GET", much)}) as address:
        for half in (b"", b"GET / HT", b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HT"):
            with socket.create_connection(address) as line:
                line.sendall(half)
                assert (b"404" in ended(line)) == (b"nothing" in half)
        with socket.create_connection(address) as line:
            line.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            until(lambda: select.select([line], [], [line], 0)[0])
            until(lambda: _gone(line))


def _gone(line):
    """Whether the other side has given up a connection, found without reading from it."""
    try:
        line.send(b" ")
    except ConnectionError:
        return True
    return False


def test_every_address_of_this_machine_alone_answers_under_its_own_name():
    asked = "GET /nothing HTTP/1.0\r\nHost: {}\r\n\r\n"
    with answering({"/nothing": ("GET", much)}, "127.0.0.2") as address:
        for name, status in (("127.0.0.2", b"200"), ("localhost", b"200"), ("evil.example", b"421")):
            with socket.create_connection(address) as line:
                line.sendall(asked.format(name).encode())
                assert ended(line)[:20].split()[1] == status


def test_all_monitors_share_alpha(run, tmp_path):
    service = Service(run, tmp_path, alpha=0.02)
    assert [monitor.alpha for monitor in service.monitors] == [0.01, 0.01]


def test_classes_and_groups_are_watched_where_they_are_claimed(data, tmp_path):
    words = ["run", str(data), "tasks=2", "model=mlp", "memory=60", "epochs=5", "claim=tasks,classes,average"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    service = Service(tmp_path / "run", tmp_path / "state")
    families = [
        (m.statement["family"], m.statement["task"], m.statement["subject"]) for m in service.monitors
    ]
    assert set(families) <= {("tasks", t, None) for t in (1, 2)} | {
        ("classes", 1 + c // 2, c) for c in range(4)
    }
    assert ("classes", 1, 0) in families
    found = service.feedback(json.dumps({"predicted": [0, 0, 1], "labels": [0, 0, 1], "task": 1}).encode())
    counted = {(one["family"], one["subject"]): one["n"] for one in found["monitors"]}
    assert (counted["tasks", None], counted["classes", 0], counted["classes", 1]) == (3, 2, 1)
    found = service.feedback(json.dumps({"predicted": [0.0, 1], "labels": [0.0, 1.0], "task": 1}).encode())
    counted = {(one["family"], one["subject"]): one["n"] for one in found["monitors"]}
    assert (counted["tasks", None], counted["classes", 0], counted["classes", 1]) == (5, 3, 2)


def test_a_group_is_one_of_those_that_were_declared(data, tmp_path):
    with np.load(data) as content:
        arrays = {name: content[name] for name in content.files}
    group, group_test = ([str(i % 2) for i in range(len(arrays[name]))] for name in ("y", "y_test"))
    np.savez(tmp_path / "grouped.npz", **arrays, group=group, group_test=group_test)
    words = ["run", str(tmp_path / "grouped.npz"), "tasks=1", "model=mlp", "memory=60", "epochs=5"]
    assert main([*words, "claim=tasks,groups", "groups=0,1", "--out", str(tmp_path / "run")]) == 0
    service = Service(tmp_path / "run", tmp_path / "state")
    told = {"predicted": [0, 0, 1], "labels": [0, 0, 1]}
    with pytest.raises(Problem, match="not among those that the certificate declares: 0, 1"):
        service.feedback(json.dumps(told | {"groups": ["0", "1", "North"]}).encode())
    found = service.feedback(json.dumps(told | {"groups": [0, "0", 1]}).encode())
    assert {one["subject"]: one["n"] for one in found["monitors"]} == {None: 3, "0": 2, "1": 1}


def test_a_task_incremental_model_wants_the_task(data, started, tmp_path):
    words = ["run", str(data), "tasks=2", "scenario=task-incremental", "model=mlp", "memory=60", "epochs=5"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    server = started("serve", tmp_path / "run")
    assert server.json("/predict", {"rows": CORNERS}) == (
        422,
        {"error": "Say which task these rows are of: task is 1 to 2."},
    )
    status, found = server.json("/predict", {"rows": CORNERS[2:], "task": 2})
    assert (status, set(found["classes"]) <= {2, 3}) == (200, True)
    assert server.json("/feedback", {"rows": CORNERS, "labels": [0, 1, 2, 3]})[0] == 200


def test_a_method_without_a_certificate_is_served_without_claims(data, started, tmp_path):
    words = ["run", str(data), "method=finetuning", "tasks=2", "model=mlp", "epochs=2"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    server = started("serve", tmp_path / "run")
    status, found = server.json("/predict", {"rows": CORNERS})
    assert (status, len(found["classes"]), found["probabilities"]) == (200, 4, None)
    assert server.json("/certificate") == (404, {"error": "This model has no certificate."})
    assert server.json("/feedback", {"labels": [0], "predicted": [0]})[0] == 409
    assert "This model has no certificate." in server.ask("/")[1]


def test_wrong_words_are_one_sentence(run, tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words, sentence in (
            (["serve", str(run), "--port", port], "choose another with --port"),
            (["serve", str(run), "--port", "123456"], "--port must be a number from 0 to 65535"),
            (["serve", str(run), "--host", "no.such.host.invalid"], "choose another with --port or --host"),
            (["serve", str(tmp_path)], "no saved learner"),
            (["serve", str(run), "--alpha", "7"], "alpha must be"),
            (["serve", str(run), "--rows", "0"], "at least 1"),
            (["watch", str(run), "--port", port], "choose another with --port"),
        ):
            assert main(words) == 2
            err = capsys.readouterr().err
            assert sentence in err
            assert err.count("\n") == 1


def test_a_learner_that_went_on_without_a_certificate_is_not_served_as_certified(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    learner = life.load(run)
    next(learner.model.parameters()).data += 1.0
    learner.learned = learner._state()  # else it would refuse to save them
    shutil.rmtree(folder / "state")
    learner.save(folder / "state")
    with pytest.raises(ValueError, match="is not the one that its last certificate is about"):
        Service(folder)


def test_the_requests_of_the_documentation_are_answered(started, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(0).normal(size=(300, 2)) / 4
    rows = [f"{a + i % 6},{b},{'abcdef'[i % 6]}" for i, (a, b) in enumerate(draws)]
    Path("my-data.csv").write_text("\n".join(["length,width,species", *rows]))
    (line,) = re.findall(r"^cop2l run .*$", DOCS, re.MULTILINE)
    assert main(shlex.split(line)[1:]) == 0
    server = started(*shlex.split(re.search(r"^cop2l (serve .*)$", DOCS, re.MULTILINE)[1], comments=True))
    asked = re.findall(r"^curl (.*)$", DOCS, re.MULTILINE)
    assert len(asked) == 4
    for words in map(shlex.split, asked):
        body = words[words.index("-d") + 1].encode() if "-d" in words else None
        path = words[-1].removeprefix("http://127.0.0.1:8000")
        status, text = server.ask(path, body)
        assert status == 200, text
