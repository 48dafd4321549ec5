"""The program: its verbs, and how errors end it. Heavy imports wait until a verb needs them."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from types import FrameType
from typing import Annotated, Any, TextIO, cast

import typer

from crammed import __version__
from crammed.cli import corpora, exporting, machine, models, planning, studies, training
from crammed.cli.usage import UsageError, in_one_line, refuse_spaces
from crammed.errors import CrammedError, InputError, Interrupted
from crammed.terminal.quiet import silence, visible
from crammed.terminal.stopping import follow_starter, importing, leave, stop_signals

app = typer.Typer(
    help="Train a language encoder from raw text within a budget, on a GPU or a few CPU cores.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(help="Show, verify or copy a prepared corpus.", no_args_is_help=True)
app.add_typer(data_app, name="data")

for verb in (
    training.run,
    corpora.prepare,
    training.pretrain,
    training.adapt,
    training.decide,
    models.evaluate,
    models.finetune,
    models.embed,
    models.predict,
    models.report,
    exporting.export,
    machine.recipes,
    machine.runs,
    machine.watch,
    machine.doctor,
    planning.plan,
    studies.study,
):
    app.command()(verb)
data_app.command("copy")(corpora.data_copy)
data_app.command("show")(corpora.data_show)
data_app.command("verify")(corpora.data_verify)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"crammed {__version__}")
        raise typer.Exit


@app.callback()
def _whole(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options without a verb."""


def _spread_data(arguments: list[str]) -> list[str]:
    """Turn ``--data a b`` into ``--data a --data b``, so that a shell's globs work."""
    spread: list[str] = []
    gathering = ""
    for argument in arguments:
        ends = _is_override(argument) or (argument.startswith("-") and argument != "-")
        if gathering and spread[-1] != gathering and not ends:
            spread.append(gathering)
        elif ends:
            gathering = argument if argument in ("--data", "--heldout") else ""
        spread.append(argument)
    return spread


def _is_override(word: str) -> bool:
    """Whether a word sets a value, or tries to (``lr=4``), and is no file such as ``day=1/``."""
    if re.match(r"[a-z_]+(\.[a-z0-9_]+)+=|(seed|follows_budget)=", word):
        return True
    tries = re.match(r"[a-z_]+=", word) is not None
    return tries and not set("*?[/") & set(word) and not os.path.lexists(word)


class _Interrupt(BaseException):
    """Ctrl-C. Not KeyboardInterrupt, which the command-line library handles itself."""

    raised = False


def _interrupt(_: int, frame: FrameType | None) -> None:
    if importing(frame):
        leave()
    _Interrupt.raised = True
    for each in stop_signals():  # from now on, only another Ctrl-C cuts the cleaning up short
        signal.signal(each, signal.SIG_DFL if each == signal.SIGINT else signal.SIG_IGN)
    raise _Interrupt


class _Output:
    """Standard output that reports its faults as errors for the user."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if text == "":  # the command-line library tests with it what a stream accepts
            return 0
        encoding = self._stream.encoding
        # A terminal that is not UTF-8 shows the codes of characters that it lacks.
        shown = text.encode(encoding, "backslashreplace").decode(encoding)
        with self._faults():
            return self._stream.write(shown)

    def flush(self) -> None:
        with self._faults():
            self._stream.flush()

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            silence(self._stream)
            if error.errno == errno.EPIPE:
                raise Interrupted("the output was closed; what is finished is kept") from None
            raise InputError(f"cannot write to standard output: {error.strerror}") from None


def _say(error: object) -> None:
    try:
        typer.echo(f"error: {visible(str(error))}", err=True)
    except OSError:
        silence(sys.stderr)


def _open_closed_streams() -> None:
    """Open standard streams that are closed on the null device."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def _refuse_places(arguments: list[str]) -> None:
    """Refuse options that name no place: an empty path would stand for the working directory."""
    for option, value in pairwise([*arguments, "-"]):
        name, is_, rest = option.partition("=")
        if name not in _PLACES:
            continue
        place = rest if is_ else value
        if not place:
            raise InputError(f"{name} is empty: name a file or a folder")
        if (shown := os.fsencode(place).decode("utf-8", "backslashreplace")) != place:
            raise InputError(f"{name} {shown} is not UTF-8 text: choose another name")


_PLACES = (
    *("--out", "--to", "--work", "--into", "--submission", "--untrained-in", "--corpus"),
    *("--glue", "--tasks-data", "--blimp", "--pairs"),
)
"""Options that name a file or a folder."""
_GO_ON = ("run", "prepare", "pretrain", "adapt", "decide", "evaluate", "finetune", "study")
"""Verbs that continue from what an earlier call with the same words has finished."""


def _run(verb: str) -> None:
    refuse_spaces(sys.argv[1:])
    if verb in ("run", "prepare", "adapt", "decide", "embed", "study"):
        sys.argv[1:] = _spread_data(sys.argv[1:])
    try:
        app(prog_name="crammed", standalone_mode=False)
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(str(error), err=True)
            sys.exit(InputError.exit_code)
        raise InputError(in_one_line(error, verb)) from None


def main() -> None:
    """Run a verb; an error becomes one line on standard error and an exit code."""
    _open_closed_streams()
    sys.stdout = cast(TextIO, _Output(sys.stdout))
    code = _outcome(sys.argv[1] if len(sys.argv) > 1 else "")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        # One of several that train together: their connections' threads may still wait for one
        # that has ended, and would abort a normal exit.
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, CrammedError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


def _outcome(verb: str) -> int:
    """Run a verb, and say how it ended; returns the exit code."""
    try:
        _refuse_places(sys.argv[1:])
        try:
            for each in stop_signals():
                signal.signal(each, _interrupt)
            follow_starter()
            _run(verb)
        finally:  # all is finished, or has been said: from here on, signals end the process
            for each in stop_signals():
                signal.signal(each, signal.SIG_DFL)
    except CrammedError as error:
        _say(error)
        return error.exit_code
    except OSError as error:  # a fault of the machine, wherever it occurred
        from crammed.files.faults import failing

        _say(failing(error))
        return InputError.exit_code
    except (MemoryError, ImportError) as error:
        if isinstance(error, ImportError) and "failed to map segment" not in str(error):
            raise
        _say("memory ran out: raise its limit (ulimit -v), or end other processes")
        return InputError.exit_code
    except BaseException as error:
        if isinstance(error, SystemExit) or not _Interrupt.raised:
            raise  # known by a flag: libraries in C turn an interrupt into errors of their own
        kept = "; what is finished is kept, and the same command continues from there"
        _say(f"interrupted{kept if verb in _GO_ON else ''}")
        return Interrupted.exit_code
    return 0
