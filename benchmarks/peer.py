"""The obvious alternative: an encoder of `transformers`, trained for a given time.

    python benchmarks/peer.py CORPUS --out DIR --seconds 600 [--pace 20.3]
        [--architecture modernbert] [--layers 4] [--width 128] [--rate 2e-3] [--batch 32]
        [--masks 0.25] [--schedule triangle] [--warmup 0.06] [--beta2 0.98] [--loop plain]
        [--optimizer muon] [--start cooccurrence] [--seed 0] [--bf16] [--compile]

It reads the rows of a prepared corpus, writes a Hugging Face folder, and prints one JSON object.
It needs `transformers` and `accelerate`. The settings are what a careful user would choose for rows
of 128 tokens on a CPU:

- a ModernBERT, with attention over the whole row in every layer, by PyTorch's fused kernel and
  without a mask; the rotary base that ModernBERT uses over windows of this length;
- rows tokenized beforehand, read and masked a batch at a time; an exact number of masks per row,
  80-10-10, never on a special token; only masked positions are decoded (`sparse_prediction`);
- fused AdamW, gradients clipped at 1, and a schedule that follows the clock, so that the rate
  reaches zero when the time is over, however busy the machine is.

The clock runs from the first batch to the last update: imports, building the model and saving it
are not charged. With `--pace`, as many updates a second as an idle machine makes, updates replace
the clock, so that a busy machine trains no less.

`--loop plain` is a loop as one writes it by hand, without the Trainer. Only that loop can use Muon,
start the embeddings where ours start, or train a RoFormer or a BERT (without dropout).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    ModernBertForMaskedLM,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from common import run
from crammed.data.corpus import Corpus
from crammed.data.tokenization.tokenizer import Specials
from crammed.errors import InputError
from crammed.extras import import_extra
from crammed.machine.device import native_half
from crammed.machine.workers import cores
from crammed.model.cooccurrence import begin_with_neighbours
from crammed.optim.muon import Muon
from crammed.rules.recipe import load_config
from crammed.schedule import Curve, Dive, LinearToZero, OneCycle
from crammed.training.start import MOST_TOKENS
from peer_models import Architecture

IGNORED = -100
"""The label of a position that is not predicted."""
DECAY = 0.01


class Schedule(StrEnum):
    """How the learning rate changes; a trapezoid falls over the second half."""

    LINEAR = "linear"
    TRIANGLE = "triangle"
    TRAPEZOID = "trapezoid"

    def curve(self, warmup: float) -> Curve:
        """Its share of the highest rate, as a function of the progress from 0 to 1."""
        if self is Schedule.TRIANGLE:
            return OneCycle()
        return (Dive if self is Schedule.TRAPEZOID else LinearToZero)(warmup=warmup)


class Loop(StrEnum):
    TRAINER = "trainer"
    PLAIN = "plain"


class Optimizer(StrEnum):
    ADAMW = "adamw"
    MUON = "muon"


class Start(StrEnum):
    RANDOM = "random"
    COOCCURRENCE = "cooccurrence"


def main(
    corpus: Path,
    out: Annotated[Path, typer.Option()],
    seconds: Annotated[float, typer.Option(help="Time to train.")],
    pace: Annotated[float, typer.Option(help="Updates a second, which end training.")] = 0.0,
    architecture: Annotated[Architecture, typer.Option()] = Architecture.MODERNBERT,
    layers: int = 4,
    width: int = 128,
    rate: Annotated[float, typer.Option(help="The highest learning rate.")] = 2e-3,
    batch: Annotated[int, typer.Option(help="Rows per update.")] = 32,
    masks: Annotated[float, typer.Option(help="Share of tokens to predict.")] = 0.25,
    schedule: Annotated[Schedule, typer.Option()] = Schedule.LINEAR,
    warmup: Annotated[float, typer.Option(help="Share of the time; not of a triangle.")] = 0.06,
    beta2: float = 0.98,
    loop: Annotated[Loop, typer.Option()] = Loop.TRAINER,
    optimizer: Annotated[Optimizer, typer.Option()] = Optimizer.ADAMW,  # of layers' matrices
    start: Annotated[Start, typer.Option()] = Start.RANDOM,  # of the embeddings
    seed: int = 0,
    bf16: Annotated[bool, typer.Option("--bf16")] = False,
    compile: Annotated[bool, typer.Option("--compile")] = False,
) -> None:
    import_extra("accelerate", "hf", "the Trainer of transformers")
    _check(loop, architecture, optimizer)
    torch.set_num_threads(cores())
    opened = Corpus(corpus)
    specials = Specials.of(opened.tokenizer)
    torch.manual_seed(seed)
    model = architecture.built(opened, specials, layers, width)
    clock = Clock(seconds, math.ceil(pace * seconds), schedule.curve(warmup))
    if start is Start.COOCCURRENCE:
        clock.begin()  # its time counts
        _start_from_cooccurrence(model, opened, seed)
    rows, collate = Rows(opened), Masks(opened.vocab_size, specials, masks)
    if loop is Loop.PLAIN:
        if compile:
            model.base_model.compile()
        optimizers = _optimizers(model, optimizer, rate, beta2)
        steps = _train(model, optimizers, _batches(rows, batch), collate, clock, bf16=bf16)
    else:
        fused: dict[str, Any] = {
            "optim": "adamw_torch_fused",
            "weight_decay": DECAY,
            "adam_beta2": beta2,
        }
        options = arguments(out, rate, batch, seed, bf16=bf16, torch_compile=compile, **fused)
        steps = train_with_trainer(model, options, rows, collate, clock)
    _save(model, _tokenizer(opened, specials), out)
    result = {
        "updates": steps,
        "tokens": steps * batch * opened.row_length,
        "epochs": steps * batch / opened.rows,
        "train_seconds": round(clock.elapsed, 2),
        "parameters": model.num_parameters(),
    }
    print(json.dumps(result))


def _check(loop: Loop, architecture: Architecture, optimizer: Optimizer) -> None:
    if loop is Loop.PLAIN:
        return
    if optimizer is Optimizer.MUON:
        raise InputError("--optimizer muon needs --loop plain")
    if architecture is not Architecture.MODERNBERT:
        raise InputError(f"--architecture {architecture} needs --loop plain")


def train_with_trainer(
    model: Any, options: TrainingArguments, rows: Rows, collate: Callable[[Any], Any], clock: Clock
) -> int:
    """Hugging Face's Trainer; returns how many updates it made."""
    trainer = ClockTrainer(
        model=model, args=options, train_dataset=rows, data_collator=collate, callbacks=[clock]
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return int(trainer.state.global_step)


def arguments(
    out: Path, rate: float, batch: int, seed: int, *, bf16: bool, **others: Any
) -> TrainingArguments:
    """What the Trainer is asked for when the clock ends it, and nothing is logged or saved."""
    return TrainingArguments(
        output_dir=str(out),
        max_steps=1_000_000_000,  # the clock ends it
        per_device_train_batch_size=batch,
        learning_rate=rate,
        bf16=bf16,
        seed=seed,
        use_cpu=not torch.cuda.is_available(),
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        logging_nan_inf_filter=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **others,
    )


class Clock(TrainerCallback):
    """Ends training when the time is over, or, unless `updates` is 0, only after that many updates.

    Args:
        factor: of the learning rate, as a function of the progress from 0 to 1.
    """

    def __init__(self, seconds: float, updates: int, factor: Callable[[float], float]) -> None:
        self._seconds, self._updates, self._factor = seconds, updates, factor
        self._began: float | None = None
        self.elapsed = 0.0

    def begin(self) -> None:
        if self._began is None:
            self._began = time.perf_counter()

    def factor(self, step: int) -> float:
        """The factor of the learning rate after `step` updates."""
        spent = step / self._updates if self._updates else self._now() / self._seconds
        return self._factor(spent)

    def over(self, step: int) -> bool:
        """Whether training ends after `step` updates."""
        self.elapsed = self._now()
        if self._updates:
            return step >= self._updates
        return self.elapsed * (1 + 1 / step) > self._seconds  # another takes as long

    def _now(self) -> float:
        return time.perf_counter() - self._began if self._began is not None else 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = self.over(state.global_step)


class ClockTrainer(Trainer):
    """The Trainer with a learning rate that follows the clock."""

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        (clock,) = (c for c in self.callback_handler.callbacks if isinstance(c, Clock))
        chosen = optimizer or self.optimizer
        assert chosen is not None
        self.lr_scheduler = LambdaLR(chosen, clock.factor)
        return self.lr_scheduler


def _train(
    model: Any,
    optimizers: list[torch.optim.Optimizer],
    batches: Iterator[Tensor],
    collate: Masks,
    clock: Clock,
    *,
    bf16: bool,
) -> int:
    """The plain loop; returns how many updates it made."""
    model.train()
    schedules = [LambdaLR(each, clock.factor) for each in optimizers]
    clock.begin()
    step = 0
    while not (step and clock.over(step)):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = _loss(model, **collate(next(batches)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        step += 1
    return step


def _loss(model: Any, input_ids: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy of the masked positions, which alone are decoded."""
    if isinstance(model, ModernBertForMaskedLM):
        loss: Tensor = model(input_ids, labels=labels).loss  # `sparse_prediction`
        return loss
    chosen = labels != IGNORED
    hidden = model.base_model(input_ids).last_hidden_state[chosen]
    return cross_entropy(model.cls(hidden), labels[chosen])


def _batches(rows: Rows, size: int) -> Iterator[Tensor]:
    """Batches [size, row_length] of shuffled rows, for ever."""
    while True:
        for numbers in torch.randperm(len(rows)).split(size):
            if len(numbers) == size:
                yield rows.__getitems__(numbers.tolist())


def _optimizers(
    model: Any, name: Optimizer, rate: float, beta2: float
) -> list[torch.optim.Optimizer]:
    named = dict(model.named_parameters())
    muon = name is Optimizer.MUON
    matrices = [named.pop(key) for key in list(named) if muon and _is_of_a_layer(key, named[key])]
    adamw = torch.optim.AdamW(
        named.values(), rate, betas=(0.9, beta2), weight_decay=DECAY, fused=True
    )
    if not matrices:
        return [adamw]
    # Scaled to AdamW's updates (Liu et al. 2025), so that one rate serves both.
    if native_half(matrices[0].device):
        scaled = torch.optim.Muon(
            matrices, rate, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"
        )
        return [adamw, scaled]
    # PyTorch's multiplies in bfloat16 even where the hardware has to emulate it; ours is its equal.
    return [adamw, Muon([{"params": matrices}], rate, weight_decay=DECAY)]


def _is_of_a_layer(name: str, parameter: Tensor) -> bool:
    return (".layers." in name or ".layer." in name) and parameter.ndim == 2


@torch.no_grad()
def _start_from_cooccurrence(model: Any, corpus: Corpus, seed: int) -> None:
    count = min(corpus.rows, MOST_TOKENS // corpus.row_length)
    rows = corpus.read(np.sort(np.random.default_rng(seed).permutation(corpus.rows)[:count]))
    std = load_config("crammed").model.first_embedding_std
    begin_with_neighbours(model.get_input_embeddings().weight, rows, std, seed)


class Rows(torch.utils.data.Dataset[Any]):
    """The rows of a corpus, read a batch at a time: [B, row_length] int64."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus

    def __len__(self) -> int:
        return self._corpus.rows

    def __getitems__(self, numbers: list[int]) -> Tensor:
        return torch.from_numpy(self._corpus.read(np.asarray(numbers, np.int64)))


class Masks:
    """Turns a batch of rows [B, S] into masked inputs and labels."""

    def __init__(self, vocab_size: int, specials: Specials, share: float) -> None:
        self._vocab_size, self._mask, self._share = vocab_size, specials.mask, share
        self._special = torch.zeros(vocab_size, dtype=torch.bool)
        self._special[list(specials.ids)] = True

    def __call__(self, rows: Any) -> dict[str, Tensor]:
        count = max(1, round(self._share * rows.shape[1]))
        scores = torch.rand(rows.shape).masked_fill_(self._special[rows], -1.0)
        chosen = scores.topk(count, sorted=False).indices
        originals = rows.gather(1, chosen)
        dice = torch.rand(chosen.shape)
        drawn = torch.randint(self._vocab_size, chosen.shape)
        new = torch.where(dice < 0.8, self._mask, torch.where(dice < 0.9, drawn, originals))
        labels = torch.full_like(rows, IGNORED).scatter_(1, chosen, originals)
        return {"input_ids": rows.scatter(1, chosen, new), "labels": labels}


def _save(model: Any, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    if isinstance(model, ModernBertForMaskedLM):
        model.config.sparse_prediction = False  # fine-tuning sees an ordinary ModernBERT
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def _tokenizer(corpus: Corpus, specials: Specials) -> PreTrainedTokenizerFast:
    names = specials.names(corpus.tokenizer)
    return PreTrainedTokenizerFast(
        tokenizer_file=str(corpus.path / "tokenizer.json"),
        model_max_length=corpus.row_length,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        **{f"{part}_token": name for part, name in names.items()},
    )


if __name__ == "__main__":
    run(main)
