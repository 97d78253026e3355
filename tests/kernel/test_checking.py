"""`verify` says valid, invalid or cannot tell, and why: honest certificates, and every reason against one."""

import ast
import json
import shutil
import tokenize
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from learner_cases import SCENARIOS, NormedMLP, SmallCNN, case_of, digests, model_of, parameters
from safetensors.torch import load_file, save_file
from torch import nn

import cop2l
from cop2l.certificates.bounding import statements
from cop2l.certificates.certificate import content_of
from cop2l.errors import UserError
from cop2l.files import file_digest
from cop2l.kernel import holdout
from cop2l.kernel.checking import Policy, check_certificates, commitment_of
from cop2l.kernel.counting import counts_and_parts
from cop2l.kernel.exact import BITS, digest
from cop2l.kernel.form import FILES, Unreadable, content_digest, read_content
from cop2l.kernel.learning import Sets
from cop2l.kernel.options import Options
from cop2l.kernel.samples import blocks_of, fingerprint
from cop2l.kernel.verdict import Verdict
from cop2l.learner.cop2l import CoP2L
from cop2l.models import build
from cop2l.randomness import private_randomness

SMALL = {
    "buffer": "threshold", "k": 4, "epochs": 2, "lr": 0.05, "batch": 16, "memory": 40, "max_iterations": 3,
    "omega": 4.0, "stop": "none", "grid": False,
}  # fmt: skip

UNIFORM = {"buffer": "uniform", "kind": "kl"}


@cache
def a_case(scenario="class-incremental", tasks=2):
    return case_of(scenario, [26] * tasks, values=9, data_seed=5, copies=False)


def the_model(case, seed=0):
    return model_of("mlp", case.classes, seed)


ALL = {"claim": ["tasks", "average", "forgetting", "classes", "groups"], "groups": ["a", "b"]}
"""Options that claim everything that can be claimed."""


def groups_of(case, t):
    """The names of the groups of a task's examples."""
    return np.array(ALL["groups"])[np.arange(len(case.y[t - 1])) % 3 % 2]


def with_groups(case):
    return {t: (x, y, groups_of(case, t)) for t, (x, y) in case.data.items()}


def issued(folder, case, model=None, every_time=False, data=None, **chosen):
    """The folders of the certificates of a run: after every task, or after the last."""
    learner = CoP2L(model or the_model(case), preset="picking", scenario=case.scenario, **{**SMALL, **chosen})
    folders = []
    for t in range(1, case.tasks + 1):
        named = groups_of(case, t) if "groups" in chosen else None
        learner.learn(case.x[t - 1], case.y[t - 1], classes=case.heads[t - 1], groups=named)
        if every_time or t == case.tasks:
            folders.append(folder / f"after task {t}")
            given = {s: pair for s, pair in case.data.items() if s <= t} if data is None else data
            learner.certify(given).save(folders[-1])
    return folders


def signed(content):
    """The text of a certificate with its digest."""
    return json.dumps({**content, "digest": content_digest(content)})


class Forgery:
    """A copy of a certificate, to be changed; `sign` mends its hashes, and `mend` its counts and bounds, too."""

    def __init__(self, folder):
        self.folder = folder.with_name("forged")
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(folder, self.folder)
        self.content = json.loads((self.folder / "certificate.json").read_text())
        self.tensors = {name: load_file(self.folder / name) for name in FILES}

    def sign(self):
        for name, tensors in self.tensors.items():
            save_file(tensors, self.folder / name)
            self.content["files"][name] = file_digest(self.folder / name)
            self.content[name.partition(".")[0]] = digest(tensors)
        (self.folder / "certificate.json").write_text(signed(self.content))
        return self.folder

    def mend(self):
        options, records = Options(**self.content["options"]), self.content["records"]
        self.content["statements"] = statements(options, records)
        return self.sign()


def promised(folder):
    """The hash of the commitment that a certificate keeps."""
    return content_digest(commitment_of(read_content(folder)))


@pytest.fixture
def honest(tmp_path):
    """An honest certificate of two tasks: its folder, its data and a function that builds its model."""
    case = a_case()
    return issued(tmp_path, case)[0], case.data, lambda: the_model(case)


# ---- valid


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("preset", ["paper", "picking"])
@pytest.mark.parametrize("fixed", [True, False])
def test_presets_are_valid(tmp_path, scenario, preset, fixed):
    case = a_case(scenario)
    learner = CoP2L(
        the_model(case),
        preset=preset,
        scenario=scenario,
        tasks=2 if fixed else None,
        memory=40,
        max_iterations=4,
    )
    for t, (x, y) in case.data.items():
        learner.learn(x, y, classes=case.heads[t - 1])
    learner.certify(case.data).save(tmp_path / "certificate")
    verdict = check_certificates([tmp_path / "certificate"], case.data, the_model(case))
    assert verdict.status == "valid", str(verdict)
    assert (verdict.exit_code, verdict.unverified, verdict.invalid) == (0, [], [])


