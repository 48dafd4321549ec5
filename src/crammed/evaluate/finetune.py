"""Fine-tuning one task with one seed, by the protocol of the paper (section 5).

AdamW, linear warm-up and cosine to zero over the task's own steps, batches of rows of similar
length, padded to the longest, dropout, the last epoch counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from crammed.config import FinetuneConfig
from crammed.data.tokenizer import Specials
from crammed.device import Device
from crammed.errors import InputError
from crammed.evaluate.tasks import Task, TaskData
from crammed.keys import key
from crammed.model.encoder import SequenceClassifier, initialise
from crammed.model.final import FinalModel
from crammed.schedule import Cosine

EVALUATION_BATCH = 128
POOL = 32
"""Batches whose rows are sorted by length together."""


@dataclass(frozen=True)
class Encoded:
    """Rows as token ids with special tokens, their token types, labels, and what pads them."""

    ids: list[list[int]]
    types: list[list[int]]
    labels: NDArray[np.float32]
    pad: int

    def batch(self, indices: NDArray[np.int64], device: torch.device) -> tuple[Tensor, ...]:
        """ids, mask, types [B, S] padded to the longest row, and labels [B]."""
        chosen = [self.ids[i] for i in indices]
        width = max(len(ids) for ids in chosen)
        ids = torch.full((len(chosen), width), self.pad)
        types = torch.zeros_like(ids)
        for row, index in enumerate(indices):
            ids[row, : len(self.ids[index])] = torch.tensor(self.ids[index])
            types[row, : len(self.types[index])] = torch.tensor(self.types[index])
        lengths = torch.tensor([len(row) for row in chosen])
        mask = torch.arange(width) < lengths[:, None]
        labels = torch.from_numpy(self.labels[indices])
        return tuple(tensor.to(device) for tensor in (ids, mask, types, labels))


def encode(
    rows: Sequence[tuple[tuple[str, ...], float]], tokenizer: Tokenizer, max_length: int
) -> Encoded:
    """Tokenize rows of one or two texts, cut to `max_length` at the longer text's end."""
    cutting = Tokenizer.from_str(tokenizer.to_str())
    cutting.no_padding()
    cutting.enable_truncation(max_length, strategy="longest_first")
    inputs = [texts[0] if len(texts) == 1 else texts for texts, _ in rows]
    encodings = cutting.encode_batch(inputs)
    labels = np.asarray([label for _, label in rows], np.float32)
    ids, types = [e.ids for e in encodings], [e.type_ids for e in encodings]
    return Encoded(ids, types, labels, Specials.of(tokenizer).pad)


class Finetuner:
    """Fine-tunes one model, or its untrained twin, on any task.

    Args:
        final: the trained model.
        protocol: hyperparameters, the same for every task.
    """

    def __init__(self, final: FinalModel, protocol: FinetuneConfig, device: Device) -> None:
        if protocol.max_length > final.config.max_length:
            raise InputError(
                f"finetune.max_length {protocol.max_length} is more than the model's "
                f"{final.config.max_length}"
            )
        self._final = final
        self._protocol = protocol
        self._device = device
        self._config = final.config.model_copy(update={"dropout": protocol.dropout})

    def encode(self, data: TaskData) -> tuple[Encoded, Encoded]:
        """Both splits of a task as tokens."""
        tokenizer, length = self._final.tokenizer, self._protocol.max_length
        return encode(data.train, tokenizer, length), encode(data.validation, tokenizer, length)

    def classifier(self, task: Task, seed: int, *, trained: bool) -> SequenceClassifier:
        """A fresh classifier: pretrained encoder (unless untrained), new head."""
        model = SequenceClassifier(self._config, self._final.vocab_size, task.outputs)
        draw = torch.Generator().manual_seed(key(seed, f"classifier/{task.name}"))
        initialise(model, self._config.init_std, draw)
        if trained:
            own = model.state_dict().keys()
            shared = {name: w for name, w in self._final.weights.items() if name in own}
            result = model.load_state_dict(shared, strict=False)
            new = {name.split(".")[0] for name in result.missing_keys}
            assert new <= {"pooler", "classifier"}, new
        return model.to(self._device.torch)

    def run(
        self, task: Task, train: Encoded, validation: Encoded, seed: int, *, trained: bool
    ) -> NDArray[np.float32]:
        """Fine-tune and return the outputs on the validation split, [R, outputs].

        Raises:
            InputError: the training split is smaller than one batch.
        """
        protocol, device = self._protocol, self._device.torch
        if len(train.ids) < protocol.batch:
            raise InputError(f"task {task.name} has fewer training rows than one batch")
        model = self.classifier(task, seed, trained=trained)
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=protocol.lr,
            betas=(protocol.beta1, protocol.beta2),
            eps=protocol.eps,
            weight_decay=protocol.weight_decay,
            fused=True,
        )
        schedule = Cosine(warmup=protocol.warmup)
        steps_an_epoch = len(train.ids) // protocol.batch
        steps = protocol.epochs * steps_an_epoch
        torch.manual_seed(key(seed, f"dropout/{task.name}"))
        model.train()
        for epoch in range(protocol.epochs):
            batches = epoch_batches(train, protocol.batch, np.random.default_rng([seed, epoch]))
            for number, indices in enumerate(batches, epoch * steps_an_epoch):
                for group in optimizer.param_groups:
                    group["lr"] = protocol.lr * schedule((number + 0.5) / steps)
                *inputs, labels = train.batch(indices, device)
                with self._autocast():
                    logits = model(*inputs)
                _loss(logits.float(), labels).backward()
                optimizer.step()
                optimizer.zero_grad()
        return self._predict(model, validation)

    def _predict(self, model: SequenceClassifier, rows: Encoded) -> NDArray[np.float32]:
        model.eval()
        by_length = np.argsort([len(ids) for ids in rows.ids], kind="stable")
        outputs: NDArray[np.float32] | None = None
        with torch.inference_mode(), self._autocast():
            for start in range(0, len(by_length), EVALUATION_BATCH):
                indices = by_length[start : start + EVALUATION_BATCH]
                *inputs, _ = rows.batch(indices, self._device.torch)
                logits = model(*inputs).float().cpu().numpy()
                if outputs is None:
                    outputs = np.empty((len(rows.ids), logits.shape[1]), np.float32)
                outputs[indices] = logits
        assert outputs is not None
        return outputs

    def _autocast(self) -> torch.autocast:
        dtype = self._device.dtype
        return torch.autocast(self._device.torch.type, dtype, enabled=dtype != torch.float32)


def epoch_batches(rows: Encoded, size: int, draw: np.random.Generator) -> NDArray[np.int64]:
    """One epoch in random batches of similar length, [steps, size]; the last few rows wait.

    Rows are shuffled, then sorted by length within pools of 32 batches, and the batches shuffled:
    little padding, and yet no batch holds the same rows again.
    """
    order = draw.permutation(len(rows.ids))[: len(rows.ids) // size * size]
    lengths = np.array([len(ids) for ids in rows.ids])
    pools = np.arange(0, len(order), POOL * size)[1:]
    by_length = [pool[np.argsort(lengths[pool], kind="stable")] for pool in np.split(order, pools)]
    return draw.permutation(np.concatenate(by_length).reshape(-1, size))


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    if logits.shape[1] == 1:
        return F.mse_loss(logits.squeeze(-1), labels)
    return F.cross_entropy(logits, labels.long())
