"""The flags of `cop2l verify` for the split of the data. Needs no torch."""

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cop2l.errors import printable_text

FLAGS = {
    "scenario": "--scenario", "tasks": "--tasks", "class_seed": "--class-seed", "order": "--order", "order_seed": "--order-seed",
    "images": "--images", "seed": "--stream-seed", "group": "--group",
    "task_classes": "--task-classes", "label": "--label", "columns": "--columns", "text": "--text", "drop": "--drop",
    "text_size": "--text-size", "domain": "--domain", "classes": "--classes",
    "test_share": "--test-share", "holdout": "--holdout",
}  # fmt: skip
"""The flag of each option of a split; any other option is typed as --option KEY=VALUE."""
NOT_SPLIT = (
    "stream",
    "folder",
    "download",
    "holdout",
    "prepare",
    "keep_withheld",
    "kept",
    "task_names",
    "class_names",
    "inputs",
)
"""Keys of a recipe that do not belong to the split into tasks: the place of the data, which rows are withheld, and names."""


def verify_command(run: Path, recipe: Mapping[str, Any]) -> str:
    """The command that checks a run whose certificates state this recipe of their data.

    >>> verify_command(Path("runs/1"), {"stream": "mnist", "tasks": 2, "task_classes": [[0, 1], [2, 3]], "holdout": 0.1})
    'cop2l verify runs/1 --data mnist --tasks 2 --task-classes 0,1 2,3'
    """
    data = [_flag_with_value("--data", recipe["stream"])] if recipe.get("stream") else []
    split = [flag(key, value) for key, value in recipe.items() if key not in NOT_SPLIT and value is not None]
    return " ".join(["cop2l verify", shlex.quote(str(run)), *data, *split])


def flag(key: str, value: Any) -> str:
    """The flag and the value of an option of a split.

    >>> flag("columns", ["a", "b"]), flag("n", 100), flag("task_classes", [[0, 1], [2]]), flag("noise", [0.1, 0.2])
    ('--columns a,b', '--option n=100', '--task-classes 0,1 2', "--option 'noise=[0.1, 0.2]'")
    """
    if key == "task_classes":
        # several arguments: the issuer must not be able to smuggle in another option
        if isinstance(value, list) and all(_is_class_group(group) for group in value):
            return f"{FLAGS[key]} " + " ".join(",".join(map(str, group)) for group in value)
    elif key in FLAGS:
        return _flag_with_value(FLAGS[key], value)
    return _flag_with_value("--option", f"{key}={value if isinstance(value, str) else json.dumps(value)}")


def in_flags(sentence: str) -> str:
    """The sentence with flags in place of options of `streams.load`.

    >>> in_flags("choose with label= among: a, b; or give the size, such as size=64.")
    'choose with --label among: a, b; or give the size, such as --option size=64.'
    """
    return re.sub(
        r"\b([a-z_]+)=([\w,]*)",
        lambda match: (
            f"{FLAGS[match[1]]} {match[2]}".strip() if match[1] in FLAGS else f"--option {match[0]}"
        ),
        sentence,
    )


def _flag_with_value(name: str, value: Any) -> str:
    """A flag with its value, quoted so that it is neither read as another flag nor steers a terminal."""
    text = printable_text(",".join(map(str, value)) if isinstance(value, list) else str(value))
    return f"{name}{'=' if text.startswith('-') else ' '}{shlex.quote(text)}"


def _is_class_group(group: Any) -> bool:
    return (
        isinstance(group, list) and bool(group) and all(type(label) is int and label >= 0 for label in group)
    )
