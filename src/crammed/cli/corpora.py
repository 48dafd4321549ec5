"""The verbs about text: prepare, data show, data verify, data copy."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crammed.cli.options import (
    BudgetOption,
    DataOption,
    FitOption,
    JsonOption,
    RecipeWords,
    absolute_source,
    configure,
    show_recipe,
    shown_progress,
)
from crammed.cli.output import print_result
from crammed.errors import InputError
from crammed.terminal.quiet import one_line

if TYPE_CHECKING:
    from crammed.config import TokenizerConfig
    from crammed.rules.choosing import Asked
    from crammed.terminal.progress import Progress

CorpusArgument = Annotated[
    Path, typer.Argument(metavar="CORPUS_DIR", help="A corpus directory made by crammed prepare.")
]

HeldoutOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH",
        help="Hold these documents out instead of some of the text: files or folders as for "
        "--data. Copies of them are not trained on.",
    ),
]
ExtendOption = Annotated[
    Path | None,
    typer.Option(
        metavar="CORPUS_DIR",
        help="Begin with the rows of this corpus, and read nothing but further text, with the "
        "corpus's tokenizer, held-out documents and settings.",
    ),
]


def prepare(
    words: RecipeWords = None,
    data: DataOption = None,
    budget: BudgetOption = None,
    out: Annotated[Path | None, typer.Option(help="The corpus directory to create.")] = None,
    work: Annotated[
        Path | None,
        typer.Option(help="Keep cleaned text in this folder; later preparations reuse it."),
    ] = None,
    heldout: HeldoutOption = None,
    extend: ExtendOption = None,
    fit: FitOption = False,
    as_json: JsonOption = False,
) -> None:
    """Turn text into a corpus: cleaned, tokenized, packed into rows."""
    from crammed.data.corpus import Corpus
    from crammed.data.preparing.driver import prepare as prepare_corpus
    from crammed.data.preparing.extension import extend as extend_corpus
    from crammed.data.show import describe_corpus
    from crammed.files.folders import behind_links

    asked, _, _ = configure(words, {}, budget, None, data, None, fit=fit)
    if out is None:
        raise InputError("name the corpus directory to create: --out CORPUS_DIR")
    out = behind_links(out)
    config = asked.config
    with shown_progress() as progress:
        if extend is not None:
            _refuse_settings_of_its_own(words or [], heldout, fit)
            base = Corpus(extend)
            corpus = extend_corpus(base, config.data, out, progress, config.compute, work)
        else:
            show_recipe(progress, asked)
            choose = _chooser(asked, progress)
            held = [absolute_source(path, "--heldout") for path in heldout or []]
            corpus = prepare_corpus(
                config.data, config.tokenizer, out, progress, config.compute, work, choose, held
            )
    decided = r"(data|tokenizer)[.=]|budget(\.limit)?="
    own = [word for word in words or [] if not re.match(decided, word)]
    limit = config.budget.limit.text
    following = ["crammed", "pretrain", *own, "--corpus", str(out), "--budget", limit]
    lines = [*describe_corpus(corpus), ("next", shlex.join([*following, *["--fit"] * fit]))]
    print_result(corpus.manifest, as_json, lines)


def _refuse_settings_of_its_own(words: list[str], heldout: list[str] | None, fit: bool) -> None:
    """Refuse what a corpus that is extended has decided.

    Raises:
        InputError: an override or an option sets it.
    """
    from crammed.data.preparing.extension import OF_NEW_TEXT

    theirs_too = "|".join((*OF_NEW_TEXT, r"clean\.(function|downstream)"))
    decided = rf"(data\.(?!({theirs_too})\b)|tokenizer[.=])"
    theirs = [word for word in words if re.match(decided, word)]
    theirs += ["--heldout"] * bool(heldout) + ["--fit"] * fit
    if theirs:
        raise InputError(
            f"{theirs[0]}: the corpus to extend was prepared with its own settings; leave it out, "
            "or prepare all text anew"
        )


def _chooser(asked: Asked, progress: Progress) -> Callable[[float], TokenizerConfig] | None:
    """A function that chooses the tokenizer, by the model that suits a number of tokens.

    It is None if nothing is left to choose: the size of the vocabulary is set, or that of a given
    tokenizer, which is said.
    """
    from crammed.data.tokenization.named import given_vocabulary
    from crammed.planning.settling import device_of, settle
    from crammed.rules.choosing import shape_of

    if (size := given_vocabulary(asked.config.tokenizer)) is not None:
        progress.line(f"vocabulary  {size:,}, of the tokenizer in tokenizer.file")
        return None
    if "tokenizer.vocab_size" not in asked.open:
        return None
    device = device_of(asked.nominally())  # a wrong one ends the command here

    def chosen(tokens: float) -> TokenizerConfig:
        config = settle(asked, tokens / asked.config.data.row_length, device, progress).config
        layers, width = shape_of(config)
        tokenizer = config.tokenizer
        progress.line(f"vocabulary  {tokenizer.vocab_size:,}, which suits {layers} x {width}")
        return tokenizer

    return chosen


def data_show(
    corpus_dir: CorpusArgument,
    rows: Annotated[int, typer.Option(min=0, max=10_000, help="Number of rows to decode.")] = 3,
    as_json: JsonOption = False,
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
    """Copy a corpus to an address such as s3://bucket/corpus, or from one."""
    from crammed.data.corpus import Corpus
    from crammed.data.elsewhere import receive, send
    from crammed.files.addresses import is_address, without_secrets
    from crammed.files.folders import behind_links

    if is_address(source) == is_address(target):
        raise InputError("name a corpus directory and an address, to copy one to the other")
    with shown_progress() as progress:
        if is_address(target):
            send(Corpus(Path(source)), target, progress)
        else:
            receive(source, behind_links(Path(target)), progress)
    shown = without_secrets(target) if is_address(target) else target
    typer.echo(one_line(f"{shown} is whole: all of its files match their hashes"))