KINDS = [("uniform", "kl"), ("threshold", "kl"), ("threshold", "preference"), ("threshold", "buffer")]


@pytest.mark.parametrize(("buffer", "kind"), KINDS)
def test_a_run_is_valid_in_one_pass(tmp_path, buffer, kind):
    """All certificates of an anytime run together, and each of them alone."""
    case = a_case(tasks=3)
    chosen = {"buffer": buffer, "kind": kind, "grid": kind != "kl"}
    folders, progress = issued(tmp_path, case, every_time=True, **chosen), []
    verdict = check_certificates(folders, case.data, the_model(case), say=progress.append)
    assert verdict.status == "valid", str(verdict)
    assert sum("learning task" in line for line in progress) == 3
    assert (
        "All errors of 3 certificates were counted with the stored parameters, as stated." in verdict.checked
    )
    assert any("bounds that follow from their counts: 6" in sentence for sentence in verdict.checked)
    for t, folder in enumerate(folders, 1):
        verdict = check_certificates([folder], {s: case.data[s] for s in range(1, t + 1)}, the_model(case))
        assert verdict.status == "valid", str(verdict)
        assert [claimed["task"] for claimed in verdict.statements] == list(range(1, t + 1))


@pytest.mark.parametrize("kind", ["cnn", "normed"])
def test_a_model_of_the_users_own(tmp_path, kind):
    case = a_case()
    folder = issued(tmp_path, case, model_of(kind, case.classes))[0]
    verdict = check_certificates([folder], case.data, model_of(kind, case.classes))
    assert verdict.status == "valid", str(verdict)
    other_weights = (
        SmallCNN(case.classes) if kind == "cnn" else NormedMLP(25, case.classes)
    )  # the architecture, other weights
    verdict = check_certificates([folder], case.data, other_weights)
    assert verdict.status == "cannot tell"
    assert verdict.unverified == [
        "The initial parameters could not be made from the seed here: they may be fitted to the data."
    ]
    verdict = check_certificates([folder], case.data, other_weights, commitment=promised(folder))
    assert verdict.status == "valid", str(verdict)
    assert "The initial parameters have the hash that was committed to before." in verdict.checked


