"""Optimizers.

build       makes the one that is configured
parameters  a model's parameters in groups: matrices of layers, embeddings, the rest
pytorch     PyTorch's own; ``library`` has those of `pytorch_optimizer`
muon        Muon; ``lion`` and ``relative`` have further ones of ours
"""
