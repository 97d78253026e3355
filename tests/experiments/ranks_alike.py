"""Under torchrun: every rank learns random streams alone and with the other ranks, and the results are equal."""

import json
import sys
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

sys.path += [str(Path(__file__).parents[1] / name) for name in ("kernel", "certify")]
from certify_cases import SCENARIOS, case_of, model_of, parameters, standing
from test_learning import drawn

from cop2l.certify import scoring
from cop2l.certify.learner import CoP2L
from cop2l.certify.ranks import Ranks
from cop2l.errors import Advice, UserError
from cop2l.kernel import exact
from cop2l.kernel.options import Refusal

STREAMS = range(16)
"""The numbers of the random streams; training diverges in the last one."""
BLOCK, COPIES = 16, 6
"""Rows of a block (small, so that streams have many blocks), and copies of each example (so that losses tie across ranks)."""


def learned(number, ranks):
    """The results of each task of a stream, and the refusal if there is one."""
    kind, case, dtype = drawn(number)
    case.x, case.y = ([np.concatenate([part] * COPIES) for part in column] for column in (case.x, case.y))
    if number == STREAMS[-1]:
        case.options = replace(case.options, optimiser="sgd", lr=1e12, omega=1e6, epochs=4, start="weights")
    engine = case.engine(model_of(kind, case.classes).to(dtype))
    engine.ranks, left = ranks, []
    with exact.exact_arithmetic(1):
        for t in range(1, case.tasks + 1):
            S = case.sample(t)
            try:
                engine.learn(S)
            except Refusal as refusal:
                return [*left, str(refusal)], case
            count = scoring.misclassified if ranks is None else ranks.misclassified
            left.append(
                [standing(engine), engine.trace, count(engine.model, S, engine.masked_classes).tolist()]
            )
    return left, case


def compare_streams(ranks):
    counts = Counter()
    for number in STREAMS:
        (single, case), (shared, _) = learned(number, None), learned(number, ranks)
        assert repr(single) == repr(shared), number  # a NaN is one
        counts["streams"] += 1
        counts["refused"] += isinstance(single[-1], str)
        counts["several blocks each"] += max(map(len, case.x)) > 2 * BLOCK * ranks.size
        counts["a rank without rows"] += min(map(len, case.x)) <= BLOCK * (ranks.size - 1)
    return counts


def issued(scenario, ranks, data=lambda case: case.data):
    """The certificates after two tasks and after three, and the parameters."""
    case = case_of(
        scenario,
        [900, 2500],
        k=8,
        lr=0.05,
        epochs=1,
        max_iterations=4,
        memory=100,
        claim=("tasks", "forgetting"),
    )
    learner = CoP2L(
        model_of("mlp", case.classes), preset="picking", scenario=scenario, **case.options.as_dict()
    )
    learner.engine.ranks = ranks
    for t, (x, y) in data(case).items():
        learner.learn(x, y, classes=case.heads[t - 1])
    certificates = [learner.certify(case.data)]
    learner.learn(*case.data[1], classes=case.heads[0])
    certificates.append(learner.certify({2: case.data[2]}))  # the others from the memory
    return [(c.content, exact.digest(c.tensors["theta"])) for c in certificates], parameters(learner.model)


def compare_certificates(ranks):
    for scenario in SCENARIOS:
        single, shared = issued(scenario, None), issued(scenario, ranks)
        assert single[0] == shared[0]
        assert exact.digest(single[1]) == exact.digest(shared[1])


def refuse_other_data(ranks):
    def altered(case):
        case.x[1][7, 0] += ranks.rank == 1
        return case.data

    try:
        issued(SCENARIOS[0], ranks, altered)
    except UserError as error:
        return str(error)
    return "nothing was refused"


def main():
    dist.init_process_group(sys.argv[1])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", Advice)
    ranks = Ranks()
    compare_certificates(ranks)
    refusal = refuse_other_data(ranks)
    exact.LARGE_BLOCK = BLOCK
    shares = ranks.shares(np.empty((100, 4)), [100, 10])
    counts = compare_streams(ranks)
    report = {"rank": ranks.rank, "shares": [(s.start, s.stop) for s in shares], "refusal": refusal, **counts}
    sys.stdout.write(json.dumps(report) + "\n")  # in one piece, whatever the others write
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
