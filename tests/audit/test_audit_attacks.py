"""What a dishonest issuer may try on one certificate, all hashes mended: none of it is valid."""

import json
import os

import numpy as np
import pytest
import torch
from audit_cases import copied, forged, last_certificate, made, sentences, verify

import cop2l
from cop2l import CoP2L
from cop2l.audit.split import task_arrays
from cop2l.certificates.commitment import commitment_hash
from cop2l.kernel.form import TEXT_FILE, Unreadable
from cop2l.models import build
from cop2l.streams import load


@pytest.fixture
def certificate(run, tmp_path):
    return copied(last_certificate(run), tmp_path / "certificate")


def test_an_honest_certificate_is_valid_however_its_data_is_given(certificate, data, tmp_path):
    stream = load(data, tasks=2)
    samples = {task.t: (task.x, task.y) for task in stream}
    arrays = {
        f"{name}_{t}": part for t, pair in samples.items() for name, part in zip("xy", pair, strict=True)
    }
    np.savez(tmp_path / "samples.npz", **arrays)
    for given in (data, samples, tmp_path / "samples.npz"):
        assert verify(certificate, given).status == "valid"
    assert verify(certificate / TEXT_FILE, data).status == "valid"
    assert verify(certificate, {1: samples[1]}).status == "cannot tell"
    assert verify(certificate, {1: samples[1], 2: samples[1]}).status == "invalid"


def test_classes_that_were_found_in_the_data_are_the_issuers_word(certificate, data, tmp_path):
    sentence_on_classes = "The classes were found in the data"
    assert any(sentence_on_classes in sentence for sentence in verify(certificate, data).assumed)
    given = made(tmp_path / "given", data, data={"classes": 4})
    verdict = verify(given, data, split={"classes": 4})
    assert verdict.status == "valid", str(verdict)
    assert not any(sentence_on_classes in sentence for sentence in verdict.assumed)


# ---- the text


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["statements"][0].update(value=0.0),
        lambda content: content["options"].update(delta=0.001),
        lambda content: content["records"][0].update(stopped=content["records"][0]["stopped"] + 1),
        lambda content: content["options"].update(epochs=10**15),
        lambda content: content["model"].update(hidden=10**7),
        lambda content: content["model"].update(hidden=10**15),
        lambda content: content["model"].update(inputs=[10**5, 10**5]),
        lambda content: content.update(machine="\x1b[2JVALID"),
        lambda content: content["data"].update(stream="\x1b[2JVALID"),
        lambda content: content.update(classes=5),
    ],
)
def test_a_changed_text_is_invalid(certificate, data, change):
    verdict = verify(forged(certificate, change), data)
    assert verdict.status == "invalid"
    assert "\x1b" not in str(verdict)


def test_a_name_of_no_kind_names_no_model(certificate, data):
    named = forged(certificate, lambda content: content["model"].update(name=["mlp"]))
    assert verify(named, data).status == "cannot tell"


def test_more_work_than_is_allowed_is_refused_before_it_is_done(certificate, data):
    with pytest.raises(Unreadable, match="operations"):
        verify(certificate, data, limit=10)

    def larger(content):
        record = content["records"][0]
        record.update(rows=9 * 10**9, n=9 * 10**9)

    with pytest.raises(Unreadable, match="operations"):
        verify(forged(certificate, larger), data)


# ---- the initial parameters


def issued(model, samples, folder, **options):
    learner = CoP2L(model, preset="picking", memory=30, epochs=5, lr=0.3, tasks=len(samples), **options)
    for x, y in samples.values():
        learner.learn(x, y, progress=False)
    learner.certify(samples).save(folder)
    return learner


@pytest.fixture
def samples(data):
    return {task.t: (task.x, task.y) for task in load(data, tasks=2)}


def trained(samples):
    """Weights that have seen the data."""
    model = build("linear", inputs=(6,), classes=4, seed=0)
    x, y = (np.concatenate([pair[i] for pair in samples.values()]) for i in (0, 1))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model


def linear(seed):
    return build("linear", inputs=(6,), classes=4, seed=seed)


