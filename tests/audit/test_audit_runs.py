"""Whole run directories: honest ones are valid, and whatever was removed, added or edited is noticed."""

import os
import shutil
from pathlib import Path

import audit_cases
import numpy as np
import pytest
from audit_cases import copied, forged, last_certificate, made, sentences, verify
from safetensors.torch import load_file, save_file

from cop2l.audit import blind
from cop2l.audit.finding import find_certificates
from cop2l.errors import UserError
from cop2l.experiments import grid
from cop2l.kernel import form
from cop2l.kernel.exact import digest, withheld_rows
from cop2l.kernel.form import Unreadable
from cop2l.kernel.options import Refusal
from cop2l.kernel.verdict import Verdict
from cop2l.methods.base import Learner

RUNS = {
    "fixed": {},
    "anytime": {"anytime": True},
    "hold-out": {"method": "replay", "epochs": 2, "holdout": 0.2},
    "hold-out, anytime": {"method": "replay", "epochs": 2, "holdout": 0.2, "anytime": True},
    "hold-out of weighted replay": {"method": "weighted-replay", "lr": 0.05, "holdout": 0.2},
}


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {name: made(folder / name.replace(" ", "-"), data, **changes) for name, changes in RUNS.items()}


@pytest.mark.parametrize("name", RUNS)
def test_an_honest_run_is_valid(runs, data, name):
    verdict = verify(runs[name], data)
    assert verdict.status == "valid", str(verdict)


@pytest.mark.parametrize("name", RUNS)
def test_without_data_nothing_can_be_told(runs, name):
    verdict = verify(runs[name])
    assert (verdict.status, verdict.exit_code) == ("cannot tell", 2)


def test_a_hold_out_certificate_without_the_stream_is_the_issuers_word(runs, data):
    from cop2l.streams import load

    x, y, t = load(data, tasks=2)[1]
    verdict = verify(last_certificate(runs["hold-out"]), {t: (x, y)})
    assert verdict.status == "cannot tell"
    assert "The data of task 1 was not given." in verdict.unverified
    assert any("of task 2 were counted again" in sentence for sentence in verdict.checked)


def test_only_the_last_claim_is_printed_and_all_are_checked(runs, data):
    verdict = verify(runs["anytime"], data)
    assert [statement["task"] for statement in verdict.statements] == [1, 2]
    assert any("All errors of 2 certificates" in sentence for sentence in verdict.checked)


def test_nothing_beside_the_certificates_is_looked_at(runs, data, tmp_path):
    folder = copied(runs["anytime"], tmp_path / "run")
    for name in ("summary.json", "records.jsonl", "config.json"):
        (folder / name).write_text("{}")
    shutil.rmtree(folder / "state")
    verdict = verify(folder, data)
    assert verdict.status == "valid"
    assert any(
        "Beside the certificates only the reasons in the summary" in sentence for sentence in verdict.assumed
    )
    shutil.rmtree(
        folder / "certificates" / "after-01"
    )  # each of them holds, whether the others are there or not
    assert verify(folder, data).status == "valid"


@pytest.mark.usefixtures("alarm")
def test_a_hostile_summary_takes_neither_time_nor_memory(runs, data, tmp_path):
    folder = copied(runs["fixed"], tmp_path / "run")
    summary = folder / "summary.json"
    reasons = f'{{"not_valid": ["I knew the data."], "sentences": ["{"long" * 300}\\t"]}}'
    for text in (reasons, " " * form.MAX_BYTES + reasons):  # more bytes than that are not read
        summary.write_text(text)
        assert verify(folder, data).status == ("invalid" if text == reasons else "valid")
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir):
        summary.unlink()
        make(summary)
        assert verify(folder, data).status == "valid"


NO_SPACE, NO_MEMORY, NO_INPUTS = OSError("No space left"), RuntimeError("can't allocate"), UserError()
NO_INPUTS.__context__ = NO_MEMORY


@pytest.mark.parametrize("error", [MemoryError(), NO_SPACE, NO_MEMORY, NO_INPUTS])
def test_a_machine_that_is_too_small_says_nothing_about_a_certificate(runs, data, monkeypatch, error):
    def learn(*_):
        raise error

    monkeypatch.setattr(blind, "learn", learn)
    with pytest.raises(form.Unreadable, match="The method cannot be run again"):
        verify(runs["hold-out"], data)
    error = UserError("It was saved with memory 30, not 2000.")
    assert verify(runs["hold-out"], data).status == "invalid"


