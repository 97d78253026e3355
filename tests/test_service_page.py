"""The web service of docs/integrations.md, around an exported model."""

import json

import numpy as np
import torch
from fastapi.testclient import TestClient

import cop2l
from cop2l import Holdout, WeightedReplay
from cop2l.models import build
from doc_pages import python


def test_the_service_answers_as_the_learner_does(tmp_path, monkeypatch):
    x = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    data = {1: (x, (x[:, 0] > 0).astype(int))}
    learner = Holdout(WeightedReplay(build("linear", inputs=(2,), classes=2, seed=0)), tasks=1)
    learner.learn(*data[1])
    learner.certify()
    cop2l.export(learner, tmp_path / "service")
    monkeypatch.chdir(tmp_path)
    (code,) = python("integrations.md", "Serve over HTTP")
    assert len(code.splitlines()) <= 30
    known = {}
    exec(compile(code, "integrations.md", "exec"), known)
    client = TestClient(known["app"])
    asked = client.post("/predict", json={"rows": x[:20].tolist()})
    assert asked.json() == {"classes": learner.predict(torch.from_numpy(x[:20])).tolist()}
    assert len(set(asked.json()["classes"])) == 2
    stored = (tmp_path / "service" / "certificate" / "certificate.json").read_text()
    assert client.get("/certificate").json() == json.loads(stored)
    for wrong in ([[1.0, 2.0, 3.0]], [], [["a", "b"]], [[1.0, 2.0], [1.0]]):
        assert client.post("/predict", json={"rows": wrong}).status_code == 422
