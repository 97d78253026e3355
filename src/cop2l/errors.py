"""Errors and warnings for the user; `UserError` is defined in the kernel, which imports nothing from here."""

import warnings

from cop2l.kernel.options import UserError, unknown

__all__ = ["Advice", "UserError", "advise", "missing_extra", "printable_text", "unknown"]


class Advice(UserWarning):
    """A warning about something that looks wrong; the message is one sentence that says what to change.

    Python shows it once; `warnings.simplefilter("ignore", Advice)` silences it.
    """


def advise(sentence: str) -> None:
    """Warn the user in one sentence."""
    warnings.warn(sentence, Advice, stacklevel=3)


def printable_text(sentence: str) -> str:
    """A sentence without control characters, which could change a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in sentence)


def missing_extra(package: str, extra: str, purpose: str) -> UserError:
    """The error for an optional package that is not installed."""
    return UserError(f"{purpose} needs the package {package}; install it with: pip install 'cop2l[{extra}]'.")