def test_constants_of_the_scale_that_saw_the_data_are_a_doubt_unless_committed_to(tmp_path):
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(60, 90)).astype(np.float32), draws.integers(0, 2, 60)
    first, second = build("linear", inputs=(90,), classes=2).head.weight.detach().double().numpy()
    direction = np.linalg.lstsq(x.astype(float), 2.0 * y - 1, rcond=None)[0]
    fitted = [
        [0.0] * 90,
        (1e3 * direction / (second - first)).tolist(),
    ]  # of the seed's weights any linear model can be made

    def verdict(scale, **options):
        model = build("linear", inputs=(90,), classes=2, scale=scale)
        learner = CoP2L(model, max_iterations=0, lr=1e-6, tasks=1)
        learner.learn(x, y)
        certificate = learner.certify({1: (x, y)})
        certificate.save(tmp_path / f"{len(str(scale))}{len(options)}")
        committed = learner.commitment() if options else None
        return certificate.bounds[1], verify(
            tmp_path / f"{len(str(scale))}{len(options)}", {1: (x, y)}, commitment=committed
        )

    bound, found = verdict(fitted)
    assert (bound < 0.1, found.status) == (True, "cannot tell")  # half of all new examples are wrong
    assert "scaled by many shifts and factors, which may have been fitted" in sentences(found)
    assert verdict(fitted, committed=True)[1].status == "valid"
    assert verdict([[0.0] * 90, [0.5] * 90])[1].status == "cannot tell"
    assert verdict([0.0, 0.5])[1].status == "valid"


@pytest.mark.parametrize("channels", [3, 5])
def test_constants_of_few_channels_are_the_issuers_word(channels, tmp_path):
    x = np.random.default_rng(0).normal(size=(40, channels, 2, 2)).astype(np.float32)
    scale = [[0.5] * channels, [0.25] * channels]
    learner = CoP2L(
        build("linear", inputs=x.shape[1:], classes=2, scale=scale),
        preset="picking",
        max_iterations=1,
        tasks=1,
    )
    learner.learn(x, np.arange(40) % 2)
    learner.certify({1: (x, np.arange(40) % 2)}).save(tmp_path)
    expected = "valid" if channels == 3 else "cannot tell"
    assert verify(tmp_path, {1: (x, np.arange(40) % 2)}).status == expected


def test_pretrained_parameters_pass_if_they_were_committed_to(samples, tmp_path):
    promised = CoP2L(trained(samples), preset="picking", memory=30, epochs=5, lr=0.3, tasks=2).commitment()
    issued(trained(samples), samples, tmp_path / "c", commitment=commitment_hash(promised))
    assert verify(tmp_path / "c", samples, commitment=commitment_hash(promised)).status == "valid"
    assert verify(tmp_path / "c", samples, commitment=promised).status == "valid"
    assert verify(tmp_path / "c", samples).status == "cannot tell"


