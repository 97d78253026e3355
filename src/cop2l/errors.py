"""The one kind of error that is meant for a person."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """Something the user gave is wrong; the message is one sentence that says what to do.

    The command line prints it on stderr and exits with 2. In the library it is a ValueError.
    """


class Advice(UserWarning):
    """Something looks wrong but may be meant; the message is one sentence that says what to change.

    Python shows it once, and `warnings.simplefilter("ignore", Advice)` silences it.
    """


def printable_text(sentence: str) -> str:
    """A sentence that cannot steer a terminal, whatever names and messages of others are in it."""
    return "".join(letter if letter.isprintable() else "?" for letter in sentence)


def unknown(kind: str, name: object, known: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    near = get_close_matches(str(name), names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(names)}."
    return UserError(f"There is no {kind} named {name!r}; {hint}")


def missing_extra(package: str, extra: str, purpose: str) -> UserError:
    """The error for an optional package that is not installed."""
    return UserError(f"{purpose} needs the package {package}; install it with: pip install 'cop2l[{extra}]'.")
