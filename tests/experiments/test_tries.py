"""Settings that are tried on the same data are counted, and it is said beside their certificates."""

import multiprocessing
import shutil
from pathlib import Path

import numpy as np
import pytest

from cop2l.certify import tries
from cop2l.certify.tries import Tried
from cop2l.cli import main
from cop2l.errors import UserError
from cop2l.files import read_json, read_lines

QUICK = ("prior_epochs=2", "tasks=2")
CHOICE = "each certificate allows delta for itself and does not pay for the choice"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COP2L_HOME", str(tmp_path / "home"))
    y = np.arange(80) % 4
    x = np.eye(4)[y] + np.random.default_rng(0).normal(size=(80, 4)) / 4
    np.savez("clouds.npz", x=x.astype(np.float32), y=y)
    rows = [
        ",".join(f"{value:.5f}" for value in line) + f",{label}" for line, label in zip(x, y, strict=True)
    ]
    Path("clouds.csv").write_text("\n".join(["a,b,c,d,label", *rows]))


@pytest.fixture
def run(capsys):
    """Run with some options; what was said of other tries."""

    def said(*words, data="clouds.npz"):
        capsys.readouterr()
        assert main(["run", data, *QUICK, *words]) == 0
        captured = capsys.readouterr()
        lines = (captured.out + captured.err).splitlines()
        return next((line for line in lines if line.startswith("This is setting")), None)

    return said


def recorded():
    return [(line["setting"], line["differs"]) for line in read_lines("runs/tries.jsonl")]


def test_other_settings_are_counted_and_the_same_one_is_not(run):
    assert run() is None
    assert run() is None
    assert recorded() == [(1, [])]
    second = run("lr=0.01")
    assert (
        second
        == f"This is setting 2 that was tried on this data here; {CHOICE}: run with delta=0.025 each, or report all of them."
    )
    assert run("lr=0.01") == second
    assert f"This is setting 3 that was tried on this data here; {CHOICE}: run with delta=0.0166 each" in run(
        "seed=1"
    )
    assert run().startswith("This is setting 1 of 3 that were tried on this data here")
    assert recorded() == [(1, []), (2, ["lr"]), (3, ["lr", "seed"])]
    assert "setting 2 of 3" in run("lr=0.01", "--json")


def test_the_shared_delta_is_no_new_setting_and_pays(run):
    assert run() is None
    run("lr=0.01")
    paid = run("lr=0.01", "delta=0.025")
    assert paid == (
        "This is setting 2 that was tried on this data here; with delta=0.025 or less for each of them a choice is paid for, "
        "else report all of them."
    )
    assert recorded() == [(1, []), (2, ["lr"]), (2, [])]
    assert "run with delta=0.05 each" in run("delta=0.1")  # the largest is what a choice may cost
    assert "setting 3 that was" in run("lr=0.02")


def test_other_columns_and_another_place_are_the_same_data_and_other_data_is_not(run):
    assert run("columns=a,b,c", data="clouds.csv") is None
    assert "setting 2 that was" in run("columns=a,b,c,d", data="clouds.csv")
    shutil.copy("clouds.csv", "copy.csv")
    assert "setting 3 that was" in run("columns=a,b", data="copy.csv")
    assert "setting 2 of 3" in run("columns=a,b,c,d", data="copy.csv")
    Path("more.csv").write_text(Path("clouds.csv").read_text() + "\n1,0,0,0,0")
    assert run("columns=a,b", data="more.csv") is None
    Path("folder").mkdir()
    for name, values in np.load("clouds.npz").items():
        np.save(f"folder/{name}.npy", values)
    assert run(data="folder") is None
    assert "setting 2 that was" in run("test_share=0.3", data="folder")


def test_only_certificates_on_own_data_count(run):
    replay = ["run", "clouds.npz", "method=replay", "tasks=2", "epochs=1"]
    assert main(replay) == 0
    assert (
        main(["run", "synthetic", "method=finetuning", "epochs=1", "tasks=2", "data.n=40", "holdout=0.5"])
        == 0
    )
    assert not Path("runs/tries.jsonl").exists()
    assert main([*replay, "holdout=0.5"]) == 0
    assert "setting 2 that was" in run()


def test_seeds_and_a_sweep_count_each_run_and_say_it_once(capsys):
    assert main(["sweep", "clouds.npz", *QUICK, "seeds=2", "--out", "runs"]) == 0
    assert capsys.readouterr().out.count("This is setting 2 that was tried") == 1
    assert main(["sweep", "clouds.npz", *QUICK, "lr=0.01,0.02", "--workers", "2", "--out", "runs"]) == 0
    assert capsys.readouterr().out.count("tried on this data here") == 1
    assert sorted(setting for setting, _ in recorded()) == [1, 2, 3, 4]


