"""What `tools/chaos.py` is made of: stages, faults, what runs inside them, and who judges."""

import sys
from pathlib import Path

# `support.server`, which forks commands, is the tests'.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
