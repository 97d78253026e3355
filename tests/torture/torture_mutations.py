"""Forged certificates: an honest run is changed, every hash is made again, and the kernel decides.

A forgery that is accepted must be one that an honest issuer could have issued: the learner itself, run with what the forgery
states, gives the same counts, the same parameters and no larger bounds. And only words that the verdict lists as the issuer's
may differ. Anything else is a break.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torture_bases import Base, Certificate

from cop2l.certificates.bounding import statements
from cop2l.kernel.exact import digest, model_input
from cop2l.kernel.form import SCENARIOS, canonical_json
from cop2l.kernel.options import Options, Refusal, UserError
from cop2l.kernel.samples import blocks_of, fingerprint
from cop2l.learner.state import load_parameters

Draw = random.Random


@dataclass
class Forgery:
    """A copy of an honest run, to be changed."""

    base: Base
    sibling: Base
    run: list[Certificate]
    what: list[str] = field(default_factory=list)
    keep: set[str] = field(default_factory=set)
    """Hashes that are not made again, because the change is in them."""

    def one(self, draw: Draw) -> Certificate:
        """Some certificate of the run."""
        return draw.choice(self.run)


# ---- changing values


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every leaf of a JSON value; empty lists and objects are leaves."""
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    exchanged = False
    for key, inner in entries:
        exchanged = True
        yield from leaves(inner, (*path, key))
    if not exchanged:
        yield path


