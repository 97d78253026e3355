"""Own torch modules, and modules of timm, as backbones."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_backbone import pictures
from torch import nn

from cop2l import cli
from cop2l.errors import UserError
from cop2l.features import entries, extract, from_module, load_stream
from cop2l.models.modules import named_backbone
from doc_pages import python


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_nets", None)


class Means(nn.Module):
    """Four numbers per picture, and whatever else `after` makes of them."""

    def __init__(self, after=lambda x: x):
        super().__init__()
        self.layer, self.drop, self.after = nn.Linear(3, 4), nn.Dropout(0.5), after
        with torch.no_grad():
            self.layer.weight.copy_(torch.arange(12.0).reshape(4, 3) / 12)
            self.layer.bias.fill_(0.25)

    def forward(self, x):
        return self.after(self.drop(self.layer(x.mean((2, 3)))))


def test_features_are_those_of_the_module_which_stays_as_it_was():
    module, data = Means().train(), pictures()
    backbone = from_module(module, name="means", mean=(0.1, 0.2, 0.3), std=(0.5, 0.5, 2))
    entry = extract(data, backbone, size=12, pretrained_on="nothing")
    x, _ = entry.part("train")
    picture = torch.from_numpy(data.x[np.argsort(data.y, kind="stable")]).double() / 255
    normal = (picture - torch.tensor((0.1, 0.2, 0.3)).view(3, 1, 1)) / torch.tensor((0.5, 0.5, 2)).view(
        3, 1, 1
    )
    expected = module.eval()(normal.float())
    assert x == pytest.approx(expected.detach().numpy(), abs=1e-4)
    assert (entry.name, entry.about["pretrained_on"]) == ("cifar10@means-12", ["nothing"])
    module.train()
    assert extract(data, backbone, size=12).key == entry.key
    assert module.training
    assert module.drop.training
    assert module.layer.weight.requires_grad


def test_the_key_holds_weights_code_and_colours():
    changed = Means()
    with torch.no_grad():
        changed.layer.bias[0] += 1e-6

    class Squared(Means):
        def forward(self, x):
            return super().forward(x) ** 2

    variants = [
        (Means(), {}),
        (changed, {}),
        (Squared(), {}),
        (nn.Sequential(Means(), nn.ReLU()), {}),
        (nn.Sequential(Means(), nn.Tanh()), {}),
        (Means(), {"mean": (0.5,) * 3}),
    ]
    keys = {
        extract(pictures(), from_module(module, name="m", **options), size=12).key
        for module, options in variants
    }
    keys.add(extract(pictures(), from_module(Means(), name="m"), size=8).key)
    assert len(keys) == len(variants) + 1
    code = next(entries()).about["spec"]["code"]
    assert code.rpartition(" ")[0] in {"test_modules.Means", "torch.nn.modules.container.Sequential"} | {
        f"{Squared.__module__}.{Squared.__qualname__}"
    }


@pytest.mark.parametrize("pretrained_on", [None, ["unknown"], "Unknown"])
def test_an_unknown_past_makes_certificates_not_valid_until_it_is_told(pretrained_on):
    entry = extract(pictures(), Means(), size=12, pretrained_on=pretrained_on)
    (reason,) = load_stream(entry.name).not_valid
    assert "not known which data the backbone was trained on" in reason
    declared = extract(pictures(), Means(), size=12, pretrained_on=["ImageNet-1k"])
    assert (declared.key, declared.about["pretrained_on"]) == (entry.key, ["ImageNet-1k"])
    assert load_stream(entry.name).not_valid == ()
    extract(pictures(), Means(), size=12, pretrained_on=["CIFAR-10"])
    assert "The backbone saw" in load_stream(entry.name).not_valid[0]
    assert extract(pictures(), Means(), size=12).about["pretrained_on"] == ["CIFAR-10"]


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Means(lambda x: (x, x)), "gives a tuple for 16 pictures instead of one row"),
        (Means(lambda x: {"features": x}), "gives a dict for 16 pictures"),
        (Means(lambda x: SimpleNamespace(features=x)), "gives a SimpleNamespace for 16 pictures"),
        (Means(lambda x: x[:, None]), r"shape \(16, 1, 4\) for 16 pictures instead of one row"),
        (Means(lambda x: x.sum()), r"shape \(\) for 16 pictures"),
        (Means(lambda x: x[:3]), r"shape \(3, 4\) for 16 pictures"),
        (Means(lambda x: x.argmax(1, keepdim=True)), "gives torch.int64 numbers"),
        (nn.Identity(), "wrap it in a module that returns such rows"),
        ("Means", "no backbone named 'Means'"),
        (Means, "A backbone is a torch module or a name, not a type"),
        (7, "not a int"),
    ],
)
def test_what_gives_no_features_is_one_sentence(module, message):
    with pytest.raises(UserError, match=message) as caught:
        extract(pictures(), module, size=12)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith((".", "?"))
    assert not list(entries())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "a@b"}, "without @ and #"),
        ({"name": ""}, "without @ and #"),
        ({"name": "resnet18"}, "give yours another name"),
        ({"mean": 0.5}, "give one number for each colour"),
        ({"mean": (0.5, 0.5)}, "give one number for each colour"),
        ({"std": (0.5, 0.5, 0)}, "give one number above 0 for each colour"),
    ],
)
def test_options_of_a_module_that_cannot_be(options, message):
    with pytest.raises(UserError, match=message):
        from_module(Means(), **options)


def test_grey_pictures_for_a_module_of_one_channel():
    module = nn.Sequential(nn.Flatten(), nn.Linear(144, 5))
    entry = extract(pictures(channels=1), from_module(module, mean=[0.5], std=[0.5]), size=12)
    assert entry.part("test")[0].shape == (20, 5)


def test_the_colours_of_a_module_of_timm_are_its_own():
    timm = Means()
    timm.pretrained_cfg = {"mean": (0.1, 0.2, 0.3), "std": (1, 1, 1)}
    assert from_module(timm).mean == (0.1, 0.2, 0.3)
    assert from_module(timm, mean=(0.5,) * 3).mean == (0.5,) * 3


NETS = """
import torch
from torch import nn

