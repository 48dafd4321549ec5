"""Optimizers.

build       makes the one that is configured, such as one of PyTorch's
parameters  a model's parameters in groups: matrices of layers, embeddings, the rest
library     those of `pytorch_optimizer`
muon        Muon; ``lion`` and ``relative`` have further ones of ours
"""
