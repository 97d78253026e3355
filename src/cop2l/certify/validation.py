"""What a learner is given: a model, a task, and the data of a task again. Each wrong input is refused in one sentence."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.certify.inputs import (
    blocks,
    by_name,
    check_finite,
    in_words,
    inputs,
    labels,
    numbering,
    reader,
    wrong_shape,
)
from cop2l.certify.scoring import input_blocks, scoring_mode
from cop2l.certify.state import trained_names
from cop2l.errors import UserError
from cop2l.kernel.exact import tensor
from cop2l.models import Classifier

if TYPE_CHECKING:
    from cop2l.certify.learner import CoP2L

Data = tuple[Any, Any] | Callable[[], Iterable[tuple[Any, Any]]] | Any
"""A task's data: (x, y) as in `learn`, or x alone where it carries its labels, or a callable that yields (x, y) blocks."""
WANTS_INTEGERS = (
    "The model looks up integers such as token ids: give x as integers (int64), not as real numbers."
)
WANTS_NUMBERS = (
    "x holds integers, which reach the model as they are, like token ids, and it cannot take them: if they are quantities such "
    "as pixels, give them as real numbers (float32)."
)


def check_model(model: Any) -> None:
    """Refuse a model that cannot be learned, stored or made again bit for bit."""
    if not isinstance(model, nn.Module):
        raise UserError(f"The model must be a torch module, such as models.build(...), not {model!r:.60}.")
    if not trained_names(model):
        raise UserError("The model has no parameters to learn.")
    fixed = model.fixed if isinstance(model, Classifier) else ()
    if any(model.get_parameter(name).requires_grad for name in fixed):
        raise UserError(f"{', '.join(fixed)} of this model is never trained: put requires_grad back.")
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise UserError(
                f"The model keeps {name!r} in its state_dict, which is no tensor: make it a buffer."
            )
    if any(p.dtype == torch.bfloat16 for p in model.parameters()):
        raise UserError(
            "The losses of a model in bfloat16 are too coarse to pick by; convert it: model.float()."
        )
    if any(module._compiled_call_impl or hasattr(module, "_orig_mod") for module in model.modules()):
        raise UserError(
            "Give the model itself, not compiled: what torch.compile makes of it may round in another way."
        )


def check_task(
    learner: "CoP2L", x: Any, y: Any, classes: Sequence[int] | None
) -> tuple[Any, Tensor, tuple[int, ...], int]:
    """The next task in usable form: inputs, labels, its head, and how many outputs the model has."""
    task, options, model = learner.tasks_seen + 1, learner.options, learner.model
    made = [*model.parameters(), *model.buffers()]
    if not torch.is_grad_enabled() or any(value.is_inference() for value in made):
        raise UserError(
            "Learning needs gradients; call learn outside torch.no_grad() and torch.inference_mode(), and make or load the"
            " learner outside the latter."
        )
    if trained_names(model) != learner.state.trained:
        raise UserError(
            "Other parameters are to be trained than when the learner was made; put requires_grad back."
        )
    if options.tasks is not None and task > options.tasks:
        raise UserError(
            f"This learner was made for {options.tasks} tasks, and all were learned; make one with tasks=None."
        )
    if options.memory < task:
        raise UserError(
            f"memory={options.memory} is smaller than the number of tasks, {task}; give each task at least one example."
        )
    if options.batch == 1 and any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()):
        raise UserError(
            "A model with batch normalisation cannot train on a single example; use batch=2 or more."
        )
    x, found = inputs(x), labels(y)
    if len(x) != len(found):
        raise UserError(f"x has {len(x)} examples and y has {len(found)} labels; they must be as many.")
    if not len(found):
        raise UserError("The task is empty; give at least one example.")
    earlier = learner.engine.buffer[0].x if learner.engine.buffer else None
    width = _outputs(model, x, earlier)
    head = _head(classes, width, learner.scenario, found)
    check_finite(x)
    return x, found, head, width


