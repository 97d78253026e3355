"""Change anything in a certificate, mend its hashes or not: it must not pass."""

import json
import re
import shutil
from copy import deepcopy

import numpy as np
import pytest
import torch
from certify_cases import case_of
from forging import Forgery, at, changed, leaves, other_kind, replaced, with_leaf

from cop2l.certify.learner import CoP2L
from cop2l.certify.verify import verify
from cop2l.models import build

SMALL = {
    "prior": 0.0, "buffer": "threshold", "k": 3, "epochs": 2, "lr": 0.05, "batch": 16, "memory": 16, "max_iterations": 3,
    "omega": 4.0, "tasks": 2, "stop": "none",
}  # fmt: skip
KINDS = {
    "threshold": SMALL,
    "uniform": {**SMALL, "buffer": "uniform", "tasks": 3, "memory": 9, "max_iterations": 6},
    "witness": {**SMALL, "buffer": "witness", "prior": 0.3, "prior_memory": 0.5, "prior_epochs": 1},
}

# What may be changed by somebody who mends the digest, and why the certificate is then still true (docs/certificate.md).
INFORMATION = {
    r"made_by": "a name",
    r"data.*": "how the data may be had; the data itself is checked",
    r"environment/(python|numpy)": "no bit depends on it",
    r"environment/(cop2l|torch|platform|processor|instructions|device|dtype|block|threads)": "the bits were made again here",
    r"environment/earlier": "the bits were made again here",
    r"options/(prior_(memory|epochs|lr)|max_iterations|gamma|batch|memory|omega)": "learning again gave the very same",
    r"scenario": "class- and domain-incremental streams are learned alike",
}
DOUBTFUL = {
    r"model/seed": "the initial parameters are then not the seed's",
    r"model/name": "without a name the model is the verifier's own business",
}


@pytest.fixture(scope="module")
def issued(tmp_path_factory):
    """For each kind: the certificate's folder and its data."""
    folder, found = tmp_path_factory.mktemp("issued"), {}
    for kind, options in KINDS.items():
        case = case_of("class-incremental", [24] * options["tasks"], values=9, data_seed=5, inputs=16)
        model = build("mlp", inputs=(16,), classes=case.classes, seed=0, hidden=16)
        learner = CoP2L(model, **options)
        data = {t: (case.x[t - 1], case.y[t - 1]) for t in range(1, case.tasks + 1)}
        for t, (x, y) in data.items():
            learner.learn(x, y, classes=case.heads[t - 1])
        assert all(history.iterations for history in learner.histories)
        learner.certify(data).save(folder / kind)
        with pytest.warns(UserWarning, match="leave the house"):
            learner.certify(data, portable=True).save(folder / f"{kind} portable")
        for name in (kind, f"{kind} portable"):
            found[name] = folder / name, data
            verdict = verify(folder / name, data)
            assert verdict.exit_code == 0, str(verdict)
    return found


def name_of(path):
    return "/".join(map(str, path))


def matches(name, patterns):
    return any(re.fullmatch(pattern, name) for pattern in patterns)


@pytest.mark.parametrize("kind", KINDS)
def test_every_field(issued, tmp_path, kind):
    """Each leaf of the JSON, changed in value and in type; with the old digest, and with a new one."""
    folder, data = issued[kind]
    forgery = Forgery(folder, tmp_path / "forged")
    content, passed = forgery.content, {}
    for path, value in leaves(content):
        forgery.content = with_leaf(content, path, changed(value))
        assert verify(forgery.write(), data).exit_code == 1, name_of(path)
        if path[0] in ("files", "digest"):
            continue
        for new in (changed(value), other_kind(value)):
            forgery.content = with_leaf(content, path, new)
            code = verify(forgery.sign(), data).exit_code
            if code != 1:
                passed[name_of(path)] = code
                assert verify(forgery.folder).exit_code == 2, name_of(path)
    information = {
        name for name, code in passed.items()
        if matches(name, INFORMATION) or (code == 2 and matches(name, DOUBTFUL))
    }  # fmt: skip
    assert information == set(passed)
    assert len(information) <= 20


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_gone_or_one_more(issued, tmp_path, kind):
    folder, data = issued[kind]
    content = json.loads((folder / "certificate.json").read_text())
    paths = {path[: length + 1] for path, _ in leaves(content) for length in range(len(path))}
    forgery = Forgery(folder, tmp_path / "forged")
    for path in sorted(paths, key=str):
        forgery.content = deepcopy(content)
        place, key = at(forgery.content, path)
        del place[key]
        code = verify(forgery.write() if path[0] in ("files", "digest") else forgery.sign(), data).exit_code
        assert code == 1 or matches(name_of(path), INFORMATION), name_of(path)
    for path in {path[:-1] for path in paths}:
        forgery.content = place = deepcopy(content)
        for key in path:
            place = place[key]
        if isinstance(place, dict):
            place["more"] = 1
        else:
            place.append(place[-1])
        code = verify(forgery.write() if path == ("files",) else forgery.sign(), data).exit_code
        assert code == 1 or path[:1] == ("environment",), name_of(path)


