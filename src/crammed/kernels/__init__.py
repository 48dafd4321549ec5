"""Triton kernels for what torch.compile leaves slow, each beside a twin in plain PyTorch.

Every function runs its twin where a kernel cannot run, so that callers need not ask.
"""
