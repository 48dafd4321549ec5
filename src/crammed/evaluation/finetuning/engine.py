"""Fine-tuning: models of one task, one a seed, trained side by side.

AdamW, warm-up and decay over the task's own steps, batches of rows of similar length, dropout,
and the model of the last step. On a CPU one model trains in each process. On a GPU the step of
all models of a group is captured once a width as one CUDA graph in which each model is a branch:
batches of sixteen short rows fill no GPU, several of them together do better, and nothing is
launched from Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from crammed.config import Protocol
from crammed.device import is_out_of_memory
from crammed.errors import InputError
from crammed.evaluation.finetuning.batches import Batch, Encoded, epoch_batches
from crammed.keys import key
from crammed.schedule import Constant, Cosine, Curve, LinearToZero
from crammed.tasks.task import Kind

Step = Callable[[], None]
Capture = Callable[[Step], Step]

EVALUATION_TOKENS = 8192
"""Tokens of a batch in prediction."""
GRAPH_WIDTH = 16
"""Captured batches are padded to a multiple of this many tokens, so that there are few shapes."""


class NoGraph(RuntimeError):
    """A step cannot be captured; it can be computed all the same."""


@dataclass(frozen=True)
class Numerics:
    """Where fine-tuning computes, and how.

    Attributes:
        dtype: bfloat16 computes under autocast with float32 weights.
        graphs: capture steps as CUDA graphs.
    """

    device: torch.device
    dtype: torch.dtype
    graphs: bool

    def autocast(self) -> torch.autocast:
        """The context of a forward pass."""
        half = self.dtype != torch.float32
        # Each weight is used once a pass, and a capture must not keep casts from before it.
        return torch.autocast(self.device.type, self.dtype, enabled=half, cache_enabled=False)


def loss_of(kind: Kind, logits: Tensor, labels: Tensor, choices: int) -> Tensor:
    """The mean loss of a batch.

    Args:
        logits: [B * choices, outputs], or [B, S, outputs] for kind tokens.
        labels: of `Batch`.
    """
    logits = logits.float()
    if kind == "regression":
        return F.mse_loss(logits.squeeze(-1), labels)
    if kind == "multi-label":
        return F.binary_cross_entropy_with_logits(logits, labels)
    if kind == "tokens":
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    if kind == "choice":
        logits = logits.view(-1, choices)
    return F.cross_entropy(logits, labels.long())


def learning_rate(protocol: Protocol) -> Curve:
    """Progress within one task -> share of the peak learning rate."""
    if protocol.schedule == "constant":
        return Constant(warmup=protocol.warmup)
    shape = Cosine if protocol.schedule == "cosine" else LinearToZero
    return shape(warmup=protocol.warmup)


class FinetuneStep:
    """One optimizer step of each of M models; eager, or a CUDA graph for every width.

    Args:
        batch: gathers the batch of some rows [B], padded to a width.
        loss: of a batch's logits.
        capture: runs a function and returns what repeats it on the same buffers; None is eager.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        protocol: Protocol,
        batch: Callable[[Tensor, int], Batch],
        loss: Callable[[Tensor, Batch], Tensor],
        numerics: Numerics,
        capture: Capture | None = None,
    ) -> None:
        self._models = models
        self._batch = batch
        self._loss = loss
        self._numerics = numerics
        self._clip = protocol.clip
        self._capture = capture
        self._replays: dict[int, Step] = {}
        device = numerics.device
        self._rows = torch.zeros((len(models), protocol.batch), dtype=torch.int64, device=device)
        self._lr = torch.tensor(protocol.lr, device=device)
        self._optimizers = [
            torch.optim.AdamW(
                model.parameters(),
                lr=self._lr,
                betas=(protocol.beta1, protocol.beta2),
                eps=protocol.eps,
                weight_decay=protocol.weight_decay,
                fused=True,
                capturable=device.type == "cuda",
            )
            for model in models
        ]
        several = device.type == "cuda" and len(models) > 1
        self._streams = [torch.cuda.Stream(device) for _ in models] if several else []

    def __call__(self, rows: Tensor, width: int, lr: float) -> None:
        """Train model m on rows[m], of [M, B] on the device; no sequence is longer than `width`."""
        self._lr.fill_(lr)
        self._rows.copy_(rows)
        if self._capture is None:
            self._all(width)
        elif width in self._replays:
            self._replays[width]()
        else:  # capturing trains on these rows, too
            self._replays[width] = self._capture(lambda: self._all(width))

    def _all(self, width: int) -> None:
        """Every model's step; on a GPU each on a stream that begins and ends with this one."""
        if not self._streams:
            for number in range(len(self._models)):
                self._one(number, width)
            return
        here = torch.cuda.current_stream(self._numerics.device)
        for stream in self._streams:
            stream.wait_stream(here)
        try:
            for number, stream in enumerate(self._streams):
                with torch.cuda.stream(stream):
                    self._one(number, width)
        finally:  # a capture cannot end, not even after an error, before all streams are one again
            for stream in self._streams:
                here.wait_stream(stream)

    def _one(self, number: int, width: int) -> None:
        model, optimizer = self._models[number], self._optimizers[number]
        batch = self._batch(self._rows[number], width)
        with self._numerics.autocast():
            logits = model(batch.ids, batch.mask, batch.types)
        loss = self._loss(logits, batch)
        parameters = [p for p in model.parameters() if p.requires_grad]
        # torch.autograd.grad keeps every branch of a capture on its own stream; .backward() would
        # accumulate on the stream where the parameters were made.
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        if self._clip is not None:
            nn.utils.clip_grad_norm_(parameters, self._clip)
        optimizer.step()
        optimizer.zero_grad()


