"""Kernels for what torch.compile leaves slow or for updates that are not compiled.

Each has a reference in plain PyTorch. Where Triton kernels cannot run, their references do, so
callers need not check.
"""
