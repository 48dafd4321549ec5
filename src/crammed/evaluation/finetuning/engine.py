"""Fine-tuning: models of one task, one for each seed, trained side by side.

Models train with AdamW, warm-up and decay over the task's own steps, dropout, and batches of rows
of similar length; the result is the model after the last step. On a CPU each process trains one
model. On a GPU, one step of all models in a group is captured as one CUDA graph for each padded
width, with a branch for each model: a batch of sixteen short rows does not fill a GPU, several
fill it better, and a replay launches no kernels from Python.
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
from crammed.errors import InputError
from crammed.evaluation.finetuning.batches import EncodedSplit, epoch_batches
from crammed.keys import key
from crammed.machine.device import Device, is_out_of_memory
from crammed.schedule import Constant, Cosine, Curve, LinearToZero
from crammed.tasks.task import TaskKind

Step = Callable[[], None]
Capture = Callable[[Step], Step]

PREDICTION_TOKENS = 8192
"""Maximum tokens in a prediction batch, padding included."""
GRAPH_WIDTH = 16
"""Captured batches are padded to a multiple of this many tokens, so that there are few shapes."""


class CaptureFailed(RuntimeError):
    """A step cannot be captured as a CUDA graph; it can still be run eagerly."""


@dataclass(frozen=True)
class Numerics:
    """The device and number format for fine-tuning.

    Attributes:
        dtype: of activations; weights are float32, and lower precision uses autocast.
        graphs: whether steps are captured as CUDA graphs.
    """

    device: torch.device
    dtype: torch.dtype
    graphs: bool

    @classmethod
    def on(cls, device: Device) -> Numerics:
        """What suits a device: its number format for fine-tuning, and CUDA graphs on a GPU."""
        return cls(device.torch, device.tuning_dtype, graphs=device.torch.type == "cuda")

    def autocast(self) -> torch.autocast:
        half = self.dtype != torch.float32
        # A pass uses each weight once, and a capture must not keep casts from before it.
        return torch.autocast(self.device.type, self.dtype, enabled=half, cache_enabled=False)


def loss_of(kind: TaskKind, logits: Tensor, labels: Tensor, choices: int) -> Tensor:
    """The mean loss of a batch.

    Args:
        logits: [B * choices, outputs]; [B, S, outputs] for kind tokens.
        labels: those of `Batch`.
    """
    logits = logits.float()
    if kind == "regression":
        return F.mse_loss(logits.squeeze(-1), labels)
    if kind == "multi-label":
        return F.binary_cross_entropy_with_logits(logits, labels)
    if kind == "tokens":
        total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        return total / (labels >= 0).sum().clamp(min=1)  # a batch may have no label at all
    if kind == "choice":
        logits = logits.view(-1, choices)
    return F.cross_entropy(logits, labels.long())


def learning_rate(protocol: Protocol) -> Curve:
    """The schedule: progress through one task -> fraction of the peak learning rate."""
    shapes: dict[str, type[Constant | Cosine | LinearToZero]]
    shapes = {"constant": Constant, "cosine": Cosine, "linear": LinearToZero}
    return shapes[protocol.schedule](warmup=protocol.warmup)


class FinetuneStep:
    """One optimizer step for each of M models, run eagerly or as one CUDA graph per width.

    Args:
        train: the rows from which batches are gathered.
        capture: runs a step and returns its replay on the same buffers; None runs eagerly.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        kind: TaskKind,
        train: EncodedSplit,
        protocol: Protocol,
        numerics: Numerics,
        capture: Capture | None,
    ) -> None:
        self._models = models
        self._kind = kind
        self._train = train
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
        """Train model m on rows[m] ([M, B], on the device); no sequence is longer than `width`."""
        self._lr.fill_(lr)
        self._rows.copy_(rows)
        if self._capture is None:
            self._step_all(width)
        elif width in self._replays:
            self._replays[width]()
        else:  # capturing also trains on these rows
            self._replays[width] = self._capture(lambda: self._step_all(width))

    def _step_all(self, width: int) -> None:
        """Step every model; several on a GPU each use a stream forked from this one and joined."""
        if not self._streams:
            for number in range(len(self._models)):
                self._step_one(number, width)
            return
        here = torch.cuda.current_stream(self._numerics.device)
        for stream in self._streams:
            stream.wait_stream(here)
        try:
            for number, stream in enumerate(self._streams):
                with torch.cuda.stream(stream):
                    self._step_one(number, width)
        finally:  # even after an error, a capture cannot end before all streams have joined
            for stream in self._streams:
                here.wait_stream(stream)

    def _step_one(self, number: int, width: int) -> None:
        model, optimizer = self._models[number], self._optimizers[number]
        batch = self._train.batch(self._rows[number], width)
        with self._numerics.autocast():
            logits = model(batch.ids, batch.mask, batch.types)
        loss = loss_of(self._kind, logits, batch.labels, self._train.choices)
        parameters = [p for p in model.parameters() if p.requires_grad]
        # torch.autograd.grad keeps every branch of a capture on its own stream; .backward() would
        # accumulate on the stream that created the parameters.
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        if self._clip is not None:
            nn.utils.clip_grad_norm_(parameters, self._clip)
        optimizer.step()
        optimizer.zero_grad()


