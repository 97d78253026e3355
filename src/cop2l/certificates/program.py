"""Converts a model to a program that runs without cop2l (torch.export, ONNX), and finds the examples that it misclassifies.

A program depends only on the model and on the versions of the packages that convert it. An auditor therefore makes it again,
byte for byte, and never loads it from a file.
"""

import copy
import io
import logging
import platform
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cop2l._version import __version__
from cop2l.errors import UserError, missing_extra, printable_text, unknown
from cop2l.kernel.exact import exact_arithmetic, processor
from cop2l.kernel.exported import PROGRAMS
from cop2l.kernel.samples import blocks_of

ALONE = "CPU, 1 thread"
"""How errors are counted; another number of threads may add in another order."""
Run = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Program:
    """A program with the versions that made it and the runtime that runs it."""

    content: bytes
    """The bytes of its file."""
    made_by: str
    """The versions of the packages that made it; the same versions make the same bytes."""
    run_by: str
    """The runtime and the processor; the same ones round in the same way."""
    logits: Run
    """A function from a batch, in any precision, to its logits."""


def program(model: nn.Module, inputs: Sequence[int], form: str = "torch") -> Program:
    """The program of a model whose examples have the shape `inputs`, for batches of any size."""
    if form not in PROGRAMS:
        raise unknown("format of programs", form, PROGRAMS)
    model = copy.deepcopy(model).cpu().eval()
    dtype = next(model.parameters()).dtype
    if dtype not in (torch.float32, torch.float64):
        raise UserError("Only models in single or double precision can be exported; convert it first.")
    example = torch.zeros((2, *inputs), dtype=dtype)
    try:
        with _quiet():
            return (_torch if form == "torch" else _onnx)(model, example)
    except UserError:
        raise
    except Exception as error:  # the converters raise errors of many classes
        cause: BaseException = error
        while cause.__cause__:
            cause = cause.__cause__
        reason = printable_text((str(cause).splitlines() or [type(cause).__name__])[0][:200])
        raise UserError(f"The model cannot be turned into a program of the format {form}: {reason}") from None


def _torch(model: nn.Module, example: Tensor) -> Program:
    exported = torch.export.export(
        model, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False
    )
    exported.example_inputs = None  # they would be pickled
    for node in exported.graph.nodes:
        for name in ("stack_trace", "nn_module_stack"):  # they name folders of this machine
            node.meta.pop(name, None)
    file = io.BytesIO()
    torch.export.save(exported, file)
    cpu, module, dtype = torch.backends.cpu.get_cpu_capability(), exported.module(), example.dtype
    run_by = f"torch {torch.__version__}, {ALONE}, {_machine()}, {cpu}"
    return Program(file.getvalue(), _versions("torch"), run_by, lambda x: module(x.to(dtype)))


def _onnx(model: nn.Module, example: Tensor) -> Program:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            version(package)
        except PackageNotFoundError:
            raise missing_extra(package, "onnx", "An ONNX program") from None
    import onnxruntime

    converted: Any = torch.onnx.export(
        model, (example,), dynamo=True, dynamic_shapes=({0: torch.export.Dim("batch")},), input_names=["x"],
        output_names=["logits"], verbose=False,
    )  # fmt: skip
    graph = converted.model_proto
    for part in (graph, graph.graph, *graph.graph.node):
        del part.metadata_props[:]  # they name folders of this machine
    content = graph.SerializeToString(deterministic=True)
    return Program(
        content,
        _versions("torch", "onnx", "onnxscript", "onnx-ir"),
        f"onnxruntime {onnxruntime.__version__}, {ALONE}, {_machine()}",
        _session(content),
    )


def _session(content: bytes) -> Run:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, settings, providers=["CPUExecutionProvider"])
    dtype = torch.float64 if session.get_inputs()[0].type == "tensor(double)" else torch.float32
    return lambda x: torch.from_numpy(session.run(None, {"x": x.to(dtype).numpy()})[0])


def load_program(file: Path, form: str) -> Run:
    """The function from a batch to its logits, from the file of a program."""
    if form == "onnx":
        return _session(file.read_bytes())
    module = torch.export.load(file).module()
    dtype = next(module.parameters()).dtype
    return lambda x: module(x.to(dtype))


def _versions(*packages: str) -> str:
    python = ".".join(platform.python_version_tuple()[:2])
    return ", ".join(
        [*(f"{name} {version(name)}" for name in packages), f"cop2l {__version__}", f"Python {python}"]
    )


def _machine() -> str:
    return f"{platform.system()} {platform.machine()}, {processor()}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the messages of the converters about optional packages, and about errors that they raise anyway."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def answers_alone(run: Run, x: Any) -> np.ndarray:
    """The logits of each example, computed alone, so that they do not depend on other examples."""
    logits: list[np.ndarray] = []
    with torch.no_grad(), exact_arithmetic(1):
        for block, _ in blocks_of(x, x):
            rows = block if isinstance(block, Tensor) else torch.from_numpy(np.array(block))
            logits += [run(row[None])[0].numpy() for row in rows.detach().cpu()]
    return np.stack(logits)


def wrong_rows(logits: np.ndarray, y: np.ndarray, masked_classes: np.ndarray | None) -> np.ndarray:
    """Which examples a program misclassifies.

    As in the kernel, an example is right only if its class has strictly the largest logit among the classes that are not masked.
    """
    logits, rows = logits.copy(), np.arange(len(y))
    if masked_classes is not None:
        logits[:, masked_classes] = -np.inf
    label_logits = logits[rows, y]
    logits[rows, y] = -np.inf
    return np.asarray(~(label_logits > logits.max(1)))
