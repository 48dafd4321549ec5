"""Scores, from what fine-tuned models give to tables:

predictions  classes and spans from the outputs of a model
metrics      the metrics, on the rows themselves and on resamples
bootstrap    medians on resamples, and intervals
score        a score as JSON; means over scores
compare      the difference between two models
published    published scores that are comparable
table        tables for a terminal, and wording that reports share
"""
