"""The command line. Its verbs are thin; heavy imports wait until a verb needs them."""

from __future__ import annotations

import os
import re
import signal
import sys

import typer

from crammed.cli import corpora, machine, models, studies, training
from crammed.errors import CrammedError, Interrupted, PeerLost

app = typer.Typer(
    help="Train the best language encoder that one GPU and a budget can buy, from raw text.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
data_app = typer.Typer(help="Show or verify a prepared corpus.", no_args_is_help=True)
app.add_typer(data_app, name="data")

for verb in (
    training.run,
    corpora.prepare,
    training.pretrain,
    models.evaluate,
    models.report,
    models.export,
    machine.recipes,
    machine.doctor,
    training.plan,
    studies.study,
):
    app.command()(verb)
data_app.command("show")(corpora.data_show)
data_app.command("verify")(corpora.data_verify)


def _spread_data(arguments: list[str]) -> list[str]:
    """Turn ``--data a b`` into ``--data a --data b``, so that a shell's globs work."""
    spread: list[str] = []
    gathering = False
    for argument in arguments:
        override = re.match(r"[a-z_]+(\.[a-z0-9_]+)+=|seed=", argument)
        if gathering and spread[-1] != "--data" and not argument.startswith("-") and not override:
            spread.append("--data")
        elif argument.startswith("-") or override:
            gathering = argument == "--data"
        spread.append(argument)
    return spread


class _Interrupt(BaseException):
    """Ctrl-C. Not KeyboardInterrupt, which the command-line library handles itself."""


def _interrupt(*_: object) -> None:
    raise _Interrupt


def main() -> None:
    """Run a verb; an error becomes one line on standard error and an exit code."""
    signal.signal(signal.SIGINT, _interrupt)
    verb = sys.argv[1] if len(sys.argv) > 1 else ""
    if verb in ("run", "prepare"):
        sys.argv[1:] = _spread_data(sys.argv[1:])
    try:
        app()
    except PeerLost as error:
        typer.echo(f"error: {error}", err=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(error.exit_code)  # threads waiting for the lost process would abort a normal exit
    except CrammedError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except _Interrupt:
        typer.echo("error: interrupted; what is finished is kept", err=True)
        sys.exit(Interrupted.exit_code)
