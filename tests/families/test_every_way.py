"""All families at once: every preset, old data at hand or gone, fixed T and anytime, and every method's hold-out."""

import pytest
from family_runs import FAMILIES, GROUPS, arrays, configured, finished_run, write_data

import cop2l
from cop2l import CoP2L
from cop2l.certificates.certificate import read_certificate
from cop2l.console import Watcher
from cop2l.experiments.run import run as experiment
from cop2l.files import read_lines
from cop2l.methods import METHODS, method
from cop2l.models import build
from cop2l.streams import from_arrays

PRESETS = {
    "paper": {"preset": "paper", "epochs": 2, "lr": 0.1},
    "picking": {"preset": "picking", "epochs": 2, "lr": 0.1},
}
QUICK = {
    "cclis": {"head_epochs": 2, "dimensions": 4, "epochs": 2},
    "csrel": {"reference_epochs": 1, "selections": 2, "selection_steps": 2},
    "lamaml": {"epochs": 1, "inner": 2},
    "ranpac": {"random_features": 16},
}
FROZEN = ("ncm", "slda", "ranpac", "fecam", "ridge")
"""Options that make a method quick."""


def stream():
    x, y, groups = arrays()
    return from_arrays(x, y, x[:40], y[:40], groups=groups, tasks=2)


def learned(preset, tasks, claim=FAMILIES, **changes):
    learner = CoP2L(
        build("linear", inputs=(6,), classes=4, seed=0),
        memory=100,
        tasks=tasks,
        claim=claim,
        groups=GROUPS if "groups" in claim else [],
        **PRESETS[preset] | changes,
    )
    data = stream()
    for x, y, t in data:
        learner.learn(x, y, **({"groups": data.groups[t - 1]} if "groups" in claim else {}))
    return learner, {t: (x, y) for x, y, t in data}


def about(certificate):
    return [(s["family"], s["task"], s["subject"]) for s in certificate.statements]


def linear(_):
    return build("linear", inputs=(6,), classes=4, seed=0)


def checked(certificate, folder):
    """The verdict of an auditor who has all the data."""
    certificate.save(folder)
    data = stream()
    samples = {t: (x, y, data.groups[t - 1]) for x, y, t in data}
    return cop2l.verify(folder, samples, model=linear)


@pytest.mark.parametrize("tasks", [2, None])
@pytest.mark.parametrize("preset", PRESETS)
def test_all_families_with_all_the_data(preset, tasks, tmp_path):
    learner, data = learned(preset, tasks)
    certificate = learner.certify(data)
    assert {family for family, *_ in about(certificate)} == set(FAMILIES)
    assert ("average", None, None) in about(certificate)
    assert ("forgetting", 1, "lost") in about(certificate)
    assert all(("groups", t, name) in about(certificate) for t in (1, 2) for name in GROUPS)
    verdict = checked(certificate, tmp_path / "certificate")
    assert verdict.status == "valid", str(verdict)


@pytest.mark.parametrize("tasks", [2, None])
def test_from_the_memory_alone_every_family_still_speaks_of_the_old_task(tasks, tmp_path):
    learner, data = learned("picking", tasks)
    full = learner.certify(data)
    full_values = {key: s["value"] for key, s in zip(about(full), full.statements, strict=True)}
    again, _ = learned("picking", tasks)
    certificate = again.certify({2: data[2]})
    assert about(certificate) == [key for key in full_values if key in about(certificate)]
    assert {s["kind"] for s in certificate.statements if s["task"] == 1} == {"buffer"}
    assert {family for family, *_ in about(certificate)} == set(FAMILIES)
    verdict = checked(certificate, tmp_path / "certificate")
    assert verdict.status == "valid", str(verdict)
    assert any("was gone, not left out" in said for said in verdict.assumed)
    bound = next(s["value"] for s in certificate.statements if s["family"] == "tasks" and s["task"] == 1)
    assert bound >= full_values["tasks", 1, None]


