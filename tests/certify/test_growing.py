"""Classes that are added later: the kernel makes the same bits, certificates are valid, and what is forged is refused."""

import json
import shutil

import numpy as np
import pytest
import torch
from certify_cases import parameters, same_bits, standing
from torch import nn

import cop2l
from cop2l import CoP2L
from cop2l.certify.certificate import sealed
from cop2l.cli import main
from cop2l.errors import UserError
from cop2l.kernel import verify as kernel
from cop2l.kernel.form import Unreadable
from cop2l.kernel.learning import Plain, exact_arithmetic, grow, sample
from cop2l.kernel.samples import blocks_of, fingerprint
from cop2l.kernel.verify import Allowed
from cop2l.methods import method
from cop2l.models import MODELS, build

SIDE, ROWS = 10, 60
OPTIONS = {
    "memory": 60, "k": 4, "epochs": 2, "lr": 0.1, "batch": 16, "max_iterations": 4, "omega": 4.0, "tasks": 3,
    "buffer": "threshold", "stop": "none",
}  # fmt: skip
CHOSEN = {
    "picking": {},
    "a prior part": {"prior": 0.4, "prior_epochs": 2, "prior_memory": 0.5},
    "witness": {
        "prior": 0.4,
        "prior_epochs": 2,
        "prior_memory": 0.5,
        "buffer": "witness",
        "kind": "combined",
    },
    "uniform": {"buffer": "uniform", "kind": "kl-tight", "optimiser": "adam"},
    "LDA": {"prior": 0.4, "start": "slda"},
}


def data_of(task):
    """Two new classes in every task; the last has some of the first, too."""
    draw = np.random.default_rng(task)
    y = draw.choice([2 * task - 2, 2 * task - 1, 0 if task == 3 else 2 * task - 1], ROWS)
    return (draw.normal(size=(ROWS, SIDE, SIDE)) + y[:, None, None] / 2).astype(np.float32), y


DATA = {t: data_of(t) for t in (1, 2, 3)}


def model_of(name, classes=2, seed=0):
    more = {"hidden": 9} if name == "mlp" else {}
    return build(name, inputs=(SIDE, SIDE), classes=classes, seed=seed, **more)


def grown(name="mlp", data=None, **more):
    """A learner of three tasks that begins with two classes and has six in the end."""
    learner = CoP2L(model_of(name), **{**OPTIONS, **more})
    for t, (x, y) in (data or DATA).items():
        learner.learn(x, y, classes=2 * t)
    return learner


@pytest.mark.parametrize(
    ("name", "chosen"), [("linear", "LDA"), *(("mlp", one) for one in CHOSEN if one != "LDA")]
)
def test_growth_is_made_again_and_rebuilt_by_the_kernel(name, chosen, tmp_path):
    more = CHOSEN[chosen]
    learner = grown(name, **more)
    plain = Plain(model_of(name).eval(), learner.options, widths=[2, 2, 4, 6])
    with exact_arithmetic(learner.threads):
        for t, (x, y) in DATA.items():
            plain.learn(sample(torch.from_numpy(x), torch.from_numpy(y), t, learner.options.seed))
    assert standing(plain) == standing(learner.engine)
    assert len(learner.model.head.weight) == learner.model.head.out_features == 6
    assert any(len(one.own) for one in plain.sets)
    learner.certify(DATA).save(tmp_path / "certificate")
    verdict = cop2l.verify(tmp_path / "certificate", DATA)
    assert verdict.status == "valid", str(verdict)
    assert "6 classes" in str(verdict)
    assert "Classes of each task: 0,1; 0,1,2,3; 0,1,2,3,4,5." in str(verdict)


