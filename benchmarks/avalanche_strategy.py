"""CoP2L beside Avalanche's Replay on split MNIST, both trained, evaluated and measured by Avalanche; the certificate is verified.

Needs an environment with avalanche-lib 0.6 (`make test-avalanche` makes one) and MNIST. Prints a table.
"""

import sys
import tempfile
import warnings
from dataclasses import replace

import torch
from torch import nn

import torchvision_operators  # noqa: F401
from cop2l import CoP2L
from cop2l.audit.verify import verify
from cop2l.models import build
from cop2l.streams import Task, load

warnings.simplefilter("ignore")
from avalanche.evaluation.metrics import accuracy_metrics, forgetting_metrics  # noqa: E402
from avalanche.training import Replay  # noqa: E402
from avalanche.training.plugins import EvaluationPlugin  # noqa: E402

from cop2l.avalanche import CertifiedError, CoP2LStrategy, as_benchmark, as_stream  # noqa: E402

MEMORY, TRAIN, TEST = 500, int(sys.argv[1]) if len(sys.argv) > 1 else 1000, 500


def first(tasks, n):
    return [Task(torch.tensor(x[:n]).flatten(1), torch.tensor(y[:n]), t) for x, y, t in tasks]


def network():
    return build("mlp-head", inputs=(784,), classes=10, hidden=64, seed=0)


def evaluator():
    return EvaluationPlugin(
        accuracy_metrics(experience=True, stream=True), forgetting_metrics(stream=True), CertifiedError()
    )


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    stream = load("mnist", tasks=5)
    benchmark = as_benchmark(replace(stream, train=first(stream.train, TRAIN), test=first(stream.test, TEST)))
    learner = CoP2L(network(), memory=MEMORY, tasks=5, preset="hybrid", lr=0.05, prior_lr=0.05)
    ours, model = CoP2LStrategy(learner=learner, evaluator=evaluator()), network()
    theirs = Replay(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.05), criterion=nn.CrossEntropyLoss(),
        mem_size=MEMORY, train_mb_size=32, train_epochs=10, eval_mb_size=256,
        evaluator=EvaluationPlugin(accuracy_metrics(experience=True, stream=True), forgetting_metrics(stream=True)),
    )  # fmt: skip
    found = {}
    for name, strategy in (("CoP2L", ours), ("Replay", theirs)):
        for experience in benchmark.train_stream:
            strategy.train(experience)
            if name == "CoP2L" and strategy.learner.tasks_seen == 5:
                strategy.certify(benchmark.train_stream)
            found[name] = strategy.eval(benchmark.test_stream)
    print("| | accuracy | forgetting | certified error of tasks 1 to 5 |\n|---|---|---|---|")
    for name, metrics in found.items():
        accuracy = metrics["Top1_Acc_Stream/eval_phase/test_stream/Task000"]
        bounds = [metrics.get(f"Certified_Error/Exp{n:03d}") for n in range(5)]
        said = ", ".join(f"{100 * bound:.1f} %" for bound in bounds) if bounds[0] else "–"
        forgotten = metrics["StreamForgetting/eval_phase/test_stream"]
        print(f"| {name} | {100 * accuracy:.1f} % | {100 * forgotten:.1f} % | {said} |")
    with tempfile.TemporaryDirectory() as folder:
        ours.certificate.save(folder)
        verdict = verify(folder, {t: (x, y) for x, y, t in as_stream(benchmark)})
    print(f"The certificate, verified with the benchmark's own data: {verdict.status}.")


if __name__ == "__main__":
    main()
