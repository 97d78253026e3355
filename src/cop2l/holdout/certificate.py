"""The certificate of a hold-out; its evidence is the saved method."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cop2l.certificates.certificate import Certificate
from cop2l.errors import UserError
from cop2l.files import file_digest
from cop2l.kernel.form import HOLDOUT_FILES


@dataclass(frozen=True)
class HoldoutCertificate(Certificate):
    """With probability at least 1 - delta over the draw of the withheld examples, the error rate on every task t is at most its
    bound, for all t at once: theorem `holdout` of docs/theory.md.
    """

    learner: Any = None

    def save(self, folder: str | Path) -> None:
        """Write the method, then the text."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / HOLDOUT_FILES[0]
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            self.learner.save(scratch)
            files = list(Path(scratch).glob("*.safetensors"))
            if len(files) != 1:
                raise UserError(
                    "A hold-out certificate needs a method that saves itself in one safetensors file."
                )
            files[0].replace(target)
        self._write(folder, {target.name: file_digest(target)})