@pytest.mark.parametrize("name", MODELS)
def test_old_rows_are_untouched_and_new_ones_are_those_of_the_seed(name):
    model, reserved = model_of(name, seed=4), model_of(name, classes=7, seed=4)
    with torch.no_grad():
        model.head.weight.fill_(1.5)
    before = parameters(model)
    grow(model, 4, seed=4)
    grow(model, 7, seed=4)
    for key, value in parameters(model).items():
        assert torch.equal(value[: len(before[key])], before[key])
        assert torch.equal(value[len(before[key]) :], reserved.state_dict()[key][len(before[key]) :])
    assert model(torch.zeros(3, SIDE, SIDE)).shape == (3, 7)


def test_grown_before_the_first_task_is_reserved_from_the_start():
    ends = []
    for model, classes in ((model_of("mlp", 2), 6), (model_of("mlp", 6), None)):
        learner = CoP2L(model, **OPTIONS)
        for x, y in DATA.values():
            learner.learn(x, y, classes=classes)
        ends.append((standing(learner.engine), learner.certify(DATA).statements))
    assert ends[0] == ends[1]


def test_the_errors_of_old_tasks_are_counted_with_the_grown_head():
    learner = grown()
    errors = [record["missed"] for record in learner.certify(DATA).records]
    for t, (x, y) in DATA.items():
        wrong = learner.predict(x).numpy() != y
        wrong[learner.engine.sets[t - 1].picked] = False
        assert errors[t - 1] == wrong.sum()
    assert (learner.predict(DATA[1][0]) > 1).any()  # an old example may be taken for a new class


def test_a_run_that_grows_is_saved_resumed_and_verified_at_every_time(tmp_path):
    chosen, folders = {**OPTIONS, "tasks": None, "claim": ["tasks", "forgetting", "classes"]}, []
    learner = CoP2L(model_of("mlp"), **chosen)
    for t, (x, y) in DATA.items():
        learner.learn(x, y, classes=range(max(2 * t - 2, 0), 2 * t) if t < 3 else 2 * t)
        folders.append(tmp_path / f"after {t}")
        learner.certify({s: DATA[s] for s in range(1, t + 1)}).save(folders[-1])
        learner.save(tmp_path / "saved")
        again = CoP2L.load(tmp_path / "saved")
        assert standing(again.engine) == standing(learner.engine)
        assert again.certificate.statements == learner.certificate.statements
        other = CoP2L(model_of("mlp"), **chosen)
        other.restore(tmp_path / "saved")
        assert same_bits(other.model.state_dict(), learner.model.state_dict())
        learner = again
    assert learner.engine.widths == [2, 2, 4, 6]
    verdict = kernel.verify(folders, DATA, model_of("mlp"))
    assert verdict.status == "valid", str(verdict)
    assert "All errors of 3 certificates were counted again" in str(verdict)


def test_a_commitment_is_kept_though_classes_are_added(tmp_path):
    learner = CoP2L(model_of("mlp"), **OPTIONS)
    before = learner.commitment()
    for t, (x, y) in DATA.items():
        learner.learn(x, y, classes=2 * t)
    assert learner.commitment() == before
    learner.certify(DATA).save(tmp_path / "certificate")
    verdict = cop2l.verify(tmp_path / "certificate", DATA, commitment=before)
    assert verdict.status == "valid", str(verdict)


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grown") / "certificate"
    grown().certify(DATA).save(folder)
    return folder


FORGED = {
    "more classes at first": (lambda content: content.update(classes=4), "has 2 outputs"),
    "fewer classes at first": (lambda content: content.update(classes=1), "has 2 outputs"),
    "all classes from task 1 on": (lambda content: head(content, 1, range(4)), "another theta"),
    "more classes in task 2": (lambda content: head(content, 2, range(6)), "another theta"),
    "more classes in the end": (lambda content: head(content, 3, range(8)), "another theta"),
    "fewer classes in task 2": (lambda content: head(content, 2, range(3)), "outside the classes"),
    "a gap": (lambda content: head(content, 3, [0, 9]), "The record of task 3 is impossible"),
    "a gap beside old classes": (
        lambda content: head(content, 3, [*range(6), 9]),
        "The record of task 3 is impossible",
    ),
    "a huge gap": (lambda content: head(content, 2, [2, 3, 2**17]), "The record of task 2 is impossible"),
    "a number that is no class": (lambda content: head(content, 2, [2, 3, 2**50]), "from 0 to 262144"),
    "heads of their own": (
        lambda content: content.update(scenario="task-incremental"),
        "task 2 is impossible",
    ),
}


