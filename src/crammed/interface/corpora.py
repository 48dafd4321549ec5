"""What prepares text: prepare."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from crammed.config import TokenizerConfig
from crammed.config.arguments import File, checked
from crammed.config.kinds import flat
from crammed.data.corpus import Corpus
from crammed.data.preparing import driver
from crammed.data.preparing.extension import NAMED_AGAIN, OF_NEW_TEXT
from crammed.data.preparing.extension import extend as extend_corpus
from crammed.data.tokenization.named import given_vocabulary
from crammed.errors import InputError
from crammed.files.folders import behind_links
from crammed.interface import asking
from crammed.interface.results import Prepared
from crammed.interface.turn import own_turn
from crammed.planning.settling import device_of, settle
from crammed.rules.choosing import Asked, shape_of
from crammed.rules.recipe import parse_overrides
from crammed.terminal.progress import Progress


@checked
@own_turn()
def prepare(
    recipe: str | None = None,
    overrides: asking.Overrides = (),
    *,
    data: asking.Texts = (),
    budget: asking.Limit | None = None,
    out: File,
    work: File | None = None,
    heldout: asking.Texts = (),
    extend: File | None = None,
    fit: bool = False,
) -> Prepared:
    """Turn text into a corpus, as ``crammed prepare``: cleaned, tokenized, packed into rows.

    Args:
        recipe: a recipe's name or .yaml file; None is ``crammed``.
        overrides: values in place of the recipe's, such as ``{"tokenizer.vocab_size": 8192}``.
        data: files or folders of text, or names such as ``hub:NAME``.
        budget: what is to be trained with it, which decides the size of the vocabulary.
        out: the corpus directory to create.
        work: folder that keeps cleaned text, for later preparations.
        heldout: documents to hold out instead of some of the text.
        extend: a corpus to begin with.
        fit: let the vocabulary follow from the budget even where the recipe sets it.

    Raises:
        InputError: something given is wrong, or missing.
    """
    fraction = "data.heldout_fraction"
    asking.refuse_twice(asking.words_of(overrides), "--heldout", fraction, bool(heldout))
    asked, _, _ = asking.configure(recipe, overrides, {}, budget, None, data, fit=fit)
    folder = behind_links(Path(out))
    cache = None if work is None else Path(work)
    config = asked.config
    with asking.shown_progress() as progress:
        if extend is not None:
            _refuse_settings_of_its_own(asking.words_of(overrides), bool(heldout), fit)
            base = Corpus(Path(extend))
            corpus = extend_corpus(base, config.data, folder, progress, config.compute, cache)
        else:
            asking.show_recipe(progress, asked)
            choose = _chooser(asked, progress)
            held = asking.sources_of(heldout, "--heldout")
            corpus = driver.prepare(
                config.data, config.tokenizer, folder, progress, config.compute, cache, choose, held
            )
    return Prepared(folder, corpus.manifest, config.budget.limit.text)


def _refuse_settings_of_its_own(words: list[str], heldout: bool, fit: bool) -> None:
    """Refuse what a corpus that is extended has decided."""
    theirs_too = "|".join((*OF_NEW_TEXT, rf"clean\.({'|'.join(NAMED_AGAIN)})"))
    decided = rf"(data\.(?!({theirs_too})\b)|tokenizer(\.|$))"
    theirs = [w for w in words if any(re.match(decided, key) for key in flat(parse_overrides([w])))]
    theirs += ["--heldout"] * heldout + ["--fit"] * fit
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