class HalvesItsInput(nn.Module):
    """It writes into its input."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(25, 4)

    def forward(self, x):
        return self.head(x.mul_(0.5))


def test_a_model_that_changes_its_input(tmp_path):
    case = a_case()

    def made():
        with private_randomness(torch.device("cpu"), 0, "test model"):
            return HalvesItsInput()

    folder, before = issued(tmp_path, case, made())[0], [digests(x) for x in case.x]
    verdict = check_certificates([folder], case.data, made())
    assert verdict.status == "valid", str(verdict)
    assert [digests(x) for x in case.x] == before


FORMS = {
    "tensors": lambda x, y: (torch.from_numpy(x), torch.from_numpy(y)),
    "columns first": lambda x, y: (np.asfortranarray(x), y.astype(np.uint8)),
    "other bytes first": lambda x, y: (x.astype(">f4"), y.astype(">i4")),
    "labels in a list": lambda x, y: (x, y.tolist()),
    "read only": lambda x, y: (np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape), y),
}


@pytest.mark.parametrize("form", FORMS)
def test_data_of_any_form(honest, form):
    folder, data, model = honest
    verdict = check_certificates([folder], {t: FORMS[form](*pair) for t, pair in data.items()}, model())
    assert verdict.status == "valid", str(verdict)


def test_nothing_else_changes(honest):
    folder, data, model = honest
    threads, random = torch.get_num_threads(), torch.get_rng_state()
    before = (
        [digests(x) for x, _ in data.values()],
        {file.name: file.read_bytes() for file in folder.iterdir()},
    )
    assert check_certificates([folder], data, model()).status == "valid"
    assert before == (
        [digests(x) for x, _ in data.values()],
        {file.name: file.read_bytes() for file in folder.iterdir()},
    )
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), random)


# ---- the words


def test_the_words(tmp_path):
    case = a_case()
    folder = issued(tmp_path, case, the_model(case, 7), **UNIFORM, seed=7, delta=0.03, tasks=2)[0]
    verdict = check_certificates([folder], case.data, the_model(case, 7))
    content, text = json.loads((folder / "certificate.json").read_text()), str(verdict)
    picked = sum(record["picked"] for record in content["records"])
    assert picked
    assert text.startswith("VALID: ")
    assert "1 - 0.03 over the draw of the data, after 2 tasks, a number fixed in advance:" in text
    assert "class-incremental, 4 classes, seed=7, threads=" in text
    assert f"examples that certify: 52; picked: {picked}" in text
    for claimed in content["statements"]:
        shown = text.split(f"task {claimed['task']}: error at most ")[1].partition(" %")[0]
        assert float(shown) >= 100 * claimed["value"] > float(shown) - 0.01
    assert '"buffer": "uniform"' in text
    assert len(text.splitlines()) <= 27
    assert verdict.as_dict()["exit_code"] == 0
    found = json.loads(json.dumps(verdict.as_dict()))["statements"]
    assert [{**one, "million": 0} for one in found] == [
        {**one, "million": 0} for one in content["statements"]
    ]


def test_the_best_of_a_million_is_the_bound_at_a_millionth_of_delta(tmp_path):
    case = a_case()
    folders = [issued(tmp_path / name, case, tasks=2, delta=d)[0] for name, d in (("a", 0.05), ("b", 5e-8))]
    few, many = (check_certificates([folder], case.data, the_model(case)).statements for folder in folders)
    for one, other in zip(few, many, strict=True):
        assert other["value"] <= one["million"] <= other["value"] + 2e-5


def test_bounds_are_said_rounded_up(honest):
    folder, data, model = honest
    forgery = Forgery(folder)
    for value, shown in ((0.875, "87.50 %"), (0.87500000001, "87.51 %"), (0.9, "90.01 %"), (1.0, "100.00 %")):
        for claimed in forgery.content["statements"]:
            claimed["value"] = value
        verdict = check_certificates([forgery.sign()], data, model())
        assert all(f"task {t}: error at most {shown} (preference" in str(verdict) for t in (1, 2))
    assert verdict.status == "valid", str(verdict)  # a larger bound than the counts allow holds all the same


# ---- invalid


def invalid_sentences(folders, data, model, **options):
    folders = folders if isinstance(folders, list) else [folders]
    verdict = check_certificates(folders, data, model, **options)
    assert (verdict.status, verdict.exit_code) == ("invalid", 1), str(verdict)
    assert "INVALID: do not rely on this certificate." in str(verdict)
    return " ".join(verdict.invalid)


def other_row(x, y):
    x = x.copy()
    x[3, 2] += 1e-6
    return x, y


def other_label(x, y):
    y = y.copy()
    y[0] = 1 - y[0]
    return x, y


OTHER_DATA = {
    "a number": (other_row, "fingerprint differs"),
    "a label": (other_label, "fingerprint differs"),
    "a precision of numpy alone": (lambda x, y: (x.astype(np.longdouble), y), "fingerprint differs"),
    "not a number": (lambda x, y: (np.full_like(x, np.nan), y), "fingerprint differs"),
    "one example fewer": (lambda x, y: (x[:-1], y[:-1]), "26 labelled examples"),
    "one label fewer": (lambda x, y: (x, y[:-1]), "26 labelled examples"),
    "labels that are no integers": (lambda x, y: (x, y.astype(np.float32)), "26 labelled examples"),
    "labels in two dimensions": (lambda x, y: (x, y[:, None]), "26 labelled examples"),
    "labels of no class": (lambda x, y: (x, y + 100), "labels outside the classes"),
}


@pytest.mark.parametrize("what", OTHER_DATA)
def test_other_data(honest, what):
    folder, data, model = honest
    change, sentence = OTHER_DATA[what]
    found = invalid_sentences(folder, {**data, 1: change(*data[1])}, model())
    assert "data of task 1" in found
    assert sentence in found


CHANGES = {
    "errors": (
        lambda record: record.update(
            errors=record["errors"] - 1, errors_not_picked=record["errors_not_picked"] - 1
        ),
        "counts of task",
    ),
    "errors_not_picked": (
        lambda record: record.update(errors_not_picked=record["errors_not_picked"] - 1),
        "counts of task",
    ),
    "picked": (lambda record: record.update(picked=record["picked"] - 1), "counts of task"),
    "compression": (lambda record: record.update(compression=record["compression"] - 1), "counts of task"),
    "iterations": (lambda record: record.update(iterations=record["iterations"] - 1), "counts of task"),
    "stopped": (
        lambda record: record.update(stopped=record["stopped"] - 1),
        "does not stop after 2 iterations",
    ),
    "stopped later": (lambda record: record.update(stopped=record["stopped"] + 1), "counts of task"),
    "selected": (lambda record: record.update(selected=record["selected"] + 1), "counts of task"),
    "compressed": (lambda record: record.update(compressed=record["compressed"] - 1), "counts of task"),
    "head": (lambda record: record.update(head=[0, 1, 2, 3]), None),
}


@pytest.mark.parametrize("what", CHANGES)
def test_counts_with_bounds_that_follow_from_them(honest, what):
    """A forger who recomputes every bound: only the data can tell. The classes of a task matter where they are its head."""
    folder, data, model = honest
    change, sentence = CHANGES[what]
    for number in (0, 1):
        forgery = Forgery(folder)
        before = json.dumps(forgery.content["records"])
        change(forgery.content["records"][number])
        if json.dumps(forgery.content["records"]) == before:
            continue
        if sentence is None:
            assert check_certificates([forgery.mend()], data, model()).status == "valid"
        else:
            assert sentence in invalid_sentences(forgery.mend(), data, model())


def test_the_head_of_a_task_matters_where_the_task_is_known(tmp_path):
    case = a_case("task-incremental")
    forgery = Forgery(issued(tmp_path, case)[0])
    forgery.content["records"][0]["head"] = [0, 1, 2, 3]
    invalid_sentences(forgery.mend(), case.data, the_model(case))


@pytest.mark.parametrize("name", ["theta_0", "theta"])
def test_other_parameters(honest, name):
    """Other initial parameters, also if the auditor was handed their hash: learning again gives another theta."""
    folder, data, model = honest
    forgery = Forgery(folder)
    forgery.tensors[f"{name}.safetensors"]["head.bias"][0] += 0.01
    found = invalid_sentences(forgery.sign(), data, model(), commitment=promised(forgery.folder))
    assert "Learning again gives another theta" in found or "counts of task" in found


def test_other_sets(honest):
    folder, data, model = honest
    for name in Forgery(folder).tensors["sets.safetensors"]:
        forgery = Forgery(folder)
        rows = forgery.tensors["sets.safetensors"][name]
        if len(rows):
            rows[0] = np.setdiff1d(np.arange(26), rows.numpy())[0]
            assert "another sets than that stated" in invalid_sentences(forgery.sign(), data, model())


def test_files_that_are_not_those_of_the_hashes(honest):
    """The text says one hash, and another file lies beside it under its own file hash."""
    folder, data, model = honest
    for name in ("theta_0", "theta", "sets"):
        forgery = Forgery(folder)
        claimed = forgery.content[name]
        tensors = forgery.tensors[f"{name}.safetensors"]
        tensors[next(key for key in sorted(tensors) if len(tensors[key]))].view(-1)[0] += 1
        forgery.sign()
        forgery.content[name] = claimed
        (forgery.folder / "certificate.json").write_text(signed(forgery.content))
        assert f"hash of {name}" in invalid_sentences(forgery.folder, data, model())


OTHER_OPTIONS = [
    {"seed": 1},
    {"lr": 0.04},
    {"k": 5},
    {"epochs": 3},
    {"omega": 9.0},
    {"optimiser": "adam"},
    UNIFORM,
]


@pytest.mark.parametrize("change", OTHER_OPTIONS, ids=str)
def test_other_options(honest, change):
    folder, data, model = honest
    forgery = Forgery(folder)
    forgery.content["options"].update(change)
    invalid_sentences(forgery.mend(), data, model())


def test_a_certificate_that_declares_itself_not_valid(tmp_path):
    case = a_case()
    folder = issued(tmp_path, case, not_valid=["the backbone saw the data."])[0]
    found = invalid_sentences(folder, case.data, the_model(case))
    assert found == 'The certificate declares itself not valid: "the backbone saw the data."'


def test_the_wrong_model(honest):
    folder, data, _ = honest
    models = {
        "tensors and shapes": build("linear", inputs=(25,), classes=4, seed=0),
        "theta_0.safetensors does not have the tensors": model_of("mlp", 5),
        "types that it must have": model_of("mlp", 4).double(),
    }
    for sentence, model in models.items():
        assert sentence in invalid_sentences(folder, data, model)


def test_the_number_of_classes_and_of_parameters(honest):
    folder, data, model = honest
    forgery = Forgery(folder)
    forgery.content["classes"] = 10
    assert "Outputs and parameters of the model are (4, " in invalid_sentences(forgery.sign(), data, model())
    forgery = Forgery(folder)
    forgery.content["model"]["parameters"] = 3
    assert "not (4, 3)" in invalid_sentences(forgery.sign(), data, model())


def test_a_model_that_mixes_examples(tmp_path):
    class Mixes(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.mixes = nn.Linear(25, 4), False

        def forward(self, x):
            return self.head(x - x.mean(0) if self.mixes else x)

    case, model = a_case(), Mixes()
    start = parameters(model)
    folder = issued(tmp_path, case, model)[0]
    model.load_state_dict(start)
    model.mixes = True
    assert "Scores depend on the examples scored together" in invalid_sentences(folder, case.data, model)


# ---- all that can be claimed


OTHER_GROUPS = {
    "one of another group": lambda named: (
        np.where(np.arange(len(named)) == 5, "a" if named[5] == "b" else "b", named),
    ),
    "exchanged": lambda named: (np.where(named == "a", "b", "a"),),
    "undeclared": lambda named: (np.where(named == "a", "c", named),),
    "numbers": lambda named: ((named == "b").astype(int),),
    "one too few": lambda named: (named[:-1],),
}


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize(("buffer", "kind"), KINDS)
def test_certificates_that_claim_everything_are_valid(tmp_path, buffer, kind, fixed):
    """Of a number of tasks fixed in advance, or after each task; and where the data of a task is gone."""
    case = a_case(tasks=3)
    chosen = {"buffer": buffer, "kind": kind, **ALL}
    chosen |= {"tasks": 3 if fixed else None, "shares": [5, 1, 1, 2, 2] if fixed else [], "max_iterations": 2}
    folders = issued(tmp_path / "all", case, every_time=not fixed, **chosen)
    verdict = check_certificates(folders, with_groups(case), the_model(case))
    assert verdict.status == "valid", str(verdict)
    families = [claimed["family"] for claimed in verdict.statements if claimed["subject"] != "net"]
    assert [families.count(family) for family in ALL["claim"]] == [3, 1, 3, 6, 6]
    gone = issued(tmp_path / "gone", case, data={3: case.data[3]}, **chosen)[0]
    verdict = check_certificates([gone], with_groups(case), the_model(case))
    assert verdict.status == ("cannot tell" if buffer == "uniform" else "valid"), str(verdict)
    families = [claimed["family"] for claimed in verdict.statements if claimed["subject"] != "net"]
    expected = [1, 1, 1, 2, 2] if buffer == "uniform" else [3, 1, 3, 6, 6]
    assert [families.count(family) for family in ALL["claim"]] == expected


@pytest.fixture
def everything(tmp_path):
    """An honest certificate that claims everything: its folder, its data and a function that builds its model."""
    case = a_case()
    folder = issued(tmp_path, case, **ALL, tasks=2)[0]
    return folder, with_groups(case), lambda: the_model(case)


def test_every_value_is_checked(everything):
    folder, data, model = everything
    for number in range(len(Forgery(folder).content["statements"])):
        forgery = Forgery(folder)
        claimed = forgery.content["statements"][number]
        claimed["value"] -= 1e-8
        if claimed["value"] >= 0:
            assert "smaller than its counts allow" in invalid_sentences(forgery.sign(), data, model())


def test_every_count_of_every_part_is_counted_again(everything):
    """A forger who recomputes every bound."""
    folder, data, model = everything
    names, number = (
        (
            "errors",
            "errors_not_picked",
            "compressed",
            "selected",
            "n",
            "picked",
            "compression",
            "stopped",
        ),
        0,
    )
    for t, record in enumerate(Forgery(folder).content["records"]):
        for i, part in enumerate(record["parts"]):
            for name in [names[(number + k) % len(names)] for k in range(3)]:
                forgery = Forgery(folder)
                forgery.content["records"][t]["parts"][i][name] += -1 if part[name] else 1
                with suppress(UserError):  # counts that cannot be have no bounds
                    forgery.mend()
                sentences = invalid_sentences(forgery.sign(), data, model())
                assert (
                    f"counts of task {t + 1} after task 2" in sentences
                    or f"record of task {t + 1} is impossible" in sentences
                )
            number += 1


def test_two_classes_of_a_task_taken_together(everything):
    """With bounds that follow."""
    folder, data, model = everything
    forgery = Forgery(folder)
    first, second, *remaining = forgery.content["records"][0]["parts"]
    same = ("family", "subject", "iterations", "stopped")
    both = {name: value if name in same else value + second[name] for name, value in first.items()}
    forgery.content["records"][0]["parts"] = [both, *remaining]
    assert "counts of task 1 after task 2" in invalid_sentences(forgery.mend(), data, model())


@pytest.mark.parametrize("what", OTHER_GROUPS)
def test_other_groups(everything, what):
    folder, data, model = everything
    for t in (1, 2):
        x, y, named = data[t]
        invalid_sentences(folder, {**data, t: (x, y, *OTHER_GROUPS[what](named))}, model())


def test_other_claims(everything):
    """Fewer claims, or other shares, of which every bound follows: another certificate, which the counts do not fit."""
    folder, data, model = everything
    for change in ({"claim": ["tasks"], "groups": []}, {"groups": ["b", "a"]}, {"groups": ["a", "c"]}):
        forgery = Forgery(folder)
        forgery.content["options"].update(change)
        invalid_sentences(forgery.sign(), data, model())
    forgery = Forgery(folder)
    forgery.content["options"]["shares"] = [96, 1, 1, 1, 1]
    assert "smaller than its counts allow" in invalid_sentences(forgery.sign(), data, model())


def test_many_statements_are_refused_before_they_are_checked(honest):
    folder, data, model = honest
    forgery = Forgery(folder)
    forgery.content["options"]["claim"] = ["classes"]
    for record in forgery.content["records"]:
        counts = {
            name: value
            for name, value in record.items()
            if name not in ("task", "rows", "head", "fingerprint", "parts")
        }
        empty = {name: value if name in ("iterations", "stopped") else 0 for name, value in counts.items()}
        record["head"] = list(range(15_000))
        record["parts"] = [
            {"family": "classes", "subject": label, **(empty if label else counts)}
            for label in record["head"]
        ]
    forgery.content["classes"] = 15_000
    of_classes = {"family": "classes", "kind": "preference", "value": 1.0}
    forgery.content["statements"] = [
        {**of_classes, "task": t, "subject": label} for t in (1, 2) for label in range(15_000)
    ]
    with pytest.raises(Unreadable, match="operations"):
        check_certificates([forgery.sign()], data, model(), policy=Policy(operations=2e12))


# ---- runs


def test_certificates_that_are_not_of_one_run(tmp_path):
    case = a_case()
    first, second = issued(tmp_path / "one", case, every_time=True)
    assert "not in the order of its tasks" in invalid_sentences([second, first], case.data, the_model(case))
    assert "not in the order of its tasks" in invalid_sentences([first, first], case.data, the_model(case))
    for chosen, sentence in (
        ({"seed": 1}, "differ in options"),
        ({"not_valid": ["a reason."]}, "differ in not_valid"),
    ):
        other = issued(tmp_path / sentence, case, every_time=True, **chosen)[0]
        assert sentence in invalid_sentences([other, second], case.data, the_model(case))
    forgery = Forgery(first)
    forgery.content["records"][0]["fingerprint"] = "0" * 64
    assert "speak of different data for task 1" in invalid_sentences(
        [forgery.sign(), second], case.data, the_model(case)
    )


def test_a_forged_certificate_early_in_a_run(tmp_path):
    case = a_case()
    first, second = issued(tmp_path, case, every_time=True)
    forgery = Forgery(first)
    forgery.content["records"][0]["errors_not_picked"] -= 1
    forgery.content["records"][0]["errors"] -= 1
    sentences = invalid_sentences([forgery.mend(), second], case.data, the_model(case))
    assert "The counts of task 1 after task 1 are not those that the data gives." in sentences
    forgery = Forgery(first)
    forgery.content["statements"][0]["value"] *= 0.5
    sentences = invalid_sentences([forgery.sign(), second], case.data, the_model(case))
    assert "After task 1 a stated bound is smaller than its counts allow: task 1: error" in sentences


# ---- cannot tell


def unverified_sentences(folders, data, model, **options):
    folders = folders if isinstance(folders, list) else [folders]
    verdict = check_certificates(folders, data, model, **options)
    assert (verdict.status, verdict.exit_code) == ("cannot tell", 2), str(verdict)
    assert "CANNOT TELL: " in str(verdict)
    return " ".join(verdict.unverified)


def test_missing_data_or_model(honest):
    folder, data, model = honest
    assert "The data of task 1 was not given. The data of task 2 was not given." in unverified_sentences(
        folder, None, model()
    )
    for task in data:
        found = unverified_sentences(folder, {task: data[task]}, model())
        assert f"The data of task {3 - task} was not given." in found
        assert "could not be learned again" in found
    assert "The model was not given" in unverified_sentences(folder, data, None)
    forgery = Forgery(folder)  # what can be seen without the data is still a fault
    forgery.content["statements"][0]["value"] *= 0.5
    invalid_sentences(forgery.sign(), None, None)


def test_another_start(honest):
    folder, data, _ = honest
    other = the_model(a_case(), seed=1)
    assert "may be fitted to the data" in unverified_sentences(folder, data, other)


@pytest.mark.parametrize("kind", ["preference", "kl"])
def test_rows_that_are_copies_count_as_errors(tmp_path, kind, monkeypatch):
    """Half of each task repeats the other half; for bounds of the kind kl no theorem covers that."""
    monkeypatch.setattr("cop2l.learner.cop2l.shared_row_findings", lambda *_: [])  # the issuer does not look
    case = case_of("class-incremental", [26, 26], values=9, data_seed=2)
    folder = issued(tmp_path / "paid", case, kind=kind)[0]
    verdict = check_certificates([folder], case.data, the_model(case))
    assert verdict.status == ("cannot tell" if kind == "kl" else "valid"), str(verdict)
    monkeypatch.setattr("cop2l.learner.counting.declared_draws", lambda *_: True)
    unpaid = issued(tmp_path / "unpaid", case, kind=kind)[0]
    assert "Rows that the model cannot tell from another" in unverified_sentences(
        unpaid, case.data, the_model(case)
    )
    verdict = check_certificates([unpaid], case.data, the_model(case), policy=Policy(draws=True))
    assert verdict.status == "valid", str(verdict)
    if kind != "kl":
        verdict = check_certificates([unpaid], case.data, the_model(case), policy=Policy(count_repeats=True))
        claimed = json.loads((folder / "certificate.json").read_text())["statements"]
        assert all(one["value"] >= own["value"] for one, own in zip(verdict.statements, claimed, strict=True))


@pytest.mark.parametrize("shared", [1, 26])
def test_rows_that_tasks_share_count_as_errors_in_both(tmp_path, shared, monkeypatch):
    monkeypatch.setattr("cop2l.learner.cop2l.shared_row_findings", lambda *_: [])  # the issuer does not look
    whole = case_of("domain-incremental", [26, 26], values=9, data_seed=5, copies=False)
    whole.x[1][:shared] = whole.x[0][:shared]
    verdict = check_certificates([issued(tmp_path, whole)[0]], whole.data, the_model(whole))
    assert verdict.status == "valid", str(verdict)
    assert any(f"{shared} of task 1, {shared} of task 2" in sentence for sentence in verdict.rows)


def test_data_that_was_gone_when_it_was_issued(tmp_path):
    case = a_case()
    folder = issued(tmp_path / "threshold", case, data={2: case.data[2]})[0]
    verdict = check_certificates([folder], case.data, the_model(case))
    assert verdict.status == "valid", str(verdict)  # by somebody who has it
    assert any("The data of tasks [1] was gone" in sentence for sentence in verdict.assumed)
    forgery = Forgery(folder)
    forgery.content["records"][0]["compressed"] -= 1
    assert "counts of task 1" in invalid_sentences(forgery.mend(), case.data, the_model(case))
    uniform = issued(tmp_path / "uniform", case, buffer="uniform", data={2: case.data[2]})[0]
    found = unverified_sentences(uniform, case.data, the_model(case))
    assert found == "Task 1 has no bound: its data was gone when the certificate was issued."


def test_another_machine(honest):
    """If the bits come out the same, where they were made does not matter; if not, nothing is concluded."""
    folder, data, model = honest

    def elsewhere():
        forgery = Forgery(folder)
        forgery.content["machine"] = "bits 3, another one"
        return forgery

    assert check_certificates([elsewhere().sign()], data, model()).status == "valid"
    forgery = elsewhere()
    forgery.tensors["theta.safetensors"]["head.bias"][0] += 0.01
    found = unverified_sentences(forgery.sign(), data, model())
    assert "Learning again gives another theta" in found or "counts of task" in found
    assert f"made on another machine, quoted below; this one is: bits {BITS}, torch" in found
    forgery = Forgery(folder)
    forgery.content["earlier"] = ["another one"]
    assert check_certificates([forgery.sign()], data, model()).status == "valid"
    forgery.tensors["theta.safetensors"]["head.bias"][0] += 0.01
    unverified_sentences(forgery.sign(), data, model())
    forgery = elsewhere()  # arithmetic is the same on every machine
    forgery.content["statements"][0]["value"] *= 0.5
    invalid_sentences(forgery.sign(), data, model())


def test_too_much_work_is_refused_before_anything_is_learned(honest):
    folder, data, model = honest
    progress = []
    with pytest.raises(Unreadable, match=r"--limit allows 1\.0e\+00"):
        check_certificates([folder], data, model(), policy=Policy(operations=1.0), say=progress.append)
    forgery = Forgery(folder)
    for record in forgery.content["records"]:
        record["stopped"] = 10**9
    with pytest.raises(Unreadable, match="operations"):
        check_certificates([forgery.mend()], data, model(), say=progress.append)
    assert not any("learning task" in line for line in progress)


def test_a_model_that_cannot_be_run_on_the_data(honest):
    """A forger's data, of another shape, with its own fingerprint: no verdict, and no crash."""
    folder, data, model = honest
    for task in (1, 2):
        (x, y), forgery = data[task], Forgery(folder)
        forgery.content["records"][task - 1]["fingerprint"] = fingerprint(26, blocks_of(x[:, 1:], y))
        with pytest.raises(Unreadable, match="could not be run on this data here") as caught:
            check_certificates([forgery.sign()], {**data, task: (x[:, 1:], y)}, model())
        assert "\n" not in str(caught.value)