def head(content, task, classes):
    content["records"][task - 1]["head"] = list(classes)


def forged(honest, folder, change):
    """A copy of a certificate with a change, signed again."""
    shutil.copytree(honest, folder)
    content = json.loads((folder / "certificate.json").read_text())
    change(content)
    (folder / "certificate.json").write_text(json.dumps(sealed(content)))
    return folder


@pytest.mark.parametrize("name", FORGED)
def test_forged_class_counts_are_refused(name, honest, tmp_path):
    change, said = FORGED[name]
    verdict = kernel.verify(forged(honest, tmp_path / "forged", change), DATA, model_of("mlp"))
    assert verdict.status == "invalid"
    assert said in str(verdict)


def test_many_declared_classes_are_refused_before_anything_is_learned(honest, tmp_path):
    asked = forged(honest, tmp_path / "forged", lambda content: head(content, 3, range(50_000)))
    said = []
    with pytest.raises(Unreadable, match=r"operations, and 1.0e\+10 are allowed"):
        kernel.verify(asked, DATA, model_of("linear"), allowed=Allowed(operations=1e10), say=said.append)
    assert not any("learning task" in sentence for sentence in said)


def test_what_the_task_declares_is_the_issuer_s_word_whatever_was_committed_to(honest):
    start = CoP2L(model_of("mlp"), **OPTIONS)
    verdict = cop2l.verify(honest, DATA, commitment=start.commitment())
    assert verdict.status == "valid", str(verdict)
    assert not any(sentence.startswith("Everything") for sentence in verdict.checked)
    assert any("The classes of each task, which no commitment names" in word for word in verdict.word)


X, Y = DATA[2]


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        (
            None,
            r"y has 3; declare how many there are in all before looking at the data: learn\(..., classes=4\)",
        ),
        (3, "y has labels outside the task's own classes"),
        (1, "has 2 classes already"),
        ((0, 9), "without a gap"),
        ((0, 3), "without a gap"),
        ((), "without a gap"),
        (4.0, r"classes must be class numbers, .* in all, not 4.0"),
        ("0-3", "classes must be class numbers"),
        ([0, 1, 2.5, 3], "classes must be class numbers"),
        ([None], "classes must be class numbers"),
        (np.array([[0, 1, 2, 3]]), "classes must be class numbers"),
        (2**40, "A model may have 262144 classes"),
        (np.int64(3), "y has labels outside the task's own classes"),
        (range(1000, 2000), "1000 to 1999, 1000 of them; classes that are added"),
    ],
)
def test_what_was_not_declared_is_one_sentence(classes, said):
    learner = CoP2L(model_of("mlp"), **OPTIONS)
    learner.learn(*DATA[1])
    with pytest.raises(UserError, match=said):
        learner.learn(X, Y, classes=classes)
    assert learner.tasks_seen == 1
    learner.learn(X, Y, classes=4)


def test_the_baselines_say_that_they_cannot():
    with pytest.raises(UserError, match="Replay cannot add classes"):
        method("replay")(model_of("mlp"), memory=20).learn(X, Y, classes=4)


def test_task_incremental_heads_are_reserved():
    learner = CoP2L(model_of("mlp"), scenario="task-incremental", **OPTIONS)
    learner.learn(*DATA[1], classes=(0, 1))
    with pytest.raises(UserError, match="outputs of the model, 0 to 1"):
        learner.learn(X, Y, classes=(2, 3))
    with pytest.raises(UserError, match="needs its own classes"):
        learner.learn(X, Y, classes=4)


class Backwards(nn.Module):
    """Its last linear layer does not give the logits."""

    def __init__(self):
        super().__init__()
        self.head, self.body = nn.Linear(5, 2), nn.Linear(SIDE * SIDE, 5)

    def forward(self, x):
        return self.head(self.body(x.flatten(1)))


