"""Whole run directories: honest ones are valid, and whatever was removed, added or edited is noticed."""

import json
import shutil

import pytest
from audit_cases import copied, forged, last_certificate, made, sentences, verify

from cop2l.audit.finding import find
from cop2l.files import read_json, read_lines, write_json, write_lines
from cop2l.kernel.form import Unreadable
from cop2l.kernel.verdict import Verdict

RUNS = {
    "fixed": {},
    "anytime": {"anytime": True},
    "with hold-out beside": {"holdout": 0.2},
    "hold-out": {"method": "replay", "epochs": 2, "holdout": 0.2},
    "hold-out, anytime": {"method": "replay", "epochs": 2, "holdout": 0.2, "anytime": True},
    "hold-out of CoP2L": {"holdout": 0.2, "kind": "holdout"},
}


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {name: made(folder / name.replace(" ", "-"), data, **changes) for name, changes in RUNS.items()}


@pytest.mark.parametrize("name", RUNS)
def test_an_honest_run_is_valid(runs, data, name):
    verdict = verify(runs[name], data)
    assert verdict.status == "valid", str(verdict)
    assert "agree with the certificates" in "\n".join(verdict.checked)
    assert any("Accuracies" in sentence for sentence in verdict.word)


@pytest.mark.parametrize("name", RUNS)
def test_without_data_nothing_can_be_told(runs, name):
    verdict = verify(runs[name])
    assert (verdict.status, verdict.exit_code) == ("cannot tell", 2)


def test_a_hold_out_certificate_without_the_stream_is_the_issuers_word(runs, data):
    from cop2l.streams import load
    from cop2l.streams.withhold import withhold

    withheld = {task.t: withhold(task, 0.2, 0)[1][:2] for task in load(data)}
    verdict = verify(last_certificate(runs["hold-out"]), withheld)
    assert verdict.status == "cannot tell"
    assert "issuer's word" in sentences(verdict)
    assert any("counted again" in sentence for sentence in verdict.checked)


def test_only_the_last_claim_is_printed_and_all_are_checked(runs, data):
    verdict = verify(runs["anytime"], data)
    assert [statement["task"] for statement in verdict.statements] == [1, 2]
    assert any("All errors of 2 certificates" in sentence for sentence in verdict.checked)


def certificate_gone(run):
    shutil.rmtree(run / "certificates" / "after-01")


def newest_gone(run):
    shutil.rmtree(run / "certificates" / "after-02")


def newest_gone_with_its_record(run):
    newest_gone(run)
    write_lines(run / "records.jsonl", read_lines(run / "records.jsonl")[:1])
    (run / "summary.json").unlink()


def swapped(run):
    (run / "certificates" / "after-02").rename(run / "certificates" / "x")
    (run / "certificates" / "after-01").rename(run / "certificates" / "after-02")
    (run / "certificates" / "x").rename(run / "certificates" / "after-01")


def twice(run):
    shutil.copytree(run / "certificates" / "after-02", run / "certificates" / "after-2")


def state_gone(run):
    shutil.rmtree(run / "state")


def summary_edited(run):
    content = read_json(run / "summary.json")
    content["tasks"][0]["bounds"]["combined"] = 0.001
    write_json(run / "summary.json", content)


def summary_edited_by_hand(run):
    file = run / "summary.json"
    file.write_text(file.read_text().replace('"accuracy": 0.', '"accuracy": 0.9'))


def summary_gone(run):
    (run / "summary.json").unlink()


def config_gone(run):
    (run / "config.json").unlink()


def information_edited(run):
    records_edited(run, "kl")


def records_edited(run, kind="combined"):
    records = read_lines(run / "records.jsonl")
    records[-1]["tasks"][0]["bounds"][kind] = 0.001
    write_lines(run / "records.jsonl", records)
    content = read_json(run / "summary.json")
    write_json(run / "summary.json", content | {"tasks": records[-1]["tasks"]})


def records_without_form(run):
    write_lines(run / "records.jsonl", [{"task": 1}, {"task": "two"}])


UNFOUNDED = "The counts and bounds of task 1 in the record of task 2 do not follow from a certificate."


