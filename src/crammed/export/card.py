"""The model card: README.md of an exported folder."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from tokenizers import Tokenizer

from crammed.budget import format_seconds
from crammed.data.tokenization.tokenizer import Specials
from crammed.errors import InputError
from crammed.files.regular import read_text
from crammed.files.writing import read_json
from crammed.model.count import parameters
from crammed.model.trained import TrainedModel
from crammed.quantity import counted, quantity
from crammed.runs.summary import Training

_USE = """```python
from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline

folder = "path/to/this/folder"
tokenizer = AutoTokenizer.from_pretrained(folder{trust})
model = AutoModelForMaskedLM.from_pretrained(folder{trust})
fill = pipeline("fill-mask", model=model, tokenizer=tokenizer)
print(fill("A sentence with one {mask} in it."))
```

`AutoModel` and `AutoModelForSequenceClassification` load in the same way{why}. The mean of the last
hidden states is a vector of a text:

```python
import torch
from transformers import AutoModel, AutoTokenizer

folder = "path/to/this/folder"
tokenizer = AutoTokenizer.from_pretrained(folder{trust})
model = AutoModel.from_pretrained(folder{trust})
texts = ["A first text.", "And a second one, which is longer."]
batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
with torch.inference_mode():
    hidden = model(**batch).last_hidden_state
kept = batch["attention_mask"].unsqueeze(-1)
print(((hidden * kept).sum(1) / kept.sum(1)).shape)
```"""

_WHY = ", and\n`trust_remote_code=True` lets transformers run the Python code in this folder"
_ONNX = "\n`model.onnx` computes the logits in onnxruntime, from what the tokenizer returns."


_TASK_TYPES = {
    "classification": "text-classification",
    "multi-label": "text-classification",
    "regression": "text-scoring",
    "tokens": "token-classification",
    "choice": "multiple-choice",
    "minimal-pairs": "fill-mask",
}
_FRONT = re.compile(r"\A---\r?\n(.*?)^---\r?\n(?:\r?\n)?", re.DOTALL | re.MULTILINE)
_CODE = r"[\w.+-]+"
HUB_NAME = r"\w[\w.-]*/\w[\w.-]*"


@dataclass(frozen=True)
class Metadata:
    """What the hub reads from a model card.

    Attributes:
        license: an identifier that the hub knows, such as ``apache-2.0``.
        languages: codes of ISO 639.
        scores: the ``suites`` of an evaluation's scores.json.
        base_model: name on the hub of the model that it was made from.
    """

    license: str | None = None
    languages: tuple[str, ...] = ()
    scores: dict[str, Any] = field(default_factory=dict)
    base_model: str | None = None

    def __post_init__(self) -> None:
        for option, pattern, example, values in (
            ("--license", _CODE, "apache-2.0", filter(None, [self.license])),
            ("--language", r"[a-z]{2,3}(-\w+)*", "en", self.languages),
        ):
            for value in values:
                if not re.fullmatch(pattern, value):
                    raise InputError(f"{option} is {value!r}, not a code such as {example}")

    @classmethod
    def of_run(
        cls,
        run: Path,
        license: str | None,
        languages: tuple[str, ...],
        base_model: str | None = None,
    ) -> Metadata:
        """With the scores of a run.

        Raises:
            InputError: the licence or a language is not a code.
        """
        scores = read_json(run / "evaluation" / "scores.json") or {}
        return cls(license, languages, scores.get("suites", {}), base_model)

    @classmethod
    def stated(cls, card: str) -> Metadata:
        """The licence and the base model that a model card names."""
        values = _front_matter(card)
        license, base = values.get("license"), values.get("base_model")
        known = isinstance(license, str) and re.fullmatch(_CODE, license)
        if isinstance(base, list) and len(base) == 1:
            (base,) = base
        return cls(license if known else None, base_model=base if _is_on_hub(base) else None)

    @classmethod
    def inherited(cls, source: Path, license: str | None = None) -> Metadata:
        """What the card of a model says that is made from the one in a Hugging Face folder.

        Args:
            license: in place of that of `source`.

        Raises:
            InputError: the licence is not a code.
        """
        own, name = cls.stated(_card_in(source)), _cached_name(source)
        if name is None:
            written = (read_json(source / "config.json") or {}).get("_name_or_path")
            name = own.base_model or (written if _is_on_hub(written) else None)
        return cls(license or own.license, base_model=name)

    def lines(self, *tags: str) -> list[str]:
        """The front matter."""
        results = [*self._results()]
        values = {
            "language": [*self.languages],
            "library_name": "transformers",
            "pipeline_tag": "fill-mask",
            "tags": ["crammed", "masked-language-model", *tags],
            "model-index": [{"name": "crammed", "results": results}] if results else None,
        }
        return ["---", *self.origin(), *_lines(values), "---", ""]

    def origin(self) -> list[str]:
        """The lines of the front matter that models keep of those they are made from."""
        return _lines({"license": self.license, "base_model": self.base_model})

    def _results(self) -> list[dict[str, Any]]:
        return [
            {
                "task": {"type": _task_type(score)},
                "dataset": {"type": suite, "name": name + " (partial)" * _is_partial(score)},
                "metrics": [{"type": score["metric"], "value": round(score["median"], 2)}],
            }
            for suite, scores in self.scores.items()
            for name, score in scores.get("tasks", {}).items()
            if "median" in score
        ]


def _lines(values: dict[str, Any]) -> list[str]:
    return [f"{name}: {json.dumps(value)}" for name, value in values.items() if value]


def _front_matter(card: str) -> dict[str, Any]:
    """Empty if a model card has none, or it is damaged."""
    front = _FRONT.match(card)
    try:
        values = yaml.safe_load(front[1]) if front else None
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: an impossible date
        return {}
    return values if isinstance(values, dict) else {}


def _is_on_hub(name: Any) -> bool:
    """Whether this may be a name on the hub, and is no folder here."""
    found = isinstance(name, str) and re.fullmatch(HUB_NAME, name)
    return bool(found) and not os.path.exists(name)  # False for a name that no file can have


def _cached_name(folder: Path) -> str | None:
    """The name on the hub of a model in the hub's cache; None of any other folder."""
    place = folder.parent.parent.name
    if folder.parent.name != "snapshots" or not place.startswith("models--"):
        return None
    return place.removeprefix("models--").replace("--", "/")