# ---- hold-out certificates


def a_holdout(folder, data, answers, before=None, change=None, **chosen):
    """A certificate on withheld examples, of a predictor that nobody needs to read here: it gives these answers.

    `before`: what it answered just after each task. `change` is done to the records before the bounds are made.
    """
    options = Options(kind="holdout", **{"tasks": len(data), **chosen})
    folder.mkdir()
    save_file({"weight": torch.zeros(3)}, folder / "learner.safetensors")
    records = []
    for t, (x, y, *groups) in data.items():
        column = np.array([options.groups.index(name) for name in groups[0]]) if options.groups else None
        facts = {"labels": y, "groups": column, "wrong": (before or answers)[t] != y}
        counted = counts_and_parts(
            options, len(data), t, Sets(), answers[t] != y, np.zeros(len(y), bool), facts
        )
        found = fingerprint(len(y), blocks_of(x, y), column)
        records.append({"task": t, "rows": len(y), "head": [0, 1, 2, 3], "fingerprint": found, **counted})
    if change:
        change(records)
    content = content_of(
        options, statements(options, records), records, method="replay", scenario="class-incremental", classes=4, model={},
        machine="this one", threads=1, settings={}, files={"learner.safetensors": file_digest(folder / "learner.safetensors")},
    )  # fmt: skip
    (folder / "certificate.json").write_text(signed(content))
    return folder


