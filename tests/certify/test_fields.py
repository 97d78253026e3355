"""Integers, dicts and tuples of arrays: learned, kept, saved, certified and verified like one array of real numbers."""

import json

import numpy as np
import pytest
import torch
from certify_cases import same_bits, standing
from torch import nn
from torch.utils.data import DataLoader, Dataset

import cop2l
from cop2l import CoP2L
from cop2l.certify.inputs import in_fields, inputs
from cop2l.cli import main
from cop2l.errors import UserError
from cop2l.kernel.form import Unreadable
from cop2l.kernel.learning import Plain, exact_arithmetic, sample
from cop2l.kernel.samples import Copies, Fields, blocks_of, fingerprint
from cop2l.methods import method
from cop2l.randomness import private_randomness

WORDS, LENGTH, CLASSES, ROWS = 40, 6, 3, 90
OPTIONS = {
    "memory": 40, "k": 4, "epochs": 2, "lr": 0.1, "batch": 16, "max_iterations": 4, "omega": 4.0, "tasks": 2,
    "buffer": "threshold", "stop": "none",
}  # fmt: skip


class Words(nn.Module):
    """Token ids in, one array."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, 7), nn.Linear(7, CLASSES)

    def forward(self, x):
        assert x.dtype == torch.int64
        return self.head(self.table(x).mean(1))


class Masked(Words):
    """A dict of ids, a mask of truth values and a weight, which is a real number, for each example."""

    def forward(self, x):
        mask, weight = x.pop("mask"), x["weight"]  # a model may change what it is given
        assert (x["ids"].dtype, mask.dtype, weight.dtype) == (torch.int64, torch.bool, self.head.weight.dtype)
        seen = self.table(x["ids"]) * mask.unsqueeze(-1)
        if not self.training:
            x["ids"].zero_()
        return self.head(seen.sum(1) * weight.unsqueeze(-1))


class Both(nn.Module):
    """A tuple of a picture and a row of a table."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Conv2d(1, 2, 3), nn.Linear(2 * 4 + 5, CLASSES)

    def forward(self, x):
        picture, table = x
        return self.head(torch.cat([self.body(picture).relu().flatten(1), table], 1))


def words(draw):
    return draw.integers(0, WORDS, (ROWS, LENGTH))


def masked(draw):
    mask, weight = draw.random((ROWS, LENGTH)) < 0.7, draw.random(ROWS, np.float32)
    return {"mask": mask, "ids": words(draw).astype(np.int64), "weight": weight}


def both(draw):
    shapes = (ROWS, 1, 4, 4), (ROWS, 5)
    return tuple(draw.normal(size=shape).astype(np.float32) for shape in shapes)


KINDS = {"ids": (Words, words), "dict": (Masked, masked), "tuple": (Both, both)}


def data_of(kind, task):
    draw = np.random.default_rng(task)
    return KINDS[kind][1](draw), draw.integers(0, CLASSES, ROWS)


def model_of(kind, seed=0):
    with private_randomness(torch.device("cpu"), seed, "test model"):
        return KINDS[kind][0]()


def a_dict(seed):
    """What an auditor gives by its name."""
    return model_of("dict", seed)


every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@pytest.mark.parametrize("prior", [{}, {"prior": 0.3, "prior_epochs": 2, "prior_memory": 0.5}])
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_the_kernel_gives_the_same_bits(kind, prior, precision):
    learner = CoP2L(model_of(kind).to(precision), **OPTIONS, **prior)
    plain = Plain(model_of(kind).to(precision), learner.options)
    plain.model.eval()
    for t in (1, 2):
        x, y = data_of(kind, t)
        learner.learn(x, y)
        with exact_arithmetic(learner.threads):
            plain.learn(sample(inputs(x), torch.from_numpy(y), t, learner.options.seed))
        assert standing(learner.engine) == standing(plain)
    assert any(len(one.first) > len(one.own) for one in plain.sets)  # the memory was picked from
    assert not same_bits(plain.model.state_dict(), learner.theta_0)


