"""The plain loop that fine-tuning is timed against: one task, one seed, one model at a time.

    python benchmarks/plain_finetune.py MODEL_DIR --task rte --data FOLDER [--seed 0] [--steps N]

The paper's protocol as anyone would write it with transformers: rows tokenized as they come,
batches padded to their longest row, AdamW as PyTorch gives it. Prints one JSON object. With
--steps it stops after so many updates and gives their time alone.
"""

from __future__ import annotations

import gzip
import json
import math
import time
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


def main(
    model: str,
    task: Annotated[str, typer.Option()],
    data: Annotated[Path, typer.Option()],
    seed: int = 0,
    steps: Annotated[int, typer.Option(help="Stop after so many updates; 0 is all.")] = 0,
    device: str = "cuda" if torch.cuda.is_available() else "cpu",
) -> None:
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(model)
    outputs = 1 if task == "stsb" else 2
    net = AutoModelForSequenceClassification.from_pretrained(model, num_labels=outputs).to(device)
    train, validation = _read(data / task / "train"), _read(data / task / "validation")

    def batch_of(rows: list[dict[str, Any]]) -> tuple[dict[str, Tensor], Tensor]:
        texts = [[row[column] for row in rows] for column in TEXTS[task]]
        inputs = tokenizer(
            *texts,
            truncation=True,
            max_length=min(LENGTH, tokenizer.model_max_length),
            padding=True,
            return_tensors="pt",
        )
        kind = torch.float if outputs == 1 else torch.long
        labels = torch.tensor([row["label"] for row in rows], dtype=kind)
        return {name: each.to(device) for name, each in inputs.items()}, labels.to(device)

    total = EPOCHS * (len(train) // BATCH)
    optimizer = torch.optim.AdamW(
        net.parameters(), lr=PEAK, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.0
    )
    warm = max(1, round(WARMUP * total))

    def factor(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    cast = torch.autocast(device, torch.bfloat16, enabled=device == "cuda")
    limit = min(total, steps or total)
    if device == "cuda":  # what a process does once, ours does before its clock too
        with cast:
            net(**batch_of(train[:BATCH])[0]).logits.float().sum().backward()
        optimizer.zero_grad()
        torch.cuda.synchronize()
    done, began = 0, time.perf_counter()
    while done < limit:
        net.train()
        order = np.random.default_rng([seed, done]).permutation(len(train))
        for chosen in order[: len(train) // BATCH * BATCH].reshape(-1, BATCH)[: limit - done]:
            inputs, labels = batch_of([train[i] for i in chosen])
            with cast:
                logits = net(**inputs).logits.float()
            regression = outputs == 1
            loss = (
                F.mse_loss(logits.squeeze(-1), labels)
                if regression
                else F.cross_entropy(logits, labels)
            )
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            done += 1
    if device == "cuda":
        torch.cuda.synchronize()
    result: dict[str, Any] = {"model": model, "task": task, "seed": seed, "train_rows": len(train)}
    result |= {"updates": done, "updates_seconds": round(time.perf_counter() - began, 2)}
    if done == total:
        net.eval()
        with torch.inference_mode(), cast:
            parts = [
                net(**batch_of(validation[i : i + 128])[0]).logits.float().cpu()
                for i in range(0, len(validation), 128)
            ]
        result["seconds"] = round(time.perf_counter() - began, 2)
        result["scores"] = _scores(torch.cat(parts).numpy(), [row["label"] for row in validation])
    print(json.dumps(result))


def _read(stem: Path) -> list[dict[str, Any]]:
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