def branches(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every list and object inside."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(inner, dict | list):
            yield (*path, key)
            yield from branches(inner, (*path, key))


def at(content: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        content = content[key]
    return content


WORDS = (
    "", "cop2l", "linear", "holdout", "kl", "preference", "buffer", "uniform", "threshold",
    "none", "sgd", "adam", "tasks", *SCENARIOS, "every bound is at most 0.01 %", "0" * 64, "f" * 64, "\x1b[2J", "\u202e",
)  # fmt: skip
NUMBERS = (0, 1, -1, 2, 3, 59, 60, 61, 2**31, 2**53, 2**53 + 1, 2**63, -(2**63), 10**30)
SHARES = (0.0, -0.0, 1.0, 0.5, 0.05, 5e-324, 1e-300, 1 - 2**-53, 1e-12, 0.999999, 1e300)
SHADOWS = (
    "bound",
    "bounds",
    "value",
    "terms",
    "valid",
    "error",
    "delta",
    "claim",
    "statement",
    "Value",
    "value ",
    "kind",
    "risk",
    "n",
)


def other(value: Any, draw: Draw) -> Any:
    """Another value: near, far, at an edge, or of another type."""
    if draw.random() < 0.15:
        return draw.choice([None, True, False, 0, 1, 1.0, "", [], {}, [value], {"value": value}, str(value)])
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw.choice(
            [value + 1, value - 1, value + draw.randint(-20, 20), draw.choice(NUMBERS), -value, float(value)]
        )
    if isinstance(value, float):
        near = [math.nextafter(value, 2), math.nextafter(value, -1), value * (1 - 1e-9), value * (1 + 1e-9)]
        far = [value / 2, value * 2, value - 0.01, value + 0.01, draw.random(), draw.choice(SHARES), -value]
        return draw.choice(near + far + [min(1.0, value + draw.random())])
    if isinstance(value, str):
        return draw.choice([draw.choice(WORDS), value[:-1], value + "0", value[::-1], value.upper()])
    return draw.choice([None, 0, 1, 0.5, "0" * 64, [], {}, "text"])


def set_leaf(content: Any, path: tuple[Any, ...], draw: Draw) -> None:
    at(content, path[:-1])[path[-1]] = other(at(content, path), draw)


# ---- kinds of forgery; each changes a forgery and says what it is by its name


def a_field(f: Forgery, draw: Draw) -> None:
    content = f.one(draw).content
    path = draw.choice([p for p in leaves(content) if p[0] not in ("digest", "files")])
    set_leaf(content, path, draw)
    f.keep |= {str(path[0])} & {"theta", "theta_0", "sets"}


def the_same_field_everywhere(f: Forgery, draw: Draw) -> None:
    path = draw.choice(
        [p for p in leaves(f.run[0].content) if p[0] not in ("digest", "files", "theta", "theta_0", "sets")]
    )
    value = other(at(f.run[0].content, path), draw)
    for one in f.run:
        with suppress(LookupError):
            at(one.content, path[:-1])[path[-1]] = deepcopy(value)


def a_field_removed(f: Forgery, draw: Draw) -> None:
    content = f.one(draw).content
    path = draw.choice([p for p in [*leaves(content), *branches(content)] if p])
    del at(content, path[:-1])[path[-1]]


def a_field_added(f: Forgery, draw: Draw) -> None:
    content = f.one(draw).content
    place = at(content, draw.choice([(), *branches(content)]))
    value = draw.choice([0, 0.0001, 1e-9, "at most 0.01 %", {"value": 0.0001}, [0.0001], True, None])
    if isinstance(place, dict):
        place[draw.choice(SHADOWS)] = value
    else:
        place.insert(draw.randint(0, len(place)), value)


def an_entry_twice(f: Forgery, draw: Draw) -> None:
    content = f.one(draw).content
    lists = [p for p in branches(content) if isinstance(at(content, p), list) and at(content, p)]
    place = at(content, draw.choice(lists))
    place.insert(draw.randint(0, len(place)), deepcopy(draw.choice(place)))


def records_and_statements_swapped(f: Forgery, draw: Draw) -> None:
    content, name = f.run[-1].content, draw.choice(["records", "statements"])
    first, second = content[name][0], content[name][1]
    keys = draw.choice([list(first), [draw.choice(list(first))], [key for key in first if key != "task"]])
    for key in keys:
        first[key], second[key] = second[key], first[key]


def parts_of_another_certificate(f: Forgery, draw: Draw) -> None:
    """Of another time of the run, of its sibling, or of any other honest run that looks alike."""
    target, source = f.one(draw), deepcopy(draw.choice([*f.base.run, *f.sibling.run]))
    for name in draw.sample(
        [
            "records",
            "statements",
            "options",
            "sets",
            "theta",
            "theta_0",
            "model",
            "data",
            "one record",
            "not_valid",
        ],
        2,
    ):
        if name in target.tensors:
            target.tensors[name] = source.tensors[name]
        elif name == "one record":
            number = draw.randrange(min(len(target.content["records"]), len(source.content["records"])))
            target.content["records"][number] = source.content["records"][number]
        else:
            target.content[name] = source.content[name]


def tensors_of_another_name(f: Forgery, draw: Draw) -> None:
    tensors = f.one(draw).tensors
    first, second = draw.sample(["theta", "theta_0"], 2)
    if draw.random() < 0.5:
        tensors[first] = tensors[second]
    else:
        tensors[first], tensors[second] = tensors[second], tensors[first]


def sets_edited(f: Forgery, draw: Draw) -> None:
    """Rows added, dropped or exchanged, in one set or in all that must agree; counts follow."""
    mine = f.one(draw)
    sets, task = mine.tensors["sets"], draw.randint(1, len(mine.content["records"]))
    names = draw.choice(
        [
            ["compression"],
            ["picked"],
            ["own_picks"],
            ["evicted"],
            ["compression", "own_picks", "picked"],
            ["compression", "picked"],
        ]
    )
    row, edit = draw.randrange(60), draw.choice(["add", "drop", "exchange", "empty", "order"])
    for name in names:
        rows = sets[f"{task}/{name}"].numpy()
        kept = rows if edit in ("add", "order") or not len(rows) else np.delete(rows, row % len(rows))
        new = {"empty": rows[:0], "order": rows[::-1].copy()}.get(edit, kept)
        new = np.union1d(kept, [row]) if edit in ("add", "exchange") else new
        sets[f"{task}/{name}"] = torch.from_numpy(new.astype(np.int64))


def messages_edited(f: Forgery, draw: Draw) -> None:
    record = draw.choice(f.one(draw).content["records"])
    for name in draw.choice([["iterations"], ["stopped"], ["iterations", "stopped"]]):
        value = max(0, record[name] + draw.choice([-2, -1, 1, 2, 10**6]))
        for one in counted(record) if draw.random() < 0.8 else [draw.choice(counted(record))]:
            one[name] = value


def counted(record: dict[str, Any]) -> list[dict[str, Any]]:
    """All that has counts: a record, and each of its parts."""
    return [record, *record["parts"]]


def the_parts_of_a_record(f: Forgery, draw: Draw) -> None:
    """A part dropped, doubled, named otherwise, joined with another, or given what another has."""
    parts = draw.choice([record["parts"] for record in f.one(draw).content["records"]])
    if not parts:
        parts += deepcopy(draw.choice([one.content["records"][0]["parts"] for one in f.sibling.run]))
    one, two = draw.choice(parts), draw.choice(parts)
    edit = draw.choice(["drop", "double", "name", "family", "join", "give", "order", "swap"])
    names = [name for name in COUNTS if name != "iterations"] + ["n"]
    if edit in ("drop", "join"):
        parts.remove(one)
    if edit == "double":
        parts.insert(draw.randint(0, len(parts)), deepcopy(one))
    elif edit in ("name", "family"):
        key = "subject" if edit == "name" else "family"
        one[key] = draw.choice(
            [two[key], 0, 1, 2, 3, "north", "south", "lost", "gained", "net", "tasks", "average"]
        )
    elif edit in ("join", "give") and one is not two:
        for name in names if edit == "join" else [draw.choice(names)]:
            if None not in (one[name], two[name]):
                moved = one[name] if edit == "join" else draw.randint(0, one[name])
                one[name], two[name] = one[name] - moved, two[name] + moved
    elif edit == "order":
        draw.shuffle(parts)
    elif edit == "swap":
        one["subject"], two["subject"] = two["subject"], one["subject"]


COUNTS = (
    "errors",
    "errors_not_picked",
    "picked",
    "compression",
    "evicted",
    "selected",
    "compressed",
    "iterations",
)


def fewer_errors(f: Forgery, draw: Draw) -> None:
    """Counts lowered, so that the bounds that follow are smaller."""
    record = draw.choice(counted(draw.choice(f.one(draw).content["records"])))
    for name in draw.sample(COUNTS, draw.randint(1, len(COUNTS))):
        if record[name]:
            record[name] = draw.randrange(record[name])


def more_examples(f: Forgery, draw: Draw) -> None:
    """More rows, so that the bounds that follow are smaller."""
    task_record, number = draw.choice(f.one(draw).content["records"]), draw.choice([1, 2, 60, 10**4])
    record = draw.choice(counted(task_record))
    record["n"] += number
    if draw.random() < 0.7:
        task_record["rows"] += number


def the_data_is_gone(f: Forgery, draw: Draw) -> None:
    """The kind of a task's bound is chosen afterwards: its data is said to be gone, or to be there."""
    content = f.run[-1].content
    record = draw.choice(content["records"])
    data_gone = record["errors"] is not None
    for one in counted(record):
        one["errors"], one["errors_not_picked"] = (
            (None, None) if data_gone else (draw.randrange(5), draw.randrange(5))
        )
    for statement in content["statements"]:
        if statement["task"] == record["task"]:
            statement["kind"] = "buffer" if data_gone else content["options"]["kind"]


OPTIONS: dict[str, tuple[Any, ...]] = {
    "memory": (2, 6, 29, 31, 60, 10**9), "k": (1, 2, 4, 60, 10**9), "omega": (1.0, 14.0, 16.0, 1e12),
    "gamma": (0.5, 0.7, 1e-12, 1e12),
    "epochs": (1, 2, 4, 10**6), "batch": (1, 15, 17, 64, 2**16), "lr": (0.049, 0.051, 1e-12, 1.0), "optimiser": ("sgd", "adam"),
    "buffer": ("uniform", "threshold"), "stop": ("kl", "preference", "none"), "grid": (True, False),
    "max_iterations": (0, 1, 3, 5, 10**9, None), "delta": (0.5, 0.1, 0.051, 0.049, 0.01, 1e-300, 0.999999),
    "seed": (0, 1, 2, 3, 4, -1, 2**63 - 1), "kind": ("kl", "preference", "buffer", "holdout"),
    "claim": (["tasks"], [], ["tasks", "tasks"], ["stream"], ["classes"], ["tasks", "average"], ["forgetting", "tasks"]),
    "shares": ([], [1], [9, 1], [1, 1, 1, 1, 1], [96, 1, 1, 1, 1], [0, 1], [1.0]), "groups": ([], ["north"], ["south", "north"], ["a", "a"]),
    "tasks": (None, 1, 2, 3, 10**6),
}  # fmt: skip


def an_option(f: Forgery, draw: Draw) -> None:
    """One option, in all certificates of the run or in one; the kind of the statements follows."""
    name = draw.choice(list(OPTIONS))
    value = draw.choice(OPTIONS[name])
    f.what[-1] = f"the option {name}"
    for certificate in f.run if draw.random() < 0.8 else [f.one(draw)]:
        certificate.content["options"][name] = deepcopy(value)
        if name == "kind":
            for statement in certificate.content["statements"]:
                statement["kind"] = value


def heads_and_classes(f: Forgery, draw: Draw) -> None:
    """Other classes at first, or other ones declared: what the model has then, and when, is another."""
    classes, task = f.run[0].content["classes"], draw.randint(1, 2)
    wide = 1 + max(label for record in f.run[-1].content["records"] for label in record["head"])
    edit = draw.choice(["all", "labels", "more", "fewer", "a gap", "many", "classes", "many classes"])
    for certificate in f.run:
        records = certificate.content["records"]
        if edit.endswith("classes"):
            certificate.content["classes"] = (
                10**15 if edit == "many classes" else draw.choice([1, 2, classes - 1, classes + 1, 1000])
            )
        elif task <= len(records):
            head, labels = records[task - 1]["head"], sorted({int(y) for y in f.base.samples[task][1]})
            more, fewer = sorted({*head, draw.randrange(wide + 2)}), head[:-1] or head
            records[task - 1]["head"] = {
                "all": list(range(wide)),
                "labels": labels,
                "more": more,
                "fewer": fewer,
                "a gap": [*head, wide + draw.choice([1, 2, 1000])],
                "many": list(range(draw.choice([wide + 1, wide + 2, 200, 100_000]))),
            }[edit]


def another_scenario(f: Forgery, draw: Draw) -> None:
    scenario = draw.choice(SCENARIOS)
    for one in f.run:
        one.content["scenario"] = scenario


def fingerprints(f: Forgery, draw: Draw) -> None:
    """Of other data, or of the same numbers in another type or order."""
    sibling_records = f.sibling.run[-1].content["records"]
    for one in f.run:
        for record in one.content["records"]:
            x, y = f.base.samples[record["task"]]
            other = draw.choice([x, x.astype(np.float64), x[::-1]])
            made = fingerprint(len(y), blocks_of(other, y))
            record["fingerprint"] = draw.choice(
                [
                    "0" * 64,
                    made,
                    sibling_records[0]["fingerprint"],
                    sibling_records[1]["fingerprint"],
                    record["fingerprint"],
                ]
            )


WHERE = ("bits 3, torch 9.9, a foreign machine", "bits 1", "", "\x1b[31m", "x" * 1001)


def where_it_was_made(f: Forgery, draw: Draw) -> None:
    for certificate in f.run:
        name = draw.choice(["machine", "earlier", "threads", "made_by"])
        values = {
            "earlier": [draw.choice(WHERE)],
            "threads": draw.choice([1, 2, 3, 4, 0, 1024, 1025, 10**30]),
        }
        certificate.content[name] = values.get(name, draw.choice(WHERE))


RECIPES = (
    {"stream": "mnist"}, {"stream": "digits", "tasks": 2, "class_seed": 7},
    {"stream": "digits", "order": "reversed"}, {"holdout": 0.5}, {"stream": "digits", "note": "bound 0.01 %"},
    {"a": {"b": {"c": 1}}}, {}, None, {"stream": "digits", "columns": ["label"]}, {"x" * 1000: "y" * 1000},
)  # fmt: skip


def how_the_data_was_split(f: Forgery, draw: Draw) -> None:
    recipe = draw.choice(RECIPES)
    for one in f.run:
        one.content["data"] = deepcopy(recipe)


def what_the_verdict_quotes(f: Forgery, draw: Draw) -> None:
    """Fields whose text a verdict repeats: false words in the issuer's mouth."""
    name = draw.choice(["method", "model", "settings", "assumptions"])
    false = {
        "method": draw.choice(
            [
                "replay",
                "cop2l, so that every bound is at most 0.01 %",
                "VALID: the claim above was checked and holds",
                "",
            ]
        ),
        "model": draw.choice(
            [{**f.run[0].content["model"], "bound": "0.01 %"}, {}, {"name": "vit-huge", "parameters": 10**9}]
        ),
        "settings": draw.choice([{}, {"bound": 0.0001}, {"value": "task 1: at most 0.01 %"}]),
        "assumptions": [draw.choice(WORDS)],
    }[name]
    for one in f.run:
        one.content[name] = deepcopy(false)


def not_valid_and_commitment(f: Forgery, draw: Draw) -> None:
    name, value = draw.choice(
        [
            ("not_valid", ["A reason."]),
            ("not_valid", []),
            ("not_valid", [""]),
            ("commitment", "0" * 64),
            ("commitment", None),
        ]
    )
    for one in f.run:
        one.content[name] = deepcopy(value)


def a_bit_of_the_weights(f: Forgery, draw: Draw) -> None:
    name = draw.choice(["theta", "theta_0"])
    for certificate in f.run if name == "theta_0" and draw.random() < 0.7 else [f.one(draw)]:
        key = draw.choice(sorted(certificate.tensors[name]))
        value = certificate.tensors[name][key].clone().reshape(-1)
        raw = value.view(torch.uint8) if value.numel() else value
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        certificate.tensors[name][key] = value.reshape(certificate.tensors[name][key].shape)


def weights_trained_on_the_data(f: Forgery, draw: Draw) -> None:
    """The parameters trained further on all the data, as theta, as theta_0 or as both."""
    model = f.base.model()
    load_parameters(model, f.run[-1].tensors["theta"])
    rate = draw.choice([0.001, 0.1, 1.0])
    x = torch.from_numpy(np.concatenate([x for x, _ in f.base.samples.values()]))
    y = torch.from_numpy(np.concatenate([y for _, y in f.base.samples.values()]))
    for _ in range(draw.choice([1, 20])):
        gradients = torch.autograd.grad(
            cross_entropy(model(model_input(model, x)), y),
            list(model.parameters()),
            materialize_grads=True,
        )
        with torch.no_grad():
            for p, g in zip(model.parameters(), gradients, strict=True):
                p -= rate * g
    trained = {key: value.detach().clone() for key, value in model.state_dict().items()}
    for name in draw.choice([["theta"], ["theta_0"], ["theta", "theta_0"]]):
        for one in f.run:
            one.tensors[name] = dict(trained)


def tensors_of_another_form(f: Forgery, draw: Draw) -> None:
    tensors = draw.choice(list(f.one(draw).tensors.values()))
    key, edit = (
        draw.choice(sorted(tensors)),
        draw.choice(["double", "shape", "name", "missing", "extra", "int32"]),
    )
    value = tensors[key]
    if edit in ("double", "int32"):
        tensors[key] = value.double() if edit == "double" else value.to(torch.int32)
    elif edit == "shape":
        tensors[key] = value.reshape(1, *value.shape)
    elif edit == "extra":
        tensors["extra"] = value.clone()
    else:
        del tensors[key]
        if edit == "name":
            tensors[f"{key} "] = value


def stated_bounds(f: Forgery, draw: Draw) -> None:
    statement = draw.choice(f.one(draw).content["statements"])
    statement["value"] = draw.choice([
        statement["value"] * draw.random(), statement["value"] * (1 - 10.0 ** -draw.randint(1, 16)), 0.0, 5e-324,
        min(1.0, statement["value"] * (1 + 10.0 ** -draw.randint(1, 16))), 1.0, math.nextafter(statement["value"], 0),
    ])  # fmt: skip


def hashes(f: Forgery, draw: Draw) -> None:
    name = draw.choice(["theta", "theta_0", "sets", "digest", "files"])
    f.keep.add(name)
    content = f.one(draw).content
    if name == "files":
        content["files"][draw.choice(list(content["files"]))] = draw.choice(["0" * 64, None, 0, ["0" * 64]])
    else:
        content[name] = draw.choice(["0" * 64, content[name][::-1], content["theta_0"], content["theta"]])


KINDS: tuple[Callable[[Forgery, Draw], None], ...] = (
    a_field, a_field, a_field, the_same_field_everywhere, a_field_removed, a_field_added, an_entry_twice, records_and_statements_swapped,
    parts_of_another_certificate, tensors_of_another_name, sets_edited, messages_edited, the_parts_of_a_record, fewer_errors, more_examples, the_data_is_gone,
    an_option, an_option, an_option, heads_and_classes, another_scenario, fingerprints, where_it_was_made, how_the_data_was_split,
    what_the_verdict_quotes, not_valid_and_commitment, a_bit_of_the_weights, weights_trained_on_the_data, tensors_of_another_form,
    stated_bounds, hashes,
)  # fmt: skip


def mend(f: Forgery) -> None:
    """Make counts agree with the sets, and every bound follow from the counts, where they can."""
    for certificate in f.run:
        content = certificate.content
        with suppress(
            Refusal,
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
            OverflowError,
            ArithmeticError,
            AssertionError,
            StopIteration,
        ):
            for record in content["records"]:
                sets = {
                    name: certificate.tensors["sets"][f"{record['task']}/{name}"]
                    for name in ("compression", "evicted", "picked")
                }
                if not {"fewer errors", "a field"} & set(f.what):
                    record |= {
                        "compression": len(sets["compression"]),
                        "evicted": len(sets["evicted"]),
                        "picked": len(sets["picked"]),
                    }
            if max(record["rows"] for record in content["records"]) < 10**5:
                content["statements"] = statements(Options(**content["options"]), content["records"])


# ---- what an accepted forgery may differ in


SAME = {
    "made_by": "the name of the program is no part of the claim",
    "machine": "where it was made is no part of the claim: the bits came out the same here",
    "earlier": "where it was made is no part of the claim: the bits came out the same here",
    "threads": "where it was made is no part of the claim: the bits came out the same here",
}
WORD = {
    "options": "an honest run with these options gives the same counts, parameters and bounds; "
    "that they were chosen in advance is listed as the issuer's word",
    "gone": "an honest issuer whose data was gone states the same; that it was gone is listed as the issuer's word",
    "commitment": "whether the commitment was handed over before is the auditor's to say, and the verdict says so",
    "data": "the recipe of the split is quoted as stated; the data itself was checked (the command line compares the recipe)",
    "model": "the description is quoted as stated; the model was the auditor's (the command line builds it from the description)",
    "head": "the classes of a task that is not task-incremental change nothing, and an honest run with these classes gives the same",
    "scenario": "class- and domain-incremental are learned and counted alike, and an honest run gives the same",
}
CHOSEN = "chosen before the data was seen"


def changed(left: Any, right: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where two JSON values differ."""
    if isinstance(left, dict) and isinstance(right, dict):
        return [p for key in {*left, *right} for p in changed(left.get(key), right.get(key), (*path, key))]
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return [p for i, pair in enumerate(zip(left, right, strict=True)) for p in changed(*pair, (*path, i))]
    return [] if canonical_json(left) == canonical_json(right) else [path]


def reasons(f: Forgery, verdict: Any) -> list[str]:
    """Why an accepted forgery is harmless; a sentence that begins with BROKEN says why it is not."""
    explanations = []
    for mine, original in zip(f.run, f.base.run, strict=True):
        content = mine.content
        truth = f.base.truth(content)
        if truth is None:
            return ["BROKEN: no honest issuer can issue anything with these options"]
        for name in ("records", "theta", "theta_0", "sets"):
            if canonical_json(truth[name]) != canonical_json(content[name]):
                return [f"BROKEN: {name} is not what an honest issuer states"]
        for mine_of_task, true in zip(content["statements"], truth["statements"], strict=True):
            if {**mine_of_task, "value": 0} != {**true, "value": 0}:
                return ["BROKEN: statements of another kind than an honest issuer's"]
            if mine_of_task["value"] < true["value"] * (1 - 1e-9):
                return [f"BROKEN: a smaller bound, {mine_of_task['value']} instead of {true['value']}"]
        for path in changed(original.content, content):
            name = "head" if "head" in path else str(path[0])
            if name in ("digest", "files"):
                continue  # hashes of what else was changed
            if name == "statements" and path[-1] == "value":
                low = (
                    content["statements"][path[1]]["value"] < original.content["statements"][path[1]]["value"]
                )
                explanations.append("the bound is larger: it states less" if not low else
                             "the bound is smaller by less than 1e-9 of it: the float before was rounded outwards"
                             if same_options(content, original.content) else WORD["options"])  # fmt: skip
            elif name in ("records", "statements") and (gone(content) != gone(original.content)):
                if not all(
                    any(f"{task}" in word and "was gone" in word for word in verdict.assumed)
                    for task in gone(content)
                ):
                    return [
                        "BROKEN: a task's data is said to be gone, and the verdict does not list it as the issuer's word"
                    ]
                explanations.append(WORD["gone"])
            elif name in ("records", "statements", "theta", "sets") and not same_options(
                content, original.content
            ):
                explanations.append(WORD["options"])
            elif name in SAME or name in WORD:
                explanations.append((SAME | WORD)[name])
            else:
                return [f"BROKEN: {'.'.join(map(str, path))} was changed"]
        if not same_options(content, original.content) and not any(
            CHOSEN in sentence for sentence in verdict.assumed
        ):
            return ["BROKEN: options were changed, and the verdict does not list them as the issuer's word"]
    return explanations or ["nothing that is stated differs: only the bytes of files, and so their hashes"]


def same_options(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return canonical_json(left["options"]) == canonical_json(right["options"])


def gone(content: dict[str, Any]) -> list[int]:
    """The tasks whose data is said to have been gone."""
    return [record["task"] for record in content["records"] if record["errors"] is None]


# ---- one forgery


def forged(number: int, seed: int, bases: dict[str, Base]) -> tuple[Forgery, bool]:
    """The forgery of a number, and whether the auditor has the data and the model."""
    attempt = 0
    while True:  # until something was changed
        f, with_data = attempted(Draw(f"{seed} {number} {attempt}"), number, bases)
        attempt += 1
        if f.keep or any(different(one, two) for one, two in zip(f.run, f.base.run, strict=True)):
            return f, with_data


def different(left: Certificate, right: Certificate) -> bool:
    """Whether the text or a tensor differs."""
    if canonical_json(left.content) != canonical_json(right.content) or {*left.tensors} != {*right.tensors}:
        return True
    return any(digest(left.tensors[name]) != digest(right.tensors[name]) for name in left.tensors)


def attempted(draw: Draw, number: int, bases: dict[str, Base]) -> tuple[Forgery, bool]:
    """One or two changes to an honest run, with the bounds mended or not."""
    names = [name for name in bases if not name.endswith("(sibling)")]
    base = bases[names[number % len(names)]]
    f = Forgery(base, bases[f"{base.name} (sibling)"], deepcopy(base.run))
    for kind in draw.sample(KINDS, 1 if draw.random() < 0.6 else 2):
        f.what.append(kind.__name__.replace("_", " "))
        with suppress(
            LookupError, TypeError, AttributeError, ValueError, RuntimeError
        ):  # a second change may meet what the first left
            kind(f, draw)
    if draw.random() < 0.6:
        mend(f)
    return f, draw.random() < 0.9


@dataclass
class Tally:
    """What came of some forgeries."""

    results: Counter[tuple[str, str]] = field(default_factory=Counter)
    accepted: Counter[tuple[str, str]] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def add(self, number: int, seed: int, bases: dict[str, Base], folder: Path) -> None:
        """Make a forgery, have it judged, and judge the judgement."""
        f, with_data = forged(number, seed, bases)
        label = f.what[0] if len(f.what) == 1 else "two of these"
        try:
            folders = [one.write(folder / str(i), frozenset(f.keep)) for i, one in enumerate(f.run)]
        except (ValueError, RuntimeError, TypeError):  # what cannot be written attacks nobody
            self.results[label, "cannot be written"] += 1
            return
        where = f"forgery {number} of seed {seed} ({f.base.name}; {' and '.join(f.what)})"
        try:
            verdict = f.base.audit(folders, with_data)
            status = verdict.status
        except UserError as refusal:
            status = "refused unread"
            if not isinstance(
                refusal.__cause__, RuntimeError | ValueError | None
            ):  # of torch, of too much, or of nothing
                self.broken.append(f"{where}: a crash inside: {refusal}")
        except Exception as error:  # whatever it is, it is to be reported
            status = "crash"
            self.broken.append(f"{where}: {type(error).__name__}: {str(error)[:200]}")
        if status == "valid":
            try:
                why = reasons(f, verdict) if with_data else ["BROKEN: valid without the data"]
            except Exception as error:  # nothing is harmless that cannot be judged
                why = [f"BROKEN: the judge fails ({type(error).__name__}: {str(error)[:100]})"]
            self.accepted.update((label, reason) for reason in set(why))
            self.broken += [f"{where}: {reason}" for reason in why if reason.startswith("BROKEN")]
        self.results[label, status] += 1