COUNTED = ("n", "prior", "errors", "missed", "selected", "compressed", "iterations", "rows")


@pytest.mark.parametrize("kind", KINDS)
def test_every_count_with_bounds_that_follow_from_it(issued, tmp_path, kind):
    """A forger who recomputes every bound: only the data, or the sets, can tell."""
    folder, data = issued[kind]
    for task in range(1, KINDS[kind]["tasks"] + 1):
        for name in COUNTED:
            for step in (-1, 1, None):
                forgery = Forgery(folder, tmp_path / "forged")
                record = forgery.content["records"][task - 1]
                if record[name] is None or (step == -1 and record[name] == 0):
                    continue
                record[name] = None if step is None else record[name] + step
                try:
                    forgery.mend()
                except (ValueError, TypeError):  # no bound has such counts: nothing to state
                    continue
                assert verify(forgery.folder, data).exit_code == 1, (task, name, step)
                assert verify(forgery.folder).exit_code in (1, 2)


def test_errors_withheld_are_not_errors_counted(issued, tmp_path):
    """With the errors said to be unknown, the misclassified must not be said to be none."""
    folder, data = issued["threshold"]
    forgery = Forgery(folder, tmp_path / "forged")
    forgery.content["records"][0] |= {"errors": None, "missed": 0}
    assert verify(forgery.mend(), data).exit_code == 1


@pytest.mark.parametrize("kind", KINDS)
def test_every_index_and_message(issued, tmp_path, kind):
    """Each entry of each set exchanged for another, with counts, bounds and hashes that follow from it."""
    folder, data = issued[kind]
    tried = 0
    for name, rows in Forgery(folder, tmp_path / "forged").tensors["sets"].items():
        for position in range(len(rows)):
            forgery = Forgery(folder, tmp_path / "forged")
            sets = forgery.tensors["sets"]
            if name.endswith("left"):
                sets[name][position] = 5 - sets[name][position]  # 2 <-> 3
            else:
                sets[name] = replaced(rows, position, len(data[1][1]))
            assert verify(forgery.mend(), data).exit_code == 1, (name, position)
            tried += 1
    assert tried >= 15
    assert kind != "uniform" or any(len(rows) for name, rows in sets.items() if name.endswith("left"))


@pytest.mark.parametrize("kind", KINDS)
def test_whole_sets_shrunk_consistently(issued, tmp_path, kind):
    """One example fewer in all sets of a task, or in G alone: a better bound, if it were true."""
    folder, data = issued[kind]
    for task in range(1, KINDS[kind]["tasks"] + 1):
        for names in (("own", "first", "picked"), ("first", "picked"), ("picked",)):
            forgery = Forgery(folder, tmp_path / "forged")
            sets = forgery.tensors["sets"]
            gone = sets[f"{task}/picked"][-1:] if len(sets[f"{task}/picked"]) else None
            if gone is None:
                continue
            for name in names:
                rows = sets[f"{task}/{name}"]
                sets[f"{task}/{name}"] = rows[rows != gone]
            assert verify(forgery.mend(), data).exit_code == 1


@pytest.mark.parametrize("name", ["theta", "theta_0"])
def test_a_byte_of_every_weight_tensor(issued, tmp_path, name):
    folder, data = issued["threshold"]
    for key in Forgery(folder, tmp_path / "forged").tensors[name]:
        forgery = Forgery(folder, tmp_path / "forged")
        forgery.tensors[name][key].reshape(-1).view(torch.uint8)[2] ^= 0x10
        forgery.write_files()
        assert verify(forgery.folder, data).exit_code == 1  # the file's hash
        assert verify(forgery.mend(), data).exit_code == 1  # the parameters themselves
        assert verify(forgery.folder).exit_code == 2  # only the data can show it


