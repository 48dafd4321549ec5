"""Chooses what to train, by the budget, the machine and the text.

recipe     recipe files, and what a command sets besides
choosing   chooses what a recipe leaves open
sizing     the rules: size, vocabulary, batch, learning rates
rates      learning rates that are far too high
early_end  how a run ends when its text has been read often enough
"""
