"""Forwards the logs of a run to a service that draws them:

following  starts a process beside training that forwards, and says if it fails
forward    that process: reads new lines of the logs, and hands them to a service
services   TensorBoard, Weights & Biases, trackio
"""
