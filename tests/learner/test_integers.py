"""Token ids, bytes and numbers of other precisions: learned, kept, saved, certified and verified like float32."""

import numpy as np
import pytest
import torch
from learner_cases import same_bits
from torch import nn

import cop2l
from cop2l import CoP2L
from cop2l.errors import UserError
from cop2l.kernel import exact
from cop2l.kernel.form import Unreadable
from cop2l.kernel.samples import blocks_of, fingerprint
from cop2l.learner import counting
from cop2l.methods import method
from cop2l.models import build
from cop2l.randomness import private_randomness

WORDS, LENGTH, CLASSES, ROWS = 40, 6, 3, 90
OPTIONS = {
    "memory": 40, "k": 4, "epochs": 2, "lr": 0.1, "batch": 16, "max_iterations": 4, "omega": 4.0, "tasks": 2,
    "buffer": "threshold", "stop": "none",
}  # fmt: skip


class Words(nn.Module):
    """The mean of the embeddings of token ids, and a linear head."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, 7), nn.Linear(7, CLASSES)

    def forward(self, x):
        return self.head(self.table(x).mean(1))


def words_model(seed=0):
    with private_randomness(torch.device("cpu"), seed, "test model"):
        return Words()


def token_ids(task):
    draw = np.random.default_rng(task)
    return draw.integers(0, WORDS, (ROWS, LENGTH)), draw.integers(0, CLASSES, ROWS)


X, Y = token_ids(1)
REAL = np.random.default_rng(1).normal(size=(ROWS, 5)).astype(np.float32)


def test_saved_resumed_certified_and_verified(tmp_path):
    data = {t: token_ids(t) for t in (1, 2)}
    straight, begun = (CoP2L(words_model(), preset="picking", **OPTIONS) for _ in range(2))
    for pair in data.values():
        straight.learn(*pair)
    begun.learn(*data[1])
    begun.save(tmp_path / "saved")
    resumed = CoP2L.load(tmp_path / "saved", model=words_model())
    resumed.learn(*data[2])
    assert any(
        len(one.compression) > len(one.own_picks) for one in resumed.engine.sets
    )  # the memory was picked from
    certificate = resumed.certify(data)
    assert certificate.content == straight.certify(data).content
    certificate.save(tmp_path / "certificate")
    assert cop2l.verify(tmp_path / "certificate", data, model=words_model).status == "valid"
    changed = X.copy()
    changed[-1] = changed[-2]
    verdict = cop2l.verify(tmp_path / "certificate", {**data, 1: (changed, Y)}, model=words_model)
    assert verdict.status == "invalid"
    assert "fingerprint differs" in str(verdict)


def test_integers_are_exact_beyond_the_model_s_precision():
    class Parity(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(1, 2)

        def forward(self, x):
            return self.head((x % 2).float())

    x = 2**40 + np.arange(60)[:, None]
    learner = CoP2L(Parity(), preset="picking", **{**OPTIONS, "tasks": 1, "lr": 1.0, "max_iterations": 30})
    learner.learn(x, x[:, 0] % 2)
    assert learner.engine.buffer[0].x.dtype == torch.int64
    assert (learner.predict(x).numpy() == x[:, 0] % 2).all()


def test_pixels_as_bytes_are_quantities_for_our_models():
    pixels = np.random.default_rng(0).integers(0, 9, (ROWS, 10)).astype(np.uint8)
    ends = []
    for x in (pixels, pixels.astype(np.float32)):
        learner = CoP2L(build("mlp", inputs=(10,), classes=CLASSES, hidden=8), preset="picking", **OPTIONS)
        learner.learn(x, pixels[:, 0] % CLASSES)
        ends.append(learner.model.state_dict())
    assert same_bits(*ends)


@pytest.mark.parametrize(
    "rows",
    [
        np.array([[1], [2], [1]]),
        np.array([[2**40], [3], [2**40 + 1]]),
        torch.tensor([[0.0], [1.0], [-0.0]]).bfloat16(),
        np.array([[1.0], [2.0], [1.0 + 1e-12]]),
    ],
)
def test_copies_are_seen_in_every_type(rows):
    """As the model receives them; the kernel and the learner find the same, each in its own way."""
    model, used = build("linear", inputs=(1,), classes=CLASSES), np.zeros(3, bool)
    assert counting.repeated_rows({1: counting.answer_numbers(model, rows)}, {1: used})[1].tolist() == [
        False,
        False,
        True,
    ]
    keys = exact.answer_keys(model, rows)
    assert exact.repeated_answers([keys], [used])[0].tolist() == [False, False, True]
    assert exact.repeated_answers([keys], [np.arange(3) == 2])[0].tolist() == [True, False, False]


def test_half_precision_that_numpy_lacks_is_real_numbers(tmp_path):
    x = torch.from_numpy(REAL).bfloat16()
    bits = x.view(torch.int16)  # other examples, though the bytes are the same
    assert fingerprint(ROWS, blocks_of(x, Y)) != fingerprint(ROWS, blocks_of(bits, Y))
    data = {1: (x.float(), Y), 2: (x, Y)}
    learner = CoP2L(build("linear", inputs=(5,), classes=CLASSES), preset="picking", **OPTIONS)
    for pair in data.values():
        learner.learn(*pair)
    learner.certify(data).save(tmp_path / "certificate")
    verdict = cop2l.verify(tmp_path / "certificate", data)
    assert verdict.status == "invalid"  # the certificate declares it
    assert all(one["value"] == 1 for one in verdict.statements)


def test_a_later_block_of_another_type_is_other_data():
    x, y = REAL[:9, :4].copy(), Y[:9]
    expected = fingerprint(9, [(x[:5], y[:5]), (x[5:], y[5:])])
    assert expected == fingerprint(9, blocks_of(x, y))
    for changed in (x[5:].view(np.int32), x[5:].reshape(4, 2, 2)):
        assert fingerprint(9, [(x[:5], y[:5]), (changed, y[5:])]) != expected


@pytest.mark.parametrize(
    "changed",
    [X + WORDS, -1 - X, X.astype(np.float32), np.array(1)],
    ids=["beyond the table", "negative", "real numbers", "no rows"],
)
def test_the_auditor_s_data_that_is_not_for_the_model_is_refused_in_one_sentence(changed, tmp_path):
    learner = CoP2L(words_model(), preset="picking", **{**OPTIONS, "tasks": 1})
    learner.learn(X, Y)
    certificate = learner.certify({1: (X, Y)})
    claimed = fingerprint(ROWS, blocks_of(changed, Y)) if changed.ndim else "0" * 64
    certificate.content["records"][0]["fingerprint"] = claimed
    certificate.save(tmp_path / "forged")
    with pytest.raises(
        Unreadable, match=r"could not be run on this data here|cannot be written as arrays"
    ) as refused:
        cop2l.verify(tmp_path / "forged", {1: (changed, Y)}, model=words_model)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (X + WORDS, "cannot take inputs of shape"),
        (np.vstack([X[:-1], X[-1:] + WORDS]), "looks up an input that it does not have"),
        (X.astype(np.float32), "give x as integers"),
        (X.astype(np.complex64), "must hold whole numbers, or real numbers of at least 16 bits"),
        (torch.from_numpy(REAL).to(torch.float8_e4m3fn), "real numbers of at least 16 bits"),
        ({"ids": X, "mask": X > 0}, r"x holds several arrays.*cop2l\.models\.pack"),
        ((X, X > 0), r"x holds several arrays.*cop2l\.models\.pack"),
    ],
)
def test_wrong_inputs_are_one_sentence(x, message):
    learner = CoP2L(words_model(), preset="picking", **OPTIONS)
    with pytest.raises(UserError, match=message) as refused:
        learner.learn(x, Y)
    assert "\n" not in str(refused.value)
    assert learner.tasks_seen == 0


def test_integers_for_a_model_of_real_numbers_say_what_to_do():
    with pytest.raises(UserError, match="give them as real numbers"):
        CoP2L(nn.Sequential(nn.Linear(LENGTH, CLASSES)), preset="picking", **OPTIONS).learn(X, Y)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (X[:, :4], r"have the shape \(4,\); earlier tasks had \(6,\)"),
        (X.astype(np.uint8), "give x as integers"),
    ],
)
def test_a_later_task_has_the_same_form(second, message):
    learner = CoP2L(words_model(), preset="picking", **OPTIONS)
    learner.learn(X, Y)
    with pytest.raises(UserError, match=message):
        learner.learn(second, Y)
    assert learner.tasks_seen == 1


def test_integers_stay_integers_in_the_buffer_of_a_baseline():
    learner = method("replay")(words_model(), memory=20)
    learner.learn(X, Y)
    assert learner.buffer.x.dtype == torch.int64
