"""A forger's tools: change a certificate and make its digests, counts and bounds agree again."""

import json
import shutil
from copy import deepcopy

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from cop2l.certify.certificate import content_digest, file_digest
from cop2l.certify.compress import digest
from cop2l.certify.options import Options
from cop2l.certify.record import Counts, bounds_of, sharing

FILES = ("sets", "theta_0", "theta", "examples")


class Forgery:
    """A copy of a certificate, to be changed and written."""

    def __init__(self, folder, into):
        self.folder = into
        shutil.rmtree(into, ignore_errors=True)
        shutil.copytree(folder, into)
        self.content = json.loads((into / "certificate.json").read_text())
        self.tensors = {
            name: load_file(into / f"{name}.safetensors")
            for name in FILES
            if (into / f"{name}.safetensors").exists()
        }

    def write(self):
        """As it stands: no hash is mended."""
        (self.folder / "certificate.json").write_text(json.dumps(self.content))
        return self.folder

    def write_files(self):
        for name, tensors in self.tensors.items():
            save_file(tensors, self.folder / f"{name}.safetensors")

    def sign(self):
        """Mend the hashes of the files and the digest of the text."""
        self.content["files"] = {
            path.name: file_digest(path) for path in sorted(self.folder.glob("*.safetensors"))
        }
        self.content["digest"] = content_digest(self.content)
        return self.write()

    def mend(self):
        """Make everything that follows from the sets, the parameters and the options follow again; then sign."""
        self.write_files()
        content, options = self.content, Options(**self.content["options"])
        last = len(content["records"])
        for record in content["records"]:
            sets = {
                key: self.tensors["sets"][f"{record['task']}/{key}"]
                for key in ("first", "second", "left", "picked")
            }
            record["compression"], record["evicted"] = len(sets["first"]), len(sets["second"])
            record["picked"], record["evicted_last"] = len(sets["picked"]), int((sets["left"] == last).sum())
        messages = [record["iterations"] for record in content["records"]]
        for record in content["records"]:
            counts = Counts(**{name: record[name] for name in Counts.__dataclass_fields__})
            record["bounds"] = {
                kind: {"value": b.value, "reason": b.reason, "terms": b.terms}
                for kind, b in bounds_of(counts, options, messages).items()
            }
        content |= {
            "tasks": last,
            "delta": options.delta,
            "claim": options.claim,
            "sharing": sharing(options, last),
            "valid": not content["not_valid"],
            "theta_0": digest(self.tensors["theta_0"]),
            "theta": digest(self.tensors["theta"]),
        }
        return self.sign()


def leaves(value, path=()):
    """Every leaf of a JSON value with its path; empty lists and objects are leaves."""
    if isinstance(value, dict) and value:
        for key in value:
            yield from leaves(value[key], (*path, key))
    elif isinstance(value, list) and value:
        for number, entry in enumerate(value):
            yield from leaves(entry, (*path, number))
    else:
        yield path, value


def changed(value):
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 0.5 + 0.001
    if isinstance(value, str):
        return value[:-1] + ("0" if value[-1:] != "0" else "1")
    return ["something"] if isinstance(value, list) else 1


def other_kind(value):
    """A value that a careless comparison takes for the same."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return float(value)
    if isinstance(value, float):
        return True if value == 1.0 else int(value) if value.is_integer() else str(value)
    if value is None:
        return False
    return None


def at(content, path):
    for key in path[:-1]:
        content = content[key]
    return content, path[-1]


def with_leaf(content, path, value):
    copy = deepcopy(content)
    place, key = at(copy, path)
    place[key] = value
    return copy


def replaced(rows, position, n):
    """The set with one entry exchanged for a row that is not in it (or dropped, if there is none)."""
    rest = np.setdiff1d(np.arange(n), rows.numpy())
    kept = np.delete(rows.numpy(), position)
    return torch.from_numpy(np.sort(np.append(kept, rest[position % len(rest)])) if len(rest) else kept)
