"""Prediction with the program of an exported folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cop2l.certify.program import load_program
from cop2l.experiments import saved_learner
from cop2l.files import read_json
from cop2l.kernel.exported import CERTIFICATE, EXPORT, PROGRAMS
from cop2l.kernel.form import read_certificate


class Exported:
    """The program of an exported folder as a learner that predicts; load only what you exported yourself."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        content, certificate = read_json(self.folder / EXPORT), read_certificate(self.folder / CERTIFICATE)
        kind = content["program"]["format"]
        self._logits = load_program(self.folder / PROGRAMS[kind], kind)
        self.scenario, self.options = certificate["scenario"], certificate["options"]
        self.heads = [record["head"] for record in certificate["records"]]
        self.tasks_seen, self.outputs = len(self.heads), certificate["classes"]
        self.shape = tuple(content["program"]["inputs"])

    def probabilities(self, x: Any, *, task: int | None = None) -> Tensor:
        """The softmax of the logits over the classes of the task if task-incremental, else over all learned classes."""
        heads = [self.heads[task - 1]] if task and self.scenario == "task-incremental" else self.heads
        masked = sorted(set(range(self.outputs)) - {number for head in heads for number in head})
        with torch.no_grad():
            logits = self._logits(torch.as_tensor(np.asarray(x))).clone()
        logits[:, masked] = -torch.inf
        return logits.softmax(1)

    def predict(self, x: Any, *, task: int | None = None) -> Tensor:
        return self.probabilities(x, task=task).argmax(1)

    def predict_names(self, rows: Sequence[Mapping[str, Any]], *, task: str | int | None = None) -> list[str]:
        """The class name of each row; a row maps column names to values."""
        import pyarrow as pa

        predicted = saved_learner.predict_part(
            self,
            pa.Table.from_pylist([*map(dict, rows)]),
            saved_learner.data_description(self.folder),
            task=task,
        )
        return [predicted.names[number] for number in predicted.classes.tolist()]
