"""The folders of data: the user's own, those of COP2L_DATA, and that of downloads."""

import os
from pathlib import Path

from cop2l.errors import UserError


def home() -> Path:
    """The folder of all downloads and caches: $COP2L_HOME, or cop2l in $XDG_CACHE_HOME or ~/.cache."""
    if folder := os.environ.get("COP2L_HOME"):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "cop2l"


def roots(folder: str | Path | None = None) -> list[Path]:
    """The folders to search, in order: `folder` alone, or else those of $COP2L_DATA, then the downloads."""
    if folder is not None:
        root = Path(folder).expanduser()
        if not root.is_dir():
            raise UserError(f"There is no folder {root}; give the folder that holds the data.")
        return [root]
    folders = [Path(part).expanduser() for part in os.environ.get("COP2L_DATA", "").split(os.pathsep) if part]
    for root in folders:
        if not root.is_dir():
            raise UserError(f"There is no folder {root}; correct the environment variable COP2L_DATA.")
    return [*folders, downloads()]


def downloads() -> Path:
    """The folder of downloaded data sets, which has the layout of torchvision."""
    return home() / "data"
