"""Text as numbers, by a rule that no sample decides: certificates stay valid."""

from collections.abc import Sequence

import numpy as np

from cop2l.errors import missing_extra

SIZE = 1024
"""Numbers per column of text, unless told otherwise."""


def hashed(texts: Sequence[str], size: int = SIZE) -> np.ndarray:
    """One row of length 1 per text: its words and pairs of neighbours, counted in places that a fixed hash gives them.

    There is no vocabulary and there are no frequencies over the texts, so that a row depends on its own text alone.
    """
    try:
        from sklearn.feature_extraction.text import HashingVectorizer
    except ImportError:
        raise missing_extra("scikit-learn", "data", "Reading a column of text") from None
    rule = HashingVectorizer(n_features=size, ngram_range=(1, 2), dtype=np.float32)
    rows: np.ndarray = rule.transform(texts).toarray()
    return rows
