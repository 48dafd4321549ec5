"""Evaluates an encoder. Its files and folders, in the order in which a request reaches them:

evaluation   a request: which model, on what; `crammed evaluate` starts here
protocol     fine-tuning hyperparameters (``protocols/``)
backbones/   loads the model, wherever it comes from
folder       stores scores and predictions, and finds finished work again
damage       says that such a folder is damaged
suite        a suite of tasks: tokenize, list the jobs, score
prepared     one of its tasks, tokenized; its folds, and what is to say about its rows
twins        what untrained models of a shape predict, kept for others of that shape
finetuning/  runs the jobs: fine-tuning, or probes of a frozen encoder
scores/      metrics, intervals, means, and their tables
linear       what TF-IDF with a linear model scores
submission   predictions for a leaderboard
comparison   compares two models from their evaluation folders
decision     which of several models is worth taking, in words
blimp, minimal_pairs, heldout_score   suites without fine-tuning
fill_mask    examples for the report of a run
"""
