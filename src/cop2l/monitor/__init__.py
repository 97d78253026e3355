"""The monitor of a claim: evidence against it from labelled feedback, without torch."""
