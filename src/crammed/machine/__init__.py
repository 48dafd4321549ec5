"""The machine that computes.

device   the device of a run, its memory and its peak
cards    graphics cards by name: memory, bandwidth, peak
speed    the nominal speed of a device, for use where none is measured
lanes    threads that compute on one core each
workers  worker processes, and the cores and memory they may use
engine   what works on shards: this process, processes on this machine, a Ray cluster
waiting  whether other work holds up this process
caches   a folder for compiled code
energy   the energy that a run uses, in joules, where the machine counts it
"""
