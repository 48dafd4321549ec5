"""Train the best language encoder that one GPU and a budget can buy, from raw text."""

__version__ = "0.1.0"
