"""The verbs about text: prepare, data show, data verify, data copy."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from crammed.cli import options
from crammed.cli.output import print_result
from crammed.errors import InputError
from crammed.terminal.quiet import one_line

CorpusArgument = Annotated[
    Path, typer.Argument(metavar="CORPUS_DIR", help="A corpus directory made by crammed prepare.")
]

HeldoutOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH",
        help="Use these documents as the held-out set instead of a sample of the text: files or "
        "folders as for --data. Copies of them are not trained on.",
    ),
]
ExtendOption = Annotated[
    Path | None,
    typer.Option(
        metavar="CORPUS_DIR",
        help="Extend this corpus: keep its rows and add the text of --data, using its tokenizer, "
        "held-out documents and settings.",
    ),
]


def prepare(
    words: options.RecipeWords = None,
    data: options.DataOption = None,
    budget: options.BudgetOption = None,
    out: Annotated[Path | None, typer.Option(help="The corpus directory to create.")] = None,
    work: Annotated[
        Path | None,
        typer.Option(help="Keep cleaned text in this folder; later preparations reuse it."),
    ] = None,
    heldout: HeldoutOption = None,
    extend: ExtendOption = None,
    fit: options.FitOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Turn text into a corpus: cleaned, tokenized, packed into rows."""
    given = options.arguments(locals())
    from crammed.interface import corpora

    if out is None:
        raise InputError("name the corpus directory to create: --out CORPUS_DIR")
    done = corpora.prepare(**given)
    decided = r"(data|tokenizer)[.=]|budget(\.limit)?="
    own = [word for word in words or [] if not re.match(decided, word)]
    following = ["crammed", "pretrain", *own, "--corpus", str(done.shown), "--budget", done.budget]
    lines = [*done.lines, ("next", shlex.join([*following, *["--fit"] * fit]))]
    print_result({**done.manifest, "out": str(out)}, as_json, lines)


def data_show(
    corpus_dir: CorpusArgument,
    rows: Annotated[int, typer.Option(min=0, max=10_000, help="Number of rows to decode.")] = 3,
    as_json: options.JsonOption = False,
) -> None:
    """Show sources, dropped documents, lengths and rows of a corpus."""
    from crammed.data.corpus import Corpus
    from crammed.data.show import describe_corpus, describe_samples, dropped_samples, sample_rows

    corpus = Corpus(corpus_dir)
    samples = {"samples": sample_rows(corpus, rows), "dropped": dropped_samples(corpus)}
    words = [*describe_corpus(corpus), *describe_samples(corpus, rows)]
    print_result({**corpus.manifest, **samples}, as_json, words)


def data_verify(corpus_dir: CorpusArgument) -> None:
    """Compare the files of a corpus with the hashes in its manifest."""
    from crammed.data.corpus import Corpus, is_damaged

    corpus = Corpus(corpus_dir)
    if damaged := list(corpus.damaged()):
        raise is_damaged(corpus_dir, ", ".join(damaged))
    count = len(corpus.manifest["files"])
    typer.echo(one_line(f"{corpus_dir} is intact: {count} files match their hashes"))


def data_copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="A corpus directory or address.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="A new directory, or an address.")],
) -> None:
    """Copy a corpus to an address, or from one."""
    from crammed.data.corpus import Corpus
    from crammed.data.elsewhere import receive, send
    from crammed.files.addresses import is_address, without_secrets
    from crammed.files.folders import behind_links
    from crammed.interface.asking import shown_progress

    if is_address(source) == is_address(target):
        raise InputError("name a corpus directory and an address, to copy one to the other")
    with shown_progress() as progress:
        if is_address(target):
            send(Corpus(Path(source)), target, progress)
        else:
            receive(source, behind_links(Path(target)), progress)
    shown = without_secrets(target) if is_address(target) else target
    typer.echo(one_line(f"{shown} is whole: all of its files match their hashes"))
