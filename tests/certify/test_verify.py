"""`verify` says valid, invalid or cannot tell, and why."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from certify_cases import NormedMLP, SmallCNN, case_of, model_of
from cop2l.certify.repeats import Repeats
from cop2l.certify.scoring import ExactnessError
from cop2l.certify.training import pinned_threads
from cop2l.certify.verify import verify
from forging import Forgery

from cop2l.certify import verify as verifier
from cop2l.certify.certificate import ASSUMPTIONS, SET_NAMES
from cop2l.certify.learner import CoP2L
from cop2l.cli import main
from cop2l.models import build
from cop2l.streams.clouds import synthetic

SMALL = {
    "prior": 0.0, "buffer": "threshold", "k": 4, "epochs": 2, "lr": 0.05, "batch": 16, "memory": 16, "max_iterations": 3,
    "omega": 4.0, "stop": "none",
}  # fmt: skip


def certified(folder, scenario="class-incremental", model=None, tasks=2, **more):
    case = case_of(scenario, [26] * tasks, values=9, data_seed=2)
    learner = CoP2L(model or model_of("mlp", case.classes), scenario=scenario, **{**SMALL, **more})
    data = {t: (case.x[t - 1], case.y[t - 1]) for t in range(1, tasks + 1)}
    for t, (x, y) in data.items():
        learner.learn(x, y, classes=case.heads[t - 1])
    return learner.certify(data).save(folder / "certificate"), data


def statuses(verdict):
    return [level.status for level in verdict.levels]


@pytest.mark.parametrize("scenario", ["class-incremental", "task-incremental", "domain-incremental"])
@pytest.mark.parametrize("buffer", ["uniform", "priority", "threshold", "witness"])
@pytest.mark.parametrize("prior", [0.0, 0.3])
def test_valid(tmp_path, scenario, buffer, prior):
    path, data = certified(
        tmp_path, scenario, buffer=buffer, prior=prior, prior_memory=0.5, prior_epochs=1, tasks=3
    )
    verdict = verify(path, data)
    assert verdict.exit_code == 0, str(verdict)
    assert "VALID: everything that the certificate states" in str(verdict)
    assert "picked the same examples" in str(verdict)


def test_data_missing(tmp_path):
    path, data = certified(tmp_path)
    verdict = verify(path)
    assert verdict.exit_code == 2
    assert statuses(verdict) == ["holds", "holds", "cannot tell", "cannot tell"]
    assert "The data of task 1 was not given" in str(verdict)
    for task in data:
        assert statuses(verify(path, {task: data[task]})) == ["holds", "holds", "cannot tell", "cannot tell"]
    assert verify(path, {1: data[2], 2: data[1]}).exit_code == 1


def test_levels(tmp_path):
    path, data = certified(tmp_path)
    for level in (1, 2, 3):
        verdict = verify(path, data, level=level)
        assert verdict.exit_code == 0
        assert len(verdict.levels) == level
        assert f"up to level {level} of 4" in str(verdict)
    assert verify(path, level=2).exit_code == 0
    assert verify(path, level=3).exit_code == 2


def test_data_gone_when_it_was_issued(tmp_path):
    """The buffer certificate of a task whose data was gone can be checked by somebody who has it."""
    path, data = certified(tmp_path)
    case = case_of("class-incremental", [26, 26], values=9, data_seed=2)
    learner = CoP2L(model_of("mlp", case.classes), **SMALL)
    for t, (x, y) in data.items():
        learner.learn(x, y, classes=case.heads[t - 1])
    learner.certify().save(path)
    assert verify(path, data).exit_code == 0
    forgery = Forgery(path, tmp_path / "forged")
    forgery.content["records"][0]["compressed"] -= 1
    assert verify(forgery.mend(), data).exit_code == 1
    uniform, _ = certified(tmp_path, buffer="uniform")
    forgery = Forgery(uniform, tmp_path / "forged")
    forgery.content["records"][0] |= {"errors": None, "missed": None}
    verdict = verify(forgery.mend(), data)
    assert verdict.exit_code == 2
    assert "Task 1 has no bound" in str(verdict)


def elsewhere(forgery, what):
    """As if another machine, or another version of cop2l, had issued it."""
    forgery.content["environment"][what] = "another one"
    return forgery


@pytest.mark.parametrize("what", ["processor", "cop2l"])
def test_another_machine(what, tmp_path):
    """If the bits come out the same, where they were made does not matter; if not, nothing is concluded."""
    path, data = certified(tmp_path)
    assert verify(elsewhere(Forgery(path, tmp_path / "forged"), what).mend(), data).exit_code == 0
    for change in ("errors", "weights", "sets", "iterations"):
        for here in (True, False):
            forgery = Forgery(path, tmp_path / "forged")
            if change == "errors":
                forgery.content["records"][0]["errors"] += 1
            elif change == "weights":
                forgery.tensors["theta_0"]["head.bias"][0] += 0.01
            elif change == "iterations":
                forgery.content["records"][1]["iterations"] -= 1
            else:
                sets = forgery.tensors["sets"]
                sets["1/picked"] = torch.unique(torch.cat([sets["1/picked"], torch.tensor([0, 1, 2, 3])]))
                for record in forgery.content["records"]:
                    record["missed"] = record["errors"] = None
            verdict = verify((forgery if here else elsewhere(forgery, what)).mend(), data)
            assert verdict.exit_code == (1 if here else 2), (change, here, str(verdict))
            assert (
                here or "differs from the issuer's" in str(verdict) or "so does this machine" in str(verdict)
            )


def test_a_stream_that_was_learned_on_two_machines(tmp_path):
    path, data = certified(tmp_path)
    forgery = Forgery(path, tmp_path / "forged")
    earlier = {**forgery.content["environment"], "processor": "another one"}
    forgery.content["environment"]["earlier"] = [earlier]
    assert verify(forgery.mend(), data).exit_code == 0
    forgery.tensors["theta_0"]["head.bias"][0] += 0.01
    assert verify(forgery.mend(), data).exit_code == 2


def test_a_machine_that_cannot_score_exactly_cannot_tell(tmp_path, monkeypatch):
    path, data = certified(tmp_path)

    def refuse(*given):
        raise ExactnessError(
            "On this machine the score of an example depends on the examples scored with it."
        )

    monkeypatch.setattr(verifier, "prove_exact", refuse)
    verdict = verify(path, data)
    assert statuses(verdict) == ["holds", "holds", "holds", "cannot tell"]


@pytest.mark.parametrize("kind", ["cnn", "normed"])
def test_a_model_of_the_users_own(tmp_path, kind):
    path, data = certified(tmp_path, model=model_of(kind, 4))
    verdict = verify(path, data)
    assert verdict.exit_code == 2
    assert "give its architecture" in str(verdict)
    architecture = SmallCNN(4) if kind == "cnn" else NormedMLP(25, 4)
    verdict = verify(path, data, model=architecture)
    assert verdict.exit_code == 0, str(verdict)
    assert "the issuer's word" in str(verdict)
    for wrong in (build("linear", inputs=(25,), classes=4, seed=0), NormedMLP(25, 5)):
        assert verify(path, data, model=wrong).exit_code == 1


def test_initial_parameters_that_know_the_data(tmp_path):
    """Parameters trained beforehand on the same data make every bound small: the seed gives them away."""
    first, data = certified(tmp_path)
    model = model_of("mlp", 4)
    trained = Forgery(first, tmp_path / "trained").tensors["theta"]
    model.load_state_dict(trained)
    path, _ = certified(tmp_path / "second", model=model)
    verdict = verify(path, data)
    assert verdict.exit_code == 2
    assert "not those of the model's seed" in str(verdict)


def test_tasks_that_share_examples(tmp_path):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, 25)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    for shared, code in ((60, 1), (2, 2), (0, 0)):
        second = np.concatenate([x[:shared], draw.normal(size=(60 - shared, 25)).astype(np.float32)])
        learner = CoP2L(model_of("mlp", 2), scenario="domain-incremental", **SMALL)
        learner.learn(x, y)
        learner.learn(second, 1 - y)
        data = {1: (x, y), 2: (second, 1 - y)}
        verdict = verify(learner.certify(data).save(tmp_path / "certificate"), data)
        assert verdict.exit_code == code, str(verdict)
        assert (f"has {shared} inputs that an earlier task has too" in str(verdict)) == (shared > 0)


@pytest.mark.parametrize("scenario", ["class-incremental", "domain-incremental"])
def test_independent_tasks_with_few_possible_inputs_are_not_taken_for_shared(scenario):
    for seed in range(20):
        stream = synthetic(tasks=4, n=150, dimensions=2, scenario=scenario, seed=seed, n_test=1)
        repeats = Repeats()
        assert not any(repeats.add(task.x)[1] for task in stream)
    again = Repeats()
    again.add(stream[0].x + 0.001 * np.arange(150)[:, None])
    assert again.add(stream[0].x + 0.001 * np.arange(150)[:, None]) == (150, True)


def test_nothing_global_changes(tmp_path):
    path, data = certified(tmp_path)
    with pinned_threads(2):
        torch.manual_seed(0)
        before = torch.get_rng_state()
        assert verify(path, data).exit_code == 0
        assert torch.get_num_threads() == 2
        assert torch.equal(torch.get_rng_state(), before)


def test_the_command(tmp_path, capsys):
    path, data = certified(tmp_path)
    arrays = {
        f"{letter}_{t}": array for t, pair in data.items() for letter, array in zip("xy", pair, strict=True)
    }
    np.savez(tmp_path / "data.npz", **arrays)
    assert main(["verify", str(path), "--data", str(tmp_path / "data.npz")]) == 0
    assert "VALID" in capsys.readouterr().out
    assert main(["verify", str(path)]) == 2
    assert "CANNOT TELL" in capsys.readouterr().out
    arrays["y_1"] = 1 - arrays["y_1"]
    np.savez(tmp_path / "other.npz", **arrays)
    assert main(["verify", str(path), "--data", str(tmp_path / "other.npz"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == 1
    assert [level["status"] for level in found["levels"]] == ["holds", "holds", "fails"]
    assert main(["verify", str(path), "--level", "2"]) == 0
    capsys.readouterr()
    forgery = Forgery(path, tmp_path / "forged")
    forgery.content["data"] = {"options": {"scenario": 1, "strange": 2}}
    assert main(["verify", str(forgery.sign()), "--data", "synthetic"]) == 2
    assert capsys.readouterr().err.startswith("cop2l: ")
    (forgery.folder / "certificate.json").write_text("{")
    for more in ([], ["--data", "synthetic"]):
        assert main(["verify", str(forgery.folder), *more]) == 1
        assert "INVALID" in capsys.readouterr().out


ALONE = """
import sys
from pathlib import Path
from cop2l.certify.verify import verify
allowed = {"errors", "randomness", "files", "bounds", "streams", "models", "features", "metrics", "certify", "_version"}
rooms = {name.split(".")[1] for name in sys.modules if name.startswith("cop2l.")}
assert rooms <= allowed, rooms - allowed
verdict = verify(sys.argv[1])
assert verdict.exit_code == 2
rooms = {name.split(".")[1] for name in sys.modules if name.startswith("cop2l.")}
assert rooms <= allowed, rooms - allowed
print(sorted(rooms))
"""


def test_the_verifier_imports_nothing_that_it_does_not_need(tmp_path):
    path, _ = certified(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for room in ("methods", "experiments", "report", "cli"):
        assert room not in done.stdout


def test_the_assumptions_are_in_the_file(tmp_path):
    path, _ = certified(tmp_path)
    content = json.loads((path / "certificate.json").read_text())
    assert content["assumptions"] == list(ASSUMPTIONS)


def test_every_field_is_documented(tmp_path):
    """docs/certificate.md names every key, every set and every option."""
    path, _ = certified(tmp_path)
    content = json.loads((path / "certificate.json").read_text())
    text = (Path(__file__).parents[2] / "docs" / "certificate.md").read_text()
    keys = {*content, *content["options"], *content["environment"], *content["records"][0]}
    keys |= {f"t/{name}" for name in SET_NAMES} | {*content["records"][0]["bounds"], *content["files"]}
    assert [key for key in sorted(keys) if f"`{key}`" not in text] == []
