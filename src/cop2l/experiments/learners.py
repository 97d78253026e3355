"""From a configuration to the stream, the model and the method that it names."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from cop2l import methods, models
from cop2l.certify import presets
from cop2l.certify.commitment import commitment, precision
from cop2l.certify.prior import prior_part, prior_scale
from cop2l.errors import UserError
from cop2l.experiments import options
from cop2l.experiments.config import Config
from cop2l.experiments.options import CERTIFIES_ITSELF
from cop2l.kernel.building import SHARE
from cop2l.kernel.options import PRIOR, Refusal
from cop2l.kernel.options import Options as KernelOptions
from cop2l.methods.protocol import Method
from cop2l.streams.task import Stream
from cop2l.streams.withhold import withhold
from cop2l.text import Names, short_name


def load_stream(config: Config) -> Stream:
    """The stream of a configuration."""
    from cop2l.features import load_stream

    return load_stream(
        config.stream,
        scenario=config.scenario,
        tasks=config.tasks,
        class_seed=config.class_seed,
        order=config.order,
        order_seed=config.order_seed,
        images=config.images,
        folder=config.folder,
        seed=config.stream_seed,
        prior=(prior_share(config), config.seed, config.holdout),
        **config.data,
    )


def prior_share(config: Config) -> float:
    """The share of each task that certifies nothing; of methods that have none, the share that scales the inputs."""
    if config.method != CERTIFIES_ITSELF:
        return SHARE
    return presets.options(**config.options, **options.run_options(config)).prior


def check_groups(config: Config, stream: Stream) -> None:
    """Refuse a claim of groups that the data does not have, before anything is learned."""
    if not config.groups:
        return
    if not stream.groups:
        raise UserError(
            f"Groups are claimed and {config.stream} names none; add an array group, or say which column with group=."
        )
    found = {str(name) for part in stream.groups for name in np.unique(part)}
    if strange := sorted(found - set(config.groups)):
        raise UserError(
            f"{config.stream} has the group {strange[0]!r}, which is not declared; add it to groups={','.join(config.groups)}."
        )


def check_tests(stream: Stream) -> None:
    """Refuse a task that nothing could be measured on, before anything is learned."""
    if empty := [task.t for task in stream.test if not len(task.y)]:
        raise UserError(
            f"Task {empty[0]} of {stream.name} has no test example; add some to the test part, or, where it is drawn, raise"
            " test_share."
        )


def new_learner(
    config: Config, stream: Stream, commitment: str | None = None, say: Callable[[str], None] = lambda _: None
) -> Method:
    """The method of a configuration with its model, before the first task; `commitment` is what certificates name."""
    if config.model is None:
        raise UserError("The configuration names no model; add model=, see: cop2l list models.")
    options.check(config)
    given = dict(config.options)
    if config.method == CERTIFIES_ITSELF:
        given |= options.run_options(config) | {
            "scale": "none",  # it is in the model already
            "tasks": None if config.anytime else len(stream),
            "not_valid": stream.not_valid,
            "repeats": config.repeats,
            "data": recipe(config, stream.scenario, len(stream)) | names_of(stream),
            "commitment": commitment,
        }
    return methods.method(config.method)(
        new_model(config, stream, say),
        memory=config.memory,
        seed=config.seed,
        scenario=stream.scenario,
        **given,
    )


def new_model(config: Config, stream: Stream, say: Callable[[str], None]) -> Any:
    """The model of a configuration, with the weights of its seed and the scale of its inputs."""
    assert config.model is not None
    for name in ("inputs", "classes", "seed", "scale"):
        if name in config.architecture:
            instead = f", or say {name}=" if name in ("seed", "scale") else ""
            raise UserError(f"The run itself gives its model {name}; leave architecture.{name} out{instead}.")
    scale = run_scale(config, stream, say)
    model: Any = models.build(
        config.model,
        inputs=tuple(stream[0].x.shape[1:]),
        classes=stream.classes,
        seed=config.seed,
        scale=PRIOR if scale is not None else [*config.scale] if config.scale[1:] else None,
        **config.architecture,
    )
    if scale is not None:
        model.scale.put(**scale)
    return model.to(device(config))


def run_scale(config: Config, stream: Stream, say: Callable[[str], None]) -> dict[str, list[float]] | None:
    """The scale of the inputs, if the configuration leaves it to the prior part of the first task."""
    if PRIOR not in config.scale:
        return None
    learned, _ = withhold(stream[0], config.holdout, config.seed)
    return prior_scale(prior_part(learned.x, learned.y, prior_share(config), config.seed), say)


def kind_of(config: Config, learner: Method) -> str | None:
    """The kind of bound that a run claims; None if it certifies nothing."""
    if config.method == CERTIFIES_ITSELF and config.kind != "holdout":
        return str(learner.options.kind)
    return "holdout" if config.holdout else None


def recipe(config: Config, scenario: str, tasks: int) -> dict[str, Any]:
    """How the tasks' samples are made again: what a verifier needs beside the data itself."""
    known: dict[str, Any] = {key: getattr(config, key) for key in ("class_seed", "order", "order_seed")}
    known |= {"holdout": config.holdout or None}
    known |= {"images": config.images} if config.images != "shared" else {}
    known |= {"seed": config.stream_seed} if config.stream_seed else {}
    known |= {"holdout_seed": config.seed} if config.holdout else {}
    claimed = {"stream": config.stream, "scenario": scenario, "tasks": tasks, **known, **config.data}
    return {key: value for key, value in claimed.items() if value is not None}


