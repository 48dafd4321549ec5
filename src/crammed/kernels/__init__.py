"""Code for what torch.compile leaves slow, or what runs without it, beside plain PyTorch.

The Triton kernels run their references where they cannot run, so that callers need not ask.
"""