class Own(torch.nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.layer = torch.nn.Linear(6, 4)

    def forward(self, x):
        return self.layer(x)


def own(seed):
    return Own(seed)


def own_of_another_seed(seed):
    return Own(seed + 1)


def other(seed):
    return torch.nn.Linear(6, 5)


def own_without_a_seed():
    return Own(0)


def test_a_model_of_ones_own_is_built_from_the_seed(samples, tmp_path):
    issued(Own(3), samples, tmp_path / "c", seed=3)
    assert verify(tmp_path / "c", samples).status == "cannot tell"
    assert verify(tmp_path / "c", samples, model=own).status == "valid"
    assert verify(tmp_path / "c", samples, model="test_audit_attacks:own").status == "valid"
    assert verify(tmp_path / "c", samples, model=own_of_another_seed).status == "cannot tell"
    assert verify(tmp_path / "c", samples, model=other).status == "invalid"
    for function in (
        "test_audit_attacks:own_without_a_seed",
        "test_audit_attacks:nothing",
        "nowhere:own",
        "json:decoder",
        "x",
        Own(3),
        lambda seed: Own(seed),
    ):
        with pytest.raises(ValueError, match=r"seed|--model|build"):
            verify(tmp_path / "c", samples, model=function)


# ---- the cut


def table(path):
    """Columns a and b say little; `leak` is a copy of the label."""
    rng, y = np.random.default_rng(1), np.arange(300) % 4
    columns = np.column_stack([rng.normal(size=(300, 2)), y + 0.1 * rng.normal(size=300), y])
    np.savetxt(path, columns, delimiter=",", header="a,b,leak,label", comments="")
    return path


def test_columns_of_the_issuers_choice_must_be_typed_or_accepted(tmp_path):
    pytest.importorskip("pyarrow")
    data = table(tmp_path / "table.csv")
    run = made(tmp_path / "run", data, data={"columns": ["leak"]})
    verdict = verify(run, data)
    assert verdict.status == "cannot tell"
    assert "options of the split" in sentences(verdict)
    assert "--columns leak" in verdict.command
    accepted = verify(run, data, split_as_stated=True)
    assert accepted.status == "valid"
    assert 'accepted as stated: {"columns": ["leak"]}' in "\n".join(accepted.assumed)
    assert verify(run, data, split={"columns": ["leak"]}).status == "valid"
    other = verify(run, data, split={"columns": ["a", "b"]})
    assert other.status == "invalid"
    assert "states columns=['leak'], and ['a', 'b'] was typed" in sentences(other)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"tasks": None, "data": {"task_classes": [[0], [1], [2], [3]]}, "scenario": "task-incremental"},
            ["--task-classes 0 1 2 3", "--scenario"],
        ),
        ({"tasks": None, "data": {"task_classes": [[0, 1]]}}, ["--task-classes 0,1", "--tasks 1"]),
        ({"class_seed": 7}, ["--class-seed 7"]),
        ({"order_seed": 8}, ["--order-seed 8"]),
        ({"order": "reversed"}, ["--order reversed"]),
        ({"stream_seed": 7, "data": {"test_share": 0.5}}, ["--stream-seed 7", "--test-share 0.5"]),
        ({"tasks": 4}, ["--tasks 4"]),
        ({"scenario": "domain-incremental"}, ["--scenario domain-incremental"]),
    ],
)
def test_a_cut_of_the_issuers_choice_is_a_doubt(data, tmp_path, changes, words):
    verdict = cop2l.verify(made(tmp_path / "run", data, **changes), str(data))
    assert verdict.status != "valid"
    assert all(word in verdict.command for word in words)


@pytest.mark.parametrize("how", [{"class_seed": 7}, {"order_seed": 8}, {"order": "reversed"}])
def test_another_order_of_classes_or_tasks_is_cut_again_as_typed(data, tmp_path, how):
    run = made(tmp_path / "run", data, **how)
    assert verify(run, data, split=how).status == "valid"
    ((key, value),) = how.items()
    other = verify(run, data, split={key: None if key == "order" else value + 1})
    assert other.status == "invalid"


def test_an_option_that_was_not_typed_contradicts_nothing(data, tmp_path):
    """A certificate made in Python states no split: other tasks may only mean that an option is missing."""
    split = {"task_classes": [[0, 1], [2, 3]], "classes": 5}
    samples = {task.t: (task.x, task.y) for task in load(data, **split)}
    issued(build("linear", inputs=(6,), classes=5, seed=0), samples, tmp_path / "c")
    for typed in ({}, {"tasks": 2}, {"tasks": 2, "order": "reversed"}):
        verdict = verify(tmp_path / "c", data, split=typed)
        assert verdict.status == "cannot tell", typed
    assert "type all options" in verdict.unverified[0]
    assert "The stream has 4 classes" in sentences(verify(tmp_path / "c", data, split={"tasks": 2}))
    with pytest.raises(Unreadable, match=r"cannot be loaded: .*--task-classes"):
        verify(tmp_path / "c", data, split={"tasks": 3})
    for source in (data, samples):
        assert verify(tmp_path / "c", source, split=split).status == "valid"
        for wrong in ({"scenario": "task-incremental"}, {"holdout": 0.5}):
            assert verify(tmp_path / "c", source, split=wrong).status == "invalid"


def test_the_scenario_of_the_certificate_is_that_of_the_cut(certificate, data):
    verdict = verify(forged(certificate, lambda content: content.update(scenario="domain-incremental")), data)
    assert verdict.status == "invalid"


def test_a_cut_without_sense_is_a_fault(certificate, data):
    for nonsense in (
        {"tasks": "many"},
        {"columns": 5},
        {"columns": ["a long name"] * 2000},
        {"task_classes": [[0, 99]]},
        {"tasks": 9 * 10**9},
        {"holdout": "half"},
    ):
        verdict = verify(forged(certificate, lambda content, n=nonsense: content["data"].update(n)), data)
        assert verdict.status == "invalid", nonsense
        assert "long" not in str(verdict.command)  # a part of the command would be another split