def config_edited(run):
    content = read_json(run / "config.json")
    write_json(run / "config.json", content | {"delta": 0.001})


def cut_edited(run):
    content = read_json(run / "config.json")
    write_json(run / "config.json", content | {"order_seed": 3})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (certificate_gone, "The certificate after task 1 is missing."),
        (newest_gone, "certificates were removed"),
        (newest_gone_with_its_record, "the saved learner has 2"),
        (swapped, "after-02 holds the certificate after task 1"),
        (twice, "There are two certificates after task 2."),
        (state_gone, "The saved learner is missing"),
        (summary_edited, "summary.json does not follow from the records: look at tasks."),
        (summary_edited_by_hand, "summary.json is damaged (changed: its checksum does not fit)"),
        (summary_gone, "summary.json is damaged (missing)"),
        (config_gone, "config.json is damaged (missing)"),
        (records_edited, UNFOUNDED),
        (information_edited, UNFOUNDED),
        (records_without_form, "records.jsonl is damaged ('accuracy' is missing)"),
        (config_edited, "config.json differs from the certificate in delta."),
        (cut_edited, "config.json differs from the certificate in data."),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_was_removed_or_edited_is_a_fault(runs, data, tmp_path, change, sentence):
    folder = copied(runs["anytime"], tmp_path / "run")
    change(folder)
    verdict = verify(folder, data)
    assert verdict.status == "invalid"
    assert sentence in sentences(verdict)


def test_no_certificate_at_all(runs, tmp_path):
    folder = copied(runs["fixed"], tmp_path / "run")
    shutil.rmtree(folder / "certificates")
    assert verify(folder).faults == ["The run states bounds, and its certificates are missing."]
    silent = copied(runs["fixed"], tmp_path / "silent")
    shutil.rmtree(silent / "certificates")
    (silent / "summary.json").unlink()
    write_lines(silent / "records.jsonl", read_lines(silent / "records.jsonl")[:1])
    with pytest.raises(Unreadable, match="has issued none so far"):
        verify(silent)


def test_a_certificate_where_none_may_be(runs, data, tmp_path):
    folder = copied(runs["fixed"], tmp_path / "run")
    early = folder / "certificates" / "after-01"
    shutil.copytree(folder / "certificates" / "after-02", early)
    verdict = verify(folder, data)
    assert verdict.status == "invalid"


def test_a_certificate_beside_the_files_of_a_run_does_not_speak_for_them(runs, data, tmp_path):
    folder = copied(runs["fixed"], tmp_path / "run")
    for file in last_certificate(folder).iterdir():
        shutil.copy(file, folder)
    verdict = verify(folder, data)
    assert verdict.status == "cannot tell"
    assert "lies beside the files of a run" in sentences(verdict)
    records_edited(folder, "preference")
    assert verify(folder, data).status == "invalid"


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
    folders, run = find(tmp_path, Verdict())
    assert [folder.name for folder in folders] == ["after-09", "after-99", "after-100"]
    assert run == tmp_path


def test_a_forged_or_deleted_hold_out_file(runs, data, tmp_path):
    from safetensors.torch import load_file

    from cop2l.files import read_tensors, write_tensors

    folder = copied(runs["hold-out"], tmp_path / "run")
    certificate = last_certificate(folder)
    file = certificate / "learner.safetensors"
    whole, note = read_tensors(file)
    name = next(key for key in whole if key.startswith("model."))
    write_tensors(file, whole | {name: whole[name] + 1e-3}, note)
    assert load_file(file)[name].tolist() != whole[name].tolist()
    forged(certificate, lambda content: None)
    verdict = verify(certificate, data)
    assert verdict.status == "invalid"
    assert "gives another learner after task 2 than the stored one" in sentences(verdict)
    file.unlink()
    with pytest.raises(Unreadable, match=r"learner.safetensors cannot be read"):
        verify(folder, data)


