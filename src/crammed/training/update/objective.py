"""What a model learns from: rows of token ids -> a loss.

An objective is all that an update needs to know of its task; `MaskedTokens` is that of the paper.
"""

from __future__ import annotations

import copy
from typing import Protocol

from torch import Tensor

from crammed.config import RunConfig
from crammed.config.losses import CrossEntropyConfig
from crammed.data.borders import same_document
from crammed.data.masking import Beginnings, MaskedRows, Masker
from crammed.data.tokenization.tokenizer import Specials
from crammed.kernels.linear_cross_entropy import linear_cross_entropy
from crammed.machine.device import Device
from crammed.model.electra import encoders_of
from crammed.model.encoder import MaskedLM
from crammed.model.layer import picked
from crammed.training.update.float8 import check_widths
from crammed.training.update.losses import distance, summed_loss
from crammed.training.update.precision import Leaves, recompute, training_copy
from crammed.training.update.shortcuts import Shortcuts


class Objective(Protocol):
    """An objective. Its losses are sums, which are divided by the number of all predictions."""

    leaves: Leaves
    """What its losses are differentiated by."""
    weights: Tensor | None
    """`target_weights` of its loss, if it has any."""

    def recompute(self) -> None:
        """Make the model recompute its activations for the gradients from now on."""

    def loss(self, rows: Tensor, numbers: Tensor, count: int) -> Tensor:
        """The summed loss of a microbatch; may be compiled.

        Args:
            rows: [B, S] token ids on the device.
            numbers: [B] the numbers of these rows in the run, to which random draws are keyed.
            count: predictions per row.

        Returns:
            a scalar of float32 that can be differentiated by the leaves.
        """


class MaskedTokens:
    """Predicts tokens that are masked (Devlin et al. 2018); an `Objective`.

    Args:
        model: the model being trained, of which a copy computes in the number format of training.
        begins: as in `Masker`.

    Attributes:
        copy: that copy, which shares the model's parameters.
        reorders: whether the last layer computes only the masked positions. On a CPU, older runs
            have ``compute.kernels=compiler``, which must keep giving the same results to the bit.

    Raises:
        InputError: 8-bit products were requested but do not support the model.
    """

    def __init__(
        self,
        model: MaskedLM,
        config: RunConfig,
        specials: Specials,
        device: Device,
        begins: Beginnings | None = None,
    ) -> None:
        masking, vocabulary = config.masking, model.encoder.tokens.num_embeddings
        if device.fp8:
            check_widths(model)
        self.reorders = device.torch.type != "cpu" or device.kernels != "compiler"
        self.copy = training_copy(model, device.dtype, fp8=device.fp8, regional=device.regional)
        for length in config.lengths():
            for encoder in encoders_of(self.copy):
                encoder.keep_tables(length)
        self.leaves = Leaves(self.copy, decoder=self.reorders)
        self.weights: Tensor | None = None
        self._by_document = config.train.attention == "document"
        self._sep = specials.sep
        self._mask = Masker.of(config, specials, vocabulary, device.torch, begins)
        self._encode = Shortcuts(config, device.torch).encode
        self._config = config
        self._in_place = (
            device.in_place
            and config.model.logit_cap is None
            and not masking.z_loss
            and config.loss == CrossEntropyConfig()
        )

    def recompute(self) -> None:
        recompute(self.copy)

    def twice_differentiable(self, model: MaskedLM) -> MaskedTokens:
        """The same for a copy of the model in its own number format, without dropout.

        Its losses have second derivatives if attention is not computed in one kernel.
        """
        made = copy.copy(self)
        made.copy = training_copy(model, model.table().dtype).eval()
        made.leaves = Leaves(made.copy)
        made._in_place = False
        return made

    def loss(self, rows: Tensor, numbers: Tensor, count: int) -> Tensor:
        return self._loss_of(self._mask(rows, numbers, count), self._attended(rows), numbers)

    def _attended(self, rows: Tensor) -> Tensor | None:
        """What each token may attend to, as `Encoder.forward` takes it."""
        return same_document(rows, self._sep) if self._by_document else None

    def _hidden(self, masked: MaskedRows, attended: Tensor | None, numbers: Tensor) -> Tensor:
        """Hidden states at the positions to predict, [B, N, D]."""
        encoder, places = self.copy.encoder, masked.positions
        if self.reorders:
            return self._encode(encoder, masked.ids, attended, places, numbers, places)
        return picked(self._encode(encoder, masked.ids, attended, places, numbers, None), places)

    def _loss_of(self, masked: MaskedRows, attended: Tensor | None, numbers: Tensor) -> Tensor:
        return self._loss_at(self._hidden(masked, attended, numbers), masked.labels)

    def _loss_at(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """The summed loss of the predictions from hidden states [B, N, D] of labels [B, N]."""
        labels, model = labels.flatten(), self.copy
        if self._in_place:
            head = (model.table(), model.decoder_bias)
            return linear_cross_entropy(model.read(hidden).flatten(0, 1), *head, labels)
        if self._config.loss.name == "embedding":
            return distance(model.read(hidden).flatten(0, 1), model.table(), labels)
        logits = model.decode(hidden, self.leaves.decoder).flatten(0, 1)
        return summed_loss(logits.float(), labels, self._config, self.weights)
