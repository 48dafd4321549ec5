"""Fine-tuning, from a list of jobs to the outputs of the models:

jobs     which jobs run together, in this process or in others
probing  predicts from the vectors of a frozen encoder instead
engine   trains models side by side, and predicts
task     the tokens and labels of a task, for jobs
vectors  the mean of an encoder's hidden states; a classifier of two texts by theirs
batches  gathers batches on the device
arrays   the files that hold tokens, outputs and labels
"""
