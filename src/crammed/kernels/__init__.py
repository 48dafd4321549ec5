"""Faster code for what is slow in uncompiled updates, with references in plain PyTorch."""