def test_a_cut_line_is_made_good_and_a_changed_one_is_refused(run, capsys):
    run()
    run("lr=0.01")
    file = Path("runs/tries.jsonl")
    whole = file.read_bytes()
    file.write_bytes(whole[: whole.index(b"\n") + 40])  # killed while the second line was written
    assert "setting 2 that was" in run("lr=0.02")
    assert recorded() == [(1, []), (2, ["lr"])]
    file.write_bytes(whole.replace(b'"setting": 2', b'"setting": 1'))
    capsys.readouterr()
    assert main(["run", "clouds.npz", *QUICK, "lr=0.03"]) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line.endswith("restore it from a copy.")
    assert "tries.jsonl is damaged (line 2" in line


def test_a_run_that_was_stopped_goes_on_as_the_same_try(run, monkeypatch):
    from cop2l.experiments import measure

    run()

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(measure, "certify", stop)
        assert main(["run", "clouds.npz", *QUICK, "lr=0.01"]) == 130
    assert recorded() == [(1, []), (2, ["lr"])]
    assert "setting 2 that was" in run("lr=0.01")
    assert recorded() == [(1, []), (2, ["lr"])]


def begin(number):
    tries.record(Path("runs", str(number)), "data", {"hash": str(number), "delta": 0.05, "seed": number})


def test_runs_that_begin_at_once_get_numbers_of_their_own():
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        pool.map(begin, range(12))
    assert sorted(setting for setting, _ in recorded()) == list(range(1, 13))


def test_show_the_page_and_verify(run, capsys):
    for lr in ("0.001", "0.01", "0.02"):
        run(f"lr={lr}", "--out", f"runs/{lr}")
    capsys.readouterr()
    assert main(["show", "runs/0.001"]) == 0
    assert "This is setting 1 of 3 that were tried on this data here" in capsys.readouterr().out
    cut = ["--tasks", "2", "--scenario", "class-incremental"]
    assert main(["verify", "runs/0.01", "--data", "clouds.npz", *cut]) == 0
    assert main(["report", "runs/0.001", "--out", "one.html"]) == 0
    sentence = f"clouds.npz: 3 settings were tried on this data, 1 of them shown here; {CHOICE}"
    assert sentence in Path("one.html").read_text()
    assert main(["report", "runs", "--out", "all.html"]) == 0
    assert "3 settings were tried on this data, all of them shown here" in Path("all.html").read_text()
    shutil.copytree("runs/0.02", "elsewhere/0.02")  # without the record it still knows its own number
    assert main(["show", "elsewhere/0.02"]) == 0
    assert "This is setting 3 that was tried on this data here" in capsys.readouterr().out
    assert read_json("runs/0.02/environment.json")["try"]["number"] == 3
    Path("runs/tries.jsonl").write_text("nonsense\n")
    assert main(["report", "runs/0.001", "--out", "damaged.html"]) == 0
    assert "tries.jsonl is damaged" in Path("damaged.html").read_text()


def test_features_of_own_pictures_are_the_same_data_whatever_the_backbone(run, capsys):
    draw = np.random.default_rng(0)
    np.savez("zoo.npz", x=draw.integers(0, 256, (80, 3, 8, 8), np.uint8), y=np.arange(80) % 4)
    Path("zoo_nets.py").write_text(
        "from torch import nn\n\n\ndef coarse():\n    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())\n\n\n"
        "def fine():\n    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())\n"
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(Path.cwd())
        for name in ("coarse", "fine"):
            words = ["--backbone", f"zoo_nets:{name}", "--size", "8", "--pretrained-on", "nothing"]
            assert main(["features", "zoo.npz", *words]) == 0
    assert run("preset=hybrid", data="zoo@zoo_nets:coarse-8") is None
    assert "setting 2 that was" in run("preset=hybrid", data="zoo@zoo_nets:fine-8")


@pytest.mark.parametrize(
    ("delta", "of", "share"), [(0.05, 3, 0.0166), (0.05, 2, 0.025), (0.3, 3, 0.1), (1e-3, 7, 1.42e-4)]
)
def test_the_shares_never_add_up_to_more(delta, of, share):
    tried = Tried("", of, of, delta, delta)
    assert tried.share == pytest.approx(share)
    assert tried.share * of <= delta * (1 + 1e-9)


def test_what_a_run_noted_may_be_nonsense(tmp_path):
    with pytest.raises(UserError, match="cannot be read; restore it"):
        tries.of_run(tmp_path / "run", {"try": {"data": "x"}}, 0.05)
    assert tries.of_run(tmp_path / "run", {}, 0.05) is None