@pytest.fixture
def blind(monkeypatch):
    """Hold-out certificates are checked with predictors that give these answers now, and gave those after each task."""

    def check(folder, data, answers, before=None, learned=True, model=None):
        shutil.copy(folder / "learner.safetensors", folder.parent / f"after-{len(data)}.safetensors")

        class Told(holdout.BlindMethod):
            def learn(self, samples):
                return folder.parent if learned else None

            def predict(self, file, rows):
                own = (before or answers) if file == folder.parent else answers
                return {t: own[t] for t in rows}

        monkeypatch.setattr(holdout, "BlindMethod", Told)
        monkeypatch.setattr(holdout, "predicting_model", lambda *_: model or the_model(a_case()))
        return holdout.check_holdouts([folder], data, {}, folder.parent)

    return check


def test_hold_out_certificates(tmp_path, blind):
    data = a_case().data
    answers = {t: np.ones(len(y), np.int64) for t, (_, y) in data.items()}
    errors = [int((y != 1).sum()) for _, y in data.values()]
    folder = a_holdout(tmp_path / "honest", data, answers, memory=2001)
    verdict = blind(folder, data, answers)
    assert verdict.status == "valid", str(verdict)
    assert "withheld examples that certify: 52" in str(verdict)
    verdict = blind(folder, data, answers, learned=False)
    assert verdict.status == "cannot tell"
    assert "were not learned from was not checked" in verdict.unverified[0]
    assert any("were counted again" in sentence for sentence in verdict.checked)
    assert blind(folder, {1: data[2], 2: data[1]}, answers).status == "invalid"

    def fewer(records):
        records[1].update(errors=errors[1] - 1, errors_not_picked=errors[1] - 1)

    false = a_holdout(tmp_path / "false", data, answers, change=fewer)
    assert blind(false, data, answers).invalid == [
        "The counts of task 2 after task 2 are not those that the data gives."
    ]
    assert check_certificates([folder], data, the_model(a_case())).status == "cannot tell"


