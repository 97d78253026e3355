"""An exported model is the certified one, its program is that of its weights, and what is counted of it is true."""

import json
import os
import pickle
import shutil
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from audit_cases import copied, last_certificate, made, sentences, verify, write_data
from safetensors.torch import load_file, save_file

import cop2l
from cop2l.audit.finding import EXPORTED
from cop2l.certificates import program as programs
from cop2l.certificates.bounding import statements
from cop2l.cli import main
from cop2l.errors import Advice, UserError
from cop2l.experiments import saved_learner
from cop2l.exporting import export, recount_errors
from cop2l.files import file_digest, read_json, write_json
from cop2l.kernel import exported as checks
from cop2l.kernel import form
from cop2l.kernel.form import Unreadable
from cop2l.methods.replay import Replay
from cop2l.models import build
from cop2l.streams import load


@pytest.fixture(scope="module")
def exported(run, data, tmp_path_factory):
    """A program of torch.export, counted on the data."""
    folder = tmp_path_factory.mktemp("exports") / "service"
    export(run, folder, data=str(data))
    return folder


def mended(folder, **changes):
    """A forger's folder: what export.json says fits its files again."""
    content = read_json(folder / "export.json")
    content["files"] = {
        "weights.safetensors": file_digest(folder / "weights.safetensors"),
        "program": file_digest(folder / programs.PROGRAMS[content["program"]["format"]]),
    }
    for key, value in changes.items():
        content[key] = value(content[key]) if callable(value) else value
    write_json(folder / "export.json", content)
    return folder


def other_weights(folder):
    theta = load_file(folder / "weights.safetensors")
    name = min(theta)
    theta[name] = theta[name] + 1e-3
    return theta


def test_the_export_of_a_run_is_valid_and_says_what_was_checked(exported, data, run):
    verdict = verify(exported, data)
    assert verdict.status == "valid", sentences(verdict)
    checked = "\n".join(verdict.checked)
    assert "weights.safetensors holds the parameters that the certificate speaks of, bit for bit" in checked
    assert "model.pt2 was made again from these parameters: the same bytes" in checked
    assert "The errors that model.pt2 makes were counted again" in checked
    assert any("both sets at once: 1 - 2 delta" in line for line in verdict.claim)
    theta = load_file(exported / "weights.safetensors")
    assert programs.PROGRAMS["torch"] in {path.name for path in exported.iterdir()}
    assert {name: value.shape for name, value in theta.items()} == {
        name: value.shape for name, value in saved_learner.load(run).model.state_dict().items()
    }


def test_the_program_runs_where_cop2l_is_not_and_predicts_the_same(exported, run):
    x = torch.randn(9, 6, generator=torch.Generator().manual_seed(0))
    loaded = torch.export.load(exported / "model.pt2").module()
    assert loaded(x).argmax(1).tolist() == saved_learner.load(run).predict(x).tolist()
    assert loaded(x[:1]).shape == (1, 4)


def test_without_data_nothing_is_counted_and_the_claim_says_so(run, data, tmp_path):
    assert export(run, tmp_path / "service")["recount"] is None
    verdict = verify(tmp_path / "service", data)
    assert verdict.status == "valid", sentences(verdict)
    assert any("model.pt2 was not counted" in line for line in verdict.claim)
    assert verify(tmp_path / "service").status == "cannot tell"


def test_other_weights_are_invalid(exported, data, tmp_path):
    folder = copied(exported, tmp_path / "service")
    save_file(other_weights(folder), folder / "weights.safetensors")
    verdict = verify(folder, data)
    assert "weights.safetensors was changed: its hash does not match" in sentences(verdict)
    mended(folder)
    verdict = verify(folder, data)
    assert (verdict.status, verdict.exit_code) == ("invalid", 1)
    assert "does not hold the parameters that the certificate speaks of" in sentences(verdict)


def swapped(folder):
    """The program of other weights, in the place of the certified one."""
    model = build("mlp", inputs=(6,), classes=4, hidden=16)
    model.load_state_dict(other_weights(folder))
    (folder / "model.pt2").write_bytes(programs.program(model, [6]).content)
    return mended(folder)


