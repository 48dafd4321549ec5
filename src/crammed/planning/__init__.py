"""What a budget will buy, before it is spent.

measure   how long the parts of a run take on this device
gauge     how fast training is, from about a second of its parts
settling  what a run trains: what it began with, or what is chosen by measuring
oncard    how long the parts of a run take on a card that this machine lacks, counted
forecast  a whole run, simulated
"""