class SubtractsTheMedian(nn.Linear):
    def forward(self, x):
        return super().forward(x - x.median(0).values)


def test_a_hold_out_model_that_mixes_examples(tmp_path, blind):
    """Whatever its method answers."""
    data = a_case().data
    answers = {t: np.ones(len(y), np.int64) for t, (_, y) in data.items()}
    verdict = blind(a_holdout(tmp_path / "c", data, answers), data, answers, model=SubtractsTheMedian(25, 4))
    assert "Scores depend on the examples scored together" in verdict.invalid[0]


@pytest.mark.parametrize("tasks", [None, 2])
def test_hold_out_certificates_that_claim_everything(tmp_path, tasks, blind):
    case, draw = a_case(), np.random.default_rng(0)
    data = with_groups(case)
    before = {t: np.where(draw.random(26) < 0.2, 3 - y, y) for t, (_, y, _) in data.items()}
    answers = {t: np.where(draw.random(26) < 0.3, 3 - y, y) for t, (_, y, _) in data.items()}
    folder = a_holdout(tmp_path / "honest", data, answers, before, tasks=tasks, **ALL)
    verdict = blind(folder, data, answers, before)
    assert verdict.status == "valid", str(verdict)
    families = [claimed["family"] for claimed in verdict.statements]
    assert [families.count(family) for family in ALL["claim"]] == [2, 1, 3, 4, 4]
    assert any(claimed["subject"] == "net" for claimed in verdict.statements)
    assert blind(folder, data, answers, answers).status == "invalid"  # nothing would have been forgotten
    for other in OTHER_GROUPS.values():
        changed = {**data, 1: (*case.data[1], *other(groups_of(case, 1)))}
        assert blind(folder, changed, answers, before).status == "invalid"
    number = 0
    for t, record in enumerate(json.loads((folder / "certificate.json").read_text())["records"]):
        for i, part in enumerate(record["parts"]):
            for name in ("errors", "errors_not_picked", "selected", "compressed"):

                def change(records, t=t, i=i, name=name, value=part[name]):
                    records[t]["parts"][i][name] = value - 1 if value else 1

                number += 1
                false = a_holdout(
                    tmp_path / f"false {number}", data, answers, before, change, tasks=tasks, **ALL
                )
                assert blind(false, data, answers, before).status == "invalid", (t, part, name)


