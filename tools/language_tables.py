"""Tables about languages, from the files that ``benchmarks/languages.py`` writes.

Each function takes the names of records, folders of ``records/`` with a LANGUAGE.json for each
language, and returns Markdown. Of a language in several records, the last one counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

import layout
from crammed.study.findings.statistics import compare_arms
from crammed.study.findings.table import mean_text
from crammed.study.result import StudyResult
from layout import difference_cell, row_of, table, wrapped

NAMES = {
    "ar": "Arabic",
    "de": "German",
    "en-US": "English",
    "fi": "Finnish",
    "hi": "Hindi",
    "ja": "Japanese",
    "ko": "Korean",
    "th": "Thai",
    "zh-CN": "Chinese",
}
_VOCABULARY = 8192
_MEASURE = "bits_per_character@0.15"
_HEAD = row_of(
    *("language", "tokenizer", "tokens per character", "unused tokens", "unknown tokens"),
    *("unigram", "bits per character", "difference, 95 % interval"),
)
_GAPS = row_of(
    *("language", "lost by `crammed`", "by `crammed-2022`"),
    *("median rank of 8 gaps", "a sentence", "best guess, rank"),
)


def _files(records: Iterable[str]) -> list[tuple[str, dict[str, Any]]]:
    files = {file.stem: file for name in records for file in (layout.RECORDS / name).glob("*.json")}
    return sorted((NAMES[code], layout.found(file)) for code, file in files.items())


def languages_table(*records: str) -> str:
    """Kinds of tokenizers in each language, the best first."""
    rows, fewer, sizes, seeds, spent = [], [], set(), set(), 0.0
    for name, values in _files(records):
        own = ("command", "packages", "kinds", "lost", "gaps")
        study = StudyResult.model_validate({k: v for k, v in values.items() if k not in own})
        sizes |= {kind["characters"] / 1e6 for kind in values["kinds"].values()}
        for number, arm in enumerate(compare_arms(study, (_MEASURE,))):
            kind, one = values["kinds"][arm["arm"]], arm[_MEASURE]
            seeds.add(arm["seeds"])
            if kind["vocabulary"] < _VOCABULARY:
                fewer.append(f"{arm['arm']} in {name} found {kind['vocabulary']:,}")
            cells = (
                name if number == 0 else "",
                arm["arm"],
                f"{kind['tokens_per_character']:.3f}",
                f"{kind['unused']:,}",
                f"{100 * kind['unknown']:.3f} %",
                f"{kind['unigram_bits']:.3f}",
                mean_text(one, _MEASURE),
                difference_cell(one, _MEASURE),
            )
            rows.append(row_of(*cells))
        spent += sum(run.seconds or 0.0 for arm in study.arms.values() for run in arm.runs.values())
    text = wrapped(
        f"Vocabulary {_VOCABULARY:,}{''.join(f' ({each})' for each in fewer)}, 2 x 64, "
        f"600,000 tokens a run, {' to '.join(map(str, sorted({min(seeds), max(seeds)})))} seeds; "
        f"{min(sizes):.1f} to {max(sizes):.1f} million characters of text. Unigram: bits per "
        "character of a model that knows only how frequent tokens are. Differences are from "
        f"WordPiece. All runs trained for {spent / 3600:.1f} hours on one core of a busy machine."
    )
    return table(_HEAD, rows, text)


def gaps_table(*records: str) -> str:
    """What recipes lose of each language's characters, and a gap that the model filled."""
    rows = []
    for name, values in _files(records):
        gaps = values["gaps"]
        gap = min(gaps, key=lambda gap: len(gap["before"] + gap["after"]))
        sentence = f"{gap['before']}**[{gap['word']}]**{gap['after']}"
        cells = (
            *(f"{100 * values['lost'][recipe]:.1f} %" for recipe in ("crammed", "crammed-2022")),
            f"{statistics.median(each['rank'] for each in gaps):,.0f}",
            sentence.replace("|", "\\|"),
            f"{gap['guesses'][0][0]}, {gap['rank']:,}".replace("|", "\\|"),
        )
        rows.append(row_of(name, *cells))
    return table(_GAPS, rows)
