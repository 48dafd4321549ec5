"""The plain loop that fine-tuning is compared with: one task, one seed, one model at a time.

    python benchmarks/plain_finetune.py MODEL_DIR --task rte --data FOLDER [--seed 0] [--steps N]

The paper's protocol as anyone would write it with transformers: rows are tokenized when they are
needed, batches are padded to their longest row, and AdamW is PyTorch's. It prints one JSON object.
With --steps it stops after that many updates and reports only their time.
"""

from __future__ import annotations

import gzip
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
import typer
from scipy.stats import pearsonr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

TEXTS = {
    "cola": ["sentence"],
    "sst2": ["sentence"],
    "mrpc": ["sentence1", "sentence2"],
    "stsb": ["sentence1", "sentence2"],
    "rte": ["sentence1", "sentence2"],
}
EPOCHS, BATCH, PEAK, WARMUP, LENGTH = 5, 16, 4e-5, 0.1, 128


Row = dict[str, Any]
Forward = Callable[[list[Row]], tuple[Tensor, Tensor]]
"""Rows -> float32 logits [B, outputs], and labels [B], on the device."""


def main(
    model: str,
    task: Annotated[str, typer.Option()],
    data: Annotated[Path, typer.Option()],
    seed: int = 0,
    steps: Annotated[int, typer.Option(help="Stop after this many updates; 0 does all.")] = 0,
    device: str = "cuda" if torch.cuda.is_available() else "cpu",
) -> None:
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(model)
    outputs = 1 if task == "stsb" else 2
    net = AutoModelForSequenceClassification.from_pretrained(model, num_labels=outputs).to(device)
    rows, validation = _read(data / task / "train"), _read(data / task / "validation")
    cast = torch.autocast(device, torch.bfloat16, enabled=device == "cuda")

    def forward(rows: list[Row]) -> tuple[Tensor, Tensor]:
        texts = [[row[column] for row in rows] for column in TEXTS[task]]
        inputs = tokenizer(
            *texts,
            truncation=True,
            max_length=min(LENGTH, tokenizer.model_max_length),
            padding=True,
            return_tensors="pt",
        )
        kind = torch.float if outputs == 1 else torch.long
        labels = torch.tensor([row["label"] for row in rows], dtype=kind).to(device)
        with cast:
            return net(**inputs.to(device)).logits.float(), labels

    total = EPOCHS * (len(rows) // BATCH)
    optimizer = torch.optim.AdamW(
        net.parameters(), lr=PEAK, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.0
    )
    net.train()
    if device == "cuda":  # our clock excludes one-off costs of a process, too
        forward(rows[:BATCH])[0].sum().backward()
        optimizer.zero_grad()
        torch.cuda.synchronize()
    began = time.perf_counter()
    done = train(optimizer, forward, rows, seed, min(total, steps or total), total)
    if device == "cuda":
        torch.cuda.synchronize()
    result: Row = {"model": model, "task": task, "seed": seed, "train_rows": len(rows)}
    result |= {"updates": done, "updates_seconds": round(time.perf_counter() - began, 2)}
    if done == total:
        net.eval()
        with torch.inference_mode():
            starts = range(0, len(validation), 128)
            parts = [forward(validation[start : start + 128])[0].cpu() for start in starts]
        result["seconds"] = round(time.perf_counter() - began, 2)
        result["scores"] = _scores(torch.cat(parts).numpy(), [row["label"] for row in validation])
    print(json.dumps(result))


def train(
    optimizer: torch.optim.Optimizer,
    forward: Forward,
    rows: list[Row],
    seed: int,
    limit: int,
    total: int,
) -> int:
    """Train for the first `limit` of `total` updates; returns how many were done."""
    warm = max(1, round(WARMUP * total))

    def factor(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    done = 0
    while done < limit:
        order = np.random.default_rng([seed, done]).permutation(len(rows))
        for chosen in order[: len(rows) // BATCH * BATCH].reshape(-1, BATCH)[: limit - done]:
            logits, labels = forward([rows[i] for i in chosen])
            if logits.shape[1] == 1:
                loss = F.mse_loss(logits.squeeze(-1), labels)
            else:
                loss = F.cross_entropy(logits, labels)
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            done += 1
    return done


def _read(stem: Path) -> list[Row]:
    with gzip.open(f"{stem}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _scores(outputs: Any, gold: list[float]) -> dict[str, float]:
    if outputs.shape[1] == 1:
        return {"pearson": 100 * float(pearsonr(outputs[:, 0], gold)[0])}
    guess = outputs.argmax(-1)
    metrics = {"accuracy": accuracy_score, "f1": f1_score, "matthews": matthews_corrcoef}
    return {name: 100 * float(metric(gold, guess)) for name, metric in metrics.items()}


if __name__ == "__main__":
    typer.run(main)