def test_an_undeclared_reason_against_a_stream_is_a_fault(tmp_path):
    rng, y = np.random.default_rng(0), np.arange(200) % 2
    x = rng.integers(0, 100, (200, 4, 4), dtype=np.uint8) + (100 * y[:, None, None]).astype(np.uint8)
    np.savez(tmp_path / "pictures.npz", x=x, y=y, x_test=x[:20], y_test=y[:20])
    shared = {"data": {"domains": "permuted"}, "tasks": 2, "scenario": "domain-incremental"}
    run = made(tmp_path / "run", tmp_path / "pictures.npz", **shared)
    certificate, split = (
        last_certificate(run),
        {"domains": "permuted", "tasks": 2, "scenario": "domain-incremental"},
    )
    declared = verify(certificate, tmp_path / "pictures.npz", split=split)
    assert "declares itself not valid" in sentences(declared)
    silent = verify(
        forged(certificate, lambda content: content.update(not_valid=[])),
        tmp_path / "pictures.npz",
        split=split,
    )
    assert silent.status == "invalid"
    assert "Tasks share examples" in sentences(silent)
    assert "does not declare it" in sentences(silent)


# ---- rows


def data_with(data, path, change):
    content = dict(np.load(data))
    change(content)
    np.savez(path, **content)
    return path


def oversampled(content):
    content["x"][4:120:4] = content["x"][0]


def shared(content):
    content["x"][2] = content["x"][0]  # of classes 2 and 0, so of two tasks


@pytest.mark.parametrize("copy", [oversampled, shared])
def test_copies_have_been_paid_for_or_are_a_doubt(data, tmp_path, copy, monkeypatch):
    copies = data_with(data, tmp_path / "copies.npz", copy)
    paid = made(tmp_path / "paid", copies)
    verdict = verify(paid, copies)
    assert verdict.status == "valid", sentences(verdict)
    assert any("count as errors" in sentence for sentence in verdict.rows)
    monkeypatch.setattr("cop2l.learner.counting.declared_draws", lambda *_: True)
    unpaid = made(tmp_path / "unpaid", copies, repeats=True)
    verdict = verify(unpaid, copies)
    assert verdict.status == "cannot tell"
    assert "cannot tell from another" in sentences(verdict)
    accepted = verify(unpaid, copies, count_repeats=True)
    assert accepted.status == "valid"
    for one, other in zip(accepted.statements, verify(paid, copies).statements, strict=True):
        assert other["value"] in (1, pytest.approx(one["value"], abs=2e-5))
    draws = verify(unpaid, copies, repeats_are_draws=True)
    assert draws.status == "valid"
    assert "independent draws of discrete data" in "\n".join(draws.assumed)


@pytest.mark.parametrize("step", [0, 1e-30])
def test_withheld_copies_of_learned_rows_count_as_errors(step, data, tmp_path):
    def change(content):
        half = len(content["y"]) // 2
        content["x"][half:], content["y"][half:] = content["x"][:half], content["y"][:half]
        for name in ("x", "x_test"):  # a number that no answer depends on
            rows = np.arange(len(content[name]), dtype=np.float32)[:, None]
            content[name] = np.concatenate([content[name], np.float32(step) * rows], 1)

    copies = data_with(data, tmp_path / "copies.npz", change)
    run = made(tmp_path / "run", copies, method="replay", epochs=2, holdout=0.3)
    verdict = verify(run, copies)
    assert verdict.status == "valid", sentences(verdict)
    assert all(one["value"] > 0.7 for one in verdict.statements)


def test_a_test_part_can_refute(data, tmp_path):
    def change(content):
        content["x_test"], content["y_test"] = content["x"][:160], (content["y"][:160] + 1) % 4

    other = data_with(data, tmp_path / "other.npz", change)
    verdict = verify(made(tmp_path / "run", other, epochs=40), other)
    assert verdict.status != "valid"  # the run disowns it, too
    assert "speaks against a bound" in sentences(verdict)