@pytest.mark.parametrize("name", ["hold-out", "hold-out of CoP2L"])
def test_a_stored_learner_that_predicts_among_other_classes_is_found_out(runs, data, tmp_path, name):
    from cop2l.files import read_tensors, write_tensors

    folder = copied(runs[name], tmp_path / "run")
    (state,) = (folder / "state").glob("*.safetensors")
    for file in (state, last_certificate(folder) / "learner.safetensors"):
        whole, note = read_tensors(file)
        for head in note.get("heads") or [task["head"] for task in note["tasks"]]:
            del head[1:]
        write_tensors(file, whole, note)
    forged(last_certificate(folder), lambda content: None)
    found = sentences(verify(folder, data))
    assert "gives another learner after task 2 than the stored one" in found
    assert "The saved learner is not the one that the last certificate speaks of." in found


@pytest.mark.parametrize("name", ["fixed", "hold-out", "hold-out of CoP2L"])
def test_a_stored_learner_of_another_model_is_found_out(runs, data, tmp_path, name):
    from cop2l.files import read_tensors, write_tensors

    folder = copied(runs[name], tmp_path / "run")
    files = [*(folder / "state").glob("*.safetensors"), last_certificate(folder) / "learner.safetensors"]
    for file in files if "hold" in name else files[:1]:
        whole, note = read_tensors(file)
        note["model"]["dropout"] = 0.9
        write_tensors(file, whole, note)
    forged(last_certificate(folder), lambda content: None)
    assert "The saved learner is not the one that the last certificate speaks of." in sentences(
        verify(folder, data)
    )


def test_other_names_of_the_classes_are_a_doubt(runs, data, tmp_path):
    folder = copied(runs["fixed"], tmp_path / "run")
    assert not any("names" in sentence for sentence in verify(folder, data).word)
    environment = read_json(folder / "environment.json")
    environment["stream"]["class_names"].reverse()
    write_json(folder / "environment.json", environment)
    verdict = verify(folder, data)
    assert verdict.status == "cannot tell"
    assert sentences(verdict) == "The names of the classes beside the learner are not those of the data."
    assert any("names of the classes" in sentence for sentence in verify(folder).word)


def test_a_learner_planted_in_a_run_directory_is_a_doubt(runs, data, tmp_path):
    from cop2l import CoP2L
    from cop2l.models import build

    folder = copied(runs["fixed"], tmp_path / "run")
    CoP2L(build("mlp", inputs=(6,), classes=4, seed=1), preset="cop2l").save(folder)
    assert CoP2L.load(folder).tasks_seen == 0  # that one is loaded, not the one of the run
    verdict = verify(folder, data)
    assert verdict.status == "cannot tell"
    assert "saved beside the certificate is not the one" in sentences(verdict)


@pytest.mark.parametrize(
    ("kept", "sentence"),
    [(True, ""), (False, "gives a scale of the inputs, as configured, and the model has none")],
)
def test_a_scale_that_is_left_to_the_prior_part_cannot_be_left_out(
    data, tmp_path, monkeypatch, kept, sentence
):
    from cop2l.experiments import learners

    if not kept:
        monkeypatch.setattr(learners, "run_scale", lambda *_: None)
    left = {"scale": ["prior"], "preset": "hybrid", "prior": 0.3, "prior_epochs": 2}
    found = verify(made(tmp_path / "run", data, **left), data)
    assert found.status == ("valid" if kept else "invalid"), found
    assert sentence in sentences(found)


def test_fewer_withheld_errors_are_found_out(runs, data, tmp_path):
    from cop2l.bounds import holdout_certificate

    certificate = last_certificate(copied(runs["hold-out"], tmp_path / "run"))

    def fewer(content):
        for record, statement in zip(content["records"], content["statements"], strict=True):
            record["errors"] = record["missed"] = 0
            statement["value"] = float(holdout_certificate(record["rows"], 0, 2, -2.9957322735539909))

    verdict = verify(forged(certificate, fewer), data)
    assert verdict.status == "invalid"
    assert "errors in its withheld part" in sentences(verdict)


def test_keys_of_a_forged_summary_cannot_steer_a_terminal(runs, data, tmp_path):
    folder = copied(runs["fixed"], tmp_path / "run")
    write_json(folder / "summary.json", read_json(folder / "summary.json") | {"\x1b[31mVALID": 1})
    verdict = verify(folder, data)
    assert verdict.status == "invalid"
    assert "\x1b" not in str(verdict) + json.dumps(verdict.as_dict())
