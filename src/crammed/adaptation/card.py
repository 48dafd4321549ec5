"""The model card of an adapted model: README.md of its folder."""

from __future__ import annotations

from crammed.adaptation.original import Original
from crammed.adaptation.words import in_all
from crammed.export.card import Metadata, figures, usage
from crammed.quantity import counted
from crammed.runs.summary import Spent, Training


def model_card(original: Original, training: Training, mask: str) -> str:
    """Markdown that says what the model was adapted from, how, and how to load it."""
    adapted = training.adapted
    assert adapted is not None
    before = adapted.heldout["loss@0.15"]
    tokenizer = "its own tokenizer"
    if adapted.new_words:
        tokenizer += f", which was given {counted(adapted.new_words, 'word')}"
    license = "licence" + (f" ({original.license})" if original.license else "")
    return "\n".join(
        [
            *Metadata(original.license).lines(),
            f"# {original.name}, adapted",
            "",
            f"{original.name} ({original.backbone.parameters:,} parameters) was trained before; "
            f"its masked-language modelling was continued on other text, with {tokenizer}, on "
            f"rows of {training_rows(training)} tokens. Its {license} and limits apply.",
            "",
            *figures(training),
            *([] if adapted.earlier is None else [f"- {_in_all(adapted.earlier, training)}"]),
            f"- before that, its held-out loss on this text was {before:.3f} with 15 % masked",
            "",
            usage(mask, custom=original.ours),
            "",
        ]
    )


def _in_all(earlier: Spent, training: Training) -> str:
    words = in_all(earlier.values(), training.charged_seconds, training.tokens)
    return f"with the run that it was adapted from: {words}"


def training_rows(training: Training) -> int:
    """Tokens of a row."""
    return training.tokens // training.rows if training.rows else 0
