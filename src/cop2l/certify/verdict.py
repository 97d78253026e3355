"""What a verification found, level by level, in sentences."""

from dataclasses import dataclass, field
from typing import Literal

from cop2l.certify.certificate import Certificate

Status = Literal["holds", "fails", "cannot tell"]
LEVELS = {
    1: "form and hashes",
    2: "arithmetic of the bounds",
    3: "evaluation on the data",
    4: "reconstruction of the model",
}


@dataclass
class Level:
    """What one level found."""

    number: int
    status: Status = "holds"
    sentences: list[str] = field(default_factory=list)

    def say(self, sentence: str) -> None:
        """Something that holds."""
        self.sentences.append(sentence)

    def fail(self, sentence: str) -> None:
        """Something that is wrong."""
        self.status = "fails"
        self.sentences.append(sentence)

    def doubt(self, sentence: str) -> None:
        """Something that could not be checked, here or with what was given."""
        if self.status == "holds":
            self.status = "cannot tell"
        self.sentences.append(sentence)


@dataclass
class Verdict:
    """The outcome: `exit_code` 0 valid, 1 invalid, 2 cannot tell."""

    levels: list[Level]
    not_valid: tuple[str, ...] = ()
    certificate: Certificate | None = None
    upto: int = 4
    """The last level that was asked for."""

    @property
    def exit_code(self) -> int:
        """As the command line returns it."""
        if any(level.status == "fails" for level in self.levels) or self.not_valid:
            return 1
        return 2 if any(level.status == "cannot tell" for level in self.levels) else 0

    def __str__(self) -> str:
        lines = []
        for level in self.levels:
            lines.append(f"Level {level.number}, {LEVELS[level.number]}: {level.status}.")
            lines += [f"  - {sentence}" for sentence in level.sentences]
        lines += [f"The certificate declares itself not valid: {reason}" for reason in self.not_valid]
        holds = "VALID: everything that the certificate states was checked and holds; its assumptions are the issuer's word."
        if self.upto < 4:
            holds = f"VALID as far as it was to be checked, up to level {self.upto} of 4."
        conclusion = {
            0: holds,
            1: "INVALID: do not rely on this certificate.",
            2: "CANNOT TELL: nothing was found wrong, but not everything could be checked.",
        }
        return "\n".join([*lines, conclusion[self.exit_code]])
