"""Keeps what studies of tokenizers in several languages found, for docs/languages.md.

    python tools/gather_text.py th TEXT/th.jsonl --characters 2000000 --one-line --no-ascii-lines
    crammed study benchmarks/languages.yaml compute.threads=1 --data TEXT/th.jsonl \\
        --budget 6e5tok --seeds 3 --out STUDIES/th
    python benchmarks/languages.py TEXT STUDIES records/DATE-languages --command '...'

For each folder LANGUAGE of STUDIES it writes LANGUAGE.json: the study, each corpus's figures, the
packages of the text, the share of its characters that recipes lose, and gaps filled.
"""

from __future__ import annotations

import json
import math
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from common import run
from crammed.config import TokenizerConfig
from crammed.data.corpus import Corpus
from crammed.data.heldout import heldout_texts
from crammed.data.tokenization.losses import lost_characters
from crammed.data.tokenization.training import train_from_words
from crammed.files.writing import read_json, write_json
from crammed.rules.recipe import load_config
from crammed.study.result import read_result

RECIPES = ("crammed", "crammed-2022")


def kept(study: Path, packages: list[dict[str, Any]], command: str) -> dict[str, Any]:
    result, corpora = read_result(study), {}
    for folder in sorted((study / "corpora").iterdir()):
        corpus = Corpus(folder)
        heldout, statistics = corpus.manifest["heldout"], corpus.manifest["statistics"]
        density = heldout["tokens_per_character"]
        corpora[corpus.manifest["tokenizer"]["kind"]] = {
            "vocabulary": corpus.vocab_size,
            "characters": corpus.manifest["characters"],
            "tokens": corpus.manifest["tokens"],
            "tokens_per_character": density,
            "unused": statistics["unused_tokens"],
            "unknown": statistics["unknown_share"],
            "unigram_bits": heldout["unigram_cross_entropy"] * density / math.log(2.0),
        }
        text = "\n".join(islice(heldout_texts(corpus.heldout), 1000))
    summary = read_json(study / f"{result.baseline}-0" / "summary.json") or {}
    return {
        "command": command,
        **result.values(),
        "packages": packages,
        "kinds": corpora,
        "lost": {recipe: _lost(recipe, text) for recipe in RECIPES},
        "gaps": summary["fill_mask"],
    }


def _lost(recipe: str, text: str) -> float:
    """The share of a text's characters that a recipe's normaliser changes or drops."""
    settings = load_config(recipe, [], {}).tokenizer.model_dump(exclude={"vocab_size"})
    tokenizer = train_from_words([("ab", 9)], TokenizerConfig(**settings, vocab_size=64))
    lost, characters = lost_characters(tokenizer, text)
    return lost.total() / characters


def main(text: Path, studies: Path, record: Path, command: Annotated[str, typer.Option()]) -> None:
    record.mkdir(parents=True, exist_ok=True)
    for study in sorted(studies.iterdir()):
        packages = json.loads((text / f"{study.name}.sources.json").read_text("utf-8"))
        write_json(record / f"{study.name}.json", kept(study, packages, command))


if __name__ == "__main__":
    run(main)
