"""The command line: one module per group of verbs, one function per verb, no logic.

A verb's module has `add(verbs)`, which adds its parser; the parser's default `run` is the verb's function.
It takes the parsed arguments and returns an exit code (None is 0). Imports that cost time (torch, plotting)
stand inside the function, so that `cop2l --help` and `cop2l bound` stay quick.
"""

import argparse
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

from cop2l import console
from cop2l._version import __version__
from cop2l.errors import UserError

VERB_MODULES = (
    "run", "init", "commit", "sweep", "compare", "report", "plot", "verify", "monitor", "bound", "plan", "life", "export",
    "data", "features", "listing",
)  # fmt: skip

JUDGES = ("verify", "monitor")
CANNOT_JUDGE = 3
"""The exit code where `verify` or `monitor` itself could not do its work: 0, 1 and 2 are verdicts."""

GO_ON = ("run", "sweep")
NOT_READ = 141
"""The exit code where the reader of the output has gone, as in `cop2l run mnist | head -1`: what a shell says of SIGPIPE."""

DESCRIPTION = """\
Continual learning that certifies itself: learn tasks one after the other, and after every task
issue an upper bound on the true error on every task seen so far, which anyone can check from a file."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, as all errors of this command line."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where to read on."""
        print(f"cop2l: {message}; see '{self.prog} --help'.", file=sys.stderr)
        raise SystemExit(2)


def parser() -> argparse.ArgumentParser:
    """The whole command line as one parser."""
    top = Parser(
        prog="cop2l",
        description=DESCRIPTION,
        epilog="'cop2l VERB --help' explains a verb. Start with: cop2l run mnist",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"cop2l {__version__}")
    top.add_argument("--debug", action="store_true", help="show the traceback of an error")
    verbs = top.add_subparsers(title="verbs", metavar="VERB", dest="verb", required=True)
    for name in VERB_MODULES:
        import_module(f"cop2l.cli.{name}").add(verbs)
    return top


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The arguments; what is to be changed in a configuration (key=value) may stand anywhere."""
    top = parser()
    arguments, rest = top.parse_known_args(words)
    words_left = [word for word in rest if not word.startswith("-")]
    if len(rest) == len(words_left) == 1 and getattr(arguments, "feedback", "") is None:
        arguments.feedback = rest.pop()  # argparse gives up an optional word that stands behind options
    if rest and (not hasattr(arguments, "overrides") or any(word.startswith("-") for word in rest)):
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.overrides += rest
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; errors meant for the user are one sentence on stderr and exit code 2, for `verify` and `monitor` 3.

    Where nobody reads the output any more, it is 141, and 3 for these two.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    judging = next((word for word in given if not word.startswith("-")), None) in JUDGES
    failed = CANNOT_JUDGE if judging else 2
    try:
        arguments = parsed(given)
    except SystemExit as end:
        raise SystemExit(failed if end.code == 2 else end.code) from None
    try:
        with console.advice_in_one_line():
            code = int(arguments.run(arguments) or 0)
        sys.stdout.flush()
    except BrokenPipeError:
        console.leave_closed_pipes()
        if arguments.verb in GO_ON:
            with suppress(OSError):  # stderr may be that pipe
                print(
                    "Nobody reads the output any more; run the same command again to go on.", file=sys.stderr
                )
        return CANNOT_JUDGE if judging else NOT_READ
    except KeyboardInterrupt:
        if arguments.debug:
            raise
        print("Interrupted.", file=sys.stderr)
        return 130
    except (UserError, OSError) as error:
        if arguments.debug and not judging:
            raise
        print(f"cop2l: {error}", file=sys.stderr)
        return failed
    except Exception as error:
        if not judging:
            raise
        if arguments.debug:  # a traceback would end with an exit code that is a verdict
            traceback.print_exc()
        print(f"cop2l: the check could not be made: {_sentence(error)}", file=sys.stderr)
        return failed
    return code


def _sentence(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "there is not enough memory."
    words = (str(error).splitlines() or [""])[0][:500]
    words = "".join(letter for letter in words if letter.isprintable())
    return (
        words
        if isinstance(error, ValueError) and words
        else f"{type(error).__name__}: {words or 'no reason given'}."
    )
