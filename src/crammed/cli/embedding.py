"""The verb that makes sentence embeddings: embed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crammed.cli.models import DeviceOption, DtypeOption, ModelArgument, TrustOption
from crammed.cli.options import BudgetOption, DataOption, JsonOption
from crammed.cli.output import print_result

DEFAULT = "10m"
"""The budget, unless one is named."""


def embed(
    model: ModelArgument,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to create.")],
    data: DataOption = None,
    budget: BudgetOption = None,
    partners: Annotated[
        str,
        typer.Option(
            help="What a passage should be near: neighbours, or itself (dropout). Or denoise: "
            "rebuild the passage from its vector."
        ),
    ] = "neighbours",
    pairs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Score on rated pairs: sentence1, sentence2, score."),
    ] = None,
    beside: Annotated[
        str | None, typer.Option(metavar="OTHER", help="Also score the vectors of this model.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Pairs per update.")] = 64,
    length: Annotated[int, typer.Option(help="Most tokens of a text.")] = 128,
    seed: Annotated[int, typer.Option(help="Seed of all random choices.")] = 0,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    trust_remote_code: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Tune an encoder into sentence embeddings, on unlabelled text."""
    from crammed.interface import models
    from crammed.interface.lines import next_vectors

    done = models.embed(
        model,
        data=data or [],
        out=out,
        budget=budget or DEFAULT,
        partners=partners,
        pairs=pairs,
        beside=beside,
        batch=batch,
        length=length,
        seed=seed,
        device=device,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
    )
    print_result({**done.result, "out": str(out)}, as_json, [*done.lines, next_vectors(out)])
