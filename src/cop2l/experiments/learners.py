"""The stream, the model and the method of a configuration."""

import re
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from cop2l import features, methods, models
from cop2l.errors import UserError
from cop2l.experiments import options
from cop2l.experiments.config import Config
from cop2l.experiments.options import CERTIFIES_ITSELF
from cop2l.holdout.holdout import Holdout
from cop2l.kernel.exact import sample
from cop2l.kernel.options import Options as KernelOptions
from cop2l.kernel.scale import FITTED, MIN_ROWS, fit_scale
from cop2l.learner.inputs import inputs, labels
from cop2l.methods.base import Method
from cop2l.streams.preparing import Preparing
from cop2l.streams.task import Stream
from cop2l.text import Names, short_name


def load_stream(config: Config) -> Stream:
    return features.load_stream(
        config.stream,
        scenario=config.scenario,
        tasks=config.tasks,
        class_seed=config.class_seed,
        order=config.order,
        order_seed=config.order_seed,
        images=config.images,
        folder=config.folder,
        seed=config.stream_seed,
        preparing=preparing(config),
        **config.data,
    )


def preparing(config: Config) -> Preparing | None:
    """The rows of the first task that do not certify, and may prepare inputs; None if all certify."""
    if config.method != CERTIFIES_ITSELF:
        return Preparing(config.seed, config.holdout, drawn=False)
    return Preparing(config.seed, config.prepare, drawn=True) if config.prepare else None


def check_stream(config: Config, stream: Stream) -> None:
    """Refuse a task without test examples, and a claim of groups if the data has none, or others."""
    if empty := [task.t for task in stream.test if not len(task.y)]:
        raise UserError(
            f"Task {empty[0]} of {stream.name} has no test example; add some to the test part, or raise test_share."
        )
    if not config.groups:
        return
    if not stream.groups:
        raise UserError(
            f"Groups are claimed, but {config.stream} names none; add an array group, or name the column with group=."
        )
    names = {str(name) for part in stream.groups for name in np.unique(part)}
    if undeclared := sorted(names - set(config.groups)):
        raise UserError(
            f"{config.stream} has the group {undeclared[0]!r}, which is not declared; add it to groups={','.join(config.groups)}."
        )


def new_learner(
    config: Config, stream: Stream, commitment: str | None = None, say: Callable[[str], None] = lambda _: None
) -> Any:
    """The method of a configuration with its model, before the first task; `commitment` is the hash that certificates name."""
    if config.model is None:
        raise UserError("The configuration names no model; add model=, see: cop2l list models.")
    options.check(config)
    model, arguments = new_model(config, stream, say), dict(config.options)
    certified: dict[str, Any] = {
        "tasks": None if config.anytime else len(stream),
        "not_valid": stream.not_valid,
        "repeats": config.repeats,
        "data": recipe(config, stream.scenario, len(stream)) | names_of(stream),
        "commitment": commitment,
        **options.claims(config),
    }
    if config.method == CERTIFIES_ITSELF:
        arguments |= certified | ({"kind": config.kind} if config.kind else {})
    learner: Any = methods.method(config.method)(
        model, memory=config.memory, seed=config.seed, scenario=stream.scenario, **arguments
    )
    if config.method == CERTIFIES_ITSELF or not config.holdout:
        return learner
    return Holdout(learner, holdout=config.holdout, scale=False, **certified)  # new_model has set the scale


def new_model(config: Config, stream: Stream, say: Callable[[str], None]) -> Any:
    """The model of a configuration, with the weights of its seed and the scale of its inputs."""
    assert config.model is not None
    for name in ("inputs", "classes", "seed", "scale"):
        if name in config.architecture:
            instead = f", or set {name}=" if name in ("seed", "scale") else ""
            raise UserError(
                f"The run itself sets {name} of its model; leave architecture.{name} out{instead}."
            )
    scale = run_scale(config, stream, say)
    model: Any = models.build(
        config.model,
        inputs=tuple(stream[0].x.shape[1:]),
        classes=stream.classes,
        seed=config.seed,
        scale=FITTED if scale is not None else [*config.scale] if config.scale[1:] else None,
        **config.architecture,
    )
    if scale is not None:
        model.scale.set_constants(**scale)
    return model.to(device(config))


def run_scale(config: Config, stream: Stream, say: Callable[[str], None]) -> dict[str, list[float]] | None:
    """The scale of the inputs, fitted to rows that do not certify; None if the configuration does not ask for it."""
    if FITTED not in config.scale:
        return None
    rows = preparing(config)
    assert rows is not None  # `options.check` refused it
    x, y, t = stream[0]
    part = sample(inputs(x), labels(y), t, config.seed).take(np.flatnonzero(rows.rows(len(y))))
    scale = fit_scale(part, config.seed)
    if scale is None:
        say(
            f"The inputs stay as they are: the first task has {len(part)} examples to scale them by, and {MIN_ROWS} are needed;"
            " scale them by constants."
        )
    return scale


def claimed_kind(learner: Method) -> str | None:
    """The kind of bound that a learner claims; None if it certifies nothing."""
    return str(learner.options.kind) if hasattr(learner, "certify") else None


def recipe(config: Config, scenario: str, tasks: int) -> dict[str, Any]:
    """How the samples of the tasks are made from the data: what a verifier needs beside the data."""
    fields = {
        "stream": config.stream,
        "scenario": scenario,
        "tasks": tasks,
        "class_seed": config.class_seed,
        "order": config.order,
        "order_seed": config.order_seed,
        "images": config.images if config.images != "shared" else None,
        "seed": config.stream_seed or None,
        "prepare": config.prepare or None,
        **config.data,
    }
    return {key: value for key, value in fields.items() if value is not None}


def names_of(stream: Stream) -> dict[str, Any]:
    """The names of the tasks, the classes and the columns, which a certificate has beside the recipe."""
    columns = stream.description.get("inputs", {}).get("columns", ())
    inputs = {"inputs": [short_name(column["name"]) for column in columns]} if columns else {}
    return Names.from_description(stream.description).as_dict() | inputs


def settings_of(learner: Any) -> dict[str, Any]:
    """All options of a method, for JSON."""
    method = learner.learner if isinstance(learner, Holdout) else learner
    if isinstance(method.options, KernelOptions):
        return method.options.as_dict()
    return {"memory": method.memory, **asdict(method.options)}


def run_commitment(config: Config, learner: Any) -> dict[str, Any]:
    """The commitment of a run, before its first task."""
    if claimed_kind(learner) is None:
        raise UserError(
            f"{config.method} certifies nothing here, so there is nothing to commit to; add holdout=0.5."
        )
    return {**learner.commitment(), "threads": config.threads}


def resolved_config(config: Config, stream: Stream, learner: Method) -> dict[str, Any]:
    """The content of config.json: every key with its value, also where it is the default of the method or the stream."""
    values = options.defaults(config.method) | config.options | settings_of(learner)
    record = config.as_record() | {"options": {name: values[name] for name in options.types(config.method)}}
    return record | {"scenario": stream.scenario, "tasks": len(stream), "kind": claimed_kind(learner)}


def device(config: Config) -> torch.device:
    """The device of a configuration, if this machine has it."""
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", config.device):
        raise UserError(f"cop2l does not run on the device {config.device!r}; choose cpu or cuda.")
    torch_device = torch.device(config.device)
    if torch_device.type == "cuda" and (torch_device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"This machine has no device {config.device!r}; choose device=cpu.")
    return torch_device
