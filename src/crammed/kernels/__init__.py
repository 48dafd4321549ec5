"""Triton kernels for what torch.compile leaves slow, each beside a reference in plain PyTorch.

Every function runs its reference where a kernel cannot run, so that callers need not ask.
"""
