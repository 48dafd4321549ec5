"""Runs as folders.

directory    the folder of a run: configuration, log, checkpoints, the trained model
logs         its log points and events, as a crash may have left them
environment  the versions and the machine it ran on
summary      what a finished run says of itself
resuming     finds an unfinished run of the same words
listing      all runs below a folder
"""
