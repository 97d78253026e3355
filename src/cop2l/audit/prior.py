"""What the prior part of the first task is said to have given, found again: the scale of the inputs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from cop2l.audit.cut import Samples
from cop2l.audit.model import dtype_of
from cop2l.certify.presets import PRIOR
from cop2l.certify.prior import SHARE, prior_part, scale_from
from cop2l.kernel.exact import Examples
from cop2l.kernel.form import HOLDOUT_FILES, regular
from cop2l.kernel.verdict import Verdict

Content = Mapping[str, Any]
MOST_CHANNELS = 4
"""The constants of so many channels are believed like options."""


def looked_at(certificate: Content, samples: Samples) -> Examples | None:
    """The examples that the scale may depend on; None if the first task's data was not given."""
    if 1 not in samples.learned or (certificate["options"].kind == "holdout" and samples.stream is None):
        return None
    x, y, *_ = samples.learned[1]
    if len(x) != len(y):  # whatever it is, it was not learned from
        return None
    chosen = certificate["options"].as_dict() if certificate["settings"] is None else certificate["settings"]
    return prior_part(x, y, chosen.get("prior", SHARE), certificate["options"].seed)


def put_scale(certificate: Content, samples: Samples, model: Any) -> None:
    """Give the model the scale that the prior part has, if it is said to have that: what is stored is not asked."""
    found = _constants(samples, certificate) if certificate["model"].get("scale") == PRIOR else None
    if found is not None and model is not None and len(found["shift"]) == model.scale.shift.numel():
        model.scale.put(**found)


def check_scale(
    notes: Verdict, certificate: Content, samples: Samples, left: bool, own: bool, committed: bool
) -> None:
    """Whether the stored scale is the one that the prior part gives, if it is said to be: every machine finds the same.

    `left`: the configuration of the run leaves the scale to the prior part. `own`: the auditor's function builds the model,
    and knows its constants. Many constants, like initial parameters that no seed gives, can hold a model that was fitted to the
    certified examples.
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
    if left and stated is None and _constants(samples, certificate) is not None:
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
