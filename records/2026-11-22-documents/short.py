"""Short documents from long ones: two sentences each, shuffled so that neighbours are unrelated.

python short.py $CORPUS/imdb_reviews.jsonl.zst short.jsonl
"""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path

from crammed.formats.lines import open_text

CHARACTERS = 14_000_000


def main(source: Path, target: Path) -> None:
    pairs = []
    with open_text(source) as lines:
        for line in lines:
            sentences = re.split(r"(?<=[.!?])\s+", " ".join(json.loads(line)["text"].split()))
            pairs += [" ".join(sentences[n : n + 2]) for n in range(0, len(sentences) - 1, 2)]
    random.Random(0).shuffle(pairs)
    written = 0
    with target.open("w", encoding="utf-8") as out:
        for pair in pairs:
            out.write(json.dumps({"text": pair}) + "\n")
            written += len(pair)
            if written > CHARACTERS:
                break


main(Path(sys.argv[1]), Path(sys.argv[2]))
