"""The held-out loss of any Hugging Face masked language model, without this project's model code.

    python benchmarks/heldout_masked_lm.py MODEL_DIR --data HELDOUT.jsonl.gz [--rows 2000]
        [--length 128] [--trust-remote-code]

One judge for models from different sources. Documents (JSON lines with a field ``text``) are
tokenized by the model's own tokenizer, 20,000 characters at a time, and concatenated, each followed
by [SEP]. The stream is cut into rows; rows and masks are drawn with fixed seeds. In each row
exactly round(rate * length) tokens become [MASK], at 15 % and at 25 %. It prints one JSON object:
the loss in nats per masked token, and in bits per character, which can be compared between
vocabularies.
"""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
import typer
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForMaskedLM, AutoTokenizer

RATES = (0.15, 0.25)
PIECE_CHARACTERS = 20_000
ROW_SEED, MASK_SEED = 0, 1
BATCH = 64


def main(
    model: str,
    data: Annotated[Path, typer.Option()],
    rows: int = 2000,
    length: int = 128,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code")] = False,
) -> None:
    known = {"trust_remote_code": trust_remote_code}
    tokenizer = AutoTokenizer.from_pretrained(model, **known)
    net = AutoModelForMaskedLM.from_pretrained(model, **known).eval()
    stream, characters = _stream(tokenizer, data)
    table = _rows(stream, length, rows)
    if not len(table):
        raise SystemExit(f"error: {data} is shorter than a row of {length} tokens")
    per_character = len(stream) / characters
    result: dict[str, Any] = {"rows": len(table), "tokens_per_character": per_character}
    for rate in RATES:
        loss = _loss(net, table, masked_positions(table.shape, rate), tokenizer.mask_token_id)
        result[f"loss@{rate}"] = loss
        result[f"bits_per_character@{rate}"] = loss * per_character / math.log(2)
    print(json.dumps(result))


def _stream(tokenizer: Any, data: Path) -> tuple[list[int], int]:
    """The ids of all documents, one after the other, and the total number of characters."""
    ids: list[int] = []
    characters = 0
    with gzip.open(data, "rt", encoding="utf-8") as lines:
        for line in lines:
            text = json.loads(line)["text"]
            characters += len(text)
            for begin in range(0, len(text), PIECE_CHARACTERS):
                piece = text[begin : begin + PIECE_CHARACTERS]
                ids += tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"]
            ids.append(tokenizer.sep_token_id)
    return ids, characters


def _rows(stream: list[int], length: int, most: int) -> NDArray[np.int64]:
    """At most this many rows of the stream, drawn without replacement, [rows, length]."""
    whole = np.array(stream[: len(stream) // length * length], np.int64).reshape(-1, length)
    return whole[np.random.default_rng(ROW_SEED).permutation(len(whole))[:most]]


def masked_positions(shape: tuple[int, ...], rate: float) -> NDArray[np.int64]:
    """Columns of the masks, [rows, round(rate * length)]."""
    order = np.random.default_rng(MASK_SEED).random(shape).argsort(axis=1)
    return order[:, : round(rate * shape[1])]


@torch.inference_mode()
def _loss(net: Any, rows: NDArray[np.int64], positions: NDArray[np.int64], mask_id: int) -> float:
    """The mean loss in nats per masked token."""
    total = 0.0
    for begin in range(0, len(rows), BATCH):
        ids = torch.from_numpy(rows[begin : begin + BATCH])
        where = torch.from_numpy(positions[begin : begin + BATCH])
        seen = ids.scatter(1, where, mask_id)
        logits: Tensor = net(input_ids=seen, attention_mask=torch.ones_like(seen)).logits
        chosen = logits[torch.arange(len(ids))[:, None], where].float().flatten(0, 1)
        total += float(F.cross_entropy(chosen, ids.gather(1, where).flatten(), reduction="sum"))
    return total / positions.size


if __name__ == "__main__":
    typer.run(main)