def test_a_certificate_of_cop2l_is_no_hold_out_certificate(honest, blind):
    folder, data, _ = honest
    save_file({"weight": torch.zeros(3)}, folder / "learner.safetensors")
    assert blind(folder, data, {}).invalid == ["This is not a hold-out certificate."]


# ---- who decides


def test_a_verdict_is_valid_only_if_completed_and_neither_doubted_nor_faulted():
    verdict = Verdict()
    assert verdict.status == "cannot tell"
    verdict._complete = True
    assert verdict.status == "valid"
    verdict.unverified.append("Who knows.")
    assert verdict.status == "cannot tell"
    verdict.invalid.append("No.")
    assert (verdict.status, verdict.exit_code) == ("invalid", 1)


def test_only_the_kernel_completes_a_verdict():
    """In one place; nowhere else in the package does the word occur, nor is a verdict's attribute set from a text."""
    package, places = Path(cop2l.__file__).parent, []
    for path in sorted(package.rglob("*.py")):
        with path.open("rb") as file:
            names = [
                t
                for t in tokenize.tokenize(file.readline)
                if "_complete" in t.string.split("#")[0].split(" ")
            ]
        places += [path.relative_to(package).as_posix() for _ in names]
    assert places == [
        "audit/verify.py",
        "kernel/checking.py",
        "kernel/verdict.py",
        "kernel/verdict.py",
    ]  # the first reads
    tree = ast.parse((package / "kernel" / "checking.py").read_text())
    setters = [
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        and any(isinstance(n, ast.Attribute) and n.attr == "_complete" for n in ast.walk(function))
    ]
    assert setters == ["complete_verdict"]
