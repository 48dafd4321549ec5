"""The parts of `tools/chaos.py`: stages, faults, the code inside the process, and the judge."""

import sys
from pathlib import Path

# The campaign forks commands with `support.server`, which belongs to the tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
