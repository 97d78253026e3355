"""How labelled data is split."""

import numpy as np
import pytest
import torch

from cop2l.errors import UserError
from cop2l.streams import SCENARIOS, Labelled, split_into_tasks


def data(classes=6, n=60, domain=None, torch_inputs=False):
    x = np.arange(n * 4, dtype=np.float32).reshape(n, 4)
    y = np.arange(n) % classes
    part = torch.from_numpy(x) if torch_inputs else x
    names = tuple(str(c) for c in range(classes))
    return Labelled(
        "toy",
        part,
        y,
        part[:30],
        y[:30],
        names,
        3,
        domain=domain,
        domain_test=None if domain is None else domain[:30],
    )


@pytest.mark.parametrize("torch_inputs", [False, True])
@pytest.mark.parametrize("scenario", ["class-incremental", "task-incremental"])
def test_every_example_is_in_the_task_of_its_class(scenario, torch_inputs):
    stream = split_into_tasks(data(torch_inputs=torch_inputs), scenario)
    assert stream.heads == ((0, 1), (2, 3), (4, 5))
    rows = []
    for x, y, t in stream:
        assert isinstance(x, torch.Tensor) == torch_inputs
        first = np.asarray(x)[:, 0].astype(int) // 4
        assert (first % 6 == y).all()
        assert set(y.tolist()) == set(stream.heads[t - 1])
        rows += first.tolist()
    assert sorted(rows) == list(range(60))


def test_a_stream_is_a_list():
    stream = split_into_tasks(data(), "class-incremental")
    assert [t for *_, t in stream] == [1, 2, 3]
    nested = [(a.t, b.t) for a in stream for b in stream.test]
    assert nested == [(i, j) for i in (1, 2, 3) for j in (1, 2, 3)]
    assert stream[-1].t == 3
    tail = stream[1:]
    assert [task.t for task in tail] == [task.t for task in tail.test] == [2, 3]
    assert tail.heads == stream.heads[1:]
    assert (tail[0].x == stream[1].x).all()
    assert [task.t for task in stream[::-1]] == [3, 2, 1]
    with pytest.raises(IndexError):
        stream[3]


def test_the_order_of_classes_is_fixed_unless_a_seed_shuffles_it():
    fixed, first, again, second = (
        split_into_tasks(data(), "class-incremental", class_seed=s).heads for s in (None, 1, 1, 2)
    )
    assert fixed == ((0, 1), (2, 3), (4, 5))
    assert first == again
    assert len({fixed, first, second}) == 3
    shuffled = split_into_tasks(data(), "class-incremental", class_seed=1)
    assert all(set(y.tolist()) == set(head) for (_, y, _), head in zip(shuffled, shuffled.heads, strict=True))


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("domains", [False, True])
def test_the_order_of_tasks_changes_nothing_about_what_is_in_them(scenario, domains):
    if domains and scenario != "domain-incremental":
        return
    labelled = data(n=90, domain=np.arange(90) // 30 if domains else None)

    def contents(**split):
        stream = split_into_tasks(labelled, scenario, **split)
        assert [t for *_, t in stream] == [t for *_, t in stream.test] == [1, 2, 3]
        parts = zip(stream, stream.test, stream.heads, strict=True)
        return [(a.x.tobytes(), a.y.tobytes(), b.x.tobytes(), head) for a, b, head in parts]

    default, backwards = contents(), contents(order="reversed")
    assert backwards == default[::-1] != default
    drawn = [contents(order_seed=seed) for seed in range(12)]
    assert all(sorted(order) == sorted(default) for order in drawn)
    assert len({str([task[:2] for task in order]) for order in drawn}) > 3
    assert drawn[5] == contents(order_seed=5)
    with pytest.raises(UserError, match="leave out order or order_seed"):
        contents(order="reversed", order_seed=1)
    with pytest.raises(UserError, match="did you mean 'reversed'"):
        contents(order="reverse")


def test_the_order_of_tasks_is_described_with_their_classes():
    lists = [[5], [0, 1, 2]]
    assert split_into_tasks(data(), "class-incremental", task_classes=lists, order="reversed").heads == (
        (0, 1, 2),
        (5,),
    )
    stream = split_into_tasks(data(), "domain-incremental", order="reversed")
    assert stream.description["task_classes"] == [[4, 5], [2, 3], [0, 1]]
    assert [stream.description[key] for key in ("class_seed", "order", "order_seed")] == [
        None,
        "reversed",
        None,
    ]
    with pytest.raises(UserError, match="leave out class_seed"):
        split_into_tasks(data(), "class-incremental", task_classes=lists, class_seed=1)
    with pytest.raises(UserError, match="are its domains"):
        split_into_tasks(data(domain=np.arange(60) // 20), "domain-incremental", class_seed=1)


def test_groups_and_tasks():
    assert split_into_tasks(data(), "class-incremental", task_classes=[[5], [0, 1, 2]]).heads == (
        (5,),
        (0, 1, 2),
    )
    assert len(split_into_tasks(data(), "class-incremental", tasks=6)) == 6
    for options, message in (
        ({"tasks": 4}, "1, 2, 3, 6"),
        ({"tasks": 0}, "1, 2, 3, 6"),
        ({"task_classes": [[0], [0]]}, "disjoint"),
        ({"task_classes": [[0], [9]]}, "between 0 and 5"),
        ({"task_classes": [[0], []]}, "disjoint"),
        ({"task_classes": [[0], [1]], "tasks": 3}, "2 tasks"),
    ):
        with pytest.raises(UserError, match=message):
            split_into_tasks(data(), "class-incremental", **options)


def test_domains_of_the_data_are_the_tasks():
    site = np.arange(60) // 20
    stream = split_into_tasks(data(domain=site), "domain-incremental")
    assert [len(y) for _, y, _ in stream] == [20, 20, 20]
    assert stream.heads == ((0, 1, 2, 3, 4, 5),) * 3
    assert stream.classes == 6
    assert np.shares_memory(stream[1].x, stream.train.x), "consecutive rows are a view"
    with pytest.raises(UserError, match="3 domains"):
        split_into_tasks(data(domain=site), "domain-incremental", tasks=2)


def test_without_domains_the_number_in_the_group_is_the_label():
    stream = split_into_tasks(data(), "domain-incremental", class_seed=4)
    groups = stream.description["task_classes"]
    assert stream.classes == 2
    for (x, y, _), group in zip(stream, groups, strict=True):
        original = (x[:, 0].astype(int) // 4) % 6
        assert [group[number] for number in y] == original.tolist()
    with pytest.raises(UserError, match="same number"):
        split_into_tasks(data(), "domain-incremental", task_classes=[[0], [1, 2]])
