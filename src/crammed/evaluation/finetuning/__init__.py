"""Fine-tuning, from a list of jobs to the outputs of the models:

jobs     which jobs run together, in this process or in others
engine   trains models side by side, and predicts
batches  gathers batches on the device
arrays   the files that hold tokens, outputs and labels
"""