@pytest.mark.parametrize("setting", [{"epochs": 10**9}, {"epochs": 10**7, "batch": 2 * 10**9}])
def test_a_hold_out_that_learns_for_years_is_refused(runs, data, tmp_path, setting):
    folder = copied(runs["hold-out"], tmp_path / "run")
    forged(last_certificate(folder), lambda content: content["settings"].update(setting))
    with pytest.raises(form.Unreadable, match=r"learning again takes .* operations"):
        verify(folder, data)


def test_features_that_take_more_than_the_memory_are_refused(data, tmp_path):
    settings = {
        "method": "ranpac",
        "model": "linear",
        "holdout": 0.2,
        "methods": {"ranpac": {"random_features": 20}},
    }
    audit_cases.run(grid.single_run({"stream": str(data), **settings}), tmp_path / "run")
    forged(
        last_certificate(tmp_path / "run"), lambda content: content["settings"].update(random_features=15_000)
    )
    with pytest.raises(form.Unreadable, match="take more memory than is allowed"):
        verify(tmp_path / "run", data, split={"tasks": 1})


def test_the_verdict_names_what_the_check_was_allowed(runs, data):
    sentence = "At most 2.0e+13 operations and 2060 seconds were allowed (--limit)."
    assert sentence in verify(runs["fixed"], data, limit=2e13).checked


def test_a_method_that_looks_at_the_batch_is_found_out(runs, data, monkeypatch):
    """Its model does not, but its predictions are those of the last row."""
    monkeypatch.setattr(
        Learner, "predict", lambda learner, x, task=None: learner.logits(x[-1:].repeat(len(x), 0)).argmax(1)
    )
    assert "depends on the rows that are predicted with it" in sentences(verify(runs["hold-out"], data))


def test_no_program_of_a_method_with_predictions_of_its_own_is_certified(tmp_path):
    with pytest.raises(Refusal, match="does not predict with its model alone"):
        blind.make_program({"method": "icarl"}, tmp_path, tmp_path, tmp_path, None)


def test_certificates_that_are_doubled_or_in_another_order_are_a_fault(runs, data, tmp_path):
    folder = copied(runs["anytime"], tmp_path / "run") / "certificates"
    shutil.copytree(folder / "after-02", folder / "after-2")
    assert "There are two certificates after task 2." in sentences(verify(folder.parent, data))
    shutil.rmtree(folder / "after-2")
    for old, new in (("after-02", "x"), ("after-01", "after-02"), ("x", "after-01")):
        (folder / old).rename(folder / new)
    assert "not in the order of its tasks" in sentences(verify(folder.parent, data))


def test_no_certificate_at_all(runs, tmp_path):
    folder = copied(runs["fixed"], tmp_path / "run")
    shutil.rmtree(folder / "certificates")
    with pytest.raises(Unreadable, match="has issued none so far"):
        verify(folder)


def test_a_certificate_beside_the_files_of_a_run_does_not_speak_for_them(runs, data, tmp_path):
    folder = copied(runs["fixed"], tmp_path / "run")
    for file in last_certificate(folder).iterdir():
        shutil.copy(file, folder)
    verdict = verify(folder, data)
    assert verdict.status == "cannot tell"
    assert "lies beside the files of a run" in sentences(verdict)


def test_planted_names_are_ignored_and_mentioned(runs, data, tmp_path):
    folder = copied(runs["fixed"], tmp_path / "run")
    planted = folder / "certificates" / "after-zz\x1b[2J"
    shutil.copytree(folder / "certificates" / "after-02", planted)
    verdict = verify(folder, data)
    assert verdict.status == "cannot tell"
    assert "is not the name of a certificate" in sentences(verdict)
    assert "\x1b" not in str(verdict)


def test_certificates_are_in_the_order_of_their_numbers(tmp_path):
    for number in (100, 99, 9):
        (tmp_path / "certificates" / f"after-{number:02d}").mkdir(parents=True)
    assert [folder.name for folder in find_certificates(tmp_path, Verdict())] == [
        "after-09",
        "after-99",
        "after-100",
    ]


def test_a_forged_or_deleted_hold_out_file(runs, data, tmp_path):
    from cop2l.files import read_tensors, write_tensors

    folder = copied(runs["hold-out"], tmp_path / "run")
    certificate = last_certificate(folder)
    file = certificate / "learner.safetensors"
    tensors, note = read_tensors(file)
    name = next(key for key in tensors if key.startswith("model."))
    write_tensors(file, tensors | {name: tensors[name] + 1e-3}, note)
    assert load_file(file)[name].tolist() != tensors[name].tolist()
    forged(certificate, lambda content: None)
    verdict = verify(certificate, data)
    assert verdict.status == "invalid"
    assert "gives another predictor after task" in sentences(verdict)
    file.unlink()
    with pytest.raises(Unreadable, match=r"learner.safetensors cannot be read"):
        verify(folder, data)