from cop2l.features import from_module


def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 5))


READY = make()


def told():
    return from_module(make(), name="told", mean=[0.5] * 3, std=[0.5] * 3, pretrained_on=["my letters"])


def number():
    return 3
"""


def test_the_path_of_a_function_on_the_command_line(tmp_path, capsys):
    (tmp_path / "my_nets.py").write_text(NETS)
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (40, 3, 8, 8), np.uint8), np.arange(40) % 4
    np.savez(tmp_path / "shapes.npz", x=x, y=y, x_test=x[:8], y_test=y[:8])
    command = ["features", "shapes.npz", "--size", "8", "--device", "cpu"]
    assert cli.main([*command, "--backbone", "my_nets:make"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("shapes@my_nets:make-8 is in ")
    assert "certificates on these features are not valid; name it with --pretrained-on" in output
    assert cli.main([*command, "--backbone", "my_nets:make", "--pretrained-on", "nothing"]) == 0
    assert "not valid" not in capsys.readouterr().out
    quick = ["method=finetuning", "holdout=0.5", "epochs=1", "tasks=2"]
    assert cli.main(["run", "shapes@my_nets:make-8", *quick, "--out", "run"]) == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["not_valid"] == []
    capsys.readouterr()
    for name, pretrained in (("my_nets:READY", []), ("my_nets:told", ["my letters"])):
        assert cli.main([*command, "--backbone", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["pretrained_on"] == pretrained
    assert {entry.name for entry in entries()} == {
        f"shapes@{name}-8" for name in ("my_nets:make", "my_nets:READY", "told")
    }
    other = "import sys; from cop2l.cli import main; sys.exit(main(sys.argv[1:]))"
    subprocess.run(
        [sys.executable, "-c", other, *command, "--backbone", "my_nets:make"], check=True, cwd=tmp_path
    )
    assert len(list(entries())) == 3  # random weights are the same in every process


def test_the_module_of_the_documentation():
    (code,) = (part for part in python("data.md", "Features of frozen backbones") if "nn." in part)
    namespace = {}
    with torch.random.fork_rng():
        exec(compile(code, "data.md", "exec"), namespace)
    assert namespace["stream"].name == "shapes@small-conv-16"
    assert namespace["stream"].not_valid == ()
    assert namespace["stream"][0].x.shape == (60, 8)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_nets:number", "my_nets:number is no backbone but a int"),
        ("my_nets:absent", "cannot be imported as package.module:Name"),
        ("no.such:thing", "cannot be imported"),
    ],
)
def test_paths_that_name_no_backbone(tmp_path, name, message):
    (tmp_path / "my_nets.py").write_text(NETS)
    with pytest.raises(UserError, match=message) as caught:
        named_backbone(name)
    assert "\n" not in str(caught.value)
