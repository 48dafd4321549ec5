"""Tests do not wait for the disk, which takes milliseconds for each of many small files.

What was written survives every kill, because the system has it. Only a power cut could show the
difference, and no test makes one. That files are synced, and in which order, is still seen by tests
that replace ``os.fsync`` themselves.
"""

from unittest import mock


def wait_for_nothing() -> None:
    """Make ``os.fsync`` return at once in this process and in those that it forks."""
    mock.patch("os.fsync", new=_at_once).start()


def _at_once(descriptor: int) -> None:
    """In place of ``os.fsync``."""
