"""What a budget will buy, before it is spent.

measure   how long the parts of a run take on this device
gauge     how fast training is, from about a second of its parts
settling  what a run trains: as it began, or by measuring
oncard    the same for a card that this machine lacks, counted
forecast  a whole run, played through
"""
