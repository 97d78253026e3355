"""Refuses a wrong model, a wrong task, or wrong data to certify on, in one sentence each."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from cop2l.errors import UserError
from cop2l.kernel.exact import tensor
from cop2l.learner.inputs import (
    blocks,
    by_name,
    check_finite,
    inputs,
    labels,
    numbering,
    reader,
    short_reason,
    wrong_shape,
)
from cop2l.learner.scoring import input_blocks, scoring_mode
from cop2l.learner.state import check_unchanged, trained_names, unused_copy

if TYPE_CHECKING:
    from cop2l.learner.cop2l import CoP2L

Data = tuple[Any, Any] | Callable[[], Iterable[tuple[Any, Any]]] | Any
"""The data of a task: (x, y) as in `learn`, or x alone if it holds its labels, or a function that yields (x, y) blocks."""
WANTS_INTEGERS = (
    "The model looks up integers such as token ids: give x as integers (int64), not as real numbers."
)
WANTS_NUMBERS = (
    "x holds integers, which reach the model as they are, like token ids, and it cannot take them: if they are quantities such "
    "as pixels, give them as real numbers (float32)."
)


def check_model(model: Any) -> None:
    """Refuse a model that cannot be trained, stored or repeated bit for bit."""
    if not isinstance(model, nn.Module):
        raise UserError(f"The model must be a torch module, such as models.build(...), not {model!r:.60}.")
    if any(is_lazy(value) for value in [*model.parameters(), *model.buffers()]):
        raise UserError(
            "A lazy layer of the model has no weights yet: call the model once on an example, then make the learner."
        )
    if devices := {p.device.type for p in model.parameters()} - {"cpu", "cuda"}:
        raise UserError(f"The model is on {min(devices)}, where cop2l cannot learn; move it to cpu or cuda.")
    if not trained_names(model):
        raise UserError("The model has no parameters to learn.")
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
    learner: "CoP2L", x: Any, y: Any, classes: Sequence[int] | None, groups: Any
) -> tuple[Any, Tensor, tuple[int, ...], int]:
    """The inputs, the labels and the head of the next task, and the number of outputs of the model."""
    _check_next(learner)
    x, y = inputs(x), labels(y)
    if len(x) != len(y):
        raise UserError(f"x has {len(x)} examples and y has {len(y)} labels; they must be as many.")
    if not len(y):
        raise UserError("The task is empty; give at least one example.")
    earlier = learner.engine.buffer[0].x if learner.engine.buffer else None
    width = _outputs(unused_copy(learner.unused), x, earlier)
    head = _head(classes, width, learner.scenario, y)
    check_finite(x)
    if groups is not None and not learner.options.groups:
        raise UserError(
            "Groups are given and none are claimed; leave them out, or make the learner with claim=('tasks', 'groups') and"
            " groups=('A', 'B')."
        )
    return x, y, head, width


def _check_next(learner: "CoP2L") -> None:
    """Refuse a learner that cannot learn another task."""
    task, options, model = learner.tasks_seen + 1, learner.options, learner.model
    if not torch.is_grad_enabled():
        raise UserError(
            "Learning needs gradients; call learn outside torch.no_grad() and torch.inference_mode()."
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


def _outputs(model: nn.Module, x: Any, earlier: Any) -> int:
    """The number of outputs of the model, from one run on x; the inputs must have the form of earlier tasks."""
    shape, integers = example_form(x)
    try:
        with scoring_mode(model):
            logits = model(next(input_blocks(model, x[:1])))
    except (RuntimeError, ValueError, IndexError, TypeError, KeyError, AttributeError) as error:
        if "scalar types: Long, Int" in str(error):
            raise UserError(WANTS_INTEGERS) from None
        if integers and "dtype" in str(error):
            raise UserError(WANTS_NUMBERS) from None
        if (message := wrong_shape(model, x)) is not None:
            raise UserError(message) from None
        raise UserError(f"The model cannot take inputs of shape {shape}: {short_reason(error)}.") from None
    if earlier is not None and example_form(earlier)[1] != integers:
        raise UserError(
            "Earlier tasks held other integers, or real numbers where these are integers: give all tasks one type."
        )
    if earlier is not None and example_form(earlier)[0] != shape:
        raise UserError(
            f"The inputs have the shape {shape}; earlier tasks had {example_form(earlier)[0]}: give all tasks one shape."
        )
    return int(checked_logits(logits).shape[1])


def checked_logits(logits: Any) -> Tensor:
    """What a model returns; refused if it is anything but one row of logits per example."""
    if not isinstance(logits, Tensor):
        raise UserError(
            f"The model must return a tensor with one row of logits per example, not a {type(logits).__name__}."
        )
    if logits.dim() != 2:
        raise UserError("The model must return one row of logits per example.")
    return logits


def _head(classes: Sequence[int] | None, width: int, scenario: str, y: Tensor) -> tuple[int, ...]:
    """The classes of the task, in order; all labels must be among them."""
    if scenario == "task-incremental" and classes is None:
        raise UserError(
            "A task-incremental task needs its own classes, fixed in advance: learn(x, y, classes=(...))."
        )
    try:
        head = tuple(range(width)) if classes is None else tuple(sorted({index(c) for c in classes}))
    except TypeError:
        raise UserError(f"classes must be class numbers, such as [4, 5], not {classes!r:.60}.") from None
    names = str(head) if len(head) <= 20 else f"{head[0]} to {head[-1]}, {len(head)} of them"
    if not head or head[0] < 0 or head[-1] >= width:
        raise UserError(f"classes must name outputs of the model, 0 to {width - 1}, but they are {names}.")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= width:
        raise UserError(
            f"Labels must be 0 to {width - 1} (the model has {width} outputs), but y has {low if low < 0 else high}; "
            f"make the model with all classes, or, where their numbers have gaps, {numbering(y)}."
        )
    if not np.isin(y.numpy(), head).all():
        raise UserError(f"y has labels outside the task's own classes {names}.")
    return head


def check_data(learner: Any, data: Mapping[int, Data] | None) -> dict[int, Data]:
    """The data to certify on, without tasks whose data is None; refuse a learner that cannot be certified."""
    if data is not None and not isinstance(data, Mapping):
        raise UserError("The data must be given by the numbers of its tasks: certify({1: (x, y), ...}).")
    last, tasks = learner.tasks_seen, learner.options.tasks
    if not last:
        raise UserError("There is nothing to certify yet; learn a task first.")
    check_unchanged(learner)
    if tasks not in (None, last):
        raise UserError(
            f"The claim is for {tasks} tasks, fixed in advance, and {last} were learned; "
            "learn the others first, or make a learner with tasks=None, which certifies after any task."
        )
    data = {task: columns for task, columns in (data or {}).items() if columns is not None}
    if unknown_tasks := set(data) - set(range(1, last + 1)):
        raise UserError(f"There is no task {min(unknown_tasks)} to certify; tasks 1 to {last} were learned.")
    return data


def task_blocks(
    data: Data, task: int, rows: int, learned: Any, head: Sequence[int] | None, columns: Sequence[str] | None
) -> Iterator[tuple[Any, Any]]:
    """The data of a task, block by block; refuse what cannot be the data that the task was learned from.

    rows      the number of examples that the task had
    learned   inputs of the task
    head      the classes of the task; None: any
    columns   the names of the inputs, if they came in a data frame
    """
    pair = data if isinstance(data, tuple | list) else (data,)
    if len(pair) != 2 and not callable(data) and reader(data) is None:
        raise UserError(f"The data for task {task} must be (x, y), or a callable that yields such blocks.")
    pair = by_name(pair[0], pair[-1], columns)[0], *pair[1:]
    start, is_array = 0, not callable(data) and reader(pair[0]) is None
    for x, y in data() if callable(data) else blocks(*pair):
        x, y = inputs(x), labels(y)
        if not is_array:  # blocks wait until they are counted together, and may be read into the same memory
            x, y = tensor(x[:]).clone(), y.clone()
        if len(x) != len(y) or start + len(y) > rows:
            raise UserError(
                f"The data given for task {task} has {len(x)} inputs and {len(y)} labels from row {start} on; "
                f"it was learned from {rows} examples."
            )
        if example_form(x)[0] != example_form(learned)[0] or not (
            head is None or frozenset(head).issuperset(y.tolist())
        ):
            raise not_learned_from(task)
        start += len(y)
        yield x, y
    if start != rows:
        raise not_learned_from(task)


def not_learned_from(task: int) -> UserError:
    """The error for other data than that of the task."""
    return UserError(
        f"The data given for task {task} is not what it was learned from: its fingerprint differs."
    )


def example_form(x: Any) -> tuple[tuple[int, ...], str]:
    """The shape of one example, and its type if it holds integers."""
    dtype = str(x.dtype)
    return tuple(x.shape[1:]), dtype if "int" in dtype or "bool" in dtype else ""
