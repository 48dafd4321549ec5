"""The untrained model and what trains it: the same for a run, a measurement and a plan."""

from __future__ import annotations

import torch

from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.data.tokenization.tokenizer import Specials
from crammed.device import Device
from crammed.keys import key
from crammed.model.encoder import MaskedLM, initialise
from crammed.optim.build import Optimizers, build_optimizer
from crammed.training.step import TrainStep


def new_model(config: RunConfig, vocab_size: int, device: torch.device) -> MaskedLM:
    """The untrained model; its weights depend on the seed and the shape alone."""
    model = MaskedLM(config.model, vocab_size)
    generator = torch.Generator().manual_seed(key(config.seed, "initialise"))
    std, zero = config.model.init_std, config.model.zero_outputs
    initialise(model, std, generator, zero_outputs=zero)
    return model.to(device)


def build(
    config: RunConfig, corpus: Corpus, device: Device
) -> tuple[MaskedLM, Optimizers, TrainStep]:
    """The untrained model, and what trains it."""
    model = new_model(config, corpus.vocab_size, device.torch)
    optimizer = build_optimizer(model, config.optim)
    specials = Specials.of(corpus.tokenizer)
    return model, optimizer, TrainStep(model, optimizer, config, specials, device)