def names_of(stream: Stream) -> dict[str, Any]:
    """What the user calls the tasks, the classes and the columns of a table: what a certificate says beside the recipe."""
    columns = stream.description.get("inputs", {}).get("columns", ())
    named = {"inputs": [short_name(column["name"]) for column in columns]} if columns else {}
    return Names.from_description(stream.description).as_dict() | named


def holdout_options(config: Config, tasks: int) -> KernelOptions:
    """What a hold-out certificate depends on."""
    fixed = None if config.anytime else tasks
    try:
        return KernelOptions(
            memory=max(2000, tasks),
            kind="holdout",
            delta=config.delta,
            seed=config.seed,
            tasks=fixed,
            **options.claims(config),
        )
    except Refusal as refusal:
        raise UserError(str(refusal)) from None


def settings_of(learner: Any) -> dict[str, Any]:
    """All options of a method, for JSON."""
    chosen = learner.options
    if isinstance(chosen, KernelOptions):
        return chosen.as_dict()
    return {"memory": learner.memory, **asdict(chosen)}


def run_commitment(config: Config, stream: Stream, learner: Any) -> dict[str, Any]:
    """The commitment of a run, before its first task."""
    kind = kind_of(config, learner)
    if kind is None:
        raise UserError(
            f"{config.method} certifies nothing here, so there is nothing to commit to; add holdout=0.1."
        )
    if kind != "holdout":
        return {**learner.commitment(), "threads": config.threads}
    split = recipe(config, stream.scenario, len(stream)) | names_of(stream)
    return commitment(
        config.method,
        holdout_options(config, len(stream)),
        settings_of(learner),
        stream.scenario,
        stream.classes,
        dict(learner.model.description),
        split,
        None,
        config.threads,
        precision(learner.model),
    )


def resolved_config(config: Config, stream: Stream, learner: Method) -> dict[str, Any]:
    """What config.json holds: every key with its value, the defaults of the method and the stream included."""
    chosen = options.defaults(config.method) | config.options | settings_of(learner)
    record = config.as_record() | {"options": {name: chosen[name] for name in options.types(config.method)}}
    return record | {"scenario": stream.scenario, "tasks": len(stream), "kind": kind_of(config, learner)}


def device(config: Config) -> torch.device:
    """The device of a configuration, if this machine has it."""
    try:
        chosen = torch.device(config.device)
    except RuntimeError as error:
        raise UserError(f"There is no device {config.device!r}; choose cpu or cuda.") from error
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise UserError(f"This machine has no device {config.device!r}; choose device=cpu.")
    return chosen
