"""The compression function (one task of it) and the reconstruction function."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.certify.examples import Examples, sample
from cop2l.certify.history import History, Memory, certified_mask, prior_part, train_on_prior
from cop2l.certify.options import Options
from cop2l.certify.p2l import Outcome, Progress, mp2l
from cop2l.certify.training import exact_arithmetic
from cop2l.models import rebuild


def compress_task(
    model: nn.Module,
    S: Examples,
    histories: list[History],
    memory: Memory,
    options: Options,
    outside: Tensor | None,
    progress: Progress | None = None,
) -> Outcome:
    """Learn S, the sample of the last of `histories`: one turn of the loop of the paper's Algorithm 4, with its book-keeping.

    Leaves theta_t in the model, and brings histories and memory up to date. An example that leaves the buffer moves to
    J only if it is in I (the printed line moves every one): reconstruction never sees the others. Where the policy
    makes the time of leaving a function of row numbers (priority, threshold), nothing moves to J.
    """
    t, now = len(histories), histories[-1]
    certified = certified_mask(now, options)
    B = memory.buffer()  # line 4
    own_prior = prior_part(S, t, options)
    prior = memory.prior_set(own_prior)
    with exact_arithmetic():
        train_on_prior(model, prior, outside, options, t)
        outcome = mp2l(  # line 5: theta_t, C* <- mP2L(theta_{t-1}, S^_t, B*, gamma, inf)
            model, S, B, options,
            task=t, outside=outside, candidates=certified, prior=prior, progress=progress,
        )  # fmt: skip
    now.iterations = outcome.iterations  # line 6: mu2_t counts iterations, not examples
    kept, picked = outcome.kept, outcome.picked
    now.own = np.sort(kept[kept < len(S)])
    now.first, now.picked = now.own, now.own
    for past in histories[:-1]:
        past.first = np.union1d(past.first, _rows_of(past.task, B, kept - len(S)))  # line 7: I_i u (C* n S_i)
        past.picked = np.union1d(past.picked, _rows_of(past.task, B, picked - len(S)))
    for past, held in zip(histories[:-1], memory.candidates, strict=True):
        stays = _stays(memory, past, held.row, t, options)  # line 8: B_i <- sample(B_i, floor(m/t))
        if not memory.keeper.index_determined:
            gone = np.intersect1d(held.row[~stays], past.first)  # lines 10-11
            past.second, past.left = _merge(past.second, past.left, gone, t)  # lines 12, 14: J_i, mu1_i
            past.first = np.setdiff1d(past.first, gone)  # line 13
        memory.candidates[past.task - 1] = held.take(np.flatnonzero(stays))
    rest = np.flatnonzero(certified & ~np.isin(S.row, now.own))
    memory.candidates.append(S.take(rest[_stays(memory, now, rest, t, options)]))  # line 9: B_t
    memory.store_prior(own_prior, t)
    return outcome


def reconstruct(
    model: nn.Module,
    histories: Sequence[History],
    examples: Sequence[tuple[Any, Tensor, np.ndarray]],
    options: Options,
    outside: Tensor | None,
    priors: Sequence[Examples | None],
) -> None:
    """The paper's Algorithm 5: turns theta_0 in the model into theta_T, from compression sets and messages alone.

    `examples[t-1]` = (x, y, rows): the examples of I_t u J_t, with their row numbers. It is exact, bit for bit, for what
    `compress_task` made: each block that was picked from the full pool lies in the compression sets, and is the top
    of the smaller pool too. Two corrections to the printed text: mP2L performs exactly mu2_t iterations, and the buffer
    is formed after the loop over i < t.
    """
    memory, found = Memory(options), list[History]()
    with exact_arithmetic():
        for now, (x, y, rows), own_prior in zip(histories, examples, priors, strict=True):
            t = now.task
            every = sample(x, y, t, options.seed, rows)
            S = every.take(np.flatnonzero(np.isin(rows, now.first)))  # line 3
            prior = memory.prior_set(own_prior)
            train_on_prior(model, prior, outside, options, t)
            outcome = mp2l(  # line 4: theta_t, C* <- mP2L(theta_{t-1}, S^_t, B*, gamma, mu2_t)
                model, S, memory.buffer(), options,
                task=t, outside=outside, prior=prior, iterations=now.iterations,
            )  # fmt: skip
            now = replace(now, own=S.row[outcome.kept[outcome.kept < len(S)]])  # found, not believed
            found.append(now)
            rest = every.take(np.flatnonzero(~np.isin(rows, now.own)))
            memory.candidates.append(rest)  # line 5: B_t <- (I_t \ C*) u J_t
            for past in found:  # lines 6-11
                held = memory.candidates[past.task - 1]
                if memory.keeper.index_determined:
                    stays = _stays(memory, past, held.row, t, options)
                else:
                    stays = ~np.isin(held.row, past.second[past.left == t])
                memory.candidates[past.task - 1] = held.take(np.flatnonzero(stays))
            memory.store_prior(own_prior, t)


def _stays(memory: Memory, past: History, rows: np.ndarray, after: int, options: Options) -> np.ndarray:
    return memory.keeper.stay(
        rows, task=past.task, after=after, certified=certified_mask(past, options), own=past.own
    )


def _rows_of(task: int, B: Examples | None, at: np.ndarray) -> np.ndarray:
    """Rows of one task among these positions of the buffer (negative positions are the sample's)."""
    if B is None:
        return np.empty(0, np.int64)
    at = at[at >= 0]
    return np.asarray(B.row[at][B.task[at] == task])


def _merge(rows: np.ndarray, notes: np.ndarray, new: np.ndarray, note: int) -> tuple[np.ndarray, np.ndarray]:
    every, noted = np.concatenate([rows, new]), np.concatenate([notes, np.full(len(new), note, np.int64)])
    order = np.argsort(every, kind="stable")
    return every[order], noted[order]


def parameters(model: nn.Module) -> dict[str, Tensor]:
    """theta: all parameters and buffers of the model, copied to the CPU."""
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}


def load_parameters(model: nn.Module, theta: dict[str, Tensor]) -> None:
    """Put theta into the model, wherever that is."""
    place = next(model.parameters())
    model.load_state_dict({name: value.to(place.device) for name, value in theta.items()})


def rebuilt(description: Mapping[str, Any], theta: Mapping[str, Tensor], device: str) -> nn.Module:
    """One of cop2l's own models, in the precision of theta and, if it can be, on such a device; with its seed's weights."""
    model = rebuild({key: value for key, value in description.items() if key != "parameters"})
    kinds = [value.dtype for value in theta.values() if value.is_floating_point()]
    place = "cpu" if device == "cpu" or not torch.cuda.is_available() else "cuda"
    return model.to(place, kinds[0] if kinds else None)


def digest(theta: dict[str, Tensor]) -> str:
    """SHA-256 of the parameters: names, types, shapes and bits."""
    whole = hashlib.sha256()
    for name in sorted(theta):
        value = theta[name].contiguous()
        whole.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        whole.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest()
