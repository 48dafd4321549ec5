"""What a step of fine-tuning would launch and move on a GPU, counted on a machine without one.

    python tools/finetune_on_paper.py [RECIPE] [key.path=value ...] [--models 10] [--width 64] ...
        [--card H200] [--out RESULT.json]

Counts one step of several models of a task (five seeds and their untrained twins make ten), in rows
padded to each width: as our engine captures it in one graph, and as the loop of
benchmarks/plain_finetune.py runs it for one model after the other. Both train the same ModernBERT.
tools/paper/__init__.py says what is counted and what is not. It needs triton, g++, transformers and
the CPU build of PyTorch; nothing is compiled.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "benchmarks")]

from paper.start import begin  # noqa: E402

PAPER = ["crammed", "model.layers=16", "model.width=768", "tokenizer.vocab_size=32768"]
"""The default recipe at the size of the paper's encoder."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", default=PAPER)
    parser.add_argument("--models", type=int, default=10, help="models that train side by side")
    parser.add_argument("--width", type=int, action="append", help="tokens of a padded row")
    parser.add_argument("--card", default="H200", help="the card whose rates the time model uses")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    noted = begin("fine-tuning on paper", "cudnn")
    from common import finish
    from crammed.errors import CrammedError
    from paper.finetuning import counted

    widths = given.width or [64, 128]
    try:
        result = counted(noted, given.words, given.models, widths, given.card)
    except CrammedError as error:
        parser.error(str(error))
    finish(result, given.out)


if __name__ == "__main__":
    main()
