"""An exported model as model.onnx, checked in onnxruntime before it is kept."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crammed.errors import CrammedError
from crammed.extras import import_extra
from crammed.files.scratch import scratch_folder
from crammed.terminal.quiet import quiet_transformers

FILE = "model.onnx"
TOLERANCE = 1e-3
"""Largest allowed difference between logits of onnxruntime and PyTorch; typically < 1e-4."""


def check_onnx() -> None:
    """Raises InputError if a library is missing."""
    for library in ("transformers", "onnx", "onnxscript", "onnxruntime"):
        import_extra(library, "onnx", "--onnx")


def write_onnx(model: Any, folder: Path, inputs: Sequence[str], *, int8: bool) -> float:
    """Write `FILE`, whose inputs are [rows, tokens] of any size, and whose output is the logits.

    Args:
        model: a masked language model of transformers, in evaluation mode on the CPU.
        inputs: what the model is given, by name.
        int8: make the weights of products 8-bit, and round activations to 8 bits on the fly.

    Returns:
        The largest difference between its logits and the model's.

    Raises:
        CrammedError: it is above `TOLERANCE`, before weights are made 8-bit; or PyTorch's exporter
            cannot trace the model.
    """
    longest = model.config.max_position_embeddings
    sizes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("tokens", min=2, max=longest)}
    with _quiet(), scratch_folder() as scratch:
        try:
            torch.onnx.export(
                model,
                (),
                str(scratch / FILE),
                kwargs=_batch(model, inputs, 2, 8),
                dynamic_shapes=dict.fromkeys(inputs, sizes),
                output_names=["logits"],
                external_data=False,
                dynamo=True,
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            raise CrammedError(
                f"PyTorch cannot write this model as {FILE} ({type(error).__name__}): "
                "leave out --onnx"
            ) from error
        difference = _difference(model, scratch / FILE, inputs)
        if not difference <= TOLERANCE:
            raise CrammedError(
                f"onnxruntime's logits differ from the model's by {difference:.3g}: not exported"
            )
        if int8:
            quantization = import_extra("onnxruntime.quantization", "onnx", "--int8")
            quantization.quantize_dynamic(scratch / FILE, folder / FILE)
            return _difference(model, folder / FILE, inputs)
        (folder / FILE).write_bytes((scratch / FILE).read_bytes())
    return difference


def _batch(model: Any, inputs: Sequence[str], rows: int, length: int) -> dict[str, Tensor]:
    """Random tokens; the first row is shorter than the others."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (rows, length), generator=draw)
    mask = torch.ones_like(ids)
    mask[0, length // 2 :] = 0
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    return {name: given[name] for name in inputs}


def _difference(model: Any, file: Path, inputs: Sequence[str]) -> float:
    """The largest difference in logits, on batches of other sizes than the exported one."""
    session = import_extra("onnxruntime", "onnx", "--onnx").InferenceSession(file)
    largest = 0.0
    for rows, length in ((3, min(512, model.config.max_position_embeddings)), (1, 5)):
        batch = _batch(model, inputs, rows, length)
        found = session.run(["logits"], {name: each.numpy() for name, each in batch.items()})[0]
        with torch.inference_mode():
            expected = model(**batch).logits
        apart = (torch.from_numpy(found) - expected)[batch["attention_mask"].bool()].abs().max()
        largest = max(largest, float(apart))
    return largest


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter and the quantizer say of themselves."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with quiet_transformers(), redirect_stdout(StringIO()):
            yield
    finally:
        logging.disable(level)
