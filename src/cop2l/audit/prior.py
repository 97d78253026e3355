"""What the prior part of the first task is said to have given, found again: the scale of the inputs, and the step."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from cop2l.audit.cut import Samples
from cop2l.audit.model import Builder, model_for
from cop2l.certify.presets import PRIOR
from cop2l.certify.prior import SHARE, STEPS, prior_part, scale_from, step_from, steps_tried
from cop2l.experiments.environment import threads
from cop2l.kernel.form import HOLDOUT_FILES, canonical
from cop2l.kernel.learning import Examples, size_of
from cop2l.kernel.verdict import Verdict
from cop2l.kernel.verify import Allowed, Say, machine
from cop2l.methods import method

Content = Mapping[str, Any]
FAMILIES = ("claim", "shares", "groups")
"""What is claimed changes no bit of what is learned."""


def looked_at(certificate: Content, samples: Samples) -> Examples | None:
    """The examples that scale and step may depend on; None if the first task's data was not given."""
    if 1 not in samples.learned or (certificate["options"].kind == "holdout" and samples.stream is None):
        return None
    x, y, *_ = samples.learned[1]
    chosen = settings(certificate)
    return prior_part(x, y, chosen.get("prior", SHARE), certificate["options"].seed)


def settings(certificate: Content) -> dict[str, Any]:
    """The options of the method."""
    own = certificate["options"].as_dict() if certificate["settings"] is None else certificate["settings"]
    return {name: value for name, value in own.items() if name not in FAMILIES}


def put_scale(certificate: Content, samples: Samples, model: Any) -> None:
    """Give the model the scale that the prior part has, if it is said to have that: what is stored is not asked."""
    if certificate["model"].get("scale") != PRIOR or model is None:
        return
    part = looked_at(certificate, samples)
    found = scale_from(part) if part is not None else None
    if found is not None and len(found["shift"]) == model.scale.shift.numel():
        model.scale.put(**found)


def check_step(
    notes: Verdict,
    certificate: Content,
    samples: Samples,
    given: str | Builder | None,
    allowed: Allowed,
    say: Say,
) -> None:
    """Whether the steps that are said to have been tried give, tried again, what is stated."""
    stated, part = (certificate["data"] or {}).get("tried"), looked_at(certificate, samples)
    if stated is None or part is None:
        return
    chosen, name, holdout = (
        settings(certificate),
        certificate["method"],
        certificate["options"].kind == "holdout",
    )
    prefix = ("theta/" if name == "cop2l" else "model.") if holdout else ""
    file = certificate["folder"] / (HOLDOUT_FILES[0] if holdout else "theta_0.safetensors")
    seed = {} if "seed" in chosen else {"seed": certificate["options"].seed}

    def make(lr: float) -> Any:
        model: Any = model_for(certificate, given, file, prefix)
        put_scale(certificate, samples, model)
        return method(name)(model, scenario=certificate["scenario"], **(chosen | seed | {"lr": lr}))

    model = model_for(certificate, given, file, prefix)
    if model is None:
        return
    if (operations := work(model, chosen, len(part))) > allowed.operations:
        notes.doubt(
            f"The steps were not tried again: that takes {operations:.1e} operations, and {allowed.operations:.1e} are allowed."
        )
        return
    say("trying the steps again")
    head = certificate["records"][0]["head"]
    with threads(certificate["threads"]):
        tried = steps_tried(make, part, head, certificate["scenario"])
    found = step_from(tried, part)
    if canonical([list(one) for one in tried]) == canonical(stated) and found in (None, chosen["lr"]):
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
    """At most how many operations all trials take."""
    passes = sum(value for name, value in chosen.items() if type(value) is int and "epochs" in name)
    picks = rows / chosen["k"] if "k" in chosen else 1
    trained = float((rows + chosen.get("batch", 0)) * max(1, passes) * max(1, picks))
    return len(STEPS) * 12 * size_of(model) * trained