def test_another_program_is_invalid_and_of_another_version_not_valid(exported, data, tmp_path):
    folder = swapped(copied(exported, tmp_path / "service"))
    verdict = verify(folder, data)
    assert verdict.status == "invalid"
    assert "model.pt2 is not the program that these parameters give." in sentences(verdict)
    mended(folder, program=lambda claimed: claimed | {"made_by": "torch 9.9"})
    verdict = verify(folder, data)
    assert verdict.status == "cannot tell"
    assert "But it was made by other versions" in sentences(verdict)


def test_files_that_nothing_binds_to_the_certificate_are_a_doubt(exported, run, data, tmp_path):
    assert set(EXPORTED) == {checks.EXPORT, checks.WEIGHTS, *programs.PROGRAMS.values()}
    folder = copied(exported, tmp_path / "service")
    (folder / "export.json").unlink()
    (folder / "model.pt2").write_bytes(b"another program")
    verdict = verify(folder, data)
    assert (verdict.status, verdict.exit_code) == ("cannot tell", 2)
    assert "weights.safetensors, model.pt2 lies beside a certificate" in sentences(verdict)
    (folder / "export.json").symlink_to("nowhere")
    with pytest.raises(Unreadable, match=r"export.json cannot be read"):
        verify(folder, data)
    copy = copied(run, tmp_path / "run")
    assert verify(copy, data).status == "valid"
    (copy / "model.onnx").write_bytes(b"a program")
    assert verify(copy, data).status == "cannot tell"


def test_a_file_that_is_too_large_is_not_read(exported, data, tmp_path):
    folder = copied(exported, tmp_path / "service")
    with (folder / "export.json").open("r+b") as file:
        file.truncate(2**26)  # it takes no place on the disk
    with pytest.raises(Unreadable, match=r"export.json cannot be read"):
        verify(folder, data)


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_program_is_never_unpickled(exported, data, tmp_path):
    folder = copied(exported, tmp_path / "service")
    (folder / "model.pt2").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    assert verify(mended(folder), data).status == "invalid"
    assert not (tmp_path / "exploded").exists()
    assert b"mkdir" in (folder / "model.pt2").read_bytes()


UNEXPECTED = (
    "model.onnx",
    "certificate.json",
    "certificate/weights.safetensors",
    "theta.safetensors",
    "run.sh",
)


@pytest.mark.parametrize("name", UNEXPECTED)
def test_a_file_at_an_unexpected_place_is_named(exported, data, tmp_path, name):
    """Also one whose name is expected in the other folder."""
    folder = copied(exported, tmp_path / "service")
    (folder / name).write_bytes(b"{}")
    verdict = verify(folder, data)
    assert verdict.status == "cannot tell"
    assert f'holds unexpected files: ["{name}"].' in sentences(verdict)


def test_only_what_the_certificate_speaks_of_is_exported_with_it(run, data, tmp_path):
    folder = copied(run, tmp_path / "run")
    (tmp_path / "secret").write_text("mine")
    (last_certificate(folder) / "notes.txt").symlink_to(tmp_path / "secret")
    export(folder, tmp_path / "service")
    assert not (tmp_path / "service" / "certificate" / "notes.txt").exists()
    assert verify(tmp_path / "service", data).status == "valid"


def test_what_is_claimed_is_what_was_counted_here(exported, data, tmp_path):
    folder = copied(exported, tmp_path / "service")
    runner = read_json(folder / "export.json")["recount"]["run_by"]
    mended(folder, recount=lambda claimed: claimed | {"run_by": "every telephone"})
    verdict = verify(folder, data)
    assert verdict.status == "valid", sentences(verdict)  # the same counts, by something else
    assert any(f"run by {runner}, one example at a time" in line for line in verdict.claim)
    assert not any("every telephone" in line for line in (*verdict.claim, *verdict.checked))
    assert any('counted by: "every telephone"' in line for line in verdict.issuer)


