"""The verbs about text: prepare, data show, data verify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crammed.cli.options import (
    BudgetOption,
    DataOption,
    JsonOption,
    RecipeWords,
    configure,
    shown_progress,
)
from crammed.cli.output import next_pretrain, print_result
from crammed.errors import InputError


def prepare(
    words: RecipeWords = None,
    data: DataOption = None,
    budget: BudgetOption = None,
    out: Annotated[Path | None, typer.Option(help="The corpus directory to make.")] = None,
    work: Annotated[
        Path | None,
        typer.Option(help="Keep cleaned text here, so that later preparations need not read it."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Text to a corpus: cleaned documents, tokenizer, packed rows, held-out text, manifest."""
    from crammed.data.preparation import prepare as prepare_corpus
    from crammed.data.show import corpus_words

    config, _ = configure(words, {}, budget, None, data, None)
    if out is None:
        raise InputError("say where the corpus goes: --out CORPUS_DIR")
    with shown_progress() as progress:
        corpus = prepare_corpus(config.data, config.tokenizer, out, progress, config.compute, work)
    print_result(corpus.manifest, as_json, [*corpus_words(corpus), ("next", next_pretrain(out))])


def data_show(
    corpus_dir: Path,
    rows: Annotated[int, typer.Option(min=0, help="How many rows to decode.")] = 3,
    as_json: JsonOption = False,
) -> None:
    """What a corpus holds: sources, what each step dropped, lengths, rows decoded."""
    from crammed.data.corpus import Corpus
    from crammed.data.show import corpus_words, dropped_samples, sample_rows, sample_words

    corpus = Corpus(corpus_dir)
    samples = {"samples": sample_rows(corpus, rows), "dropped": dropped_samples(corpus)}
    words = [*corpus_words(corpus), *sample_words(corpus, rows)]
    print_result({**corpus.manifest, **samples}, as_json, words)


def data_verify(corpus_dir: Path) -> None:
    """Compare every file of a corpus with the hash in its manifest."""
    from crammed.data.corpus import Corpus

    corpus = Corpus(corpus_dir)
    if damaged := list(corpus.damaged()):
        raise InputError(f"corpus {corpus_dir} is damaged: {', '.join(damaged)}; prepare it anew")
    typer.echo(f"{corpus_dir} is whole: {len(corpus.manifest['files'])} files match")
