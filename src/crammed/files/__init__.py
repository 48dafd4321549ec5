"""Reads and writes files so that nothing half-written is ever taken for complete.

writing  one file: all of it or nothing
folders  a folder that appears complete, or not at all; where caches are
regular  opening files in folders of others: through no link, and no pipes or devices
locks    one process at a time in a folder
hashes   whether a folder is still as it was written
scratch  temporary folders
addresses  of files that are not on this machine
faults   one-line messages for a full or failing disk
"""
