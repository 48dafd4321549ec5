"""The model card: README.md of an exported folder."""

from __future__ import annotations

from crammed.budget import format_seconds
from crammed.data.tokenization.tokenizer import Specials
from crammed.model.count import parameters
from crammed.model.trained import TrainedModel
from crammed.quantity import counted
from crammed.runs.summary import Training

FRONT_MATTER = (
    "---",
    "library_name: transformers",
    "pipeline_tag: fill-mask",
    "tags: [crammed, masked-language-model]",
    "---",
    "",
)
_USE = """```python
from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline

folder = "path/to/this/folder"
tokenizer = AutoTokenizer.from_pretrained(folder{trust})
model = AutoModelForMaskedLM.from_pretrained(folder{trust})
fill = pipeline("fill-mask", model=model, tokenizer=tokenizer)
print(fill("A sentence with one {mask} in it."))
```

`AutoModel` and `AutoModelForSequenceClassification` load in the same way{why}."""

_WHY = ", and\n`trust_remote_code=True` lets transformers run the Python code in this folder"


def model_card(final: TrainedModel, format: str, training: Training | None) -> str:
    """Markdown that describes the model, how it was trained and how to load it."""
    config = final.config
    mask = str(final.tokenizer.id_to_token(Specials.of(final.tokenizer).mask))
    lines = [
        *FRONT_MATTER,
        "# A language encoder trained from scratch within a budget",
        "",
        f"{parameters(config, final.vocab_size):,} parameters, {config.layers} layers of width "
        f"{config.width}, vocabulary {final.vocab_size:,}, trained on rows of {final.row_length} "
        "tokens, which no input should exceed.",
        "",
    ]
    if training is not None:
        lines += [*figures(training), ""]
    lines += [usage(mask, custom=format == "custom"), ""]
    return "\n".join(lines)


def figures(training: Training) -> list[str]:
    """What training did and reached, as items of a list."""
    heldout = ", ".join(
        f"{value:.3f} with {100 * float(name.removeprefix('loss@')):.0f} % masked"
        for name, value in training.heldout.items()
        if name.startswith("loss@")
    )
    lines = [
        f"- recipe `{training.recipe}`, seed {training.seed}, budget {training.budget}",
        f"- {training.tokens:,} tokens in {counted(training.updates, 'update')}, "
        f"{format_seconds(training.charged_seconds)} charged, "
        f"{training.exaflop:.3g} exaFLOP, on {training.device}",
        f"- held-out loss in nats per masked token: {heldout}",
    ]
    if training.outside_rules:
        lines.append(f"- outside the rules of Cramming: {training.outside_rules}")
    return lines


def usage(mask: str, *, custom: bool) -> str:
    """How to load the model; `mask` is its mask token."""
    trust, why = (", trust_remote_code=True", _WHY) if custom else ("", "")
    return _USE.format(trust=trust, mask=mask, why=why)
