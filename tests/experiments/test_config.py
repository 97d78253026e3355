import dataclasses
import json
import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from cop2l.errors import UserError
from cop2l.experiments import grid, options
from cop2l.experiments.config import FIELDS, Config, typed_value
from cop2l.kernel.options import Kind, Options
from cop2l.learner.presets import PRESETS
from cop2l.methods import METHODS
from cop2l.models import build
from cop2l.text import as_typed


def configured(table, *pairs):
    return grid.single_run(table, grid.overrides(pairs))


@pytest.mark.parametrize("method", METHODS)
def test_every_key_has_a_sentence_under_its_declaration(method):
    found = options.run_keys(method)
    assert list(found) == [*FIELDS, *options.types(method)]
    assert all(key.sentence.endswith(".") for key in found.values())


def test_what_is_declared_by_an_options_dataclass_is_declared_nowhere_else():
    declared = {name for method in METHODS for name in options.types(method)}
    assert {"preset", "k", "omega", "gamma", "epochs", "lr", "stop", "alpha"} <= declared
    assert not declared & set(FIELDS)
    of_cop2l = {"preset"} | {field.name for field in dataclasses.fields(Options)}
    assert set(options.types("cop2l")) == of_cop2l - {
        "memory",
        "delta",
        "seed",
        "kind",
        "tasks",
        "claim",
        "shares",
        "siblings",
        "groups",
    }


def test_the_table_of_the_documentation_is_what_is_declared():
    rows = [
        f"| `{name}` | {f'`{typed_as}`' if (typed_as := as_typed(key.default)) else ''} | {key.sentence} |"
        for name, key in options.run_keys("cop2l").items()
    ]
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    assert "\n".join(["| key | default | |", "|---|---|---|", *rows, ""]) in text


def test_cop2l_has_few_choices():
    """What serves a hold-out belongs to `Holdout`: a new choice of CoP2L must replace another."""
    assert len(dataclasses.fields(Options)) <= 20
    assert set(PRESETS) == {"picking", "paper"}
    assert set(get_args(Kind)) == {"kl", "preference", "buffer", "holdout"}


def test_the_configuration_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().seed = 3  # type: ignore[misc]


def test_overrides_have_the_type_of_their_field():
    config = configured({}, "seed=3", "class_seed=none", "memory=500", "anytime=true")
    assert (config.seed, config.class_seed, config.memory, config.anytime) == (3, None, 500, True)


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("claim=average", ("average",)),
        ('claim=["tasks", "average"]', ("tasks", "average")),
        ("claim=tasks,average", ("tasks", "average")),
        ("shares=3,1", (3, 1)),
        ("groups=2019,north", ("2019", "north")),
    ],
)
def test_a_list_of_the_run_is_one_run_and_no_grid(pair, value):
    more = {"shares": ["claim=tasks,average"], "groups": ["claim=tasks,groups"], "claim": []}
    name = pair.partition("=")[0]
    config = configured({"method": "replay", "holdout": 0.5}, pair, *more[name])
    assert getattr(config, name) == value


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("lr=.1", 0.1),
        ("lr=1", 1.0),
        ("k=4", 4),
        ("stop=none", "none"),
        ("max_iterations=7", 7),
        ("grid=true", True),
        ("options.grid=false", False),
        ("preset=paper", "paper"),
        ("methods.cop2l.k=4", 4),
    ],
)
def test_options_have_the_type_of_their_declaration(pair, value):
    name = pair.partition("=")[0].rpartition(".")[2]
    (found,) = configured({"method": "cop2l"}, pair).options.items()
    assert found == (name, value)
    assert type(found[1]) is type(value)


def test_classes_are_names_however_they_are_written():
    """The auditor types them as text: a certificate that had 10 as a number was called invalid."""
    for pair in ("classes=01,2,true", 'classes=["01", 2, "true"]'):
        assert configured({}, pair).data == {"classes": ["01", "2", "true"]}
    assert configured(tomllib.loads("[data]\nclasses = [0, 1]")).data == {"classes": ["0", "1"]}
    assert configured({}, "classes=4").data == {"classes": 4}


def test_options_in_a_file_are_typed_as_those_on_the_command_line():
    table = tomllib.loads('method = "cop2l"\nlr = 1\nclaim = ["tasks"]\ngrid = true\n[options]\nk = 4')
    given = configured({}, "method=cop2l", "lr=1", "claim=tasks", "grid=true", "k=4")
    assert configured(table).hash == given.hash
    assert configured({}, "method=ncm", "normalise=false").options == {"normalise": False}


KINDS_SENTENCE = "kind must be one of kl, preference, buffer, holdout, but it is 'kll'."


