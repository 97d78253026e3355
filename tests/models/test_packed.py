"""Several arrays per example: packed into one tensor, and taken apart again for the model."""

import pytest
import torch
from torch import nn

import cop2l
from cop2l import CoP2L
from cop2l.errors import UserError
from cop2l.models import Unpacked, pack

IDS = torch.arange(12).reshape(4, 3)
PICTURES = torch.linspace(-1, 1, 4 * 2 * 2).reshape(4, 2, 2)


class Asked(nn.Module):
    """Keeps what it is called with."""

    def forward(self, **parts):
        self.parts = parts
        return torch.zeros(len(parts["ids"]), 2)


@pytest.mark.parametrize("floats", [{}, {"pictures": PICTURES}])
def test_the_model_gets_the_arrays_back(floats):
    mask = IDS % 2 == 0
    model = Unpacked(Asked(), pictures=(torch.float32, 2, 2), ids=(torch.int64, 3), mask=(torch.bool, 3))
    if not floats:
        model = Unpacked(Asked(), mask=(torch.bool, 3), ids=(torch.int64, 3))
    x = pack(ids=IDS, mask=mask, **floats)
    assert x.dtype == (torch.float32 if floats else torch.int64)
    model(x)
    for name, part in {"ids": IDS, "mask": mask, **floats}.items():
        assert torch.equal(model.model.parts[name], part)
        assert model.model.parts[name].dtype == part.dtype


def test_what_cannot_be_packed_is_one_sentence():
    with pytest.raises(UserError, match="different numbers of rows"):
        pack(ids=IDS, mask=IDS[:3])
    assert pack(ids=IDS + 2**40)[0, 1] == 2**40 + 1
    with pytest.raises(UserError, match="are not exact beside real numbers"):
        pack(ids=IDS + 2**40, pictures=PICTURES)


def bert(seed):
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(seed)
    small = {
        "vocab_size": 20,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    model = BertForSequenceClassification(BertConfig(**small, max_position_embeddings=6, num_labels=2))
    return Unpacked(model, input_ids=(torch.int64, 6), attention_mask=(torch.int64, 6))


def test_a_model_of_transformers_is_learned_certified_and_verified(tmp_path):
    draw = torch.Generator().manual_seed(0)
    ids, mask = torch.randint(0, 20, (80, 6), generator=draw), torch.rand((80, 6), generator=draw) < 0.8
    x, y = pack(input_ids=ids, attention_mask=mask), (ids[:, 0] < 10).long()
    learner = CoP2L(bert(0), tasks=1, optimiser="adam", max_iterations=2)
    learner.learn(x, y)
    learner.certify({1: (x, y)}).save(tmp_path)
    assert cop2l.verify(tmp_path, {1: (x, y)}, model=bert).status == "valid"
    other = pack(input_ids=ids, attention_mask=torch.ones_like(ids))
    assert not torch.equal(learner.probabilities(other), learner.probabilities(x))  # the mask is read
