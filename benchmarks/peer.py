"""The obvious alternative: a ModernBERT, trained by Hugging Face's Trainer for a given time.

    python benchmarks/peer.py CORPUS --out DIR --seconds 600 [--layers 4] [--width 128]
        [--rate 2e-3] [--batch 32] [--masks 0.25] [--warmup 0.06] [--seed 0] [--bf16] [--compile]

It reads the rows of a prepared corpus, writes a Hugging Face folder, and prints one JSON object.
It needs `transformers` and `accelerate`. The settings are what a careful user would choose for rows
of 128 tokens on this machine:

- attention over the whole row in every layer, by PyTorch's fused kernel and without a mask; the
  rotary base that ModernBERT uses over windows of this length;
- rows tokenized beforehand, read and masked a batch at a time; an exact number of masks per row,
  80-10-10, never on a special token; only masked positions are decoded (`sparse_prediction`);
- fused AdamW, gradients clipped at 1, a linear warm-up and a linear decay that follow the clock, so
  that the rate reaches zero when the time is over, however busy the machine is.

The clock runs from the first batch to the last update. Imports, building the model and saving it
are not charged, which is generous: the budget of `crammed pretrain` pays for compiling and logging.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    ModernBertConfig,
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
from crammed.extras import import_extra
from crammed.machine.workers import cores

HEAD = 64
ROTARY_BASE = 10_000.0
IGNORED = -100
"""The label of a position that is not predicted."""


def main(
    corpus: Path,
    out: Annotated[Path, typer.Option()],
    seconds: Annotated[float, typer.Option(help="Time to train.")],
    layers: int = 4,
    width: int = 128,
    rate: Annotated[float, typer.Option(help="The highest learning rate.")] = 2e-3,
    batch: Annotated[int, typer.Option(help="Rows per update.")] = 32,
    masks: Annotated[float, typer.Option(help="Share of tokens to predict.")] = 0.25,
    warmup: Annotated[float, typer.Option(help="Share of the time.")] = 0.06,
    seed: int = 0,
    bf16: Annotated[bool, typer.Option("--bf16")] = False,
    compile: Annotated[bool, typer.Option("--compile")] = False,
) -> None:
    import_extra("accelerate", "hf", "the Trainer of transformers")
    torch.set_num_threads(cores())
    opened = Corpus(corpus)
    specials = Specials.of(opened.tokenizer)
    torch.manual_seed(seed)
    model = _model(opened, specials, layers, width)
    clock = Clock(seconds, warmup)
    trainer = ClockTrainer(
        model=model,
        args=arguments(
            out,
            rate,
            batch,
            seed,
            bf16=bf16,
            optim="adamw_torch_fused",
            weight_decay=0.01,
            adam_beta2=0.98,
            torch_compile=compile,
        ),
        train_dataset=Rows(opened),
        data_collator=Masks(opened.vocab_size, specials, masks),
        callbacks=[clock],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    model.config.sparse_prediction = False  # fine-tuning sees an ordinary ModernBERT
    model.save_pretrained(out)
    _tokenizer(opened, specials).save_pretrained(out)
    steps = trainer.state.global_step
    tokens = steps * batch * opened.row_length
    result: dict[str, Any] = {
        "updates": steps,
        "tokens": tokens,
        "epochs": tokens / opened.row_length / opened.rows,
        "train_seconds": round(clock.elapsed, 2),
        "parameters": sum(each.numel() for each in model.parameters()),
    }
    print(json.dumps(result))


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
    """Ends training when the time is over.

    Attributes:
        elapsed: seconds from the start to the end of the last update.
    """

    def __init__(self, seconds: float, warmup: float) -> None:
        self._seconds, self._warmup = seconds, warmup
        self._began: float | None = None
        self.elapsed = 0.0

    def factor(self, _: int) -> float:
        """The factor of the learning rate now."""
        spent = min(1.0, self._now() / self._seconds)
        rising = (spent + 1e-3) / self._warmup if self._warmup else 1.0
        return min(rising, (1.0 - spent) / (1.0 - self._warmup))

    def _now(self) -> float:
        return time.perf_counter() - self._began if self._began is not None else 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.elapsed = self._now()
        last = self.elapsed / state.global_step  # another update takes about this long
        control.should_training_stop = self.elapsed + last > self._seconds


class ClockTrainer(Trainer):
    """The Trainer with a learning rate that follows the clock."""

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        (clock,) = (c for c in self.callback_handler.callbacks if isinstance(c, Clock))
        chosen = optimizer or self.optimizer
        assert chosen is not None
        self.lr_scheduler = LambdaLR(chosen, clock.factor)
        return self.lr_scheduler


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


def _model(corpus: Corpus, specials: Specials, layers: int, width: int) -> ModernBertForMaskedLM:
    length = corpus.row_length
    rotary = {"rope_type": "default", "rope_theta": ROTARY_BASE}
    config = ModernBertConfig(
        vocab_size=corpus.vocab_size,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // HEAD),
        intermediate_size=2 * width,
        max_position_embeddings=length,
        layer_types=["full_attention"] * layers,
        local_attention=4 * length,  # no layer uses it, and a smaller one costs a mask
        rope_parameters={"full_attention": rotary, "sliding_attention": rotary},
        sparse_prediction=True,
        pad_token_id=specials.pad,
        cls_token_id=specials.cls,
        sep_token_id=specials.sep,
        bos_token_id=specials.cls,
        eos_token_id=specials.sep,
    )
    return ModernBertForMaskedLM(config)


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
