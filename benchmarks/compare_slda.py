"""Our SLDA beside those of Avalanche and CapyMOA, on real features: the same examples in the same order.

    python benchmarks/compare_slda.py [--stream cifar100@dinov2-vits14-224] [--tasks 10] [--share 0.2]

Needs an environment with avalanche-lib 0.6 and capymoa 0.15 (`make compare-slda` makes one) and cached features
(docs/data.md); a library that is not installed is left out. Prints a table: the predictions of each library as it is, and with
our shrunken covariance, where only rounding differs.
"""

import argparse
import time
import warnings
from importlib import import_module

import torch
from torch import nn

from cop2l.features import load_stream
from cop2l.kernel.exact import withheld_rows
from cop2l.methods import method
from cop2l.models import build

SHRINKAGE = 1e-4


class Ours:
    """`method=slda`."""

    name = "cop2l"

    def __init__(self, width, classes):
        self.learner = method("slda")(build("linear", inputs=(width,), classes=classes), shrinkage=SHRINKAGE)

    def learn(self, x, y):
        self.learner.learn(x, y)

    def predict(self, x):
        return self.learner.predict(x)

    @property
    def shrunken(self):
        """(1 - shrinkage) Sigma + shrinkage I, in double precision."""
        tensors = self.learner.tensors
        covariance = tensors["scatter"] / tensors["count"].sum()
        return (1 - SHRINKAGE) * covariance + SHRINKAGE * torch.eye(len(covariance)).double()


class Avalanche:
    """`StreamingLDA`: one example at a time; its covariance is about the means so far, which are 0 at first."""

    name = "avalanche-lib"

    def __init__(self, width, classes):
        import_module("torchvision_operators")
        from avalanche.training.supervised.deep_slda import StreamingLDA

        self.strategy = StreamingLDA(
            slda_model=nn.Identity(), criterion=nn.CrossEntropyLoss(), input_size=width, num_classes=classes,
            shrinkage_param=SHRINKAGE, evaluator=None,
        )  # fmt: skip

    def learn(self, x, y):
        for example, label in zip(x, y, strict=True):
            self.strategy.fit(example[None], label[None])

    def predict(self, x):
        return self.strategy.predict(x).argmax(1)

    def use_covariance(self, shrunken):
        """Use this in place of its own shrunken covariance."""
        self.strategy.Lambda = torch.linalg.inv(shrunken).float()
        self.strategy.prev_num_updates = self.strategy.num_updates


class CapyMOA:
    """`SLDA` of capymoa.ocl: the covariance about the mean of all classes, divided by the number of examples twice; no bias."""

    name = "capymoa"

    def __init__(self, width, classes):
        import_module("torchvision_operators")
        from capymoa.ocl.strategy import SLDA
        from capymoa.stream import Schema

        names = [f"x{i}" for i in range(width)]
        schema = Schema.from_custom([*names, "y"], "y", {"y": [str(c) for c in range(classes)]})
        self.learner, self.shrunken = SLDA(schema, ridge=SHRINKAGE), None

    def learn(self, x, y):
        for rows, labels in zip(x.split(256), y.split(256), strict=True):
            self.learner.batch_train(rows, labels)

    def predict(self, x):
        if self.shrunken is None:
            return self.learner.batch_predict_proba(x).argmax(1)
        mean = self.learner._class_means.double()
        weight = torch.linalg.solve(self.shrunken, mean.T)
        return (x.double() @ weight - (mean.T * weight).sum(0) / 2).argmax(1)

    def use_covariance(self, shrunken):
        """Use this with its class means, and add the bias, which it computes but does not add."""
        self.shrunken = shrunken


def examples(arguments):
    """The examples to learn of every task, the test examples of all tasks, and the number of classes."""
    stream = load_stream(arguments.stream, scenario="class-incremental", tasks=arguments.tasks)
    learned = [~withheld_rows(len(task.y), task.t, 1 - arguments.share, 0) for task in stream]
    pairs = [
        (torch.tensor(task.x[rows]), torch.tensor(task.y[rows]))
        for task, rows in zip(stream, learned, strict=True)
    ]
    tests = [(torch.tensor(task.x), torch.tensor(task.y)) for task in stream.test]
    return pairs, [torch.cat(column) for column in zip(*tests, strict=True)], stream.classes


def compare(arguments):
    """The rows of the table."""
    tasks, (x, y), classes = examples(arguments)
    reference = None
    for library_class in (Ours, Avalanche, CapyMOA):
        try:
            learner = library_class(x.shape[1], classes)
        except ImportError as error:
            yield library_class.name, f"not installed ({error})", *["–"] * 3
            continue
        began = time.process_time()
        for task in tasks:
            learner.learn(*task)
        seconds, predicted = time.process_time() - began, learner.predict(x)
        accuracy = f"{100 * (predicted == y).double().mean():.2f}"
        if reference is None:
            reference, expected = learner, predicted
            yield learner.name, accuracy, "–", "–", f"{seconds:.1f}"
            continue
        agreeing = f"{100 * (predicted == expected).double().mean():.2f}"
        learner.use_covariance(reference.shrunken)
        differing = int((learner.predict(x) != expected).sum())
        yield learner.name, accuracy, agreeing, f"{differing} of {len(y)}", f"{seconds:.1f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stream", default="cifar100@dinov2-vits14-224", help="cached features")
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--share", type=float, default=0.2, help="the part of each task that is learned")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(
        "| library | accuracy (%) | same predictions as ours (%) | others, with our covariance | seconds of learning |"
    )
    print("|---" * 5 + "|")
    for row in compare(arguments):
        print("| " + " | ".join(row) + " |", flush=True)
