"""Backbones by name: ours, those of timm and transformers where these are installed, and your own."""

from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import nn

from cop2l.errors import UserError, unknown
from cop2l.models.backbones import BACKBONES, Backbone
from cop2l.models.modules import ClassToken, from_path
from cop2l.plugins import installed


def backbone(name: str) -> Backbone:
    """The backbone of that name: one of ours or of an installed package, `timm:MODEL`, `transformers:MODEL` (or a folder),
    or the path package.module:Name of your own.
    """
    library, _, model = name.partition(":")
    if name in BACKBONES:
        return BACKBONES[name]
    if name in (others := installed("backbones")):
        return from_path(others[name], name)
    if not model:
        raise unknown("backbone", name, [*BACKBONES, *others])
    if library not in LIBRARIES:
        if "." not in library and get_close_matches(library, LIBRARIES) and find_spec(library) is None:
            raise unknown("library of backbones", library, LIBRARIES)
        return from_path(name)
    try:
        return LIBRARIES[library](import_module(library), model)
    except ImportError:
        raise UserError(
            f"The backbone {name!r} needs the package {library}; install it with: pip install {library}."
        ) from None


def _timm(timm: Any, model: str) -> Backbone:
    if not timm.is_model(model):
        raise unknown("model of timm", model, timm.list_models())
    config = timm.get_pretrained_cfg(model)
    heads = [config.classifier] if isinstance(config.classifier, str) else config.classifier or []

    def network(pretrained: bool) -> nn.Module:
        try:  # transformers take other sizes than their own only if told so; other models do not know the option
            built: nn.Module = timm.create_model(
                model, pretrained=pretrained, num_classes=0, dynamic_img_size=True
            )
        except TypeError:
            built = timm.create_model(model, pretrained=pretrained, num_classes=0)
        return built

    return _backbone(
        f"timm:{model}", network, config.mean, config.std, drop=tuple(f"{head}." for head in heads)
    )


def _transformers(transformers: Any, model: str) -> Backbone:
    from transformers.image_processing_utils import BaseImageProcessor

    try:
        colours, _ = BaseImageProcessor.get_image_processor_dict(model)
    except (OSError, ValueError):
        raise UserError(f"transformers cannot find the picture model {model!r}; check its name.") from None
    if missing := {"image_mean", "image_std"} - colours.keys():
        raise UserError(
            f"The picture model {model!r} does not say how pictures are scaled ({', '.join(sorted(missing))}); give it as a "
            "module of your own: cop2l.features.from_module(module, mean=..., std=...)."
        )

    def network(pretrained: bool) -> nn.Module:
        if not pretrained:
            raise UserError(
                "Name a transformers model's folder by --backbone transformers:FOLDER, not --weights."
            )
        # safetensors only: the other format is a pickle
        return ClassToken(transformers.AutoModel.from_pretrained(model, use_safetensors=True))

    return _backbone(f"transformers:{model}", network, colours["image_mean"], colours["image_std"])


LIBRARIES: dict[str, Callable[[Any, str], Backbone]] = {"timm": _timm, "transformers": _transformers}


def _backbone(
    name: str, network: Callable[[bool], nn.Module], mean: Any, std: Any, drop: tuple[str, ...] = ()
) -> Backbone:
    return Backbone(
        name,
        name,
        width=None,
        pretrained_on=(),
        licence="see the model's page",
        make=partial(network, False),
        ready=partial(network, True),
        mean=tuple(mean),
        std=tuple(std),
        drop=drop,
    )
