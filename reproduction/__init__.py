"""The published tables and figures beside ours: a document made of run directories alone."""
