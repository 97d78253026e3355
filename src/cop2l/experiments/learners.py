"""From a configuration to the stream, the model and the method that it names."""

from dataclasses import asdict, fields
from typing import Any

import torch

from cop2l import methods, models
from cop2l.certify.options import Options as CoP2LOptions
from cop2l.errors import UserError
from cop2l.experiments.config import Config
from cop2l.streams.task import Stream

OPTION_KEYS = ("k", "omega", "gamma", "epochs", "batch", "lr", "optimiser", "buffer", "stop", "prior")
CERTIFIES_ITSELF = "cop2l"


def options_of(name: str) -> list[str]:
    """The names of all the options of a method."""
    cls: Any = methods.method(name)
    declared = CoP2LOptions if name == CERTIFIES_ITSELF else cls.Options
    return [field.name for field in fields(declared)]


def load_stream(config: Config) -> Stream:
    """The stream of a configuration."""
    from cop2l.features import load_stream

    return load_stream(
        config.stream,
        scenario=config.scenario,
        tasks=config.tasks,
        order_seed=config.order_seed,
        images=config.images,
        folder=config.folder,
        seed=config.stream_seed,
        **config.data,
    )


def new_learner(config: Config, stream: Stream) -> Any:
    """The method of a configuration with its model, before the first task."""
    if config.model is None:
        raise UserError("The configuration names no model; add model=, see: cop2l list models.")
    model = models.build(
        config.model,
        inputs=tuple(stream[0].x.shape[1:]),
        classes=stream.classes,
        seed=config.seed,
        **config.architecture,
    ).to(device(config))
    given = {key: getattr(config, key) for key in OPTION_KEYS if getattr(config, key) is not None}
    if config.method == CERTIFIES_ITSELF:
        given |= {
            "tasks": None if config.anytime else len(stream),
            "delta": config.delta,
            "not_valid": stream.not_valid,
            "data": recipe(config, stream),
        }
        given |= {key: value for key in ("preset", "claim") if (value := getattr(config, key)) is not None}
    elif config.preset is not None:
        raise UserError(
            f"{config.method} has no presets; give CoP2L's as methods.cop2l.preset={config.preset}."
        )
    elif config.claim not in (None, "holdout"):
        raise UserError(f"{config.method} can only claim the hold-out bound; leave claim out.")
    if config.claim == "holdout":
        given.pop("claim", None)
        if not config.holdout:
            raise UserError(
                "The claim is the hold-out bound and nothing is withheld; add for example holdout=0.1."
            )
    return methods.method(config.method)(
        model, memory=config.memory, seed=config.seed, scenario=stream.scenario, **given, **config.options
    )


def recipe(config: Config, stream: Stream) -> dict[str, Any]:
    """How the tasks' samples are made again: what a verifier needs beside the data itself."""
    return {
        "stream": config.stream,
        "scenario": stream.scenario,
        "tasks": len(stream),
        "order_seed": config.order_seed,
        "images": config.images,
        "seed": config.stream_seed,
        "options": config.data,
        "holdout": config.holdout or None,
        "holdout_seed": config.seed,
    }


def resolved(config: Config, stream: Stream, learner: Any) -> dict[str, Any]:
    """What config.json holds: every key with its value, the defaults of the method and the stream included."""
    own = asdict(learner.options)
    record = config.as_record() | {key: own[key] for key in OPTION_KEYS if key in own}
    record["options"] = {key: value for key, value in own.items() if key not in record}
    return record | {"scenario": stream.scenario, "tasks": len(stream)}


def device(config: Config) -> torch.device:
    """The device of a configuration, if this machine has it."""
    try:
        chosen = torch.device(config.device)
    except RuntimeError as error:
        raise UserError(f"There is no device {config.device!r}; choose cpu or cuda.") from error
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise UserError(f"This machine has no device {config.device!r}; choose device=cpu.")
    return chosen