def test_another_certificate_is_invalid(exported, data, tmp_path):
    other_run = made(tmp_path / "other", data, seed=5)
    folder = copied(exported, tmp_path / "service")
    shutil.rmtree(folder / "certificate")
    shutil.copytree(last_certificate(other_run), folder / "certificate")
    verdict = verify(folder, data)
    assert verdict.status == "invalid"
    assert "is not the one that the export speaks of" in sentences(verdict)
    content = json.loads((folder / "certificate" / "certificate.json").read_text())
    verdict = verify(mended(folder, certificate=content["digest"]), data)
    assert verdict.status == "invalid"
    assert "does not hold the parameters" in sentences(verdict)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda recount_errors: None, None),
        (
            lambda recount_errors: recount_errors | {"statements": recount_errors["statements"][:1]},
            "what the certificate promised",
        ),
        (
            lambda recount_errors: recount_errors | {"records": recount_errors["records"][:1]},
            "not only other errors",
        ),
        (lambda recount_errors: _fewer(recount_errors, bound=0), "are not those that are stated"),
        (lambda recount_errors: _fewer(recount_errors, bound=-1e-3), "smaller than its counts allow"),
        (lambda recount_errors: _sized(recount_errors), "not only other errors"),
        (lambda recount_errors: recount_errors | {"extra": 1}, "documented fields"),
        (lambda recount_errors: recount_errors | {"run_by": 3}, "a line of printable text"),
    ],
)
def test_a_forged_recount_is_found(exported, data, tmp_path, change, sentence):
    folder = mended(copied(exported, tmp_path / "service"), recount=change)
    verdict = verify(folder, data)
    if sentence is None:  # less is said, and that is allowed
        assert verdict.status == "valid"
        assert not any("model.pt2, task" in line for line in verdict.claim)
    else:
        assert verdict.status == "invalid"
        assert sentence in sentences(verdict)


def _fewer(recount, bound):
    """One error less than there are; and bounds that are still smaller."""
    record = next(candidate for candidate in recount["records"] if candidate["errors_not_picked"])
    record["errors_not_picked"] -= 1
    record["errors"] -= min(1, record["errors"])
    for statement in recount["statements"]:
        statement["value"] += bound
    return recount


def _sized(recount):
    recount["records"][0]["n"] += 1
    return recount


def test_a_damaged_export_file_is_invalid(exported, data, tmp_path):
    folder = copied(exported, tmp_path / "service")
    text = (folder / "export.json").read_text()
    for changed in (text.replace("cop2l 0", "cop2l 9"), text.replace('"version": 1', '"version": 1e999')):
        (folder / "export.json").write_text(changed)
        assert verify(folder, data).status == "invalid"
    (folder / "export.json").write_text(text.replace("{", '{"version": 0, ', 1))
    assert "export.json names a field twice" in sentences(verify(folder, data))
    (folder / "export.json").write_text(text)
    (folder / "weights.safetensors").unlink()
    with pytest.raises(ValueError, match="cannot be read"):
        verify(folder, data)


def test_more_errors_give_larger_bounds(run, data):
    """The bound is that of what the program does, whatever it does; a program that is the model has the model's counts."""
    certificate = form.read_content(last_certificate(run))
    stream = load(str(data), tasks=2)
    samples = {t: (x, y) for x, y, t in stream}
    learner = saved_learner.load(run)
    count = lambda logits: recount_errors(  # noqa: E731
        logits, certificate, certificate["options"], learner.engine.sets, samples
    )
    model = learner.model.eval()
    records, statements = count(model)
    assert records == certificate["records"]
    assert statements == certificate["statements"]
    records, statements = count(lambda x: torch.zeros(len(x), 4))  # a tie is an error
    assert [record["errors_not_picked"] for record in records] == [
        record["n"] - record["picked"] for record in records
    ]
    assert all(
        statement["value"] > certified["value"]
        for statement, certified in zip(statements, certificate["statements"], strict=True)
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "replay", "holdout": 0.3},
        {"scenario": "task-incremental"},
        {"preset": "picking"},
        {"claim": ["tasks", "average", "forgetting", "classes"], "anytime": True},
        {"kind": "kl"},
    ],
    ids=lambda changes: " ".join(map(str, changes.values())),
)
def test_every_kind_of_certificate_can_be_exported(data, tmp_path, changes):
    run = made(tmp_path / "run", data, tasks=2, **changes)
    content = export(run, tmp_path / "service", data=str(data))
    assert {one["family"] for one in content["recount"]["statements"]} <= {"tasks", "average", "classes"}
    assert content["recount"]["statements"]
    draws = (
        changes.get("kind") == "kl"
    )  # no theorem covers rows of equal logits there: the auditor must know them for draws
    verdict = verify(tmp_path / "service", data, split_as_stated=True, repeats_are_draws=draws)
    assert verdict.status == "valid", sentences(verdict)


