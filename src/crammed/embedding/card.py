"""README.md of a folder of sentence embeddings, and its scores in words."""

from __future__ import annotations

from typing import Any


def score_lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """What was scored, untuned -> tuned."""
    before, after = result["before"], result["after"]
    lines = []
    if after["retrieval"] is not None:
        among = after["retrieval"]["among"]
        for name in ("recall@1", "mrr"):
            shown = "recall@1" if name == "recall@1" else "MRR"
            values = f"{before['retrieval'][name]:.1f} -> {after['retrieval'][name]:.1f}"
            lines.append((f"next passage, {shown}", f"{values} (among {among:,})"))
        spans = (
            f"{e['5 %']:.2f} to {e['95 %']:.2f}" for e in (before["unrelated"], after["unrelated"])
        )
        lines.append(("cosines of unrelated", " -> ".join(spans)))
    if after["spearman"] is not None:
        lines.append(
            ("rated pairs, Spearman", f"{before['spearman']:.1f} -> {after['spearman']:.1f}")
        )
    return lines


def card(result: dict[str, Any], *, trust: bool) -> str:
    """The text of README.md."""
    table = "\n".join(f"| {name} | {values} |" for name, values in score_lines(result))
    code = ", trust_remote_code=True" if trust else ""
    return f"""---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
---

# Sentence embeddings of {result["model"]}

`crammed embed` tuned the encoder {result["model"]} on unlabelled text, with {result["updates"]:,}
updates of {result["batch"]} pairs. The vector of a text is the mean of its tokens; texts are
truncated at {result["length"]} tokens.

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("FOLDER"{code})
vectors = model.encode(["A first text.", "A second one."])
```

| scored on | before -> after, in percent but for cosines |
|---|---|
{table}
"""