def test_a_sampled_memory_says_nothing_of_a_task_whose_data_is_gone(tmp_path):
    learner, data = learned("paper", 2)
    certificate = learner.certify({2: data[2]})
    assert not any(task == 1 for _, task, _ in about(certificate))
    assert ("groups", 2, "north") in about(certificate)
    average = next(s["value"] for s in certificate.statements if s["family"] == "average")
    own = next(s["value"] for s in certificate.statements if (s["family"], s["task"]) == ("tasks", 2))
    sizes = [record["n"] for record in certificate.records]
    assert average >= (sizes[0] + sizes[1] * own) / sum(sizes)  # the first task enters with 1
    assert any("Of every group of task 2 at most" in line for line in str(certificate).splitlines())
    verdict = checked(certificate, tmp_path / "certificate")
    assert not verdict.invalid, str(verdict)


OTHER_METHODS = [name for name in METHODS if name != "cop2l"]


@pytest.mark.parametrize(("name", "anytime"), [(name, at % 2 > 0) for at, name in enumerate(OTHER_METHODS)])
def test_the_hold_out_of_every_method_carries_all_families(name, anytime, tmp_path):
    data = write_data(tmp_path / "mine.npz")
    declared = set(method(name).Options.__dataclass_fields__)
    options = {"epochs": 1, "batch": 16, "lr": 0.1} | QUICK.get(name, {})
    options = {key: value for key, value in options.items() if key in declared}
    kind = {"model": "linear"} if name in FROZEN else {"model": "mlp", "architecture": {"hidden": 8}}
    scenario = (
        "domain-incremental"
        if "class-incremental" in getattr(method(name), "refuses", ())
        else "class-incremental"
    )
    run = finished_run(
        tmp_path / "run",
        data,
        method=name,
        holdout=0.5,
        anytime=anytime,
        scenario=scenario,
        **options,
        **kind,
    )
    certificates = [read_certificate(folder) for folder in sorted((run / "certificates").iterdir())]
    assert len(certificates) == 1 + anytime
    for certificate in certificates:
        assert certificate.kind == "holdout"
        forgets = {"forgetting"} if len(certificate.records) > 1 else set()
        assert {family for family, *_ in about(certificate)} == {*FAMILIES} - {"forgetting"} | forgets
    verdict = cop2l.verify(run, data, split={"tasks": 2, "scenario": scenario})
    assert verdict.status == "valid", str(verdict)


class Stop(Watcher):
    """Interrupts a run after its first task."""

    def task(self, record):
        if record["task"] == 1:
            raise KeyboardInterrupt


def test_a_run_that_was_stopped_still_knows_what_was_wrong(tmp_path):
    data = write_data(tmp_path / "mine.npz")
    config = configured(data, method="replay", holdout=0.5, epochs=2, lr=0.1)
    with pytest.raises(KeyboardInterrupt):
        experiment(config, tmp_path / "stopped", [Stop()])
    assert len(read_lines(tmp_path / "stopped" / "records.jsonl")) == 1
    resumed = experiment(config, tmp_path / "stopped")
    whole = experiment(config, tmp_path / "whole")
    assert resumed["claims"] == whole["claims"]
    assert any(s["family"] == "forgetting" for s in whole["claims"])
    assert cop2l.verify(tmp_path / "stopped", data, split={"tasks": 2}).status == "valid"


def test_small_and_empty_groups_get_a_bound_of_one_with_the_reason(tmp_path):
    _, _, group = arrays()
    group[:] = "north"
    group[[1, 5]] = "south"
    data = write_data(tmp_path / "mine.npz", group=group)
    done = finished_run(tmp_path / "run", data, method="slda", holdout=0.5)
    certificate = read_certificate(done / "certificates" / "after-02")
    empty = [
        s for s in certificate.statements if (s["family"], s["task"], s["subject"]) == ("groups", 2, "south")
    ]
    assert [s["value"] for s in empty] == [1.0]
    assert (
        "Of group south in task 2 at most 100.00 % is misclassified (only 0 of its examples certify)."
        in str(certificate)
    )
