"""The baselines beside Avalanche's: the same stream, model, initial weights, hyper-parameters and seeds.

Needs an environment with avalanche-lib 0.6 (`make compare-avalanche` makes one) and Fashion-MNIST. Prints the table of
docs/results.md: average accuracy after the last task in %, mean and standard deviation over the seeds; and how many times
longer Avalanche takes to learn, in CPU seconds on one thread.
"""

import argparse
import statistics
import time
import warnings

import torch
from torch import nn

import torchvision_operators  # noqa: F401
from cop2l.methods import method
from cop2l.metrics import average_accuracy
from cop2l.models import build
from cop2l.streams import load

warnings.simplefilter("ignore")
from avalanche.benchmarks import dataset_benchmark, nc_benchmark  # noqa: E402
from avalanche.benchmarks.utils import _make_taskaware_tensor_classification_dataset as dataset  # noqa: E402
from avalanche.models import MultiTaskModule  # noqa: E402
from avalanche.models.base_model import BaseModel  # noqa: E402
from avalanche.training import supervised  # noqa: E402
from avalanche.training.plugins import EvaluationPlugin  # noqa: E402
from avalanche.training.supervised.lamaml_v2 import LaMAML  # noqa: E402

SEEDS = range(5)
TASKS, TRAIN, TEST, MEMORY = 5, 800, 1000, 200
CLASS, TASK, DOMAIN = "class-incremental", "task-incremental", "domain-incremental"
USUAL = {"epochs": 5, "batch": 32, "lr": 0.02}

CASES = {
    "finetuning": (CLASS, USUAL),
    "replay": (CLASS, USUAL),
    "der++": (CLASS, USUAL | {"alpha": 0.1, "beta": 0.5}),
    "icarl": (CLASS, USUAL | {"lr": 0.2}),
    "gdumb": (CLASS, USUAL | {"epochs": 20}),
    "lwf": (TASK, USUAL | {"alpha": 1.0, "temperature": 2.0}),
    "lamaml": (TASK, {"epochs": 1, "batch": 10, "lr": 0.1, "lr_alpha": 0.25, "inner": 5, "clip": 1.0}),
    "lfl": (DOMAIN, USUAL | {"strength": 0.1}),
    "ewc": (DOMAIN, USUAL | {"strength": 1.0, "fisher_examples": TRAIN}),
    "si": (DOMAIN, USUAL | {"strength": 2.0, "damping": 0.1}),
    "slda": (CLASS, {"shrinkage": 1e-2}),
}
"""Scenario and options of each method, by our names. iCaRL: the mean loss over ten outputs needs a larger learning rate."""


def tasks(scenario, folder):
    """Per task: x and y to learn, x and y to test, and its classes; the first rows of each."""
    options = {"domains": "permuted"} if scenario == DOMAIN else {"scenario": scenario}
    stream = load("fashion-mnist", tasks=TASKS, folder=folder, **options)

    def first(task, n):
        return torch.tensor(task.x[:n]).flatten(1), torch.tensor(task.y[:n]).long()

    return [
        (*first(task, TRAIN), *first(test, TEST), head)
        for task, test, head in zip(stream.train, stream.test, stream.heads, strict=True)
    ]


class Features(nn.Module):
    """The hidden layer, for Avalanche's iCaRL."""

    def __init__(self, inner):
        super().__init__()
        self.hidden = inner.hidden

    def forward(self, x):
        return self.hidden(x).relu()


class Wrapped(BaseModel, nn.Module):
    """Our model behind Avalanche's interface."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def get_features(self, x):
        return self.inner.features(x)

    def forward(self, x):
        return self.inner(x)


class Masked(MultiTaskModule):
    """Our model with the head of each example's task."""

    def __init__(self, inner, heads):
        super().__init__()
        self.inner = inner
        mask = torch.full((len(heads), 10), -1000.0)
        for row, head in zip(mask, heads, strict=True):
            row[list(head)] = 0
        self.register_buffer("mask", mask)

    def forward(self, x, task_labels=None):
        logits = self.inner(x)
        if task_labels is None:
            return {t: logits + self.mask[t] for t in self.known_train_tasks_labels}
        return logits + self.mask[task_labels]


def network(name, seed):
    """The model of both sides; SLDA has nothing but pixels and a head."""
    if name == "slda":
        return build("linear", inputs=(784,), classes=10, seed=seed)
    return build("mlp-head", inputs=(784,), classes=10, hidden=64, seed=seed)


