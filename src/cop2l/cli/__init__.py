"""The command line: one function per command, no logic.

The module of a command has `add(commands)`, which adds a parser. The default `run` of the parser is a function: it takes
the parsed arguments and returns an exit code (None is 0). Only the module of the typed command is imported, and slow
imports (torch, plotting) stand inside functions, so that `cop2l bound` is quick.
"""

import argparse
import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

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
        "commit": ("commit", "write down in advance what a run will do, as evidence"),
        "bound": ("bound", "calculate a bound from counts of examples and errors"),
        "plan": ("plan", "before you have data: estimate the bound to expect, or the examples needed"),
        "monitor": ("monitor", "raise an alarm when labels that arrive later refute a claim"),
        "export": ("export", "write the model for other programs, with its certificate"),
    },
    "compare": {
        "compare": ("compare", "print tables that compare methods and streams"),
        "report": ("report", "write one HTML page about runs"),
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

WITH_VERDICT = ("verify", "monitor")
NO_VERDICT = 3
"""The exit code if `verify` or `monitor` failed: 0, 1 and 2 are verdicts."""

RESUMABLE = ("run", "sweep")
CONFIGURED = ("run", "sweep", "commit")
"""The commands that take changes of a configuration."""
OUTPUT_CLOSED = 141
"""The exit code if the output was closed, as in `cop2l run mnist | head -1`: that of a shell for SIGPIPE."""

DESCRIPTION = """\
Continual learning that certifies itself. cop2l learns tasks one after the other, and issues an upper bound
on the true error of every task. Anyone can check the bounds from the certificate and the data."""


class Parser(argparse.ArgumentParser):
    """A parser that prints its texts as they are written, and an error as one sentence."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        self.options = self._option_string_actions
        """The options by their names."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with code 2."""
        print(f"cop2l: {message}; see '{self.prog} --help'.", file=sys.stderr)
        raise SystemExit(2)


def parser(command: str | None = None) -> Parser:
    """The parser of the command line, with the options of one command."""
    groups = [
        "\n".join([f"{group}:", *(f"  {name:10}{line}" for name, (_, line) in members.items())])
        for group, members in COMMANDS.items()
    ]
    top = Parser(
        prog="cop2l",
        usage="cop2l [-h] [--version] [--debug] COMMAND ...",
        description="\n\n".join([DESCRIPTION, *groups]),
        epilog="'cop2l COMMAND --help' explains a command. Start with: cop2l run digits",
    )
    top.add_argument("--version", action="version", version=f"cop2l {__version__}")
    top.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = top.add_subparsers(
        metavar="COMMAND", dest="command", required=True, prog="cop2l", help=argparse.SUPPRESS
    )
    modules = {name: module for members in COMMANDS.values() for name, (module, _) in members.items()}
    if command in modules:
        import_module(f"cop2l.cli.{modules[command]}").add(commands)
        top.options = top.options | commands.choices[command].options
    elif command is not None:
        top.error(f"there is no command {command!r}")
    return top


def command_name(argv: Sequence[str]) -> str | None:
    """The command: the first argument that is not an option."""
    return next((argument for argument in argv if not argument.startswith("-")), None)


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The parsed arguments; changes of a configuration may stand anywhere, and key=value and --key value are the same."""
    command = command_name(argv)
    top = parser(command)
    arguments, unparsed = top.parse_known_args(respell(argv, top.options, command in CONFIGURED))
    has_option = any(argument.startswith("-") for argument in unparsed)
    if len(unparsed) == 1 and not has_option and getattr(arguments, "feedback", "") is None:
        arguments.feedback = unparsed.pop()  # argparse does not parse an optional argument behind options
    if unparsed and (has_option or not hasattr(arguments, "overrides")):
        top.prog += f" {arguments.command}"
        top.error(f"unrecognized arguments: {' '.join(unparsed)}")
    if unparsed:
        arguments.overrides += unparsed
    return arguments


def respell(argv: Sequence[str], options: Iterable[str], configured: bool) -> list[str]:
    """The arguments with key=value, if the command is configured, or else --key=value, where the other was typed.

    >>> respell(["run", "--lr", "0.1", "my.csv", "--out", "here"], ["--out"], True)
    ['run', 'my.csv', '--out', 'here', 'lr=0.1']
    >>> respell(["verify", "here", "text_size=64", "--option", "label=n"], ["--text-size", "--option", "--label"], False)
    ['verify', 'here', '--text-size=64', '--option', 'label=n']
    """
    respelled, pairs, remaining = list[str](), list[str](), iter(argv)
    for argument in remaining:
        key, equals, value = argument.partition("=")
        option = f"--{key.replace('_', '-')}"
        if configured and key[2:] and key[:2] == "--" and not any(name.startswith(key) for name in options):
            pairs.append(f"{key[2:].replace('-', '_')}={value if equals else next(remaining, '')}")
        elif not configured and equals and option in options and respelled[-1] not in options:
            respelled.append(f"{option}={value}")
        else:
            respelled.append(argument)
    return respelled + pairs


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. An error for the user is one sentence on stderr.

    The exit code of an error is 2, or 3 for `verify` and `monitor`; if the output was closed, it is 141, or 3.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    has_verdict = command_name(argv) in WITH_VERDICT
    failed = NO_VERDICT if has_verdict else 2
    try:
        arguments = parse_arguments(argv)
    except SystemExit as end:
        raise SystemExit(failed if end.code == 2 else end.code) from None
    try:
        with console.advice_in_one_line():
            code = int(arguments.run(arguments) or 0)
        sys.stdout.flush()
    except BrokenPipeError:
        console.leave_closed_pipes()
        if arguments.command in RESUMABLE:
            with suppress(OSError):  # stderr may be closed too
                print("The output was closed; run the same command again to continue.", file=sys.stderr)
        return NO_VERDICT if has_verdict else OUTPUT_CLOSED
    except KeyboardInterrupt:
        if arguments.debug:
            raise
        print("Interrupted.", file=sys.stderr)
        return 130
    except (UserError, OSError) as error:
        if arguments.debug and not has_verdict:
            raise
        print(f"cop2l: {error}", file=sys.stderr)
        return failed
    except Exception as error:
        if not has_verdict:
            raise
        if arguments.debug:  # the exit code of an uncaught error, 1, would be a verdict
            traceback.print_exc()
        print(f"cop2l: the check failed: {_sentence(error)}", file=sys.stderr)
        return failed
    return code


def _sentence(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "there is not enough memory."
    message = (str(error).splitlines() or [""])[0][:500]
    message = "".join(letter for letter in message if letter.isprintable())
    if isinstance(error, ValueError) and message:
        return message
    return f"{type(error).__name__}: {message or 'no reason given'}."
