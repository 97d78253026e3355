"""A frozen backbone's features, computed once and cached."""

from cop2l.features.importing import import_features
from cop2l.features.load import load_stream
from cop2l.features.store import Entry, entries, find

__all__ = ["Entry", "entries", "find", "import_features", "load_stream"]
