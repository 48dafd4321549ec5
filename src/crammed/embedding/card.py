"""README.md of a folder of sentence embeddings, and its scores in words."""

from __future__ import annotations

from typing import Any

from crammed.export.card import Metadata

Table = tuple[list[str], list[tuple[str, list[str]]]]
"""Names of columns, and rows with their names."""
NONE = "-"
"""A score that there is not, such as BM25's of rated pairs."""
TOO_FEW = (
    "the next passage is not scored: of the documents that were held out (5 %), fewer than two are "
    "long enough for two passages"
)


def score_table(result: dict[str, Any]) -> Table:
    """What was scored: untuned, tuned and, where they were, BM25 and another model."""
    columns, each, rows = ["untuned", "tuned"], [result["before"], result["after"]], []
    if result["bm25"] is not None:
        columns.append("BM25")
        each.append({"retrieval": result["bm25"], "unrelated": None, "spearman": None})
    if result["beside"] is not None:
        columns.append(result["beside"]["name"])
        each.append(result["beside"])
    after = result["after"]
    if after["retrieval"] is not None:
        for name, shown in (("recall@1", "recall@1"), ("mrr", "MRR")):
            row = f"next passage among {after['retrieval']['among']:,}, {shown}"
            rows.append((row, [f"{one['retrieval'][name]:.1f}" for one in each]))
        rows.append(("cosines of unrelated texts", [_span(one["unrelated"]) for one in each]))
    if after["spearman"] is not None:
        cells = [NONE if one["spearman"] is None else f"{one['spearman']:.1f}" for one in each]
        rows.append(("rated pairs, Spearman", cells))
    return columns, rows


def _span(quantiles: dict[str, float] | None) -> str:
    return NONE if quantiles is None else f"{quantiles['5 %']:.2f} to {quantiles['95 %']:.2f}"


def score_lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """The table in words: untuned -> tuned; the others."""
    (_, _, *names), rows = score_table(result)
    lines = []
    for name, (untuned, tuned, *cells) in rows:
        others = [f"{who} {cell}" for who, cell in zip(names, cells, strict=True) if cell != NONE]
        lines.append((name, "; ".join([f"{untuned} -> {tuned}", *others])))
    if result["after"]["retrieval"] is None:
        lines.append(("note", TOO_FEW))
    return lines


def card(result: dict[str, Any], metadata: Metadata, *, trust: bool) -> str:
    """The text of README.md.

    Args:
        metadata: what it inherits from the encoder's card.
        trust: whether the model comes with code that has to be allowed.
    """
    columns, rows = score_table(result)
    lines = [["in percent, except cosines", *columns], ["---"] * (1 + len(columns))]
    lines += [[name, *cells] for name, cells in rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines) if rows else "It was not scored."
    units = "texts" if result["partners"] == "denoise" else "pairs"
    code = ", trust_remote_code=True" if trust else ""
    origin = "".join(f"{line}\n" for line in metadata.origin())
    tags = "tags: [custom_code]\n" if trust else ""
    return f"""---
{origin}library_name: sentence-transformers
pipeline_tag: sentence-similarity
{tags}---

# Sentence embeddings of `{result["model"]}`

`crammed embed` tuned the encoder `{result["model"]}` on unlabelled text, with {result["updates"]:,}
updates of {result["batch"]} {units}. The vector of a text is the mean of its tokens; texts are
truncated at {result["length"]} tokens.

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("FOLDER"{code})
vectors = model.encode(["A first text.", "A second one."])
```

{table}
"""