def test_seeds_of_the_model_and_of_the_learner_are_one(samples, tmp_path):
    learner = issued(build("linear", inputs=(6,), classes=4, seed=7), samples, tmp_path / "c")
    verdict = verify(tmp_path / "c", samples)
    assert verdict.status == "cannot tell"
    assert "need a commitment" in sentences(verdict)
    assert verify(tmp_path / "c", samples, commitment=learner.commitment()).status == "valid"


# ---- data that cannot be read


def test_data_that_cannot_be_read_gives_no_verdict(certificate, data, tmp_path):
    truncated, fifo, empty = tmp_path / "truncated.npz", tmp_path / "fifo", tmp_path / "empty"
    truncated.write_bytes(data.read_bytes()[:-200])
    samples = tmp_path / "samples.npz"
    np.savez(samples, x_1=np.zeros((4, 2)))
    os.mkfifo(fifo)
    os.mkfifo(tmp_path / "fifo.npz")
    empty.mkdir()
    for commitment in (
        truncated,
        samples,
        fifo,
        tmp_path / "fifo.npz",
        empty,
        tmp_path / "nowhere",
        tmp_path / "nowhere.npz",
        "nostream",
    ):
        with pytest.raises(ValueError, match=r".") as caught:
            verify(certificate, commitment)
        assert "\n" not in str(caught.value)


# ---- commitments


def test_a_commitment_is_kept_or_the_certificate_is_invalid(certificate, run, data, tmp_path):
    from cop2l.kernel.checking import commitment_of
    from cop2l.kernel.form import read_content

    promised = commitment_of(read_content(certificate))
    file = tmp_path / "commitment.json"
    file.write_text(json.dumps(promised))
    for given in (commitment_hash(promised), commitment_hash(promised).upper(), file, promised):
        verdict = verify(certificate, data, commitment=given)
        assert verdict.status == "valid"
        assert any("that were committed to" in sentence for sentence in verdict.checked)
        assert not any("chosen before the data was seen" in sentence for sentence in verdict.assumed)
        assert "No other commitment was made for this data." in verdict.assumed
    assert any(
        "chosen before the data was seen" in sentence for sentence in verify(certificate, data).assumed
    )
    for name, value in (("delta", 0.01), ("siblings", 20)):
        other = {**promised, "options": promised["options"] | {name: value}}
        verdict = verify(certificate, data, commitment=other)
        assert verdict.status == "invalid"
    assert verify(certificate, data, commitment="0" * 64).status == "invalid"
    for wrong in ("nowhere.json", "0" * 63, run / "config.json"):
        with pytest.raises(ValueError, match="commitment"):
            verify(certificate, data, commitment=wrong)


def test_a_commitment_that_the_auditor_does_not_hold_is_the_issuers_word(certificate, data):
    forged(certificate, lambda content: content.update(commitment="1" * 64))
    assert any("names a commitment" in sentence for sentence in verify(certificate, data).assumed)
    assert verify(certificate, data, commitment="2" * 64).status == "invalid"


@pytest.mark.parametrize(
    ("at", "value"), [((6, 8), 1), ((8, 10), 99)], ids=["encrypted", "unknown compression"]
)
def test_an_archive_that_cannot_be_opened_gives_no_verdict(tmp_path, at, value):
    """The field after the signature of a member: in its own header, and in the directory at the end."""
    path = tmp_path / "samples.npz"
    np.savez(path, x_1=np.zeros((2, 3), np.float32), y_1=np.zeros(2, np.int64))
    content = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", at[0]), (b"PK\x01\x02", at[1])):
        start = content.find(signature)
        while start >= 0:
            content[start + offset : start + offset + 2] = value.to_bytes(2, "little")
            start = content.find(signature, start + 1)
    path.write_bytes(content)
    with pytest.raises(Unreadable, match="not a readable"):
        task_arrays(path)


def test_examples_that_are_answered_alike_count_as_errors(tmp_path):
    """Where no hidden unit is active, a model answers alike; the issuer has paid for that."""
    x = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
    data = {1: (x, (x[:, 0] > 0).astype(int))}
    model = build("mlp", inputs=(2,), classes=2, hidden=2, dropout=0.0)
    learner = CoP2L(model, preset="picking", tasks=1, memory=10, max_iterations=2)
    learner.learn(*data[1])
    answers = learner.probabilities(x).numpy()
    assert len(np.unique(answers, axis=0)) < 290
    learner.certify(data).save(tmp_path)
    assert verify(tmp_path, data).status == "valid"
