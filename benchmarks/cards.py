"""The training speed of cards that are not here: counted, not measured.

    python benchmarks/cards.py [RECIPE] [key.path=value ...] [--card "RTX 4090"] ...
        [--out RESULT.json]

For each card (all known ones, unless some are named): the most memory that a microbatch allocates,
how many rows it has, and the tokens per day, as `crammed plan --device` counts them; and the tokens
per day that were published for the paper's own program, if any. A card that cannot train the recipe
is listed with the reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from common import Json, config_of, finish, recipe_of, run
from crammed.config import RunConfig
from crammed.errors import InputError
from crammed.machine.cards import CARDS, Card, card_called
from crammed.model.count import parameters
from crammed.planning.oncard import counted_speed
from crammed.runs.environment import environment

A_DAY = 86_400


def main(
    words: Annotated[list[str] | None, typer.Argument(help="Recipe, overrides.")] = None,
    card: Annotated[list[str] | None, typer.Option(help="Only these.")] = None,
    out: Path | None = None,
) -> None:
    config = config_of(words, "crammed-2022")
    chosen = [card_called(name) for name in card or []] or list(CARDS)
    result = {
        "name": "cards",
        "environment": environment(),
        "device": "counted",
        "recipe": config.recipe,
        "overrides": recipe_of(words, "crammed-2022")[1],
        "parameters": parameters(config.model, config.tokenizer.vocab_size),
        "row_length": config.data.row_length,
        "cards": {each.name: _counted(config, each) for each in chosen},
    }
    finish(result, out)


def _counted(config: RunConfig, card: Card) -> Json:
    published = None if card.published is None else A_DAY * card.published
    entry: Json = {"memory": card.memory, "published_tokens_per_day": published}
    try:
        speed = counted_speed(config, config.tokenizer.vocab_size, card)
    except InputError as error:
        return entry | {"refused": str(error)}
    rows = config.batch.rows
    a_second = rows * config.data.row_length / speed.seconds(rows)
    return entry | {
        "dtype": card.half,
        "microbatch_rows": speed.microbatch_rows,
        "taken_memory": speed.memory,
        "tokens_per_second": a_second,
        "tokens_per_day": A_DAY * a_second,
    }


if __name__ == "__main__":
    run(main)
