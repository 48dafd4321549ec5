"""Training within a budget, from the first update to the last.

loop           everything, in order: reads top to bottom
session        what the parts of the loop share
start          what is set from the text before the first update
gradinit       one such thing: scales of the initial weights
plan           what the next update is, and whether it still fits
update         one update (a room of its own)
agenda         when to log, to measure and to save
upkeep         logs, measures and saves
heldout_meter  held-out loss on the way
recorder       log points and events
recovery       going back after divergence
checkpoint     exact resume
distributed    several processes that train one model
signals        stopping on a signal
watchdog       ends a process that waits in vain for another
"""
