"""Errors meant for the user, each with its exit code."""

from __future__ import annotations


class CrammedError(Exception):
    """Base of every deliberate stop; its message is one line that says what to do instead.

    If there is more to say, the further lines are further arguments.
    """

    exit_code = 1

    def __str__(self) -> str:
        # Names in a message may hold line feeds; other characters that act matter to terminals.
        return "\n  ".join(str(each).replace("\n", "\u240a") for each in self.args)


class InputError(CrammedError):
    """The input is wrong or something is missing: a value, a file, a folder, an extra."""

    exit_code = 2

    def within(self, place: str) -> InputError:
        """The same, with where it is in front; its lines stay lines."""
        first, *others = self.args
        return InputError(f"{place}: {first}", *others)


class RanksDiffer(InputError):
    """The processes that train one model disagree about its setup; all of them raise this."""


class PeerLost(CrammedError):
    """Another process of the run has ended, so collective operations no longer work."""


class StoppedByPolicy(CrammedError):
    """A rule of the recipe ended the run early (``train.early_stop``)."""

    exit_code = 3


class Diverged(CrammedError):
    """The loss stopped being a finite number."""

    exit_code = 4


class TaskFailed(CrammedError):
    """Everything finished, but an evaluation task has no score, or a study's run has no loss."""

    exit_code = 5


class Interrupted(CrammedError):
    """A signal stopped the run; everything is saved, and the same command resumes it."""

    exit_code = 75


def in_one_line(error: BaseException) -> str:
    """What an error of a library says, its lines joined; the name of its class if nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def first_line(error: BaseException) -> str:
    """The first line of what an error of a library says; the name of its class if nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
