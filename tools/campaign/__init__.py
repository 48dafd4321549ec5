"""What `tools/chaos.py` is made of: stages, faults, what runs inside them, and who judges."""