def _card_in(folder: Path) -> str:
    """The model card in a Hugging Face folder; empty if there is none."""
    file, name = folder / "README.md", _cached_name(folder)
    if not file.exists() and name is not None:  # models are downloaded without it
        from huggingface_hub import hf_hub_download

        with suppress(Exception):  # the hub may be out of reach, or have no card
            file = Path(hf_hub_download(name, file.name))
    with suppress(OSError, UnicodeDecodeError):
        return read_text(file)
    return ""


def with_metadata(card: str, metadata: Metadata, *tags: str) -> str:
    """A model card with other front matter."""
    return "\n".join(metadata.lines(*tags)) + "\n" + _FRONT.sub("", card)


def _task_type(score: dict[str, Any]) -> str:
    """What the hub calls the kind of a task; scores of older versions have no kind."""
    usual = "regression" if re.search("pearson|spearman", score["metric"]) else "classification"
    return _TASK_TYPES[score.get("kind", usual)]


def _is_partial(score: dict[str, Any]) -> bool:
    return score.get("official") is False


def model_card(
    final: TrainedModel,
    format: str,
    training: Training | None,
    metadata: Metadata,
    *,
    onnx: bool = False,
) -> str:
    """Markdown that describes the model, how it was trained, its limits and how to load it."""
    config, tags = final.config, ["custom_code"] if format == "custom" else []
    mask = str(final.tokenizer.id_to_token(Specials.of(final.tokenizer).mask))
    lines = [
        *metadata.lines(*tags, *(["onnx"] if onnx else [])),
        "# A language encoder trained from scratch within a budget",
        "",
        f"{parameters(config, final.vocab_size):,} parameters, {config.layers} layers of width "
        f"{config.width}, vocabulary {final.vocab_size:,}, trained on rows of {final.row_length} "
        "tokens.",
        "",
    ]
    if training is not None:
        lines += [*figures(training), ""]
    lines += [usage(mask, custom=format == "custom")]
    lines += [_ONNX] if onnx else []
    lines += ["", "## Limits", "", *_limits(final, training)]
    return "\n".join([*lines, ""])


def _limits(final: TrainedModel, training: Training | None) -> list[str]:
    """What the model cannot do, as items of a list."""
    text = "its text"
    if training is not None:
        part = "part of " if training.epochs < 1.0 else ""
        sources = ", ".join(training.corpus.sources)
        text = f"{part}{training.corpus.documents:,} documents of {sources}"
    return [
        f"- It was trained only on {text}, and reproduces the errors and biases there.",
        "- It fills gaps and encodes texts; it does not write any. Its vectors are not trained to "
        "tell texts apart: fine-tune it, or use their cosines only to rank texts.",
        f"- Inputs should not exceed {final.trained_length} tokens (`truncation=True`), padded on "
        "the right, as the tokenizer does.",
        *_lost(final.tokenizer),
    ]


def _lost(tokenizer: Tokenizer) -> list[str]:
    """What the tokenizer's normalizer takes from a text."""
    if (normal := tokenizer.normalizer) is None:
        return []
    seen = normal.normalize_str("A\u00c9")
    lost = ["capitals"] * (seen == seen.lower())
    if not normal.normalize_str("\u6771"):
        lost.append("characters outside ASCII")
    elif seen[-1:] in "Ee":
        lost.append("accents")
    return [f"- Its tokenizer drops {' and '.join(lost)}."] if lost else []


def figures(training: Training) -> list[str]:
    """What training did and reached, as items of a list."""
    heldout = ", ".join(
        f"{value:.3f} with {100 * float(name.removeprefix('loss@')):.0f} % masked"
        for name, value in training.heldout.items()
        if name.startswith("loss@")
    )
    energy = quantity(training.joules, "J") if training.joules else "not measured"
    lines = [
        f"- recipe `{training.recipe}`, seed {training.seed}, budget {training.budget}",
        f"- {training.tokens:,} tokens in {counted(training.updates, 'update')}, "
        f"{format_seconds(training.charged_seconds)} charged, "
        f"{training.exaflop:.3g} exaFLOP, on {training.device}",
        f"- energy used by the device: {energy}",
        f"- held-out loss in nats per masked token: {heldout}",
    ]
    if training.outside_rules:
        lines.append(f"- outside the rules of Cramming: {training.outside_rules}")
    return lines


def usage(mask: str, *, custom: bool) -> str:
    """How to load the model; `mask` is its mask token."""
    trust, why = (", trust_remote_code=True", _WHY) if custom else ("", "")
    return _USE.format(trust=trust, mask=mask, why=why)
