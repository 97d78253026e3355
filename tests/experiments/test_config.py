import dataclasses
import tomllib
from pathlib import Path

import pytest

from cop2l.errors import UserError
from cop2l.experiments import grid
from cop2l.experiments.catalogue import keys
from cop2l.experiments.config import FIELDS, Config, typed

REPOSITORY = Path(__file__).parents[2]
PUBLISHED = sorted((REPOSITORY / "configs").glob("*.toml"))


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


def test_lists_make_a_grid_and_lists_in_a_section_only_where_it_applies():
    table = tomllib.loads("""
        method = ["cop2l", "replay"]
        seed = [0, 1]
        [methods.cop2l]
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


def test_one_run_is_wanted_and_a_grid_is_given():
    with pytest.raises(UserError, match=r"a grid of 2 runs; use cop2l sweep, or choose one: seed=0\."):
        configured({}, "seed=0,1")


def test_the_hash_is_of_what_decides_the_result():
    config = Config()
    assert config.hash == Config(name="other", paper={"dataset": "mnist"}).hash
    for field, value in (("seed", 1), ("threads", 2), ("delta", 0.1), ("options", {"alpha": 1})):
        assert dataclasses.replace(config, **{field: value}).hash != config.hash


def test_the_model_follows_from_the_stream_unless_it_is_given():
    assert configured({}, "stream=mnist").model == "mlp"
    assert configured({}, "stream=a@b-64").model == "linear"
    assert configured({}, "stream=a@b-64", "scenario=task-incremental").model == "multi-head"
    assert configured({}, "stream=a@b-64", "model=mlp-head").model == "mlp-head"


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


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_every_published_experiment_names_its_runs(path):
    assert path.read_text().startswith("# ")
    runs = grid.expand(grid.read(path))
    assert len(runs) >= 10
    assert len({run.hash for run in runs}) == len(runs)
    assert all(known_stream(run.stream) for run in runs)


def known_stream(name):
    from cop2l.models.backbones import BACKBONES
    from cop2l.streams import NAMES

    data, _, features = name.partition("@")
    return data in NAMES and (not features or features.rpartition("-")[0] in BACKBONES)


def test_the_papers_numbers_are_found_for_every_row_that_a_published_experiment_names():
    import csv

    rows = csv.DictReader((REPOSITORY / "src/cop2l/report/paper_numbers.csv").read_text().splitlines())
    columns = ("scenario", "dataset", "tasks", "method", "model")
    known = {tuple(row[column] for column in columns) for row in rows}
    named = set()
    for path in PUBLISHED:
        for run in grid.expand(grid.read(path)):
            if run.paper:
                named.add(tuple(str(run.paper[column]) for column in columns))
    assert named - known == set()
    assert known - named == set()  # and every published row is named by an experiment


def test_a_type_nobody_declared():
    with pytest.raises(UserError, match="paper takes a table"):
        typed("paper", 3)
