"""Models: mlp, cnn, heads, and frozen backbones."""
