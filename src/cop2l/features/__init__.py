"""Features of frozen backbones, computed once and cached."""

from cop2l.features.extraction import extract
from cop2l.features.importing import import_features
from cop2l.features.load import load_stream
from cop2l.features.store import entries, find_entry
from cop2l.models.modules import from_module

__all__ = ["entries", "extract", "find_entry", "from_module", "import_features", "load_stream"]
