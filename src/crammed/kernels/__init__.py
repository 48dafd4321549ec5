"""What PyTorch leaves slow in updates that are not compiled, with references in plain PyTorch."""
