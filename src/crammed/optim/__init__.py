"""Optimizers.

build       makes the configured one; PyTorch's own are here, too
parameters  a model's parameters in groups: matrices of layers, embeddings, the rest
library     those of `pytorch_optimizer`
muon        Muon; ``lion`` and ``relative`` have further ones of ours
"""
