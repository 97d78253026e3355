import dataclasses
import json
import re
import tomllib
from pathlib import Path

import pytest

from cop2l.errors import UserError
from cop2l.experiments import grid
from cop2l.experiments.catalogue import keys
from cop2l.experiments.config import FIELDS, Config, typed
from cop2l.models import build


def configured(table, *pairs):
    return grid.single(table, grid.overrides(pairs))


def test_every_field_has_a_sentence_under_it():
    found = keys()
    assert list(found) == list(FIELDS)
    assert all(sentence.endswith(".") for sentence in found.values())


def test_the_keys_that_were_promised_are_there():
    promised = (
        "method stream scenario model memory k omega gamma epochs batch lr optimiser buffer stop prior delta"
    )
    assert {*promised.split(), "seed", "holdout", "device", "preset"} <= set(FIELDS)


def test_the_configuration_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().seed = 3  # type: ignore[misc]


def test_overrides_have_the_type_of_their_field():
    config = configured({}, "seed=3", "lr=1e-2", "k=4", "stop=none", "order_seed=none", "memory=500")
    assert (config.seed, config.lr, config.k, config.stop, config.order_seed, config.memory) == (
        3,
        0.01,
        4,
        "none",
        None,
        500,
    )


@pytest.mark.parametrize(
    ("pair", "sentence"),
    [
        ("seeed=3", "There is no key named 'seeed'; did you mean 'seed'?"),
        ("seed=x", "seed takes a whole number, not 'x'."),
        ("lr=fast", "lr takes a number, not 'fast'."),
        ("k=0", "k is 0; give a whole number of at least 1."),
        ("delta=1", "delta is 1.0; give a probability between 0 and 1, such as 0.05."),
        ("holdout=1", "holdout is 1.0; give a share from 0 up to, not including, 1."),
        ("lr=-1", "lr is -1.0; give a positive number."),
        ("seed=-1", "seed is -1; give a whole number that is not negative."),
        (
            "scenario=task-incrmental",
            "There is no scenario named 'task-incrmental'; did you mean 'task-incremental'?",
        ),
        ("images=own", "There is no kind of images named 'own'; choose one of: disjoint, shared."),
        ("seed", "Write an override as key=value, for example seed=3; 'seed' is not."),
        ("method=repaly", "There is no method named 'repaly'; did you mean 'replay'?"),
        ("methods.repaly.lr=3", "There is no method named 'repaly'; did you mean 'replay'?"),
        ("models.cnn.lrr=3", "There is no key named 'lrr'; did you mean 'lr'?"),
        ("seed=[]", "seed is an empty list; give it at least one value."),
        ("seed=[a,b]", "[a,b] is no list; write its texts in quotes, or a,b without brackets."),
        ("streams.cifar11.tasks=5", "There is no stream named 'cifar11'; did you mean 'cifar10'?"),
        ("paper.model=mlp", "There is no key named 'paper.model'; did you mean 'model'?"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(pair, sentence):
    with pytest.raises(UserError) as error:
        grid.expand(grid.read("synthetic"), grid.overrides([pair]))
    assert str(error.value) == sentence


def test_a_methods_own_option_is_known_by_its_bare_name_and_to_no_other_method():
    assert configured({}, "method=der", "alpha=0.3").options == {"alpha": 0.3}
    with pytest.raises(UserError, match="no key named 'alpha'"):
        configured({}, "method=replay", "alpha=0.3")


def test_deeper_sections_win_and_the_command_line_wins_over_all():
    table = tomllib.loads("""
        lr = 1.0
        method = "cop2l"
        [methods.cop2l]
        lr = 2.0
        k = 3
        [models.cnn.methods.cop2l]
        lr = 4.0
        [scenarios.task-incremental]
        lr = 3.0
        model = "cnn"
    """)
    assert configured(table, "method=replay").lr == 1.0
    assert configured(table).lr == 2.0
    assert configured(table, "scenario=task-incremental").lr == 4.0  # the scenario chose the model
    assert configured(table, "scenario=task-incremental", "model=mlp").lr == 3.0
    assert configured(table, "scenario=task-incremental", "lr=9").lr == 9.0
    assert configured(table, "methods.cop2l.k=7").k == 7
    assert configured(table, "methods.cop2l.k=7", "method=replay").k is None


def test_a_grid_has_a_run_for_each_of_its_values_and_that_of_a_section_only_where_it_applies():
    table = tomllib.loads("""
        [grid]
        method = ["cop2l", "replay"]
        seed = [0, 1]
        [methods.cop2l.grid]
        omega = [1.0, 15.0]
    """)
    runs = grid.expand(table)
    assert [(run.method, run.omega, run.seed) for run in runs] == [
        ("cop2l", 1.0, 0),
        ("cop2l", 15.0, 0),
        ("cop2l", 1.0, 1),
        ("cop2l", 15.0, 1),
        ("replay", None, 0),
        ("replay", None, 1),
    ]
    assert len(grid.expand(table, grid.overrides(["seed=0,1,2", "method=replay"]))) == 3
    assert len({run.hash for run in runs}) == 6


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("seed = [0, 1]", "seed is a list; write it under [grid] to make a run of each of its values."),
        (
            'method = ["cop2l"]',
            "method is a list; write it under [grid] to make a run of each of its values.",
        ),
        (
            "[methods.replay]\nlr = [0.1, 0.2]",
            "lr is a list; write it under [grid] to make a run of each of its values.",
        ),
        ("[grid]\nseed = 3", "seed is 3 under [grid]; give a list there, or one value outside."),
        ("seed = 3\n[grid]\nseed = [3]", "seed is given twice, as a value and under [grid]; keep one."),
        (
            "data.n = 3\n[grid]\ndata.n = [3]",
            "data.n is given twice, as a value and under [grid]; keep one.",
        ),
        ("[grid]\nseeed = [1]", "There is no key named 'seeed'; did you mean 'seed'?"),
        (
            "[grid.methods.replay]\nlr = [1]",
            "Write the grid of a section inside it: [methods.replay.grid], not [grid.methods.replay].",
        ),
        ("grid = 3", "grid is 3; it is the name of a table, write [grid]."),
        ("methods = 3", "methods is 3; it is the name of a table, write [methods]."),
        ("methods.replay = 3", "methods.replay is 3; write a table, [methods.replay]."),
    ],
)
def test_a_list_that_is_no_grid_and_a_grid_that_is_no_list_are_refused(text, sentence):
    with pytest.raises(UserError) as error:
        grid.expand(tomllib.loads(text))
    assert str(error.value) == sentence


def test_lists_in_the_tables_are_lists():
    table = tomllib.loads("""
        [data]
        columns = ["a", "1"]
        task_classes = [[0, 1], [2, 3]]
        [architecture]
        widths = [64, 32]
    """)
    (run,) = grid.expand(table)
    assert run.data == {"columns": ["a", "1"], "task_classes": [[0, 1], [2, 3]]}
    assert run.architecture == {"widths": [64, 32]}
    json.dumps(run.as_record())
    with pytest.raises(UserError, match="is no number, text, truth value or list"):
        grid.expand(tomllib.loads("[data]\ndays = [2026-01-01]"))


@pytest.mark.parametrize(
    ("pair", "data"),
    [
        ("data.columns=a,b", {"columns": ["a", "b"]}),
        ('data.columns=["a","b"]', {"columns": ["a", "b"]}),
        ("data.task_classes=[[0,1],[2,3]]", {"task_classes": [[0, 1], [2, 3]]}),
        ("data.classes=3,1,2", {"classes": [3, 1, 2]}),
        ("data.n=5", {"n": 5}),
        ("streams.mnist.data.columns=a,b", {"columns": ["a", "b"]}),
    ],
)
def test_lists_in_the_tables_are_lists_on_the_command_line(pair, data):
    assert configured({}, pair).data == data


def test_a_grid_over_the_keys_of_a_table_is_written_as_one():
    table = tomllib.loads('[grid]\ndata.columns = [["a"], ["a", "b"]]\narchitecture.hidden = [8, 16]')
    runs = grid.expand(table)
    assert [(run.data["columns"], run.architecture["hidden"]) for run in runs] == [
        (["a"], 8),
        (["a"], 16),
        (["a", "b"], 8),
        (["a", "b"], 16),
    ]
    given = grid.overrides(["grid.data.n=50,100", "grid.seed=3"])
    assert [(run.data, run.seed) for run in grid.expand({}, given)] == [({"n": 50}, 3), ({"n": 100}, 3)]
    assert len(grid.expand(table, grid.overrides(["data.columns=c,d", "architecture.hidden=8"]))) == 1


def test_a_later_word_on_a_key_takes_it_out_of_the_grid(tmp_path):
    (tmp_path / "below.toml").write_text("[grid]\nseed = [0, 1]\nmemory = [10, 20]\n")
    (tmp_path / "above.toml").write_text('base = "below.toml"\nseed = 7\n')
    table = grid.read(tmp_path / "above.toml")
    assert [(run.seed, run.memory) for run in grid.expand(table)] == [(7, 10), (7, 20)]
    assert configured(table, "memory=5").memory == 5


def test_the_methods_of_a_grid_may_depend_on_its_scenario():
    table = tomllib.loads("""
        [grid]
        scenario = ["class-incremental", "task-incremental"]
        method = ["cop2l", "replay"]
        [scenarios.task-incremental.grid]
        method = ["lwf"]
    """)
    assert [run.method for run in grid.expand(table)] == ["cop2l", "replay", "lwf"]


def test_a_stream_has_the_sections_of_its_data_of_its_features_and_of_its_name():
    table = tomllib.loads("""
        [grid]
        stream = ["cifar10@dinov2-vits14-224", "cifar100@dino-resnet50-64"]
        [streams.cifar10]
        tasks = 5
        [streams.cifar100.grid]
        tasks = [10, 20]
        [streams."@dino-resnet50-64"]
        epochs = 30
        [streams."cifar10@dinov2-vits14-224"]
        memory = 7
        [streams."@dino-resnet50-64".methods.replay]
        batch = 9
    """)
    runs = grid.expand(table, grid.overrides(["method=cop2l,replay"]))
    assert [(run.method, run.tasks, run.epochs, run.memory, run.batch) for run in runs] == [
        ("cop2l", 5, None, 7, None),
        ("replay", 5, None, 7, None),
        ("cop2l", 10, 30, 2000, None),
        ("cop2l", 20, 30, 2000, None),
        ("replay", 10, 30, 2000, 9),
        ("replay", 20, 30, 2000, 9),
    ]


def test_the_examples_of_the_documentation():
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    one, many = (tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL))
    below = grid.merged(grid.read(one.pop("base")), one)
    assert configured(below).memory == 500
    assert configured(below, "model=cnn", "memory=7").k == 48
    assert len(grid.expand(many)) == 3 * 2 * (2 + 1)


