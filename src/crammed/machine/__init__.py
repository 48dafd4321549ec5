"""The machine that computes.

device   the device of a run, its memory and its peak
cards    graphics cards by name: memory, bandwidth, peak
speed    the nominal speed of a device, until it is measured
workers  processes, and the cores that each may use
engine   who does the work on shards: this process, processes of this machine, a Ray cluster
energy   the joules that a run draws, where the machine counts them
"""