def avalanche(name, inner, o, scenario, heads):
    """Avalanche's strategy, with our options translated."""
    if name == "slda":
        return supervised.StreamingLDA(
            nn.Flatten(), nn.CrossEntropyLoss(), input_size=784, num_classes=10, shrinkage_param=o["shrinkage"],
            train_mb_size=256, eval_mb_size=256, evaluator=EvaluationPlugin(),
        )  # fmt: skip
    model = Masked(inner, heads) if scenario == TASK else Wrapped(inner)
    common = {
        "train_mb_size": o["batch"], "train_epochs": o["epochs"], "eval_mb_size": 256,
        "evaluator": EvaluationPlugin(),
    }  # fmt: skip
    if name == "icarl":
        features, head = Features(inner), inner.head
        parameters = [*features.parameters(), *head.parameters()]
        return supervised.ICaRL(
            feature_extractor=features, classifier=head, memory_size=MEMORY, buffer_transform=None,
            fixed_memory=True, optimizer=torch.optim.SGD(parameters, lr=o["lr"]), **common,
        )  # fmt: skip
    optimiser = torch.optim.SGD(model.parameters(), lr=o["lr"])
    if name == "lamaml":
        start = {key: value.clone() for key, value in model.state_dict().items()}
        strategy = LaMAML(
            model=model, optimizer=optimiser, n_inner_updates=o["inner"], lr_alpha=o["lr_alpha"],
            grad_clip_norm=o["clip"], alpha_init=o["lr"], max_buffer_size=MEMORY, buffer_mb_size=o["batch"],
            **common,
        )  # fmt: skip
        model.load_state_dict(start)  # Avalanche draws new initial weights
        return strategy
    strategy, options = {
        "finetuning": (supervised.Naive, {}),
        "replay": (supervised.Replay, {"mem_size": MEMORY}),
        "der++": (supervised.DER, {"mem_size": MEMORY, "alpha": o.get("alpha"), "beta": o.get("beta")}),
        "gdumb": (supervised.GDumb, {"mem_size": MEMORY}),
        "lwf": (supervised.LwF, {"alpha": o.get("alpha"), "temperature": o.get("temperature")}),
        "lfl": (supervised.LFL, {"lambda_e": o.get("strength")}),
        # Avalanche has no factor 1/2, and squares the gradients of batches, not of examples
        "ewc": (supervised.EWC, {"ewc_lambda": o.get("strength", 0) * o["batch"] / 2}),
        "si": (  # Avalanche has a factor 1/2
            supervised.SynapticIntelligence,
            {"si_lambda": 2 * o.get("strength", 0), "eps": o.get("damping")},
        ),
    }[name]
    return strategy(model=model, optimizer=optimiser, criterion=nn.CrossEntropyLoss(), **options, **common)


def run_avalanche(name, scenario, o, parts, seed):
    """Average accuracy after the last task, and seconds of learning."""
    torch.manual_seed(seed)
    inner = network(name, seed)
    if scenario == DOMAIN:
        train = [dataset(x, y) for x, y, *_ in parts]
        benchmark = dataset_benchmark(train, [dataset(x, y) for _, _, x, y, _ in parts])
    else:
        x, y, test_x, test_y = (torch.cat([part[i] for part in parts]) for i in range(4))
        benchmark = nc_benchmark(
            dataset(x, y), dataset(test_x, test_y), TASKS, task_labels=scenario == TASK,
            fixed_class_order=list(range(10)),
        )  # fmt: skip
    strategy = avalanche(name, inner, o, scenario, [head for *_, head in parts])
    seconds = 0.0
    for experience in benchmark.train_stream:
        start = time.process_time()
        strategy.train(experience, num_workers=0)
        seconds += time.process_time() - start
    strategy.model.eval()
    logits = strategy.predict if name == "slda" else strategy.model
    with torch.no_grad():
        row = []
        for t, (_, _, x, y, _) in enumerate(parts):
            label = (torch.full((len(x),), t),) if scenario == TASK else ()
            row.append(float((logits(x, *label).argmax(1) == y).float().mean()))
    return average_accuracy([row]), seconds


def run_ours(name, scenario, o, parts, seed):
    """Average accuracy after the last task, and seconds of learning."""
    model = network(name, seed)
    learner = method(name)(model, memory=MEMORY, seed=seed, scenario=scenario, **o)
    seconds = 0.0
    for x, y, _, _, head in parts:
        start = time.process_time()
        learner.learn(x, y, classes=head)
        seconds += time.process_time() - start
    row = [
        float((learner.predict(x, task=t) == y).float().mean()) for t, (_, _, x, y, _) in enumerate(parts, 1)
    ]
    return average_accuracy([row]), seconds


def line(name, scenario, folder):
    """One row of the table."""
    options = CASES[name][1]
    parts = tasks(scenario, folder)
    pairs = [  # one seed after the other, so that a busy machine disturbs both alike
        (run_ours(name, scenario, options, parts, seed), run_avalanche(name, scenario, options, parts, seed))
        for seed in SEEDS
    ]
    cells = []
    for runs in zip(*pairs, strict=True):
        accuracies = [100 * accuracy for accuracy, _ in runs]
        cells.append(f"{statistics.mean(accuracies):.2f} ± {statistics.stdev(accuracies):.2f}")
    ratio = statistics.median(avalanche / here for (_, here), (_, avalanche) in pairs)
    return f"| {name} | {scenario} | {cells[0]} | {cells[1]} | {ratio:.1f} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", default=list(CASES), help="methods; all of them if none are given"
    )
    parser.add_argument("--folder", help="where Fashion-MNIST lies, if not where cop2l finds it")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| method | scenario | accuracy here | accuracy, Avalanche | ratio |\n" + "| --- " * 5 + "|",
        flush=True,
    )
    for name in arguments.names:
        print(line(name, CASES[name][0], arguments.folder), flush=True)


if __name__ == "__main__":
    main()
