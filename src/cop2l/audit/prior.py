"""What the prior part of the first task is said to have given, found again: the scale of the inputs, and the step."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from cop2l.audit.cut import Samples
from cop2l.audit.directory import Left
from cop2l.audit.model import Builder, dtype_of, model_for
from cop2l.certify.presets import PRIOR
from cop2l.certify.prior import SHARE, STEPS, prior_part, scale_from, step_from, steps_tried
from cop2l.experiments.environment import threads
from cop2l.kernel.exact import Examples, size_of
from cop2l.kernel.form import HOLDOUT_FILES, canonical, regular
from cop2l.kernel.verdict import Verdict
from cop2l.kernel.verify import Allowed, Say, machine
from cop2l.methods import method

Content = Mapping[str, Any]
MOST_CHANNELS = 4
"""The constants of so many channels are believed like options."""
FAMILIES = ("claim", "shares", "groups")
"""What is claimed changes no bit of what is learned."""


def looked_at(certificate: Content, samples: Samples) -> Examples | None:
    """The examples that scale and step may depend on; None if the first task's data was not given."""
    if 1 not in samples.learned or (certificate["options"].kind == "holdout" and samples.stream is None):
        return None
    x, y, *_ = samples.learned[1]
    if len(x) != len(y):  # whatever it is, it was not learned from
        return None
    chosen = settings(certificate)
    return prior_part(x, y, chosen.get("prior", SHARE), certificate["options"].seed)


def settings(certificate: Content) -> dict[str, Any]:
    """The options of the method."""
    own = certificate["options"].as_dict() if certificate["settings"] is None else certificate["settings"]
    return {name: value for name, value in own.items() if name not in FAMILIES}


def put_scale(certificate: Content, samples: Samples, model: Any) -> None:
    """Give the model the scale that the prior part has, if it is said to have that: what is stored is not asked."""
    found = _constants(samples, certificate) if certificate["model"].get("scale") == PRIOR else None
    if found is not None and model is not None and len(found["shift"]) == model.scale.shift.numel():
        model.scale.put(**found)


def check_scale(
    notes: Verdict, certificate: Content, samples: Samples, left: Left | None, own: bool, committed: bool
) -> None:
    """Whether the stored scale is the one that the prior part gives, if it is said to be: every machine finds the same.

    `own`: the auditor's function builds the model, and knows its constants. Many constants, like initial parameters that no seed
    gives, can hold a model that was fitted to the certified examples.
    """
    stated = certificate["model"].get("scale")
    if isinstance(stated, list) and not own and not committed:
        most = max((len(part) for part in stated if isinstance(part, list)), default=1)
        inputs = certificate["model"].get("inputs")
        pictures = isinstance(inputs, list) and len(inputs) == 3
        if most > (MOST_CHANNELS if pictures else 1):
            notes.doubt(
                f"The inputs are scaled by {most} shifts and factors, which may have been fitted to the data."
            )
        notes.word.append("The constants that scale the inputs were chosen before the data was seen.")
    if left is not None and left.scale and stated is None and _constants(samples, certificate) is not None:
        notes.fault(
            "The prior part of the first task gives a scale of the inputs, as configured, and the model has none."
        )
    if stated != PRIOR or (found := _constants(samples, certificate)) is None:
        return
    path, prefix = _stored(certificate)
    with regular(path), safe_open(path, framework="pt") as file:
        there = [name for name in file.keys() if name.startswith(f"{prefix}scale.")]  # noqa: SIM118
        stored = {
            name.rpartition(".")[2]: file.get_tensor(name).double().flatten().tolist() for name in there
        }
    kind = dtype_of(certificate) or torch.float32
    if stored != {
        name: torch.tensor(values, dtype=torch.float64).to(kind).tolist() for name, values in found.items()
    }:
        notes.fault("The scale of the inputs is not the one that the prior part of the first task gives.")
    else:
        notes.checked.append(
            "The scale of the inputs was found again: it is that of examples which certify nothing."
        )


def _constants(samples: Samples, certificate: Content) -> dict[str, list[float]] | None:
    part = looked_at(certificate, samples)
    return None if part is None else scale_from(part)


def _stored(certificate: Content) -> tuple[Path, str]:
    """The file that holds the model's tensors, and how their names begin there."""
    if certificate["options"].kind != "holdout":
        return certificate["folder"] / "theta_0.safetensors", ""
    prefix = "theta/" if certificate["method"] == "cop2l" else "model."
    return certificate["folder"] / HOLDOUT_FILES[0], prefix


def check_step(
    notes: Verdict,
    certificate: Content,
    samples: Samples,
    left: Left | None,
    given: str | Builder | None,
    allowed: Allowed,
    say: Say,
) -> None:
    """Whether the steps that are said to have been tried give, tried again, what is stated."""
    stated = (certificate["data"] or {}).get("tried")
    part = None if stated is None else looked_at(certificate, samples)
    model = None if part is None else model_for(certificate, given, *_stored(certificate))
    if part is None or model is None:
        return
    chosen, scenario = settings(certificate), certificate["scenario"]
    if "lr" not in chosen:
        notes.fault("The certificate says that steps were tried, and its method takes none.")
        return
    more = {} if "seed" in chosen else {"seed": certificate["options"].seed}

    def make(lr: float) -> Any:
        own: Any = model_for(certificate, given, *_stored(certificate))
        put_scale(certificate, samples, own)
        return method(certificate["method"])(own, scenario=scenario, **(chosen | more | {"lr": lr}))

    if (operations := work(model, chosen, len(part))) > allowed.operations:
        notes.doubt(
            f"The steps were not tried again: that takes {operations:.1e} operations, and {allowed.operations:.1e} are allowed."
        )
        return
    say("trying the steps again")
    with threads(certificate["threads"]):
        tried = steps_tried(make, part, certificate["records"][0]["head"], scenario)
    found = step_from(tried, part)
    wanted = found if found is not None or left is None else left.lr
    if canonical([list(one) for one in tried]) == canonical(stated) and wanted in (None, chosen["lr"]):
        if wanted is None:
            notes.word.append(f"The step lr={chosen['lr']:g}: those that were tried give none.")
        notes.checked.append(
            f"{len(tried)} steps were tried again on {len(part)} examples that certify nothing: the results are as stated"
            + (f", and give lr={found:g}." if found is not None else ".")
        )
        return
    wrong = f"The step lr={chosen['lr']:g} is not what the prior part of the first task gives, or was tried otherwise than stated"
    if (here := machine(model)) == certificate["machine"]:
        notes.fault(f"{wrong}.")
    else:
        notes.doubt(
            f"{wrong}; but it was made on another machine: {certificate['machine']}; this one is: {here}."
        )


def work(model: nn.Module, chosen: Content, rows: int) -> float:
    """At most how many operations all trials take: every pass may be over all rows, and a pick comes with its own."""
    updates = float(chosen.get("epochs", 1))
    if "k" in chosen:
        most = rows / chosen["k"]
        updates *= most if chosen["max_iterations"] is None else min(most, chosen["max_iterations"])
    others = sum(value for name, value in chosen.items() if type(value) is int and name.endswith("_epochs"))
    passes: float = (rows + chosen.get("batch", 0)) * (updates + others)
    return len(STEPS) * 12 * size_of(model) * passes
