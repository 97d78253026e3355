"""A frozen backbone's features, computed once and cached."""
