"""The faults a person can meet, each with the exit code that the command line gives it."""


class CrammedError(Exception):
    """Base of every deliberate stop. Its text is one line that says what to do instead."""

    exit_code = 1


class InputError(CrammedError):
    """What the user gave is wrong: a value, a file, a folder, a missing extra."""

    exit_code = 2


class PeerLost(CrammedError):
    """Another process of the run ended; what it shared with this one no longer works."""


class StoppedByPolicy(CrammedError):
    """A rule of the recipe ended the run early (``train.early_stop``)."""

    exit_code = 3


class Diverged(CrammedError):
    """The loss stopped being a finite number."""

    exit_code = 4


class TaskFailed(CrammedError):
    """The run is finished, but at least one evaluation task has no score."""

    exit_code = 5


class Interrupted(CrammedError):
    """Stopped by a signal with everything saved; the same command goes on from here."""

    exit_code = 75
