"""How an auditor types what is known of the data: the flags of `cop2l verify`. Needs no torch."""

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
    "task_classes": "--task-classes", "label": "--label", "columns": "--columns", "text": "--text",
    "text_size": "--text-size", "domain": "--domain", "classes": "--classes",
    "test_share": "--test-share", "holdout": "--holdout",
}  # fmt: skip
"""How the auditor types an option of a split; any other as --option KEY=VALUE."""
HOLDOUT_KEYS = ("holdout", "holdout_seed")
NAMED = ("task_names", "class_names", "inputs")
NOT_SPLIT = ("stream", "folder", "download", *HOLDOUT_KEYS, *NAMED)
"""Keys of a recipe that are no part of the split into tasks: where the data lies, what is withheld, and names."""


def verify_command(run: Path, recipe: Mapping[str, Any]) -> str:
    """What an auditor types to check a run whose certificates state this recipe of their data.

    >>> verify_command(Path("runs/1"), {"stream": "mnist", "tasks": 3, "task_classes": [[0, 1], [2, 3], [4, 5]], "holdout": 0.1})
    'cop2l verify runs/1 --data mnist --tasks 3 --task-classes 0,1 2,3 4,5'
    """
    data = [_typed("--data", recipe["stream"])] if recipe.get("stream") else []
    split = [flag(key, value) for key, value in recipe.items() if key not in NOT_SPLIT and value is not None]
    return " ".join(["cop2l verify", shlex.quote(str(run)), *data, *split])


def flag(key: str, value: Any) -> str:
    """How an option of a split is typed.

    >>> flag("columns", ["a", "b"]), flag("n", 100), flag("task_classes", [[0, 1], [2]]), flag("noise", [0.1, 0.2])
    ('--columns a,b', '--option n=100', '--task-classes 0,1 2', "--option 'noise=[0.1, 0.2]'")
    """
    if key == "task_classes":
        # Several words: none may be an option that the issuer would have the auditor type.
        if isinstance(value, list) and all(_is_class_group(group) for group in value):
            return f"{FLAGS[key]} " + " ".join(",".join(map(str, group)) for group in value)
    elif key in FLAGS:
        return _typed(FLAGS[key], value)
    return _typed("--option", f"{key}={value if isinstance(value, str) else json.dumps(value)}")


def in_flags(sentence: str) -> str:
    """A sentence that names options of `streams.load`, with the flags in their place.

    >>> in_flags("choose with label= among: a, b; or give the size, such as size=64.")
    'choose with --label among: a, b; or give the size, such as --option size=64.'
    """
    return re.sub(
        r"\b([a-z_]+)=([\w,]*)",
        lambda found: (
            f"{FLAGS[found[1]]} {found[2]}".strip() if found[1] in FLAGS else f"--option {found[0]}"
        ),
        sentence,
    )


def _typed(name: str, value: Any) -> str:
    """An option with its value, which is never read as another option, and cannot steer a terminal."""
    text = printable_text(",".join(map(str, value)) if isinstance(value, list) else str(value))
    return f"{name}{'=' if text.startswith('-') else ' '}{shlex.quote(text)}"


def _is_class_group(group: Any) -> bool:
    return (
        isinstance(group, list) and bool(group) and all(type(label) is int and label >= 0 for label in group)
    )
