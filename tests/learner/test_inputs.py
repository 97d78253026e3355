"""Whatever holds the examples: the same bits, the same certificate; and what cannot be read is refused in one sentence."""

import json
import tempfile

import numpy as np
import pytest
import torch
from learner_cases import model_of, same_bits
from scipy import sparse
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, SubsetRandomSampler, TensorDataset

from cop2l import CoP2L
from cop2l.errors import UserError
from cop2l.experiments.saved_learner import predict
from cop2l.methods import method
from cop2l.models import build

WIDTH, CLASSES = 4, 3
OPTIONS = {
    "memory": 30,
    "max_iterations": 3,
    "k": 4,
    "tasks": 2,
    "batch": 16,
}


def arrays(task):
    """Numbers with many zeros, so that a sparse matrix has something to leave out."""
    draws = np.random.default_rng(task)
    x = draws.normal(size=(70, WIDTH)) * draws.integers(0, 2, size=(70, WIDTH)) + 0  # and no zero below zero
    return x.astype(np.float32), draws.integers(0, CLASSES, size=70)


class Pairs(Dataset):
    """A user's own map-style data set: one numpy row and one int at a time."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, row):
        return self.x[row], int(self.y[row])


def mapped(x, y):
    """Inputs in a file, which nobody has read yet."""
    with tempfile.TemporaryFile() as file:
        file.write(x.tobytes())
        file.flush()
        return np.memmap(file, x.dtype, "r", shape=x.shape), y


def columns(x, y, label="label"):
    return {**{f"c{i}": x[:, i] for i in range(x.shape[1])}, label: y}


def pandas_frame(x, y, label="label"):
    return pytest.importorskip("pandas").DataFrame(columns(x, y, label))


def polars_frame(x, y, label="label"):
    return pytest.importorskip("polars").DataFrame(columns(x, y, label))


def hugging_face(x, y, label="label"):
    datasets = pytest.importorskip("datasets")
    kinds = datasets.Features(
        {"pixels": datasets.Sequence(datasets.Value("float32")), label: datasets.Value("int64")}
    )
    return datasets.Dataset.from_dict({"pixels": x.tolist(), label: y.tolist()}, features=kinds)


def hugging_face_columns(x, y):
    return pytest.importorskip("datasets").Dataset.from_dict(columns(x, y))


KINDS = {
    "lists of labels": lambda x, y: (x, y.tolist()),
    "tensors": lambda x, y: (torch.from_numpy(x), torch.from_numpy(y)),
    "a matrix in Fortran's order": lambda x, y: (np.asfortranarray(x), y),
    "a memory map": mapped,
    "bytes in the other order, and small labels": lambda x, y: (x.astype(">f4"), y.astype(np.uint8)),
    "scipy csr": lambda x, y: (sparse.csr_matrix(x), y),
    "scipy coo array": lambda x, y: (sparse.coo_array(x), y),
    "torch sparse": lambda x, y: (torch.from_numpy(x).to_sparse(), y),
    "TensorDataset": lambda x, y: (TensorDataset(torch.from_numpy(x), torch.from_numpy(y)),),
    "Dataset": lambda x, y: (Pairs(x, y),),
    "Subset": lambda x, y: (Subset(Pairs(np.vstack([x, x]), np.hstack([y, y])), range(len(y))),),
    "Dataset of inputs": lambda x, y: (TensorDataset(torch.from_numpy(x), torch.zeros(len(x))), y),
    "DataLoader": lambda x, y: (DataLoader(Pairs(x, y), batch_size=16),),
    "shuffling DataLoader": lambda x, y: (
        DataLoader(Pairs(x, y), batch_size=16, shuffle=True, drop_last=True),
    ),
    "pandas": lambda x, y: (pandas_frame(x, y),),
    "pandas, a named column": lambda x, y: (pandas_frame(x, y, "species"), "species"),
    "pandas with a series": lambda x, y: (
        (frame := pandas_frame(x, y)).drop(columns="label"),
        frame["label"],
    ),
    "polars": lambda x, y: (polars_frame(x, y),),
    "polars, a named column": lambda x, y: (polars_frame(x, y, "species"), "species"),
    "Hugging Face": lambda x, y: (hugging_face(x, y),),
    "Hugging Face, a named column": lambda x, y: (hugging_face(x, y, "species"), "species"),
    "Hugging Face, columns": lambda x, y: (hugging_face_columns(x, y),),
}


def learned(kind):
    """A learner of two tasks in this form, its certificate, and its predictions."""
    learner = CoP2L(model_of("mlp", CLASSES, inputs=WIDTH), preset="picking", **OPTIONS)
    tasks = {t: kind(*arrays(t)) for t in (1, 2)}
    for data in tasks.values():
        learner.learn(*data)
    certificate = learner.certify({t: data if len(data) == 2 else data[0] for t, data in tasks.items()})
    x = tasks[1][0] if not isinstance(tasks[1][-1], str) else arrays(1)[0]
    return learner, certificate, learner.predict(x)


@pytest.fixture(scope="module")
def plain():
    return learned(lambda x, y: (x, y))


@pytest.mark.parametrize("name", KINDS)
def test_the_same_examples_give_the_same_bits_and_the_same_certificate(name, plain):
    learner, certificate, predicted = learned(KINDS[name])
    assert same_bits(learner.model.state_dict(), plain[0].model.state_dict())
    assert json.dumps(certificate.content) == json.dumps(plain[1].content)
    assert torch.equal(predicted, plain[2])


@pytest.mark.parametrize("name", ["scipy csr", "Dataset", "pandas", "Hugging Face"])
@pytest.mark.parametrize("method_name", ["replay", "icarl", "slda"])
def test_the_baselines_take_them_too(name, method_name):
    def weights(kind):
        learner = method(method_name)(build("linear", inputs=(WIDTH,), classes=CLASSES), memory=20)
        data = kind(*arrays(1))
        learner.learn(*data)
        return learner.predict(data[0])

    assert torch.equal(weights(KINDS[name]), weights(lambda x, y: (x, y)))


def test_a_data_set_is_read_in_blocks_when_it_is_counted(plain):
    learner, largest = plain[0], 0

    class Watched(Pairs):
        def __getitems__(self, rows):
            nonlocal largest
            largest = max(largest, len(rows))
            return [self[row] for row in rows]

    again = {t: DataLoader(Watched(*arrays(t)), batch_size=8) for t in (1, 2)}
    assert learner.certify(again).bounds == plain[1].bounds
    assert largest == 8


class Endless(IterableDataset):
    def __iter__(self):
        yield from iter(())


X, Y = arrays(1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X,), "There are no labels"),
        ((X, "species"), "x has no column 'species'"),
        (("own.csv",), "load its examples first: streams.load"),
        ((X[:, :3], Y), r"takes inputs of shape \(4,\), not \(3,\)"),
        ((Endless(),), "no fixed order"),
        ((DataLoader(Pairs(X, Y), sampler=SubsetRandomSampler([1, 2])),), "a sampler of its own"),
        ((DataLoader(Pairs(X, Y), batch_size=None),), "a sampler of its own"),
        ((TensorDataset(*map(torch.from_numpy, (X, Y, Y))),), "3 values for each example"),
        ((TensorDataset(torch.from_numpy(X)),), "1 values for each example"),
        ((Pairs([{"ids": row} for row in X], Y),), "x holds several arrays"),
        ((Pairs([(row, row) for row in X], Y),), "x holds several arrays"),
        ((DataLoader(Pairs(X, Y), collate_fn=lambda rows: [X, [Y, Y]]),), "one class number"),
        ((Pairs([X[i, : i % 3 + 1] for i in range(70)], Y),), "do not fit into one array"),
        ((Pairs(["a word"] * 70, Y),), "x holds several arrays"),
        ((Pairs(X[:0], Y[:0]),), "empty"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(data, message):
    learner = CoP2L(model_of("mlp", CLASSES, inputs=WIDTH), preset="picking", **OPTIONS)
    with pytest.raises(UserError, match=message) as refused:
        learner.learn(*data)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300
    assert learner.tasks_seen == 0


@pytest.mark.parametrize("classes", [["ant", "bee", "cat"], [1, 5, 9]])
def test_names_and_gaps_among_labels_are_refused_with_the_call_that_takes_them(classes):
    learner, y = (
        CoP2L(model_of("mlp", CLASSES, inputs=WIDTH), preset="picking", **OPTIONS),
        np.array(classes)[Y],
    )
    with pytest.raises(UserError, match=r"that will ever come: learn") as refused:
        learner.learn(X, y)
    call = str(refused.value).rpartition(": ")[2].rstrip(".")
    eval(f"learner.{call}", {"learner": learner, "x": X, "y": y, "numpy": np})
    assert learner.tasks_seen == 1


def test_frames_say_which_column_is_wrong():
    learner = CoP2L(model_of("mlp", CLASSES, inputs=WIDTH), preset="picking", **OPTIONS)
    frame = pandas_frame(X, Y)
    with pytest.raises(UserError, match="no column 'species' for the labels; the columns are: c0, c1"):
        learner.learn(frame, "species")
    with pytest.raises(UserError, match="The column 'town' does not hold numbers"):
        learner.learn(frame.assign(town="Turku"))
    with pytest.raises(UserError, match="no column of inputs"):
        learner.learn(frame[["label"]])
    with pytest.raises(UserError, match=r"collect\(\) it first"):
        learner.learn(polars_frame(X, Y).lazy())


@pytest.mark.parametrize("frame_of", [pandas_frame, polars_frame, hugging_face_columns])
@pytest.mark.parametrize("name", ["cop2l", "replay"])
def test_columns_of_a_frame_are_found_by_their_names(tmp_path, name, frame_of):
    options = OPTIONS | {"tasks": 1} if name == "cop2l" else {"memory": 30}
    learner = method(name)(build("mlp", inputs=(WIDTH,), classes=CLASSES, seed=0), **options)
    frame = frame_of(X, Y)
    learner.learn(frame)
    learner.save(tmp_path / "saved")
    order = ["c2", "label", "c0", "c3", "c1"]
    turned = frame.select_columns(order) if hasattr(frame, "select_columns") else frame[order]
    pandas_frame(X, Y)[order].to_csv(tmp_path / "turned.csv", index=False)
    assert torch.equal(predict(tmp_path / "saved", tmp_path / "turned.csv").classes, learner.predict(X))
    for version in (learner, method(name).load(tmp_path / "saved")):
        assert torch.equal(version.predict(turned), version.predict(X))
        assert name != "cop2l" or version.certify({1: turned}).bounds
        with pytest.raises(UserError, match="x contains NaN"):
            version.predict(np.full_like(X, np.nan))
        with pytest.raises(
            UserError, match="x lacks 'c0' and has also 'other'; give the columns that were learned: c0"
        ):
            version.predict(pandas_frame(X, Y).rename(columns={"c0": "other"}))


def test_hugging_face_parts_streams_and_ragged_rows_are_refused():
    datasets = pytest.importorskip("datasets")
    learner, complete = (
        CoP2L(model_of("mlp", CLASSES, inputs=WIDTH), preset="picking", **OPTIONS),
        hugging_face(X, Y),
    )
    ragged = datasets.Dataset.from_dict({"ids": [[1], [1, 2]], "label": [0, 1]})
    for data, message in [
        (
            datasets.DatasetDict(train=complete, test=complete),
            "Choose one part of the data set: 'train', 'test'",
        ),
        (complete.to_iterable_dataset(), "no fixed order"),
        (ragged, "'ids' does not hold numbers"),
        (complete.add_column("more", list(range(70))), "x holds several arrays"),
    ]:
        with pytest.raises(UserError, match=message):
            learner.learn(data)


class Returns(torch.nn.Linear):
    """A model that returns something else than rows of logits."""

    def __init__(self, change):
        super().__init__(4, 2)
        self.change = change

    def forward(self, x):
        return self.change(super().forward(x))


WRONG_MODELS = {
    "one row of logits per example, not a tuple": lambda: Returns(lambda logits: (logits, None)),
    "one row of logits per example, not a dict": lambda: Returns(lambda logits: {"logits": logits}),
    "one row of logits per example.$": lambda: Returns(lambda logits: logits[:, 0]),
    "A lazy layer of the model has no weights yet": lambda: torch.nn.LazyLinear(2),
    "The model is on meta, where cop2l cannot learn": lambda: torch.nn.Linear(4, 2, device="meta"),
}


@pytest.mark.parametrize("sentence", WRONG_MODELS)
def test_models_that_cannot_learn_are_refused_in_a_sentence(sentence):
    x, y = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32), np.arange(40) % 2
    with pytest.raises(UserError, match=sentence):
        CoP2L(WRONG_MODELS[sentence](), preset="picking", memory=10).learn(x, y)
    if "logits" in sentence:
        with pytest.raises(UserError, match=sentence):
            method("replay")(WRONG_MODELS[sentence]()).learn(x, y)


@pytest.mark.parametrize("classes", [[0], [0, 5], [-1, 0, 1]])
def test_labels_beyond_the_heads_are_refused_in_a_sentence(classes):
    x, y = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32), np.arange(40) % 2
    model = build("multi-head", inputs=(4,), classes=2)
    for learner in (
        CoP2L(model, scenario="task-incremental"),
        method("replay")(model, scenario="task-incremental"),
    ):
        with pytest.raises(UserError, match="classes"):
            learner.learn(x, y, classes=classes)