@every_kind
def test_saved_resumed_certified_and_verified(kind, tmp_path):
    data = {t: data_of(kind, t) for t in (1, 2)}
    straight, begun = (CoP2L(model_of(kind), **OPTIONS) for _ in range(2))
    for pair in data.values():
        straight.learn(*pair)
    begun.learn(*data[1])
    begun.save(tmp_path / "saved")
    resumed = CoP2L.load(tmp_path / "saved", model=model_of(kind))
    assert standing(resumed.engine) == standing(begun.engine)
    resumed.learn(*data[2])
    certificate = resumed.certify(data)
    assert certificate.content == straight.certify(data).content
    certificate.save(tmp_path / "certificate")
    verdict = cop2l.verify(tmp_path / "certificate", data, model=lambda seed: model_of(kind, seed))
    assert verdict.status == "valid", str(verdict)
    changed, y = data_of(kind, 1)
    parts = changed.values() if isinstance(changed, dict) else changed if kind == "tuple" else [changed]
    last = list(parts)[-1]
    last[-1] = last[-2]
    verdict = cop2l.verify(
        tmp_path / "certificate", {**data, 1: (changed, y)}, model=lambda seed: model_of(kind, seed)
    )
    assert verdict.status == "invalid"
    assert "fingerprint differs" in str(verdict)


@every_kind
def test_prediction_is_a_function_of_each_example(kind):
    x, y = data_of(kind, 1)
    learner = CoP2L(model_of(kind), **OPTIONS)
    learner.learn(x, y)
    whole = learner.predict(x)
    assert len(whole) == ROWS
    some = inputs(x)[3:20]
    few = some.parts if kind == "dict" else tuple(some.parts.values()) if kind == "tuple" else some
    assert torch.equal(learner.predict(few), whole[3:20])
    assert torch.allclose(learner.probabilities(x).sum(1), torch.ones(ROWS))


def test_the_command_line_verifies_parts_of_a_file(tmp_path, capsys):
    data = {t: data_of("dict", t) for t in (1, 2)}
    learner = CoP2L(model_of("dict"), **OPTIONS)
    for pair in data.values():
        learner.learn(*pair)
    learner.certify(data).save(tmp_path / "certificate")
    arrays = {f"x_{t}.{name}": part for t, (x, _) in data.items() for name, part in x.items()}
    np.savez(tmp_path / "samples.npz", **arrays, **{f"y_{t}": y for t, (_, y) in data.items()})
    command = ["verify", str(tmp_path / "certificate"), "--data", str(tmp_path / "samples.npz")]
    assert main([*command, "--model", f"{__name__}:a_dict"]) == 0
    assert "VALID" in capsys.readouterr().out


class Tokens(Dataset):
    """One example at a time; `inside`: the label is one of the entries."""

    def __init__(self, x, y, inside):
        self.x, self.y, self.inside = x, y, inside

    def __len__(self):
        return len(self.y)

    def __getitem__(self, row):
        parts = {name: part[row] for name, part in self.x.items()}
        return {**parts, "label": int(self.y[row])} if self.inside else (parts, int(self.y[row]))


def hugging_face(x, y):
    columns = {**{name: part.tolist() for name, part in x.items()}, "label": y.tolist()}
    return pytest.importorskip("datasets").Dataset.from_dict(columns)


GIVEN = {
    "tensors": lambda x, y: ({name: torch.from_numpy(part) for name, part in x.items()}, torch.from_numpy(y)),
    "another order": lambda x, y: ({name: x[name] for name in sorted(x)}, y),
    "Dataset of pairs": lambda x, y: (Tokens(x, y, inside=False),),
    "DataLoader of dicts": lambda x, y: (DataLoader(Tokens(x, y, inside=True), batch_size=16, shuffle=True),),
    "Hugging Face": lambda x, y: (hugging_face(x, y),),
}


