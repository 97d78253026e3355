"""All randomness, as a function of (seed, purpose, task, ...) alone.

The global generators of torch are neither read nor changed. The randomness of a model (dropout) is seeded in
`private_randomness`, which restores the global state.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive(seed: int, purpose: str, *numbers: int) -> int:
    """A 63-bit seed for a purpose and its numbers, such as "update" with the task and the iteration."""
    text = ":".join(["cop2l", str(int(seed)), purpose, *(str(int(n)) for n in numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def marks(seed: int, purpose: str, *numbers: int, n: int) -> np.ndarray:
    """A 64-bit mark for each row r, as a function of (seed, purpose, numbers, r) alone.

    Philox is counter-based: the mark of a row does not depend on the number of rows.
    """
    return np.random.Philox(key=derive(seed, purpose, *numbers)).random_raw(n).astype(np.uint64, copy=False)


def uniform(seed: int, purpose: str, *numbers: int, n: int) -> np.ndarray:
    """Numbers from -1 to 1: number i is 2u - 1, u = (mark >> 11) / 2^53 of mark i, in double precision."""
    drawn: np.ndarray = (marks(seed, purpose, *numbers, n=n) >> 11) * 2.0**-52 - 1
    return drawn


def generator(seed: int, purpose: str, *numbers: int) -> torch.Generator:
    """A new torch generator on the CPU, where permutations and samples are drawn."""
    return torch.Generator().manual_seed(derive(seed, purpose, *numbers))


@contextmanager
def private_randomness(device: torch.device, seed: int, purpose: str, *numbers: int) -> Iterator[None]:
    """In a with statement, the default generators start from a derived seed; afterwards their state is restored."""
    start = derive(seed, purpose, *numbers)
    cpu = torch.default_generator
    saved = cpu.get_state()
    saved_cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        cpu.manual_seed(start)
        if saved_cuda is not None:
            torch.cuda.default_generators[device.index or 0].manual_seed(start)
        yield
    finally:
        cpu.set_state(saved)
        if saved_cuda is not None:
            torch.cuda.set_rng_state(saved_cuda, device)