@pytest.mark.parametrize(
    ("pair", "sentence"),
    [
        ("seeed=3", "There is no key named 'seeed'; did you mean 'seed'?"),
        ("seed=x", "seed takes a whole number, not 'x'."),
        ("lr=fast", "lr must be a number from 1e-12 to 1e+12, but it is 'fast'."),
        ("lr=-1", "lr must be a number from 1e-12 to 1e+12, but it is -1.0."),
        ("k=0", "k must be a whole number from 1 to 1e+09, but it is 0."),
        ("k=2.5", "k must be a whole number from 1 to 1e+09, but it is '2.5'."),
        ("stop=never", "stop must be one of kl, preference, none, but it is 'never'."),
        ("methods=3", "methods is '3'; write tables, [methods.NAME]."),
        (
            "claim=all",
            "claim[0] must be one of tasks, average, forgetting, classes, groups, but it is 'all'.",
        ),
        ("preset=papr", "There is no preset named 'papr'; did you mean 'paper'?"),
        ("kind=kll", KINDS_SENTENCE),
        (
            "kind=holdout",
            "CoP2L certifies itself by all examples that it does not pick; leave out holdout, or choose another method.",
        ),
        ("memory=2", "memory=2 is less than the number of tasks, 3; give each task an example."),
        ("options.memmory=5", "There is no key named 'memmory'; did you mean 'memory'?"),
        ("options.lr=.1,.2", "lr is a list; write it under [grid] to make a run of each of its values."),
        ("omegga=3", "There is no key named 'omegga'; did you mean 'omega'?"),
        ("delta=1", "delta must be a number from 1e-300 to 0.5, but it is 1.0."),
        ("holdout=1", "holdout is 1.0; give a share from 0 up to, not including, 1."),
        ("seed=-1", "seed is -1; give a whole number of at least 0."),
        (
            "scenario=task-incrmental",
            "There is no scenario named 'task-incrmental'; did you mean 'task-incremental'?",
        ),
        ("images=own", "There is no kind of images named 'own'; choose one of: disjoint, shared."),
        ("seed", "Write a key as key=value, for example seed=3, not 'seed'."),
        ("method=repaly", "There is no method named 'repaly'; did you mean 'replay'?"),
        ("methods.repaly.lr=3", "There is no method named 'repaly'; did you mean 'replay'?"),
        ("models.cnn.lrr=3", "There is no key named 'lrr'; did you mean 'lr'?"),
        ("seed=[]", "seed is an empty list; give it at least one value."),
        ("seed=[a,b]", "[a,b] is not a list; write its texts in quotes, or a,b without brackets."),
        ("streams.cifar11.tasks=5", "There is no stream named 'cifar11'; did you mean 'cifar10'?"),
        ("paper.model=mlp", "There is no key named 'paper.model'; did you mean 'model'?"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(pair, sentence):
    with pytest.raises(UserError) as error:
        grid.expand(grid.read_configuration("synthetic"), grid.overrides(["method=cop2l", pair]))
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        (
            ["method=replay", "alpha=0.3"],
            "replay has no option alpha; for csrel alone, write methods.csrel.alpha.",
        ),
        (
            ["method=replay", "preset=paper"],
            "replay has no option preset; for cop2l alone, write methods.cop2l.preset.",
        ),
        (["method=cop2l,replay", "k=4"], "replay has no option k; for cop2l alone, write methods.cop2l.k."),
        (["method=replay", "lr=0"], "The option lr is 0.0; give a number larger than 0."),
        (["method=replay", "lr=inf"], "The option lr is inf; give a number larger than 0."),
        (["method=replay", "epochs=2.5"], "The option epochs is '2.5'; give a whole number larger than 0."),
        (["method=ncm", "normalise=3"], "The option normalise is '3'; give true or false."),
        (["method=replay", "delta=nan"], "delta must be a number from 1e-300 to 0.5, but it is nan."),
        (
            ["method=replay", "kind=holdout", "holdout=0"],
            "The claim is the hold-out bound, but nothing is withheld; add for example holdout=0.5.",
        ),
        (["method=replay", "kind=kl"], "replay can only claim the hold-out bound; leave kind out."),
    ],
)
def test_what_another_method_refuses_is_said_in_a_sentence(pairs, sentence):
    with pytest.raises(UserError) as error:
        grid.expand(grid.read_configuration("synthetic"), grid.overrides(pairs))
    assert str(error.value) == sentence


def test_a_methods_own_option_is_known_by_its_bare_name():
    assert configured({}, "method=der++", "alpha=0.3").options == {"alpha": 0.3}


def test_a_grid_gives_an_option_to_the_methods_that_have_it():
    runs = grid.expand(
        {}, grid.overrides(["method=cop2l,replay,ncm", "methods.cop2l.k=4", "methods.replay.lr=1"])
    )
    assert [run.options for run in runs] == [{"k": 4}, {"lr": 1.0}, {}]


def test_the_sections_of_a_preset_are_for_cop2l_and_its_default_preset_opens_one():
    table = tomllib.loads("""
        method = "cop2l"
        [presets.picking]
        k = 5
        [presets.paper]
        k = 6
    """)
    assert configured(table, "preset=picking").options == {"preset": "picking", "k": 5}
    assert configured(table, "preset=paper").options == {"preset": "paper", "k": 6}
    assert configured(table, "options.preset=paper").options == {"preset": "paper", "k": 6}
    assert configured(table, "method=replay").options == {}
    assert [run.options["k"] for run in grid.expand(table, grid.overrides(["preset=paper,picking"]))] == [
        6,
        5,
    ]


def test_cop2l_has_the_sections_of_paper_for_what_it_does_not_say_itself(monkeypatch):
    monkeypatch.setitem(PRESETS["picking"], "lr", 0.5)
    table = tomllib.loads("""
        method = "cop2l"
        preset = "picking"
        [presets.paper]
        lr = 1.0
        k = 6
        epochs = 7
        [presets.picking]
        epochs = 8
        [models.cnn.presets.paper]
        lr = 2.0
        k = 9
    """)
    assert configured(table).options == {"preset": "picking", "k": 6, "epochs": 8}
    assert configured(table, "model=cnn").options == {"preset": "picking", "k": 9, "epochs": 8}
    assert configured(table, "lr=3").options == {"preset": "picking", "k": 6, "epochs": 8, "lr": 3.0}
    assert configured(table, "preset=paper").options == {"preset": "paper", "lr": 1.0, "k": 6, "epochs": 7}


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

    def lr(*pairs):
        return configured(table, *pairs).options["lr"]

    assert lr("method=replay") == 1.0
    assert lr() == 2.0
    assert lr("scenario=task-incremental") == 4.0  # the scenario chose the model
    assert lr("scenario=task-incremental", "model=mlp") == 3.0
    assert lr("scenario=task-incremental", "lr=9") == 9.0
    assert configured(table, "methods.cop2l.k=7").options["k"] == 7
    assert "k" not in configured(table, "methods.cop2l.k=7", "method=replay").options


def test_a_grid_has_a_run_for_each_of_its_values_and_that_of_a_section_only_where_it_applies():
    table = tomllib.loads("""
        [grid]
        method = ["cop2l", "replay"]
        seed = [0, 1]
        [methods.cop2l.grid]
        omega = [1.0, 15.0]
    """)
    runs = grid.expand(table)
    assert [(run.method, run.options.get("omega"), run.seed) for run in runs] == [
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
            'method = ["module:Class"]',
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
        ('method = "cop2l"\ngrid = 3', "grid must be one of True, False, but it is 3."),
        ("methods = 3", "methods is 3; write tables, [methods.NAME]."),
        ("method = 3", f"There is no method named '3'; choose one of: {', '.join(sorted(METHODS))}."),
        ("methods.replay = 3", "methods is {'replay': 3}; write tables, [methods.NAME]."),
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
    with pytest.raises(UserError, match="is not a number, a text, true, false or a list"):
        grid.expand(tomllib.loads("[data]\ndays = [2026-01-01]"))


@pytest.mark.parametrize(
    ("pair", "data"),
    [
        ("data.columns=a,b", {"columns": ["a", "b"]}),
        ("columns=0,1", {"columns": ["0", "1"]}),
        ("label=64", {"label": "64"}),
        ('data.columns=["a","b"]', {"columns": ["a", "b"]}),
        ("data.task_classes=[[0,1],[2,3]]", {"task_classes": [[0, 1], [2, 3]]}),
        ("data.classes=3,1,2", {"classes": ["3", "1", "2"]}),
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
    table = grid.read_configuration(tmp_path / "above.toml")
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
    assert [(run.method, run.tasks, run.memory, run.options) for run in runs] == [
        ("cop2l", 5, 7, {}),
        ("replay", 5, 7, {}),
        ("cop2l", 10, 2000, {"epochs": 30}),
        ("cop2l", 20, 2000, {"epochs": 30}),
        ("replay", 10, 2000, {"epochs": 30, "batch": 9}),
        ("replay", 20, 2000, {"epochs": 30, "batch": 9}),
    ]


def test_the_examples_of_the_documentation():
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    table, grid_table = (tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL))
    below = grid.merge(grid.read_configuration(table.pop("base")), table)
    assert configured(below).memory == 500
    assert configured(below, "model=cnn", "memory=7").options["k"] == 48
    assert len(grid.expand(grid_table)) == 3 * 2 * (2 + 1)


def test_one_run_is_wanted_and_a_grid_is_given():
    with pytest.raises(UserError, match=r"a grid of 2 runs; use cop2l sweep, or choose one: seed=0\."):
        configured({}, "seed=0,1")
    with pytest.raises(UserError, match=r"use cop2l sweep, or choose one: anytime=true\."):
        grid.single_run(grid.read_configuration("synthetic"), grid.overrides(["anytime=true,false"]))
    with pytest.raises(UserError, match=r"use cop2l sweep, or choose one: data\.n=50\."):
        configured({}, "grid.data.n=50,100")


def test_the_hash_is_of_what_decides_the_result():
    config = Config()
    assert config.hash == Config(name="other").hash
    for field, value in (("seed", 1), ("threads", 2), ("delta", 0.1), ("options", {"lr": 0.1})):
        assert dataclasses.replace(config, **{field: value}).hash != config.hash


def test_the_model_follows_from_the_stream_unless_it_is_given():
    assert configured({}, "stream=mnist").model == "mlp"
    assert configured({}, "stream=a@b-64").model == "linear"
    assert configured({}, "stream=a@b-64", "scenario=task-incremental").model == "multi-head"
    assert configured({}, "stream=a@b-64", "model=mlp-head").model == "mlp-head"


@pytest.mark.parametrize("method", ["ncm", "slda", "ranpac"])
def test_methods_for_frozen_features_have_a_linear_head_and_no_learning_rate(method):
    config = configured(grid.read_configuration("cifar10"), f"method={method}", "scenario=task-incremental")
    assert (config.model, config.options) == ("linear", {})


def test_a_base_is_beneath_and_a_circle_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("one.toml").write_text('base = "mnist"\nmemory = 7\n')
    config = configured(grid.read_configuration("one.toml"))
    assert (config.name, config.memory, config.tasks) == ("one", 7, 5)
    Path("two.toml").write_text('base = "three.toml"')
    Path("three.toml").write_text('base = "two.toml"')
    with pytest.raises(UserError, match="its own base"):
        grid.read_configuration("two.toml")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("minst", "There is no configuration named 'minst'; did you mean 'mnist'?"),
        ("none.toml", "There is no file or folder none.toml"),
        ("./mnist", "There is no file or folder ./mnist"),
        ("bad.toml", "bad.toml is not valid TOML"),
    ],
)
def test_configurations_that_cannot_be_read(tmp_path, monkeypatch, name, sentence):
    monkeypatch.chdir(tmp_path)
    Path("bad.toml").write_text("seed = = 3")
    with pytest.raises(UserError) as error:
        grid.read_configuration(name)
    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize("name", grid.builtin_names())
def test_every_builtin_configuration_is_one_run_of_a_known_stream(name):
    config = grid.single_run(grid.read_configuration(name))
    assert known_stream(config.stream)


@pytest.mark.parametrize("name", ["digits", "synthetic", "mnist"])
@pytest.mark.parametrize("model", ["linear", "mlp", "multi-head"])
def test_a_configuration_takes_another_model(name, model):
    config = grid.single_run(grid.read_configuration(name), {"model": model})
    build(config.model, inputs=(1, 28, 28), classes=10, **config.architecture)


def test_a_stream_of_features_stands_for_the_settings_of_features():
    config = grid.single_run(grid.read_configuration("cifar10@dinov2-vits14-70"), {"method": "replay"})
    by_options = grid.single_run(
        grid.read_configuration("cifar10"), {"method": "replay", "stream": "cifar10@dinov2-vits14-70"}
    )
    assert (config.stream, config.model) == ("cifar10@dinov2-vits14-70", "linear")
    assert config.options == by_options.options
    assert config.name == config.stream


def test_another_stream_in_the_place_of_a_configuration_says_what_to_type(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.npz").touch()
    with pytest.raises(UserError, match="write: cop2l run mnist stream=emnist-letters"):
        grid.read_configuration("emnist-letters")
    assert grid.read_configuration("mine.npz") == {
        **grid.read_configuration("_own"),
        "name": "mine",
        "stream": "mine.npz",
    }


def known_stream(name):
    from cop2l.models.backbones import BACKBONES
    from cop2l.streams import NAMES

    data, _, features = name.partition("@")
    return data in NAMES and (not features or features.rpartition("-")[0] in BACKBONES)


def test_a_type_nobody_declared():
    with pytest.raises(UserError, match="data takes a table"):
        typed_value("data", 3)


def test_cifar100_by_its_short_name_is_the_same_run():
    short, long = (grid.single_run(grid.read_configuration(name)) for name in ("cifar100", "cifar100-10"))
    assert (short.tasks, short.hash) == (10, long.hash)