def test_a_learner_in_python(tmp_path):
    stream = load(str(write_data(tmp_path / "mine.npz")), tasks=2)
    learner = cop2l.CoP2L(build("linear", inputs=(6,), classes=4), max_iterations=0)
    for x, y, _ in stream:
        learner.learn(x, y)
    with pytest.raises(UserError, match="certify it first"):
        cop2l.export(learner, tmp_path / "service")
    samples = {t: (x, y) for x, y, t in stream}
    learner.certify(samples)
    learner.save(tmp_path / "learner")
    cop2l.export(learner, tmp_path / "service", data=samples)
    verdict = cop2l.verify(tmp_path / "service", samples)
    assert verdict.status == "valid", sentences(verdict)
    with pytest.raises(UserError, match="is not what the certificate was counted on"):
        cop2l.export(learner, tmp_path / "again", data={1: samples[1], 2: samples[1]})
    learner.certificate.content["not_valid"].append("Tasks share rows.")
    with pytest.warns(Advice, match="The certificate is not valid: Tasks share rows."):
        cop2l.export(learner, tmp_path / "void", data=samples)
    learner.learn(np.eye(6), np.arange(6) % 4)  # changes no parameter
    learner.save(tmp_path / "learner")
    with pytest.raises(UserError, match="not the one that its last certificate is about"):
        cop2l.export(tmp_path / "learner", tmp_path / "older", data=samples)


@pytest.mark.parametrize("method", [["method=cop2l", "lr=0.1"], ["method=replay", "holdout=0.4", "epochs=5"]])
def test_declared_draws_travel_with_the_export(method, tmp_path, monkeypatch):
    """Discrete data that was declared is not counted as copies in the program either."""
    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(0)
    x = draws.integers(0, 3, (400, 3)).astype(np.float32)
    np.savez("few.npz", x=x, y=(x[:, 0] > 0).astype(int))
    assert main(["run", "few.npz", *method, "tasks=1", "classes=2", "repeats=true", "--out", "run"]) == 0
    content = cop2l.export("run", "service", data="few.npz")
    assert all(one["value"] < 0.5 for one in content["recount"]["statements"])
    assert cop2l.verify("service", "few.npz", split_as_stated=True, repeats_are_draws=True).status == "valid"


@pytest.mark.parametrize("keep_withheld", [None, 60])
def test_copies_of_learned_rows_are_no_hits_of_a_program_either(keep_withheld, tmp_path):
    """Every row stands twice: where the learner got one of the two, the other certifies nothing. Also of kept rows."""
    samples, learner = {}, cop2l.Holdout(
        Replay(build("linear", inputs=(6,), classes=4), memory=30, epochs=5, lr=0.1, scenario="domain-incremental"),
        keep_withheld=keep_withheld or 0,
    )  # fmt: skip
    for t in (1, 2):
        content = np.load(write_data(tmp_path / f"{t}.npz", n=120, seed=t))
        samples[t] = tuple(np.concatenate([content[name]] * 2) for name in "xy")
        with pytest.warns(Advice, match="repeat another"):
            learner.learn(*samples[t])
    certificate = learner.certify(None if keep_withheld else samples)
    content = cop2l.export(learner, tmp_path / "service", data=samples)
    assert content["recount"]["records"] == certificate.content["records"]
    assert all(one["value"] > 0.5 for one in content["recount"]["statements"])
    verdict = cop2l.verify(tmp_path / "service", samples)
    assert verdict.status == "valid", sentences(verdict)
    mended(tmp_path / "service", recount=lambda counted: without_repeats(counted, certificate.options))
    verdict = cop2l.verify(tmp_path / "service", samples)
    assert "are not those that are stated" in sentences(verdict)


def without_repeats(recount, options):
    """What was stated before learned rows were compared: fewer errors, and bounds that follow from them."""
    for record in recount["records"]:
        record.update(errors=5, errors_not_picked=5)
    return recount | {"statements": statements(options, recount["records"])}


def _zeros():
    model = torch.nn.Sequential(torch.nn.Linear(6, 4))
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    return model


def zeros(seed):
    return _zeros()


