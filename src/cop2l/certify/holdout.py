"""Checking a hold-out certificate: what a method without a certificate of its own can carry."""

import json
import math
from pathlib import Path
from typing import Any

from cop2l.bounds import anytime_log_delta, holdout_certificate
from cop2l.certify.verdict import Level, Verdict
from cop2l.errors import UserError


def holdout_content(folder: Path) -> dict[str, Any] | None:
    """The JSON of a hold-out certificate; None if the folder holds something else."""
    try:
        content = json.loads((folder / "certificate.json").read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and content.get("kind") == "holdout" else None


def verify_holdout(content: dict[str, Any], upto: int) -> Verdict:
    """Levels 1 and 2; the model and the withheld examples are not in the file, so the counts stay the issuer's word."""
    levels = [Level(1), Level(2), Level(3), Level(4)][:upto]
    try:
        after, delta, tasks = content["after"], content["delta"], content["tasks"]
        numbers = [entry["task"] for entry in tasks]
        if numbers != list(range(1, after + 1)) or content["sharing"] not in ("fixed", "anytime"):
            levels[0].fail("The tasks are not those up to the one after which the certificate was issued.")
        log_delta = math.log(delta)
        if content["sharing"] == "anytime":
            log_delta = anytime_log_delta(log_delta, after)
        for entry in tasks if upto >= 2 else []:
            expected = float(holdout_certificate(entry["n"], entry["errors"], after, log_delta))
            if not abs(expected - entry["bounds"]["holdout"]) <= 1e-9:
                levels[1].fail(f"The bound stated for task {entry['task']} does not follow from its counts.")
        reasons = tuple(str(reason) for reason in content["not_valid"])
    except (UserError, KeyError, TypeError, ValueError, AttributeError) as error:
        levels[0].fail(f"The certificate does not have the documented form: {type(error).__name__} {error}.")
        return Verdict(levels[:1], upto=upto)
    if upto >= 2 and levels[1].status == "holds":
        levels[1].say(
            f"{len(tasks)} hold-out bounds were recomputed from the counts; each is what is stated."
        )
    for level in levels[2:]:
        level.doubt("A hold-out certificate carries neither the model nor the withheld examples.")
    return Verdict(levels, reasons, upto=upto)
