"""The step that trains a model of another library: the same masks, loss, optimizer and formats."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.data.masking import Beginnings, Masker
from crammed.data.tokenization.tokenizer import Specials
from crammed.evaluation.backbones.huggingface import HuggingFaceMaskedLM
from crammed.machine.device import Device
from crammed.optim.build import optimizer_of
from crammed.optim.parameters import Parameters
from crammed.training.update.build import weighed, word_beginnings
from crammed.training.update.losses import summed_loss
from crammed.training.update.precision import Leaves
from crammed.training.update.step import TrainStep


class MaskedTokensOfAnother:
    """Predicts masked tokens as `MaskedTokens` does, with a model of transformers.

    In a 16-bit format, autocast decides what is computed in it.
    """

    def __init__(
        self,
        model: HuggingFaceMaskedLM,
        config: RunConfig,
        specials: Specials,
        vocab_size: int,
        device: Device,
        begins: Beginnings | None = None,
    ) -> None:
        self.leaves = Leaves(model)
        self.weights: Tensor | None = None
        self._model = model
        self._config = config
        self._dtype, self._kind = device.dtype, device.torch.type
        self._mask = Masker.of(config, specials, vocab_size, device.torch, begins)

    def recompute(self) -> None:
        """Let the model recompute its activations for the gradients."""
        self._model.model.gradient_checkpointing_enable({"use_reentrant": False})

    def loss(self, rows: Tensor, numbers: Tensor, count: int) -> Tensor:
        """The summed loss of the masked tokens."""
        masked = self._mask(rows, numbers, count)
        with torch.autocast(self._kind, self._dtype, enabled=self._dtype != torch.float32):
            logits = self._model(masked.ids, masked.positions)
        logits = logits.flatten(0, 1).float()
        return summed_loss(logits, masked.labels.flatten(), self._config, self.weights)


def step_of(
    model: HuggingFaceMaskedLM, config: RunConfig, corpus: Corpus, device: Device
) -> TrainStep:
    """The step that trains this model, which it moves to the device."""
    if not model.model.supports_gradient_checkpointing:
        device = replace(device, recomputes=False)  # also where memory is short
    model = model.to(device.torch)
    _freeze_unused(model)
    specials = Specials.of(corpus.tokenizer)
    begins = word_beginnings(config, corpus, device.torch)
    objective = MaskedTokensOfAnother(model, config, specials, corpus.vocab_size, device, begins)
    parameters = parameters_of(model, config.optim.embedding_lr)
    step = TrainStep(model, objective, optimizer_of(parameters, config.optim), config, device)
    return weighed(step, config, corpus, device.torch)


def _freeze_unused(model: nn.Module) -> None:
    """Leave out of training what no logit depends on, such as a pooler."""
    device = next(model.parameters()).device
    ids = torch.ones((1, 2), dtype=torch.int64, device=device)
    training = model.training
    total = model.eval()(ids, ids[:, :1]).sum()
    parameters = list(model.parameters())
    found = torch.autograd.grad(total, parameters, allow_unused=True)
    for parameter, gradient in zip(parameters, found, strict=True):
        parameter.requires_grad_(gradient is not None)
    model.train(training)


def parameters_of(model: HuggingFaceMaskedLM, embedding_lr: float | None) -> Parameters:
    """The parameters to train: all but biases and norms decay, the encoder's products are matrices.

    Args:
        embedding_lr: peak learning rate of the embedding tables; None if they have that of all.
    """
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    modules = list(model.named_modules())
    tables = [f"{at}.weight" for at, m in modules if isinstance(m, nn.Embedding)]
    encoder = set(model.model.base_model.modules())
    products = [f"{at}.weight" for at, m in modules if isinstance(m, nn.Linear) and m in encoder]
    rates = {} if embedding_lr is None else dict.fromkeys(tables, embedding_lr)
    return Parameters(
        named=named,
        decayed={name for name, p in named.items() if p.ndim > 1},
        matrices={name: 1 for name in products if name in named},
        rates={name: rate for name, rate in rates.items() if name in named},
    )