@pytest.mark.parametrize("name", GIVEN)
def test_whatever_holds_the_parts_the_certificate_is_the_same(name):
    def content(kind):
        learner, data = CoP2L(model_of("dict"), **{**OPTIONS, "tasks": 1}), kind(*data_of("dict", 1))
        learner.learn(*data)
        return json.dumps(learner.certify({1: data if len(data) == 2 else data[0]}).content)

    assert content(GIVEN[name]) == content(lambda x, y: (x, y))


def test_integers_are_exact_beyond_the_model_s_precision():
    class Parity(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(1, 2)

        def forward(self, x):
            return self.head((x % 2).float())

    x = 2**40 + np.arange(60)[:, None]
    learner = CoP2L(Parity(), **{**OPTIONS, "tasks": 1, "lr": 1.0, "max_iterations": 30})
    learner.learn(x, x[:, 0] % 2)
    assert learner.engine.buffer[0].x.dtype == torch.int64
    assert (learner.predict(x).numpy() == x[:, 0] % 2).all()


def test_pixels_as_bytes_are_quantities_for_our_models():
    pixels = np.random.default_rng(0).integers(0, 9, (ROWS, 10)).astype(np.uint8)
    y = pixels[:, 0] % CLASSES
    ends = []
    for x in (pixels, pixels.astype(np.float32)):
        learner = CoP2L(cop2l.models.build("mlp", inputs=(10,), classes=CLASSES, hidden=8), **OPTIONS)
        learner.learn(x, y)
        ends.append(learner.model.state_dict())
    assert same_bits(*ends)


def test_copies_are_seen_in_every_part_and_type():
    x = {"ids": np.array([[1], [2], [1], [2**40]]), "weight": np.array([0.0, 1, -0.0, 1], np.float32)}
    copies = Copies()
    assert copies.add(inputs(x), np.zeros(4)) == (1, 0)
    again = {"ids": np.array([[2], [2**40 + 1]], np.float64), "weight": np.ones(2)}
    assert copies.add(Fields({**again, "ids": again["ids"].astype(np.int64)}), np.zeros(2)) == (0, 1)
    assert Copies().add(np.array([[1], [1]], np.uint8), np.zeros(2)) == (1, 0)
    same = Copies()
    same.add(np.array([[3]], np.uint8), np.zeros(1))
    assert same.add(np.array([[3.0]], np.float32), np.zeros(1)) == (0, 1)


def test_half_precision_that_numpy_lacks_is_real_numbers():
    x, y = torch.from_numpy(both(np.random.default_rng(1))[1]).bfloat16(), np.zeros(ROWS, int)
    bits = x.view(torch.int16)  # other examples, though the bytes are the same
    assert fingerprint(ROWS, blocks_of(x, y)) != fingerprint(ROWS, blocks_of(bits, y))
    copies = Copies()
    assert copies.add(x.float(), y) == (0, 0)
    assert copies.add(x, y) == (0, ROWS)
    assert copies.add(bits, y) == (0, 0)
    assert Copies().add(torch.tensor([[0.0], [-0.0]]).bfloat16(), y[:2]) == (1, 0)


def test_tasks_that_share_all_rows_are_seen_in_any_precision(tmp_path):
    draw = np.random.default_rng(1)
    x, y = torch.from_numpy(draw.normal(size=(ROWS, 5))).bfloat16(), draw.integers(0, CLASSES, ROWS)
    data, learner = (
        {1: (x.float(), y), 2: (x, y)},
        CoP2L(cop2l.models.build("linear", inputs=(5,), classes=CLASSES), **OPTIONS),
    )
    for pair in data.values():
        learner.learn(*pair)
    learner.certify(data).save(tmp_path / "certificate")
    verdict = cop2l.verify(tmp_path / "certificate", data)
    assert verdict.status == "cannot tell"
    assert f"{ROWS} of the {ROWS} rows of task 2 are rows of an earlier task too" in str(verdict)


def test_a_later_block_of_another_type_is_other_data():
    x, y = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32), np.zeros(9, int)
    whole = fingerprint(9, [(x[:5], y[:5]), (x[5:], y[5:])])
    assert whole == fingerprint(9, blocks_of(x, y))
    for other in (x[5:].view(np.int32), x[5:].reshape(4, 2, 2)):
        assert fingerprint(9, [(x[:5], y[:5]), (other, y[5:])]) != whole