def cuda_graphs() -> Capture:
    """A function that runs a step once, captures it, and returns the replay of its CUDA graph.

    The graphs share their memory: nothing outlives a step except weights and optimizer state, which
    exist before. The returned function raises `CaptureFailed` if the step does something that a
    graph cannot hold, such as waiting for the device.
    """
    pool = torch.cuda.graph_pool_handle()

    def capture(step: Step) -> Step:
        here, stream = torch.cuda.current_stream(), torch.cuda.Stream()
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            step()  # creates what is created lazily; the capture itself computes nothing
        here.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=pool):
                step()
        except RuntimeError as error:
            _leave_capture(here)
            if is_out_of_memory(error):
                raise
            raise CaptureFailed(str(error)) from error
        replay: Step = graph.replay
        return replay

    return capture


def _leave_capture(here: torch.cuda.Stream) -> None:
    """Undo what a failed capture leaves behind: its stream and its random-generator state."""
    torch.cuda.set_stream(here)
    fresh = torch.Generator(here.device).graphsafe_get_state()
    torch.cuda.default_generators[here.device_index].graphsafe_set_state(fresh)


def finetune(
    models: Sequence[nn.Module],
    names: Sequence[tuple[str, int]],
    kind: TaskKind,
    train: EncodedSplit,
    protocol: Protocol,
    numerics: Numerics,
    capture: Capture | None = None,
) -> Iterator[int]:
    """Fine-tune M models on one task in place; yields the number of steps done after each step.

    The rows in each batch and the dropout masks depend only on each model's task and seed (in a
    captured group, dropout also depends on the model's position in the group).

    Args:
        names: (task, seed) of each model.
        capture: how to capture steps; None uses CUDA graphs if `numerics` asks for them.

    Raises:
        InputError: the training split is smaller than one batch.
        CaptureFailed: a step cannot be captured.
    """
    if len(train) < protocol.batch:
        raise InputError(f"{len(train)} training rows are fewer than one batch of {protocol.batch}")
    if capture is None and numerics.graphs:
        capture = cuda_graphs()
    device = numerics.device
    step = FinetuneStep(models, kind, train, protocol, numerics, capture)
    schedule = learning_rate(protocol)
    steps = protocol.epochs * (len(train) // protocol.batch)
    for model in models:
        model.train()
    done = 0
    for epoch in range(protocol.epochs):
        orders = [epoch_order(train, protocol.batch, *name, epoch) for name in names]
        widths = np.max([train.widths(order) for order in orders], axis=0)
        if capture is not None:
            widths = np.minimum(-(-widths // GRAPH_WIDTH) * GRAPH_WIDTH, protocol.max_length)
        rows = torch.from_numpy(np.stack(orders, axis=1)).to(device)  # [steps, M, B]
        for number, width in enumerate(widths.tolist()):
            torch.manual_seed(key(names[0][1], f"dropout/{names[0][0]}", done))
            step(rows[number], width, protocol.lr * schedule((done + 0.5) / steps))
            done += 1
            yield done


def epoch_order(
    rows: EncodedSplit, size: int, task: str, seed: int, epoch: int
) -> NDArray[np.int64]:
    """The batches of one epoch of one model, [steps, size]."""
    own = np.random.default_rng(key(seed, f"order/{task}", epoch))
    shared = np.random.default_rng(key(0, f"lengths/{task}", epoch))
    return epoch_batches(rows, size, own, shared)


def predict(model: nn.Module, rows: EncodedSplit, numerics: Numerics) -> NDArray[np.float32]:
    """Logits in the order of the rows.

    Returns:
        [R, outputs]; [R, choices] for kind choice; [T, outputs], of all tokens, for kind tokens.
    """
    model.eval()
    longest = rows.widths(np.arange(len(rows))[:, None])
    by_length = np.argsort(longest, kind="stable")
    outputs: list[Tensor] = []
    with torch.inference_mode(), numerics.autocast():
        for chosen in _batches_of_tokens(by_length, longest * rows.choices):
            which = torch.from_numpy(chosen).to(numerics.device)
            batch = rows.batch(which, int(longest[chosen[-1]]))
            logits = model(batch.ids, batch.mask, batch.types).float()
            outputs.append(logits[batch.mask] if rows.labels_tokens else logits)
    predicted = torch.cat(outputs).cpu().numpy()  # in the order of `by_length`
    places = by_length
    if rows.labels_tokens:
        places = rows.token_places(by_length)
    else:
        predicted = predicted.reshape(len(rows), -1)
    ordered = np.empty_like(predicted)
    ordered[places] = predicted
    return ordered


def _batches_of_tokens(
    by_length: NDArray[np.int64], tokens: NDArray[np.int64]
) -> Iterator[NDArray[np.int64]]:
    """Split rows sorted by length into batches within PREDICTION_TOKENS, padding included."""
    begin = 0
    for end in range(1, len(by_length) + 1):
        if end == len(by_length) or (end + 1 - begin) * tokens[by_length[end]] > PREDICTION_TOKENS:
            yield by_length[begin:end]
            begin = end
