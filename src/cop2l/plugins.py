"""Methods, streams and backbones of other packages, by entry points or by the path of a class."""

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from cop2l.errors import UserError


def installed_names(kind: str) -> dict[str, str]:
    """The entry points cop2l.KIND of installed packages: names to package.module:Name."""
    return {entry.name: entry.value for entry in entry_points(group=f"cop2l.{kind}")}


def imported(path: str) -> Any:
    """The object at a path such as package.module:Name.

    >>> imported("collections:OrderedDict").__name__
    'OrderedDict'
    """
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"{path!r} cannot be imported as package.module:Name ({error}); is it installed, or its folder in PYTHONPATH?"
        ) from None