def test_one_run_is_wanted_and_a_grid_is_given():
    with pytest.raises(UserError, match=r"a grid of 2 runs; use cop2l sweep, or choose one: seed=0\."):
        configured({}, "seed=0,1")
    with pytest.raises(UserError, match=r"use cop2l sweep, or choose one: data\.n=50\."):
        configured({}, "grid.data.n=50,100")


def test_the_hash_is_of_what_decides_the_result():
    config = Config()
    assert config.hash == Config(name="other").hash
    for field, value in (("seed", 1), ("threads", 2), ("delta", 0.1), ("options", {"alpha": 1})):
        assert dataclasses.replace(config, **{field: value}).hash != config.hash


def test_the_model_follows_from_the_stream_unless_it_is_given():
    assert configured({}, "stream=mnist").model == "mlp"
    assert configured({}, "stream=a@b-64").model == "linear"
    assert configured({}, "stream=a@b-64", "scenario=task-incremental").model == "multi-head"
    assert configured({}, "stream=a@b-64", "model=mlp-head").model == "mlp-head"


@pytest.mark.parametrize("method", ["ncm", "slda", "ranpac"])
def test_methods_for_frozen_features_have_a_linear_head_and_no_learning_rate(method):
    config = configured(grid.read("cifar10"), f"method={method}", "scenario=task-incremental")
    assert (config.model, config.lr, config.epochs) == ("linear", None, None)


