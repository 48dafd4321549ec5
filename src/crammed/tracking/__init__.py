"""Forwards the logs of a run to a service that draws them:

following  starts a process beside training that does so, and says if it fails
forward    that process: reads what the logs gain, and hands it to a service
services   TensorBoard, Weights & Biases, trackio
"""
