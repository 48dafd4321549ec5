"""What a budget will buy, before it is spent.

settling  what a run trains: what it began with, or what suits the speed
speed     how fast training is on this device, from about a second of it
parts     how long the parts of a run take on this device, for a forecast
oncard    how long the parts of a run take on a card that this machine lacks, counted
forecast  a whole run, simulated
"""
