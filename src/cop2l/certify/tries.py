"""How many settings were tried on the same data: a certificate allows delta for itself and does not pay for a choice.

The record lies beside the run directories, in `tries.jsonl`, and is only ever added to. A setting is everything that decides a
run but delta, the seed included: choosing a seed afterwards is a choice, too.
"""

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from cop2l.certify.commitment import differing
from cop2l.errors import UserError
from cop2l.files import Lock, append_lines, file_digest, json_digest, read_json, read_lines

FILE = "tries.jsonl"
NOT_A_SETTING = ("hash", "name", "stream", "folder", "delta", "commitment")
"""Where the data lies, what the run is called, and how sure it is to be."""
PATIENCE = 30.0
"""Seconds to wait for other runs that begin."""


class Tried(NamedTuple):
    """A run among the settings that were tried on its data."""

    data: str
    number: int
    of: int
    delta: float
    largest: float
    """The largest delta of all of them: what a choice may cost."""

    @property
    def share(self) -> float:
        """The delta of each that pays for the choice: rounded down to three digits.

        >>> Tried("", 3, 3, 0.05, 0.05).share
        0.0166
        """
        unit = 10.0 ** (math.floor(math.log10(self.largest / self.of)) - 2)
        return float(f"{math.floor(self.largest / self.of / unit * (1 + 1e-12)) * unit:.3g}")

    @property
    def sentence(self) -> str | None:
        """What must be said beside the certificate of this run; None of the only setting."""
        if self.of < 2:
            return None
        many = (
            f"{self.number} that was" if self.number == self.of else f"{self.number} of {self.of} that were"
        )
        return f"This is setting {many} tried on this data here; {self.price}"

    @property
    def price(self) -> str:
        """What a choice among the settings costs."""
        if self.delta <= self.share:
            return f"with delta={self.share:g} or less for each of them a choice is paid for, else report all of them."
        return (
            "each certificate allows delta for itself and does not pay for the choice:"
            f" run with delta={self.share:g} each, or report all of them."
        )


def identity(stream: str, description: Mapping[str, Any]) -> str | None:
    """Which data of your own a stream is made of, whatever is read of it; None of a data set that comes by name.

    Other columns, another backbone or another cut are settings, and not other data: so it is the files that count.
    """
    from cop2l.plugins import installed
    from cop2l.streams import DATASETS, catalogue

    brought, path = installed("streams"), Path(stream).expanduser()
    if stream in brought:
        return str(description["fingerprint"]["train"])
    if stream in catalogue():
        return None
    if path.is_file():
        return file_digest(path)
    if path.is_dir():
        inside = sorted(file for file in path.rglob("*") if file.is_file())
        return json_digest([[file.relative_to(path).as_posix(), file_digest(file)] for file in inside])
    features = description.get("features")
    if features is None or features["dataset"] in DATASETS:
        return None
    return str(features["data"]["train"] if "data" in features else features["imported"])


def record(folder: str | Path, data: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Put down beside the run directory that a run begins with these settings on this data; the same one counts once."""
    beside = Path(folder).absolute().parent
    chosen = {key: value for key, value in settings.items() if key not in NOT_A_SETTING}
    busy = f"Other runs ({{holder}}) are beginning in {beside} for {PATIENCE:g} seconds; wait for them, or choose --out."
    try:
        with Lock(beside / f".{FILE}.lock", busy, wait=PATIENCE):
            lines = [line for line in read_lines(beside / FILE) if line["data"] == data]
            same = next((line for line in lines if line["settings"] == chosen), None)
            latest = max((line["setting"] for line in lines), default=0)
            number = same["setting"] if same else latest + 1
            if not any(line["run"] == settings["hash"] for line in lines):
                before = next((line["settings"] for line in lines if line["setting"] == latest), None)
                line = {
                    "data": data,
                    "setting": number,
                    "run": settings["hash"],
                    "delta": settings["delta"],
                    "differs": [] if same or before is None else differing(before, chosen),
                    "time": datetime.now(UTC).isoformat(timespec="seconds"),
                    "settings": chosen,
                }
                append_lines(beside / FILE, [line])
                lines.append(line)
    except OSError as error:
        raise UserError(
            f"Cannot record this try in {beside} ({error.strerror}); choose another folder with --out."
        ) from error
    return {"data": data, "number": number, "largest_delta": max(line["delta"] for line in lines)}


def of_run(folder: str | Path, environment: Mapping[str, Any], delta: float | None) -> Tried | None:
    """How a run stands among the tries: what it noted when it began, and what was tried beside it since."""
    noted = environment.get("try")
    if noted is None or delta is None:
        return None
    stored = read_lines(Path(folder).absolute().parent / FILE)
    try:
        lines = [line for line in stored if line["data"] == noted["data"]]
        of = max([noted["number"], *(line["setting"] for line in lines)])
        largest = max([noted["largest_delta"], delta, *(line["delta"] for line in lines)])
        return Tried(str(noted["data"]), int(noted["number"]), int(of), delta, float(largest))
    except (KeyError, TypeError, ValueError):
        raise UserError(
            f"What {folder} notes of other tries cannot be read; restore it from a copy."
        ) from None


def said_of(folder: str | Path) -> str | None:
    """What must be said of a run directory if other settings were tried on its data."""
    config, environment = Path(folder) / "config.json", Path(folder) / "environment.json"
    if not config.exists() or not environment.exists():
        return None
    found = of_run(folder, read_json(environment), read_json(config)["delta"])
    return found and found.sentence


def together(found: Iterable[tuple[str, Tried]]) -> list[str]:
    """What must be said of runs that are shown side by side: one sentence for each data, by its name."""
    by_data: dict[str, list[tuple[str, Tried]]] = {}
    for name, tried in found:
        by_data.setdefault(tried.data, []).append((name, tried))
    said = []
    for own in by_data.values():
        name, most = max(own, key=lambda one: (one[1].of, one[1].delta))
        shown = len({tried.number for _, tried in own})
        here = "all of them" if shown == most.of else f"{shown} of them"
        if most.of > 1:
            said.append(
                f"{name}: {most.of} settings were tried on this data, {here} shown here; {most.price}"
            )
    return said
