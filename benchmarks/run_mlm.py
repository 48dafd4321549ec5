"""What `crammed adapt` competes with: an encoder trained further as `run_mlm` of transformers does.

    python benchmarks/run_mlm.py MODEL CORPUS --out DIR --seconds 300
        [--pace 4] [--rate 5e-5] [--batch 8] [--seed 0] [--bf16]

It reads the rows of a corpus that `crammed adapt` has prepared with the model's own tokenizer,
writes a Hugging Face folder, and prints one JSON object. What the script of transformers does by
default stays: 15 % masks drawn anew by `DataCollatorForLanguageModeling`, logits of all positions,
AdamW with a rate of 5e-5 that decays linearly, 8 rows per update, gradients clipped at 1. Here the
rate follows the clock, from the first batch to the last update; with `--pace`, as many updates a
second as an idle machine makes, it follows the updates.
"""

from __future__ import annotations

import json
import math
import resource
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import AutoModelForMaskedLM, AutoTokenizer, DataCollatorForLanguageModeling

from common import run
from crammed.data.corpus import Corpus
from crammed.data.heldout import rows_of_corpus
from crammed.evaluation.backbones.huggingface import HuggingFaceMaskedLM
from crammed.machine.workers import cores
from crammed.model.heldout import heldout_losses
from crammed.schedule import LinearToZero
from peer import Clock, Rows, arguments, train_with_trainer


def main(
    model: Path,
    corpus: Path,
    out: Annotated[Path, typer.Option()],
    seconds: Annotated[float, typer.Option(help="Time to train.")],
    pace: Annotated[float, typer.Option(help="Updates a second, which end training.")] = 0.0,
    rate: Annotated[float, typer.Option(help="The highest learning rate.")] = 5e-5,
    batch: Annotated[int, typer.Option(help="Rows per update.")] = 8,
    heldout_rows: Annotated[int, typer.Option(help="As data.heldout_rows.")] = 2000,
    seed: int = 0,
    bf16: Annotated[bool, typer.Option("--bf16")] = False,
) -> None:
    torch.set_num_threads(cores())
    torch.manual_seed(seed)
    opened, tokenizer = Corpus(corpus), AutoTokenizer.from_pretrained(model)
    encoder = AutoModelForMaskedLM.from_pretrained(model)
    clock = Clock(seconds, math.ceil(pace * seconds), LinearToZero())
    masks = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)

    def collate(rows: Any) -> Any:
        return masks([{"input_ids": row} for row in rows])

    options = arguments(out, rate, batch, seed, bf16=bf16)
    steps = train_with_trainer(encoder, options, Rows(opened), collate, clock)
    encoder.save_pretrained(out)
    tokenizer.save_pretrained(out)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    judged = HuggingFaceMaskedLM(encoder.eval())
    rows = rows_of_corpus(opened, heldout_rows)
    losses, _ = heldout_losses(judged, rows, tokenizer.mask_token_id, encoder.device, each=False)
    result = {
        "updates": steps,
        "tokens": steps * batch * opened.row_length,
        "train_seconds": round(clock.elapsed, 2),
        "memory_bytes": memory,
        "heldout": losses,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    run(main)
