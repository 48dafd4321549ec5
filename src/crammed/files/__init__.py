"""Reading and writing files such that nothing half-written is ever taken for complete.

writing  one file: all of it or nothing
folders  a folder that appears complete, or not at all
locks    one process at a time in a folder
hashes   whether a folder is as it was written
scratch  temporary folders
faults   a full or failing disk, in one line
"""