def test_a_base_is_beneath_and_a_circle_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("one.toml").write_text('base = "mnist"\nmemory = 7\n')
    config = configured(grid.read("one.toml"))
    assert (config.name, config.memory, config.tasks) == ("one", 7, 5)
    Path("two.toml").write_text('base = "three.toml"')
    Path("three.toml").write_text('base = "two.toml"')
    with pytest.raises(UserError, match="its own base"):
        grid.read("two.toml")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("minst", "There is no configuration named 'minst'; did you mean 'mnist'?"),
        ("none.toml", "There is no file none.toml"),
        ("bad.toml", "bad.toml is not valid TOML"),
    ],
)
def test_configurations_that_cannot_be_read(tmp_path, monkeypatch, name, sentence):
    monkeypatch.chdir(tmp_path)
    Path("bad.toml").write_text("seed = = 3")
    with pytest.raises(UserError) as error:
        grid.read(name)
    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize("name", grid.builtin_names())
def test_every_builtin_configuration_is_one_run_of_a_known_stream(name):
    config = grid.single(grid.read(name))
    assert known_stream(config.stream)


@pytest.mark.parametrize("name", ["digits", "synthetic", "mnist"])
@pytest.mark.parametrize("model", ["linear", "mlp", "multi-head"])
def test_a_configuration_takes_another_model(name, model):
    config = grid.single(grid.read(name), {"model": model})
    build(config.model, inputs=(1, 28, 28), classes=10, **config.architecture)


def test_a_stream_of_features_stands_for_the_settings_of_features():
    config = grid.single(grid.read("cifar10@dinov2-vits14-70"), {"method": "replay"})
    like = grid.single(grid.read("cifar10"), {"method": "replay", "stream": "cifar10@dinov2-vits14-70"})
    assert (config.stream, config.model, config.lr) == ("cifar10@dinov2-vits14-70", "linear", like.lr)
    assert config.name == config.stream


def test_another_stream_in_the_place_of_a_configuration_says_what_to_type(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.npz").touch()
    for name in ("emnist-letters", "mine.npz"):
        with pytest.raises(UserError, match=f"write: cop2l run mnist stream={name}"):
            grid.read(name)


def known_stream(name):
    from cop2l.models.backbones import BACKBONES
    from cop2l.streams import NAMES

    data, _, features = name.partition("@")
    return data in NAMES and (not features or features.rpartition("-")[0] in BACKBONES)


def test_a_type_nobody_declared():
    with pytest.raises(UserError, match="data takes a table"):
        typed("data", 3)
