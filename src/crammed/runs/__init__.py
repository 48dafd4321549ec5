"""Runs as folders.

directory  the folder of a run: configuration, log, checkpoints, the trained model
summary    what a finished run says of itself
resuming   finds an unfinished run of the same words
listing    all runs below a folder
"""