def _outputs(model: nn.Module, x: Any, earlier: Any) -> int:
    """How many outputs the model has: found by running it once on such inputs, which must be like those of earlier tasks."""
    shape, integers = example_form(x)
    try:
        with scoring_mode(model):
            logits = model(next(input_blocks(model, x[:1])))
    except (RuntimeError, ValueError, IndexError, TypeError, KeyError, AttributeError) as error:
        if "scalar types: Long, Int" in str(error):
            raise UserError(WANTS_INTEGERS) from None
        if integers and "dtype" in str(error):
            raise UserError(WANTS_NUMBERS) from None
        if (said := wrong_shape(model, x)) is not None:
            raise UserError(said) from None
        raise UserError(f"The model cannot take inputs of shape {shape}: {in_words(error)}.") from None
    if earlier is not None and example_form(earlier)[1] != integers:
        raise UserError(
            "Earlier tasks held other integers, or real numbers where these are integers: give all tasks one type."
        )
    if earlier is not None and example_form(earlier)[0] != shape:
        raise UserError(
            f"The inputs have the shape {shape}; earlier tasks had {example_form(earlier)[0]}: give all tasks one shape."
        )
    if logits.dim() != 2:
        raise UserError("The model must return one row of logits per example.")
    return int(logits.shape[1])


def _head(classes: Sequence[int] | None, width: int, scenario: str, y: Tensor) -> tuple[int, ...]:
    """The task's own classes, in order; its labels must be among them."""
    if scenario == "task-incremental" and classes is None:
        raise UserError(
            "A task-incremental task needs its own classes, fixed in advance: learn(x, y, classes=(...))."
        )
    try:
        head = tuple(range(width)) if classes is None else tuple(sorted({index(c) for c in classes}))
    except TypeError:
        raise UserError(f"classes must be class numbers, such as [4, 5], not {classes!r:.60}.") from None
    listed = str(head) if len(head) <= 20 else f"{head[0]} to {head[-1]}, {len(head)} of them"
    if not head or head[0] < 0 or head[-1] >= width:
        raise UserError(f"classes must name outputs of the model, 0 to {width - 1}, but they are {listed}.")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= width:
        raise UserError(
            f"Labels must be 0 to {width - 1} (the model has {width} outputs), but y has {low if low < 0 else high}; "
            f"make the model with all classes, or, where their numbers have gaps, {numbering(y)}."
        )
    if not np.isin(y.numpy(), head).all():
        raise UserError(f"y has labels outside the task's own classes {listed}.")
    return head


def task_blocks(
    data: Data, task: int, rows: int, like: Any, head: Sequence[int], columns: Sequence[str] | None
) -> Iterator[tuple[Any, Any]]:
    """The data of a task that was learned, block by block; what cannot be what was learned from is refused."""
    pair = data if isinstance(data, tuple | list) else (data,)
    if len(pair) != 2 and not callable(data) and reader(data) is None:
        raise UserError(f"The data for task {task} must be (x, y), or a callable that yields such blocks.")
    pair = by_name(pair[0], pair[-1], columns)[0], *pair[1:]
    start, whole = 0, not callable(data) and reader(pair[0]) is None
    for x, y in data() if callable(data) else blocks(*pair):
        x, y = inputs(x), y if isinstance(y, Tensor) else np.asarray(y)
        found = labels(y)
        if not whole:  # blocks wait until they are counted together, and may be read into the same memory
            x, y = tensor(x[:]).clone(), found.clone()
        if len(x) != len(y) or start + len(y) > rows:
            raise UserError(
                f"The data given for task {task} has {len(x)} inputs and {len(y)} labels from row {start} on; "
                f"it was learned from {rows} examples."
            )
        if example_form(x)[0] != example_form(like)[0] or not frozenset(head).issuperset(found.tolist()):
            raise not_learned_from(task)
        start += len(y)
        yield x, y
    if start != rows:
        raise not_learned_from(task)


def not_learned_from(task: int) -> UserError:
    """The refusal of other data than that of the task."""
    return UserError(
        f"The data given for task {task} is not what it was learned from: its fingerprint differs."
    )


def example_form(x: Any) -> tuple[tuple[int, ...], str]:
    """The shape of one example, and the type of integers; none of real numbers."""
    kind = str(x.dtype)
    return tuple(x.shape[1:]), kind if "int" in kind or "bool" in kind else ""
