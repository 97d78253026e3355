"""Hold-outs: certificates from examples that never trained the model."""
