"""Where data lies: the user's folder, the environment variable, the cache of downloads."""

import os
from pathlib import Path

from cop2l.errors import UserError


def home() -> Path:
    """The folder of everything that is downloaded or cached: $COP2L_HOME, or the user's cache folder."""
    given = os.environ.get("COP2L_HOME")
    if given:
        return Path(given).expanduser()
    try:
        import pooch
    except ImportError:
        return Path("~/.cache/cop2l").expanduser()
    return Path(pooch.os_cache("cop2l"))


def roots(folder: str | Path | None = None) -> list[Path]:
    """Folders to look in, in order: the one given, alone; otherwise $COP2L_DATA, then the downloads."""
    if folder is not None:
        root = Path(folder).expanduser()
        if not root.is_dir():
            raise UserError(f"There is no folder {root}; give the folder that holds the data.")
        return [root]
    listed = [Path(part).expanduser() for part in os.environ.get("COP2L_DATA", "").split(os.pathsep) if part]
    for root in listed:
        if not root.is_dir():
            raise UserError(f"There is no folder {root}; correct the environment variable COP2L_DATA.")
    return [*listed, downloads()]


def downloads() -> Path:
    """The folder of downloaded data sets, in the same layout as a user's own folder."""
    return home() / "data"