def cuda_graphs() -> Capture:
    """A function that runs a step once and returns its replay as a CUDA graph.

    The graphs share their memory: nothing outlives a step but weights and optimizer state, which
    were made before.

    Raises (the function, not this one):
        NoGraph: the step does what a graph cannot hold, such as waiting for the device.
    """
    pool = torch.cuda.graph_pool_handle()

    def capture(step: Step) -> Step:
        here, stream = torch.cuda.current_stream(), torch.cuda.Stream()
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            step()  # makes everything lazy; the capture itself computes nothing
        here.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=pool):
                step()
        except RuntimeError as error:
            _leave_capture(here)
            if is_out_of_memory(error):
                raise
            raise NoGraph(str(error)) from error
        replay: Step = graph.replay
        return replay

    return capture


def _leave_capture(here: torch.cuda.Stream) -> None:
    """Undo what a capture that could not end leaves behind: its stream, and its random numbers."""
    torch.cuda.set_stream(here)
    fresh = torch.Generator(here.device).graphsafe_get_state()
    torch.cuda.default_generators[here.device_index].graphsafe_set_state(fresh)


def finetune(
    models: Sequence[nn.Module],
    names: Sequence[tuple[str, int]],
    kind: Kind,
    train: Encoded,
    protocol: Protocol,
    numerics: Numerics,
    capture: Capture | None = None,
) -> Iterator[int]:
    """Fine-tune M models of one task in place; yields the steps done after each of them.

    Which rows meet in a batch, and dropout, depend on the name and seed of each model alone (in a
    captured group dropout also depends on a model's place in it).

    Args:
        names: (task, seed) of each model.
        capture: how steps are captured; None takes CUDA graphs where `numerics` asks for them.

    Raises:
        InputError: the training split is smaller than one batch.
    """
    if len(train) < protocol.batch:
        raise InputError(f"{len(train)} training rows are less than one batch of {protocol.batch}")
    if capture is None and numerics.graphs:
        capture = cuda_graphs()
    device = numerics.device
    update = FinetuneStep(
        models,
        protocol,
        train.batch,
        lambda logits, batch: loss_of(kind, logits, batch.labels, train.choices),
        numerics,
        capture,
    )
    schedule = learning_rate(protocol)
    steps_an_epoch = len(train) // protocol.batch
    steps = protocol.epochs * steps_an_epoch
    for model in models:
        model.train()
    done = 0
    for epoch in range(protocol.epochs):
        orders = [_order(train, protocol.batch, *name, epoch) for name in names]
        widths = np.max([train.widths(order) for order in orders], axis=0)
        if capture is not None:
            widths = np.minimum(-(-widths // GRAPH_WIDTH) * GRAPH_WIDTH, protocol.max_length)
        rows = torch.from_numpy(np.stack(orders, axis=1)).to(device)  # [steps, M, B]
        for number, width in enumerate(widths.tolist()):
            torch.manual_seed(key(names[0][1], f"dropout/{names[0][0]}", done))
            update(rows[number], width, protocol.lr * schedule((done + 0.5) / steps))
            done += 1
            yield done


def _order(rows: Encoded, size: int, task: str, seed: int, epoch: int) -> NDArray[np.int64]:
    own = np.random.default_rng(key(seed, f"order/{task}", epoch))
    shared = np.random.default_rng(key(0, f"lengths/{task}", epoch))
    return epoch_batches(rows, size, own, shared)


def predict(model: nn.Module, rows: Encoded, numerics: Numerics) -> NDArray[np.float32]:
    """Logits: [R, outputs], [R, choices] for kind choice, [T, outputs] of all tokens for tokens."""
    model.eval()
    longest = rows.widths(np.arange(len(rows))[:, None])
    by_length = np.argsort(longest, kind="stable")
    outputs: list[Tensor] = []
    with torch.inference_mode(), numerics.autocast():
        for chosen in _batches_of_tokens(by_length, longest * rows.choices):
            which = torch.from_numpy(chosen).to(numerics.device)
            batch = rows.batch(which, int(longest[chosen[-1]]))
            logits = model(batch.ids, batch.mask, batch.types).float()
            outputs.append(logits[batch.mask] if rows.of_tokens else logits)
    by_length_too = torch.cat(outputs).cpu().numpy()
    if rows.of_tokens:
        ordered = np.empty_like(by_length_too)
        ordered[rows.token_places(by_length)] = by_length_too
        return ordered
    shape = (len(rows), rows.choices if rows.choices > 1 else by_length_too.shape[1])
    ordered = np.empty(shape, np.float32)
    ordered[by_length] = by_length_too.reshape(shape)
    return ordered


def _batches_of_tokens(
    by_length: NDArray[np.int64], tokens: NDArray[np.int64]
) -> Iterator[NDArray[np.int64]]:
    """Rows sorted by length, as many at a time as are within the limit once they are padded."""
    begin = 0
    for end in range(1, len(by_length) + 1):
        if end == len(by_length) or (end + 1 - begin) * tokens[by_length[end]] > EVALUATION_TOKENS:
            yield by_length[begin:end]
            begin = end