def test_a_byte_of_a_file(issued, tmp_path):
    folder, data = issued["threshold"]
    for file in sorted(folder.iterdir()):
        size = file.stat().st_size
        for place in (0, 9, size // 2, size - 1):
            shutil.rmtree(tmp_path / "forged", ignore_errors=True)
            shutil.copytree(folder, tmp_path / "forged")
            content = bytearray((tmp_path / "forged" / file.name).read_bytes())
            content[place] ^= 0x21
            (tmp_path / "forged" / file.name).write_bytes(content)
            if file.suffix == ".json" and place == size - 1:
                continue  # the final line break
            assert verify(tmp_path / "forged", data).exit_code == 1, (file.name, place)


def test_an_example_or_a_label_of_the_data(issued):
    folder, data = issued["threshold"]
    for task in data:
        for row in range(0, 24, 5):
            x, y = (array.copy() for array in data[task])
            x[row, 3] += 1e-6
            assert verify(folder, {**data, task: (x, data[task][1])}).exit_code == 1
            y[row] = (y[row] + 1) % 4
            assert verify(folder, {**data, task: (data[task][0], y)}).exit_code == 1
    (x, y), other = data[1], data[2]
    for wrong in (
        other, (x[:-1], y[:-1]), (x, y[:-1]), (x[:, :-1], y), (x.astype(np.float64), y), (x, y.astype(np.float32)),
        (x[::-1], y[::-1]), (x, np.array(["a"] * len(y))), (np.full_like(x, np.nan), y), (x[:0], y[:0]),
    ):  # fmt: skip
        assert verify(folder, {**data, 1: wrong}).exit_code == 1


def test_files_swapped_missing_or_added(issued, tmp_path):
    folder, data = issued["threshold"]
    forgery = Forgery(folder, tmp_path / "forged")
    forgery.tensors["theta"], forgery.tensors["theta_0"] = (
        forgery.tensors["theta_0"],
        forgery.tensors["theta"],
    )
    assert verify(forgery.mend(), data).exit_code == 1
    other = Forgery(issued["uniform"][0], tmp_path / "other")
    for name in ("sets", "theta", "theta_0"):
        forgery = Forgery(folder, tmp_path / "forged")
        forgery.tensors[name] = other.tensors[name]
        forgery.write_files()
        assert verify(forgery.folder, data).exit_code == 1
        assert verify(forgery.sign(), data).exit_code == 1
        forgery = Forgery(folder, tmp_path / "forged")
        (forgery.folder / f"{name}.safetensors").unlink()
        assert verify(forgery.folder, data).exit_code == 1
        assert verify(forgery.sign(), data).exit_code == 1
    forgery = Forgery(folder, tmp_path / "forged")
    shutil.copy(folder / "theta.safetensors", forgery.folder / "spare.safetensors")
    assert verify(forgery.folder, data).exit_code == 1
    (forgery.folder / "certificate.json").unlink()
    assert verify(forgery.folder, data).exit_code == 1
    for name, key in (("sets", "1/spare"), ("sets", "3/own"), ("theta", "spare")):
        forgery = Forgery(folder, tmp_path / "forged")
        forgery.tensors[name][key] = torch.zeros(1, dtype=torch.int64)
        assert verify(forgery.mend(), data).exit_code == 1, (name, key)


def test_text_that_says_two_things(issued, tmp_path):
    folder, data = issued["threshold"]
    forgery = Forgery(folder, tmp_path / "forged")
    path = forgery.folder / "certificate.json"
    path.write_text(path.read_text().replace('"delta": 0.05', '"delta": 0.0001, "delta": 0.05', 1))
    verdict = verify(forgery.folder, data)
    assert verdict.exit_code == 1
    assert "twice" in str(verdict)


@pytest.mark.parametrize("kind", KINDS)
def test_carried_examples(issued, tmp_path, kind):
    """A portable certificate without the data: an example that was trained on shows; with it, every one does."""
    folder, data = issued[f"{kind} portable"]
    assert verify(folder).exit_code == 2
    assert "rebuilt, bit for bit" in str(verify(folder))
    for task in data:
        for part in ("x", "y", "row"):
            forgery = Forgery(folder, tmp_path / "forged")
            carried = forgery.tensors["examples"][f"{task}/{part}"]
            if not len(carried):
                continue
            if part == "x":
                carried[0, 0] += 0.5
            else:
                carried[0] = (carried[0] + 1) % 4 if part == "y" else carried[0] + 24
            assert verify(forgery.mend(), data).exit_code == 1
            assert verify(forgery.folder).exit_code == 1
            forgery = Forgery(folder, tmp_path / "forged")
            forgery.tensors["examples"][f"{task}/{part}"] = carried[:-1].clone()
            assert verify(forgery.mend(), data).exit_code == 1
            assert verify(forgery.folder).exit_code == 1


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"name": "mlp", "inputs": [16], "classes": 4, "seed": 0, "hidden": "wide"}},
        {"model": {"name": "resnet"}},
        {"model": []},
        {"classes": 10},
        {"classes": True},
        {"records": []},
        {"records": {}},
        {"options": {}},
        {"not_valid": "none"},
        {"environment": {}},
        {"environment": {"threads": 0, "earlier": []}},
        {"environment": {"threads": 1, "earlier": [1]}},
        {"scenario": "task-incremental"},
        {"scenario": ["class-incremental"]},
    ],
    ids=str,
)
def test_nonsense_is_a_verdict_and_not_a_crash(issued, tmp_path, change):
    folder, data = issued["threshold"]
    forgery = Forgery(folder, tmp_path / "forged")
    forgery.content |= change
    assert verify(forgery.sign(), data).exit_code == 1


def test_impossible_counts_are_refused_before_anything_is_run(issued, tmp_path):
    folder, data = issued["threshold"]
    for name, value in (("iterations", 10**9), ("rows", 10**15), ("n", -1), ("head", ["0"])):
        forgery = Forgery(folder, tmp_path / "forged")
        forgery.content["records"][1][name] = value
        assert verify(forgery.sign(), data).exit_code == 1
