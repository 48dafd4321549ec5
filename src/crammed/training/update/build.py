"""Builds model, optimizer and step; runs, followers, measurements and plans all do it here."""

from __future__ import annotations

import torch

from crammed.config import RunConfig
from crammed.config.losses import BalancedConfig
from crammed.data.collocations import MOST_TOKENS, collocations_of
from crammed.data.corpus import Corpus, RowStream
from crammed.data.masking import Beginnings
from crammed.data.statistics import log_frequencies
from crammed.data.tokenization.tokenizer import Specials, begins_word
from crammed.keys import key
from crammed.machine.device import Device
from crammed.model.attention import look_at_neighbours
from crammed.model.electra import encoders_of, model_in_training
from crammed.model.encoder import MaskedLM, initialise
from crammed.model.matrices import start_matrices
from crammed.optim.build import build_optimizer
from crammed.training.update.growth import Growth
from crammed.training.update.losses import target_weights
from crammed.training.update.memory import refuse_too_large
from crammed.training.update.objectives import OBJECTIVES
from crammed.training.update.step import TrainStep


def new_model(config: RunConfig, vocab_size: int, device: torch.device) -> MaskedLM:
    """The untrained model; its weights depend only on the seed and the model's configuration."""
    model = model_in_training(config.model, vocab_size, config.generator())
    generator = torch.Generator().manual_seed(key(config.seed, "initialise"))
    std, zero = config.model.init_std, config.model.zero_outputs
    initialise(model, std, generator, zero_outputs=zero)
    for encoder in encoders_of(model):
        if (attention := config.model.attention_start) != "random":
            look_at_neighbours(encoder, first_only=attention == "neighbours-first")
        start_matrices(encoder, encoder.config)
    if config.model.embedding_std is not None:
        with torch.no_grad():
            model.encoder.tokens.weight.mul_(config.model.embedding_std / std)
    return model.to(device)


def build(
    config: RunConfig,
    vocab_size: int,
    specials: Specials,
    device: Device,
    begins: Beginnings | None = None,
) -> TrainStep:
    """The step that trains a new model, with its optimizer.

    Args:
        vocab_size: size of the tokenizer's vocabulary.
        specials: ids of the tokenizer's special tokens.
        begins: as in `Masker`.

    Raises:
        InputError: the model is too large for the device's memory.
    """
    refuse_too_large(config, vocab_size, device.torch.type)
    model = new_model(config, vocab_size, device.torch)
    return step_of(model, config, specials, device, begins)


def step_of(
    model: MaskedLM,
    config: RunConfig,
    specials: Specials,
    device: Device,
    begins: Beginnings | None = None,
) -> TrainStep:
    """The step that trains this model, with a new optimizer; `begins` as in `Masker`.

    Raises:
        InputError: 8-bit products were requested but do not support the model.
    """
    objective = OBJECTIVES[config.objective.name](model, config, specials, device, begins)
    optimizer = build_optimizer(model, config.optim)
    both, rises = (encoders_of(model), encoders_of(objective.copy)), config.train.layer_drop_rises
    growth = Growth(*both, optimizer, config.layers_at(0.0), rises=rises)
    return TrainStep(model, objective, optimizer, config, device, growth)


def word_beginnings(config: RunConfig, corpus: Corpus, device: torch.device) -> Beginnings | None:
    """Where units begin, as `Masker` takes it; None if only single tokens are masked.

    Raises:
        InputError: the tokenizer does not show it.
    """
    if config.masking.unit == "token":
        return None
    begins = torch.from_numpy(begins_word(corpus.tokenizer))
    if config.masking.unit != "pmi":
        return begins.to(device)
    count = min(corpus.rows, max(1, MOST_TOKENS // config.data.row_length))
    rows = torch.from_numpy(RowStream(corpus, config.seed).read(0, count))
    return collocations_of(rows, begins, Specials.of(corpus.tokenizer).ids).on(device)


def weighed(step: TrainStep, config: RunConfig, corpus: Corpus, device: torch.device) -> TrainStep:
    """The step, whose loss takes the weights of tokens from the corpus if it needs them."""
    if isinstance(config.loss, BalancedConfig):
        shares = torch.from_numpy(log_frequencies(corpus.token_counts()))
        step.objective.weights = target_weights(shares, config.loss.power).float().to(device)
    return step


def build_for(config: RunConfig, corpus: Corpus, device: Device) -> TrainStep:
    """As `build`, with the parameters that are set from the corpus before training.

    Raises:
        InputError: the model is too large for the device's memory, or words are to be masked and
            the tokenizer does not show where they begin.
    """
    specials, begins = Specials.of(corpus.tokenizer), word_beginnings(config, corpus, device.torch)
    step = build(config, corpus.vocab_size, specials, device, begins)
    if config.model.decoder_bias_start == "log-frequency":
        start = torch.from_numpy(log_frequencies(corpus.token_counts()))
        with torch.no_grad():
            for name, parameter in step.model.named_parameters():
                if name.endswith("decoder_bias"):
                    parameter.copy_(start)
    return weighed(step, config, corpus, device.torch)
