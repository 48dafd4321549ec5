"""Runs as folders.

directory    the folder of a run: configuration, log, checkpoints, the trained model
logs         reads log points and events, even if a crash cut them short
environment  the versions and the machine that a run used
summary      the result of a finished run
longer       whether it could have used more training, in words
resuming     finds the run that a command continues
listing      all runs below a folder
"""
