"""The command line: one function per command, no logic.

A command's module has `add(commands)`, which adds its parser; the parser's default `run` is the command's function.
It takes the parsed arguments and returns an exit code (None is 0). Only the module of the named command is imported.
Imports that cost time (torch, plotting) stand inside the function, so that `cop2l bound` stays quick.
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

COMMANDS = {
    "learn": {
        "run": ("run", "run one experiment; the same command continues a stopped run"),
        "sweep": ("sweep", "run a grid of experiments, in local processes or on a Ray cluster"),
        "learn": ("saved_learner", "add a task to a saved learner, with a new certificate"),
        "predict": ("saved_learner", "predict with a saved learner"),
    },
    "certify and check": {
        "verify": ("verify", "check a certificate, a run or an export"),
        "show": ("verify", "print what a certificate claims"),
        "commit": ("commit", "fix in advance what a run will do, for an auditor"),
        "bound": ("bound", "calculate a bound from its counts"),
        "plan": ("plan", "estimate the bound of a data size, or the data size of a bound"),
        "monitor": ("monitor", "raise an alarm when feedback refutes a claim"),
        "export": ("export", "write the model for other programs, with its certificate"),
    },
    "compare": {
        "compare": ("compare", "print a table of methods and streams, mean and deviation over seeds"),
        "report": ("report", "write one HTML page from run directories"),
        "plot": ("plot", "draw one figure as PNG, SVG or PDF"),
    },
    "data": {
        "init": ("init", "write a configuration for your own data"),
        "data": ("data", "list the data sets, or download one"),
        "features": ("features", "compute and store the features of a frozen backbone"),
        "list": ("listing", "list methods, streams, models, configurations or keys"),
    },
}
"""Group -> command -> its module and its line in `cop2l --help`."""

JUDGES = ("verify", "monitor")
CANNOT_JUDGE = 3
"""The exit code where `verify` or `monitor` itself could not do its work: 0, 1 and 2 are verdicts."""

GO_ON = ("run", "sweep")
NOT_READ = 141
"""The exit code where the reader of the output has gone, as in `cop2l run mnist | head -1`: what a shell says of SIGPIPE."""

DESCRIPTION = """\
Continual learning that certifies itself: learn tasks one after the other, then issue an upper bound on
the true error on every task so far (anytime=true: after each task). Anyone can check it from a file."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, as all errors of this command line."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where to read on."""
        print(f"cop2l: {message}; see '{self.prog} --help'.", file=sys.stderr)
        raise SystemExit(2)


def parser(command: str | None = None) -> argparse.ArgumentParser:
    """The parser of the command line with the options of one command."""
    groups = [
        "\n".join([f"{group}:", *(f"  {name:10}{line}" for name, (_, line) in members.items())])
        for group, members in COMMANDS.items()
    ]
    top = Parser(
        prog="cop2l",
        usage="cop2l [-h] [--version] [--debug] COMMAND ...",
        description="\n\n".join([DESCRIPTION, *groups]),
        epilog="'cop2l COMMAND --help' explains a command. Start with: cop2l run digits preset=default",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"cop2l {__version__}")
    top.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = top.add_subparsers(
        metavar="COMMAND", dest="command", required=True, prog="cop2l", help=argparse.SUPPRESS
    )
    modules = {name: module for members in COMMANDS.values() for name, (module, _) in members.items()}
    if command in modules:
        import_module(f"cop2l.cli.{modules[command]}").add(commands)
    elif command is not None:
        top.error(f"there is no command {command!r}")
    return top


def command_name(words: Sequence[str]) -> str | None:
    """The command among the words of a command line: the first that is no option."""
    return next((word for word in words if not word.startswith("-")), None)


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    """The arguments; what is to be changed in a configuration (key=value) may stand anywhere."""
    top = parser(command_name(words))
    arguments, rest = top.parse_known_args(words)
    words_left = [word for word in rest if not word.startswith("-")]
    if len(rest) == len(words_left) == 1 and getattr(arguments, "feedback", "") is None:
        arguments.feedback = rest.pop()  # argparse gives up an optional word that stands behind options
    if rest and (not hasattr(arguments, "overrides") or any(word.startswith("-") for word in rest)):
        top.prog += f" {arguments.command}"
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.overrides += rest
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; errors meant for the user are one sentence on stderr and exit code 2, for `verify` and `monitor` 3.

    Where nobody reads the output any more, it is 141, and 3 for these two.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    judging = command_name(given) in JUDGES
    failed = CANNOT_JUDGE if judging else 2
    try:
        arguments = parse_arguments(given)
    except SystemExit as end:
        raise SystemExit(failed if end.code == 2 else end.code) from None
    try:
        with console.advice_in_one_line():
            code = int(arguments.run(arguments) or 0)
        sys.stdout.flush()
    except BrokenPipeError:
        console.leave_closed_pipes()
        if arguments.command in GO_ON:
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