def without_a_class(note):
    for head in note.get("heads") or [task["head"] for task in note["tasks"]]:
        del head[1:]


CHANGED_NOTES = {
    "heads": without_a_class,
    "scenario": lambda note: note.update(scenario="task-incremental"),
    "model": lambda note: note["model"].update(scale="fitted"),
    "options": lambda note: note["options"].update(epochs=3),
    "an unknown note": lambda note: note.update(temperature=2),
}


@pytest.mark.parametrize("change", CHANGED_NOTES)
@pytest.mark.parametrize("name", ["hold-out", "hold-out of weighted replay"])
def test_a_stored_learner_with_another_note_is_found_out(runs, data, tmp_path, name, change):
    from cop2l.files import read_tensors, write_tensors
    from cop2l.kernel import holdout

    folder = copied(runs[name], tmp_path / "run")
    file = last_certificate(folder) / "learner.safetensors"
    tensors, note = read_tensors(file)
    before = holdout._predictor(file)
    CHANGED_NOTES[change](note)
    write_tensors(file, tensors, note)
    assert holdout._predictor(file)[:2] != before[:2]
    if change == "heads":  # as the whole check sees it
        forged(last_certificate(folder), lambda content: None)
        found = sentences(verify(folder, data))
        assert "gives another predictor after task" in found


@pytest.mark.parametrize("name", ["hold-out", "hold-out of weighted replay"])
def test_a_stored_learner_that_orders_columns_of_its_own_is_a_doubt(runs, data, tmp_path, name):
    """On arrays it predicts what was learned; on a data frame with these names it would read the columns backwards."""
    from cop2l.files import read_tensors, write_tensors

    folder = copied(runs[name], tmp_path / "run")
    file = last_certificate(folder) / "learner.safetensors"
    tensors, note = read_tensors(file)
    write_tensors(file, tensors, note | {"columns": list("fedcba")})
    forged(last_certificate(folder), lambda content: None)
    verdict = verify(folder, data)
    assert verdict.status == "cannot tell", str(verdict)
    assert "sorts columns by names that the certificate does not state" in sentences(verdict)
    forged(last_certificate(folder), lambda content: content["data"].update(inputs=list("fedcba")))
    verdict = verify(folder, data)
    assert verdict.status == "cannot tell", str(verdict)
    assert "The data has no names of columns" in sentences(verdict)


def test_columns_in_the_order_of_the_table_are_no_doubt(tmp_path):
    pytest.importorskip("pyarrow")
    from cop2l.files import read_tensors, write_tensors

    x = np.random.default_rng(0).normal(size=(200, 2))
    rows = np.column_stack([x, x[:, 0] > 0])
    np.savetxt(tmp_path / "table.csv", rows, delimiter=",", header="a,b,label", comments="")
    run = made(tmp_path / "run", tmp_path / "table.csv", **RUNS["hold-out"], tasks=1)
    file = last_certificate(run) / "learner.safetensors"
    tensors, note = read_tensors(file)
    for names, status in (("ab", "valid"), ("ba", "cannot tell")):
        write_tensors(file, tensors, note | {"columns": list(names)})
        forged(last_certificate(run), lambda content: None)
        verdict = verify(last_certificate(run), tmp_path / "table.csv", split={"tasks": 1})
        assert verdict.status == status, str(verdict)


def test_rows_that_cop2l_sets_aside_fit_the_scale_and_another_scale_is_found_out(data, tmp_path, monkeypatch):
    options = {"scale": ["fitted"], "prepare": 0.4}
    run = made(tmp_path / "run", data, **options)
    verdict = verify(run, data)
    assert verdict.status == "valid", str(verdict)
    assert last_certificate(run).name == "after-02"
    sizes = [record["rows"] for record in form.read_content(last_certificate(run))["records"]]
    assert sizes == [120 - withheld_rows(120, 1, 0.4, 0).sum(), 120]
    file = last_certificate(run) / "theta_0.safetensors"
    tensors = load_file(file)
    tensors["scale.factor"] *= 2
    save_file(tensors, file)
    forged(last_certificate(run), lambda content: content.update(theta_0=digest(tensors)))
    assert verify(run, data).status == "invalid"
    other = {"shift": [0.0] * 6, "factor": [1.0] * 6}  # learned with, but not what the rows give
    monkeypatch.setattr("cop2l.experiments.learners.fit_scale", lambda *_: other)
    verdict = verify(made(tmp_path / "other", data, **options), data)
    assert verdict.status == "cannot tell"
    assert "may be fitted to the data" in sentences(verdict)
