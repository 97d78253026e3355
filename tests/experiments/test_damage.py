"""A damaged run directory is read as it was written, or refused with one sentence."""

import random
import shutil
from pathlib import Path

import pytest
from run_files import configured, content

from cop2l.console import Watcher
from cop2l.errors import UserError
from cop2l.experiments import learners, saved_learner
from cop2l.experiments.directory import RunDirectory, check_certificate
from cop2l.experiments.run import run
from cop2l.files import file_digest, parse, write_json
from cop2l.report.runs import Run, read_run

PLACES, PLACES_IN_CERTIFICATES = 100, 20
CONFIGS = {
    "cop2l": configured("tasks=2", "anytime=true"),
    "replay": configured("method=replay", "holdout=0.2", "tasks=2", "epochs=1", "anytime=true"),
}


class Stop(Watcher):
    """Interrupt after the first task."""

    def task(self, record):
        raise KeyboardInterrupt


@pytest.fixture(scope="module", params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    run(config, folder)
    return folder


@pytest.fixture(scope="module")
def half(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("half") / "run"
    with pytest.raises(KeyboardInterrupt):
        run(config, folder, [Stop()])
    return folder


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")


def snapshot(folder):
    """The content of every file, link and folder, without the lock, which every process writes."""
    names = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            names[str(path)] = path.readlink()
        elif path.is_file() and path.name != "lock":
            names[str(path)] = path.read_bytes()
        else:
            names[str(path)] = path.is_dir()
    return names


def damages(file):
    """Flip a bit of the file, or cut it, at random places; then restore it."""
    original, places = file.read_bytes(), random.Random(file.name)
    try:
        for number in range(how_many(file) if original else 0):
            place = places.randrange(len(original))
            if number % 2:
                broken = original[:place]
            else:
                broken = bytearray(original)
                broken[place] ^= 1 << places.randrange(8)
            file.write_bytes(broken)
            yield f"{'cut' if number % 2 else 'bit flipped'} at {place}"
    finally:
        file.write_bytes(original)


def how_many(file):
    """Fewer damages for certificates: a run has many files of them."""
    return PLACES_IN_CERTIFICATES if (file.parent / "certificate.json").exists() else PLACES


def state(learner, scratch):
    """The state of a learner, as the digests of the files that it saves."""
    learner.save(scratch)
    return {str(path.relative_to(scratch)): file_digest(path) for path in files_of(scratch)}


def refused_or(read):
    """The result of `read`, or the error that refuses it."""
    try:
        return read()
    except UserError as error:
        refused = error
    assert str(refused).endswith("."), refused
    assert "\n" not in str(refused)
    return refused


def test_resuming_a_damaged_run_is_refused_before_anything_is_touched(config, half, tmp_path):
    stream = learners.load_stream(config)
    learner = learners.new_learner(config, stream)

    def resumed():
        with RunDirectory(half) as directory:
            directory.check(config)
            assert directory.summary() is None
            return directory.resume(learner)

    records, loaded, before = resumed(), state(learner, tmp_path / "state"), snapshot(half)
    stored = {str(path.relative_to(half / "state")): file_digest(path) for path in files_of(half / "state")}
    if hasattr(learner, "certificate"):  # found among those of the run
        issued = files_of(half / "certificates" / "after-01")
        stored |= {f"certificate/{path.name}": file_digest(path) for path in issued}
    assert loaded == stored
    refused = dict.fromkeys(files_of(half), 0)
    for file in refused:
        for damage in damages(file):
            broken = before | {str(file): file.read_bytes()}
            result = refused_or(resumed)
            if isinstance(result, UserError):
                assert snapshot(half) == broken, (file, damage)
                refused[file] += 1
            else:
                assert (result, state(learner, tmp_path / "state")) == (records, loaded), (file, damage)
    assert snapshot(half) == before
    # Almost all: what is not refused changes a space, or the end of the last line.
    assert all(count > 0.8 * how_many(file) for file, count in refused.items() if file.stat().st_size), (
        refused
    )


def test_reading_a_damaged_finished_run(config, finished, tmp_path):
    summary, report, before = run(config, finished), read_run(finished), snapshot(finished)
    loaded = state(saved_learner.load(finished), tmp_path / "state")
    assert isinstance(report, Run)
    for file in files_of(finished):
        where = file.relative_to(finished).parts[0]
        for damage in damages(file):
            if where == "certificates":
                result = refused_or(lambda file=file: check_certificate(file.parent))
                spaces = json_of(file.read_bytes()) == json_of(before[str(file)])
                assert isinstance(result, UserError) != spaces, (file, damage)
            elif where == "state":
                result = refused_or(lambda: saved_learner.load(finished))
                if not isinstance(result, UserError):
                    assert state(result, tmp_path / "state") == loaded, (file, damage)
            else:
                result = refused_or(lambda: run(config, finished))
                assert isinstance(result, UserError) or result == summary, (file, damage)
                read = read_run(finished)
                known = isinstance(read, Run) and read == report
                assert known or read.sentence.endswith("."), (file, damage)
    assert snapshot(finished) == before


def json_of(content):
    """The value of JSON, or the bytes if it is none."""
    try:
        return parse(content)
    except ValueError:
        return content


def test_what_a_kill_leaves_is_repaired(config, half, finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(half, folder)
    with (folder / "records.jsonl").open("ab") as file:
        file.write(b'{"task": 2, "acc')
    (folder / "state").rename(folder / ".state.old")
    (folder / ".state.new").mkdir()
    shutil.copytree(folder / "certificates" / "after-01", folder / "certificates" / "after-02")
    shutil.copytree(folder / "certificates" / "after-01", folder / "certificates" / ".after-02.new")
    (folder / ".summary.json.0123abcd.new").write_text("{")
    for file in (folder / "records.jsonl", folder / "certificates" / "after-01" / "certificate.json"):
        original = file.read_bytes()
        file.write_bytes(original.replace(b": 1", b": 2", 1))
        damaged = snapshot(folder)
        with pytest.raises(UserError, match="damaged"):
            run(config, folder)
        assert snapshot(folder) == damaged  # nothing is repaired beside damage
        file.write_bytes(original)
    run(config, folder)
    assert content(folder) == content(finished)


def test_a_lost_certificate_is_damage(tmp_path):
    config = CONFIGS["cop2l"]
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", [Stop()])
    (tmp_path / "run" / "certificates" / "after-01").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"after-01 is damaged \(missing\)"):
        run(config, tmp_path / "run")


FILES = ("config.json", "environment.json", "records.jsonl", "summary.json")


def replaced(fill):
    def replace(path):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        fill(path)

    return replace


HOSTILE = {
    "a folder": replaced(lambda path: path.mkdir()),
    "a file of text": replaced(lambda path: path.write_text("hello\n")),
    "deep": replaced(lambda path: path.write_text("[" * 100_000 + "\n")),
    "deep objects": replaced(lambda path: path.write_text('{"a":' * 100_000 + "\n")),
    "a huge integer": replaced(lambda path: path.write_text('{"task": ' + "9" * 5000 + "}\n")),
    "a huge number": replaced(lambda path: path.write_text('{"task": 1e999, "sha256": ""}\n')),
    "another file": replaced(lambda path: write_json(path, {"task": 10**400, "hash": []})),
    "empty": replaced(lambda path: path.write_text("")),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_run_directory_is_refused_in_one_sentence(half, config, tmp_path, kind):
    for name in FILES:
        if (kind, name) == ("another file", "environment.json"):
            continue  # an environment has no fixed keys
        folder = tmp_path / name
        shutil.copytree(half, folder)
        HOSTILE[kind](folder / name)
        before = snapshot(folder)
        result = refused_or(lambda folder=folder: run(config, folder))
        assert isinstance(result, UserError), (name, result)
        assert snapshot(folder) == before
        assert read_run(folder).sentence.endswith(".")


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_inside_the_folders(half, config, tmp_path, kind):
    saved = [file for file in files_of(half / "state") if file.parent.name == "state"]
    assert len(saved) == 2 - hasattr(
        saved_learner.load(half), "engine"
    )  # the withheld rows are a file of their own
    for file in (*saved, half / "certificates" / "after-01" / "certificate.json"):
        name = file.relative_to(half)
        folder = tmp_path / name.name
        shutil.copytree(half, folder)
        HOSTILE[kind](folder / name)
        before = snapshot(folder)
        assert isinstance(refused_or(lambda folder=folder: run(config, folder)), UserError)
        assert snapshot(folder) == before


def test_a_learner_that_a_kill_left_between_two_renames_is_found(finished, tmp_path):
    shutil.copytree(finished / "state", tmp_path / ".grown.old")
    (tmp_path / ".grown.new").mkdir()
    assert saved_learner.load(tmp_path / "grown").tasks_seen == 2
    assert [path.name for path in tmp_path.iterdir()] == ["grown"]


def test_a_learner_is_found_from_within_its_folder(finished, monkeypatch):
    monkeypatch.chdir(finished / "state")
    assert saved_learner.load(".").tasks_seen == 2


def test_learning_never_replaces_a_folder_that_is_no_learner(finished, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(UserError, match="is not a saved learner; choose another folder"):
        saved_learner.learn(finished, "data.npz", out=tmp_path / "thesis")
    assert Path(tmp_path / "thesis" / "chapter.txt").exists()
