"""A fine-tuned model: kept in a folder that transformers loads, and used on new rows.

keeping     fine-tunes an encoder on a task with every seed, and keeps the median seed's model
folder      what such a folder holds: the model, and the task that it is for
prediction  what the model says of rows without labels
output      predictions as lines of JSON or as a table
card        README.md: the score, class by class, and the mistakes it is surest of
"""
