"""Evaluates an encoder. Its files and folders, in the order in which a request passes them:

evaluation   a request: which model, on what; `crammed evaluate` begins here
protocol     the hyperparameters of fine-tuning (``protocols/``)
backbones/   loads the model, whatever its origin
folder       where scores and predictions are kept, and finished work is found again
suite        a suite of tasks: tokenize, list the jobs, score
finetuning/  runs the jobs
scores/      metrics, intervals, means, and their tables
submission   predictions for a leaderboard
comparison   two models, from what their folders hold
blimp, heldout   suites without fine-tuning
fill_mask    examples for the report of a run
"""