def test_a_model_of_one_s_own_grows_if_it_ends_with_a_linear_layer(tmp_path):
    def own(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 5), nn.ReLU(), nn.Linear(5, 2, bias=False))

    learner = CoP2L(own(0), **{**OPTIONS, "tasks": 2})
    learner.learn(*DATA[1])
    learner.learn(*DATA[2], classes=4)
    learner.certify({1: DATA[1], 2: DATA[2]}).save(tmp_path / "certificate")
    assert cop2l.verify(tmp_path / "certificate", {1: DATA[1], 2: DATA[2]}, model=own).status == "valid"
    for model, said in (
        (Backwards(), "does not give its outputs"),
        (convolution(), "must end with a linear layer"),
    ):
        learner = CoP2L(model, **OPTIONS)
        learner.learn(*DATA[1])
        before = standing(learner.engine)
        with pytest.raises(UserError, match=said):
            learner.learn(X, Y, classes=4)
        assert standing(learner.engine) == before
        assert learner.model.state_dict().keys() == learner.theta_0.keys()


def backwards(seed):
    torch.manual_seed(seed)
    return Backwards()


@pytest.mark.parametrize("labels", [0, 2])
def test_classes_that_a_model_does_not_get_are_not_claimed(labels, tmp_path):
    data = {t: (DATA[t][0], DATA[t][1] - 2 * (t - 1)) for t in (1, 2)}
    learner = CoP2L(backwards(0), **{**OPTIONS, "tasks": 2})
    for pair in data.values():
        learner.learn(*pair)
    learner.certify(data).save(tmp_path / "honest")
    assert cop2l.verify(tmp_path / "honest", data, model=backwards).status == "valid"
    data[2] = (data[2][0], data[2][1] + labels)

    def change(content):
        head(content, 2, range(4))
        content["records"][1]["fingerprint"] = fingerprint(ROWS, blocks_of(*data[2]))

    verdict = cop2l.verify(forged(tmp_path / "honest", tmp_path / "forged", change), data, model=backwards)
    assert verdict.status == "invalid"
    assert "The last layer of the model does not give its outputs in task 2" in str(verdict)


def convolution():
    return nn.Sequential(nn.Unflatten(1, (1, SIDE)), nn.Conv2d(1, 2, SIDE), nn.Flatten())


def test_what_goes_wrong_after_growing_takes_it_back():
    learner = CoP2L(model_of("mlp"), **OPTIONS)
    learner.learn(*DATA[1])
    before = standing(learner.engine)

    def stop(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learner.learn(X, Y, classes=4, progress=stop)
    assert standing(learner.engine) == before
    assert learner.model.head.out_features == 2
    with pytest.raises(UserError, match="y has 3"):
        learner.learn(X, Y)
    learner.learn(X, Y, classes=4)
    straight = CoP2L(model_of("mlp"), **OPTIONS)
    straight.learn(*DATA[1])
    straight.learn(X, Y, classes=4)
    assert standing(learner.engine) == standing(straight.engine)


def test_the_command_line_adds_classes(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    learner = CoP2L(model_of("mlp"), **{**OPTIONS, "tasks": None})
    learner.learn(*DATA[1])
    learner.save("saved")
    np.savez("new.npz", x=X, y=Y)
    command = ["learn", "saved", "--data", "new.npz", "--out", "grown"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "has the label 3, and the model has the classes 0 to 1" in said
    assert "--classes 0-3" in said
    assert main([*command, "--classes", "0-999999999999"]) == 2
    assert "A model may have 262144 classes" in capsys.readouterr().err
    assert main([*command, "--classes", "0-3"]) == 0
    learner.learn(X, Y, classes=4)
    assert same_bits(CoP2L.load("grown").model.state_dict(), learner.model.state_dict())
    assert main(["predict", "grown", "--data", "new.npz", "--json"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out[out.index('{"classes"') :])["classes"] == learner.predict(X).tolist()
