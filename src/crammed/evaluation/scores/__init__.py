"""Turns the outputs of fine-tuned models into scores and tables:

predictions  classes and spans from a model's outputs
metrics      the metrics, on the actual rows and on resamples
bootstrap    medians over resamples, and intervals
score        a score as JSON; means over scores
judged       how a fine-tuned model tells each class, and its surest mistakes
notes        what scores of simpler models say of a score, in words
compare      the difference between two models
published    published scores that are comparable
table        tables for a terminal, and wording shared with reports
"""
