"""How good cached features are: the test accuracy of a linear head on them, and how far two entries agree.

python benchmarks/linear_probe.py cifar10:3000@dinov2-vits14-70 [--compare cifar10@dinov2-vits14-70]
"""

import argparse

import numpy as np
import torch
import torch.nn.functional as F

from cop2l.features import Entry, find_entry


def probe(entry: Entry, decay: float) -> float:
    """Test accuracy of a softmax regression on standardised features, trained to convergence on all classes."""
    (x, y), (x_test, y_test) = (
        (torch.from_numpy(a), torch.from_numpy(b)) for a, b in map(entry.part, ("train", "test"))
    )
    mean, std = x.mean(0), x.std(0) + 1e-6
    x, x_test = (x - mean) / std, (x_test - mean) / std
    weight = torch.zeros(int(y.max()) + 1, x.shape[1] + 1, requires_grad=True)
    solver = torch.optim.LBFGS([weight], max_iter=300, line_search_fn="strong_wolfe")

    def objective() -> torch.Tensor:
        solver.zero_grad()
        logits = F.linear(x, weight[:, 1:], weight[:, 0])
        loss = F.cross_entropy(logits, y) + decay * weight[:, 1:].square().sum()
        loss.backward()
        return loss

    solver.step(objective)
    with torch.no_grad():
        right = F.linear(x_test, weight[:, 1:], weight[:, 0]).argmax(1) == y_test
    return float(right.double().mean())


def cosines(first: Entry, second: Entry, part: str) -> np.ndarray:
    """Cosine between the features of the same picture in two entries, for the pictures that both hold."""
    _, here, there = np.intersect1d(first.rows(part), second.rows(part), return_indices=True)
    a, b = first.part(part)[0][here], second.part(part)[0][there]
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="cached features")
    parser.add_argument("--decay", type=float, default=0.01, help="strength of the L2 penalty")
    parser.add_argument("--compare", metavar="NAME", help="other cached features of the same data")
    arguments = parser.parse_args()
    entry = find_entry(arguments.name)
    print(f"{entry.name}: linear probe {100 * probe(entry, arguments.decay):.2f} % on the test part")
    if arguments.compare:
        for part in ("train", "test"):
            found = cosines(entry, find_entry(arguments.compare), part)
            print(
                f"{part}: {len(found)} pictures, cosine mean {found.mean():.5f}, smallest {found.min():.5f}"
            )