def numbered(kind, rows):
    """Examples of which the second half repeats the first, told apart by a number that no model reads."""
    x, y = data_of(kind, 1)
    half = [np.concatenate([part[: ROWS // 2]] * 2) for part in (*x.values(), y)]
    return {**dict(zip(x, half, strict=False)), "number": rows}, half[-1]


@pytest.mark.parametrize("rows", [np.arange(ROWS), np.zeros(ROWS, int)], ids=["numbers", "the same"])
def test_copies_that_an_unread_part_hides_are_seen(rows, tmp_path):
    learner, data = CoP2L(model_of("dict"), **{**OPTIONS, "tasks": 1}), {1: numbered("dict", rows)}
    learner.learn(*data[1])
    learner.certify(data).save(tmp_path / "certificate")
    verdict = cop2l.verify(tmp_path / "certificate", {**data, 2: data[1]}, model=a_dict)
    assert verdict.status == "cannot tell"
    hidden = f"Without number, which the model does not read, {ROWS // 2} of the {ROWS} rows of task 1 repeat"
    assert (hidden in str(verdict)) == bool(rows.any())
    assert len(verdict.doubts) == 1


def test_an_unread_part_that_hides_nothing_does_no_harm(tmp_path):
    data = {t: data_of("dict", t) for t in (1, 2)}
    data = {t: ({**x, "number": np.arange(ROWS)}, y) for t, (x, y) in data.items()}
    learner = CoP2L(model_of("dict"), **OPTIONS)
    for pair in data.values():
        learner.learn(*pair)
    learner.certify(data).save(tmp_path / "certificate")
    assert cop2l.verify(tmp_path / "certificate", data, model=a_dict).status == "valid"


NOT_FOR_THE_MODEL = {
    "ids beyond the table": lambda x: {**x, "ids": x["ids"] + WORDS},
    "negative ids": lambda x: {**x, "ids": -1 - x["ids"]},
    "real numbers for ids": lambda x: {**x, "ids": x["ids"].astype(np.float32)},
    "a part less": lambda x: {name: part for name, part in x.items() if name != "mask"},
    "one array": lambda x: x["ids"],
    "a tuple": lambda x: tuple(x.values()),
    "no rows": lambda _: np.array(1),
}


@pytest.mark.parametrize("name", NOT_FOR_THE_MODEL)
def test_data_that_is_not_for_the_model_is_refused_in_one_sentence(name, tmp_path):
    learner, (x, y) = CoP2L(model_of("dict"), **{**OPTIONS, "tasks": 1}), data_of("dict", 1)
    learner.learn(x, y)
    certificate = learner.certify({1: (x, y)})
    other = NOT_FOR_THE_MODEL[name](x)
    print_of_data = fingerprint(ROWS, blocks_of(in_fields(other), y)) if name != "no rows" else "0" * 64
    certificate.content["records"][0]["fingerprint"] = print_of_data
    certificate.save(tmp_path / "forged")
    with pytest.raises(Unreadable, match="The model could not be run on this data here") as refused:
        cop2l.verify(tmp_path / "forged", {1: (other, y)}, model=a_dict)
    assert "\n" not in str(refused.value)


def test_the_fingerprint_of_parts():
    x, y = inputs(data_of("dict", 1)[0]), np.zeros(ROWS, int)
    whole = fingerprint(ROWS, blocks_of(x, y))
    assert fingerprint(ROWS, [(x[:7], y[:7]), (x[7:], y[7:])]) == whole
    others = [
        Fields({**x.parts, "mask": x.parts["mask"].to(torch.int64)}),
        Fields({"ids": x.parts["ids"], "weight": x.parts["weight"]}),
        Fields({name.replace("mask", "seen"): part for name, part in x.parts.items()}),
        Fields({**x.parts, "weight": x.parts["weight"].flip(0)}),
    ]
    found = [fingerprint(ROWS, blocks_of(other, y)) for other in others]
    assert len({whole, *found}) == 5


X, Y = data_of("dict", 1)


@pytest.mark.parametrize(
    ("kind", "x", "said"),
    [
        ("dict", {**X, "ids": X["ids"][:9]}, "different numbers of examples"),
        ("dict", {"first part": X["ids"]}, "need words as names"),
        ("dict", {}, "need words as names"),
        ("dict", {**X, "mask": [["a word"]] * ROWS}, "The part 'mask' of x must be an array of numbers"),
        ("dict", {"ids": X["ids"]}, r"cannot take inputs of shape ids \(6,\): 'mask'"),
        ("dict", {**X, "weight": X["weight"] * np.nan}, "NaN or infinite"),
        ("ids", X["ids"] + WORDS, "cannot take inputs of shape"),
        ("ids", np.vstack([X["ids"][:-1], X["ids"][-1:] + WORDS]), "looks up an input that it does not have"),
        ("ids", X["ids"].astype(np.float32), "give x as integers"),
        ("tuple", both(np.random.default_rng(1))[::-1], "cannot take inputs of shape 0"),
    ],
)
def test_wrong_parts_are_one_sentence(kind, x, said):
    class Careless(Words):
        def forward(self, x):
            return self.head(self.table(x).mean(1))

    learner = CoP2L(Careless() if kind == "ids" else model_of(kind), **OPTIONS)
    with pytest.raises(UserError, match=said) as refused:
        learner.learn(x, Y)
    assert "\n" not in str(refused.value)
    assert learner.tasks_seen == 0


def test_a_later_task_has_the_same_parts():
    class Any(Words):
        def forward(self, x):
            return super().forward(x if isinstance(x, torch.Tensor) else x["ids"])

    learner = CoP2L(Any(), **OPTIONS)
    learner.learn(X["ids"], Y)
    with pytest.raises(UserError, match="have the parts ids; earlier tasks had one array"):
        learner.learn({"ids": X["ids"]}, Y)


class Longer(Words):
    """Texts of any length, in integers of any kind that an embedding takes."""

    def forward(self, x):
        return self.head(self.table(x["ids"]).mean(1))


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (X["ids"][:, :4], r"have the shape ids \(4,\); earlier tasks had ids \(6,\)"),
        (X["ids"].astype(np.uint8), "give x as integers"),
        (X["ids"].astype(np.complex64), "real numbers of at least 16 bits"),
    ],
)
def test_a_later_task_has_the_same_form(second, said):
    learner = CoP2L(Longer(), **OPTIONS)
    learner.learn({"ids": X["ids"]}, Y)
    with pytest.raises(UserError, match=said) as refused:
        learner.learn({"ids": second}, Y)
    assert "\n" not in str(refused.value)
    assert learner.tasks_seen == 1


@pytest.mark.parametrize("kind", [torch.complex64, torch.float8_e4m3fn])
def test_numbers_that_are_not_real_are_refused(kind):
    x = torch.from_numpy(both(np.random.default_rng(1))[1]).to(kind)
    with pytest.raises(UserError, match="must hold whole numbers, or real numbers of at least 16 bits"):
        CoP2L(cop2l.models.build("linear", inputs=(5,), classes=CLASSES), **OPTIONS).learn(x, Y)


def test_integers_for_a_model_of_real_numbers_say_what_to_do():
    with pytest.raises(UserError, match="give them as real numbers"):
        CoP2L(nn.Sequential(nn.Linear(LENGTH, CLASSES)), **OPTIONS).learn(X["ids"], Y)


def test_the_baselines_refuse_parts_in_one_sentence():
    with pytest.raises(UserError, match="takes examples of one array"):
        method("replay")(model_of("dict"), memory=20).learn(X, Y)
    learner = method("replay")(model_of("ids"), memory=20)
    learner.learn(X["ids"], Y)  # integers stay integers there, too
    assert learner.buffer.x.dtype == torch.int64