def test_a_model_of_ones_own(tmp_path):
    stream = load(str(write_data(tmp_path / "mine.npz")), tasks=2)
    learner, samples = cop2l.CoP2L(_zeros(), memory=50), {t: (x, y) for x, y, t in stream}
    for x, y in samples.values():
        learner.learn(x, y)
    learner.certify(samples)
    cop2l.export(learner, tmp_path / "service", data=samples)
    verdict = cop2l.verify(tmp_path / "service", samples, model=zeros)
    assert verdict.status == "valid", sentences(verdict)
    verdict = cop2l.verify(tmp_path / "service", samples)
    assert verdict.status == "cannot tell"
    assert "The model is the issuer's own" in sentences(verdict)


class Same(torch.nn.Linear):
    """The same layer, by another name."""


def test_the_name_of_a_class_is_no_part_of_a_program():
    one, other = torch.nn.Linear(3, 2), Same(3, 2)
    other.load_state_dict(one.state_dict())
    assert programs.program(one, [3]).content == programs.program(other, [3]).content


def test_the_verb(run, data, tmp_path, capsys):
    arguments = ["export", str(run), "--to", str(tmp_path / "service"), "--data", str(data)]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "errors on the certified examples that were not picked" in out
    assert "In model.pt2: The error rate on task 1 is at most" in out
    assert main(arguments) == 2
    assert "exists already; choose a new folder" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "service"), "--data", str(data), "--tasks", "2"]) == 0
    assert main(["show", str(tmp_path / "service"), "--brief"]) == 0


def test_what_cannot_be_exported_is_refused_in_a_sentence(data, tmp_path):
    run = made(tmp_path / "run", data, method="icarl", holdout=0.3)
    with pytest.raises(UserError, match="icarl does not predict with its model alone"):
        export(run, tmp_path / "service")
    with pytest.raises(UserError, match="no format of programs named 'pickle'"):
        programs.program(build("linear", inputs=(2,), classes=2), [2], "pickle")
    assert not (tmp_path / "service").exists()

    class Branches(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else super().forward(-x)

    for kind in ("torch", "onnx") if find_spec("onnxscript") else ("torch",):
        with pytest.raises(UserError, match="cannot be turned into a program") as refused:
            programs.program(Branches(2, 2), [2], kind)
        assert str(refused.value).isprintable()


# ---- ONNX


@pytest.fixture
def onnx(run, data, tmp_path):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    export(run, tmp_path / "service", format="onnx", data=str(data))
    return tmp_path / "service"


def test_an_onnx_program_is_counted_again_in_its_runtime(onnx, run, data):
    import onnxruntime

    content = read_json(onnx / "export.json")
    assert content["recount"]["run_by"].startswith(f"onnxruntime {onnxruntime.__version__}, CPU, 1 thread, ")
    assert b"cop2l/models" not in (onnx / "model.onnx").read_bytes()  # no folders of this machine
    session = onnxruntime.InferenceSession(onnx / "model.onnx", providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).normal(size=(9, 6)).astype(np.float32)
    (logits,) = session.run(None, {"x": x})
    assert logits.argmax(1).tolist() == saved_learner.load(run).predict(x).tolist()
    verdict = verify(onnx, data)
    assert verdict.status == "valid", sentences(verdict)
    assert any("For model.onnx, run by onnxruntime" in line for line in verdict.claim)
    assert "The errors that model.onnx makes were counted again: they are as stated." in verdict.checked


def test_a_forged_onnx_program_is_invalid(onnx, data):
    import onnx as library

    model = library.load(onnx / "model.onnx")
    weights = model.graph.initializer[0]
    weights.raw_data = bytes(len(weights.raw_data))
    library.save(model, onnx / "model.onnx")
    verdict = verify(mended(onnx), data)
    assert verdict.status == "invalid"
    assert "model.onnx is not the program that these parameters give" in sentences(verdict)


def test_an_onnx_program_that_was_not_counted_is_invalid(onnx, data):
    verdict = verify(mended(onnx, recount=None), data)
    assert verdict.status == "invalid"
    assert "its errors were not counted again" in sentences(verdict)


def test_without_the_runtime_nobody_can_tell(onnx, data, monkeypatch):
    installed = programs.version

    def without(package):
        if package == "onnxruntime":
            raise programs.PackageNotFoundError(package)
        return installed(package)

    monkeypatch.setattr(programs, "version", without)
    verdict = verify(onnx, data)
    assert (verdict.status, verdict.exit_code) == ("cannot tell", 2)
    assert "pip install 'cop2l[onnx]'" in sentences(verdict)
    assert "The errors that model.onnx makes were not counted again." in sentences(verdict)
