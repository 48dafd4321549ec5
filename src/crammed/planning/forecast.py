"""What a budget will buy: the whole run, simulated at a measured or counted speed.

`forecast` simulates the recipe's own size, and `candidates` compares it with other sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from crammed.budget import Ledger, Work
from crammed.config import ModelConfig, RunConfig
from crammed.data.masking import predicted_positions
from crammed.errors import InputError
from crammed.model.count import block_matrix_parameters, parameters, train_flops_per_token
from crammed.planning.parts import PartTimes
from crammed.quantity import counted
from crammed.rules.choosing import Chosen, shape_of, why_size
from crammed.rules.early_end import EarlyEnd, text_is_read
from crammed.rules.sizing import MOST_EPOCHS, SHAPES, expected_tokens, in_shape
from crammed.training.agenda import TRAINING, Agenda
from crammed.training.plan import Planner, work_before_training
from crammed.training.update.memory import bytes_per_parameter

FEW_UPDATES = 200
BEYOND = 2
"""How many sizes to show that are larger than both the recipe's own and the best one."""
MOST_PLAYED, FIRST = 30_000_000, 1000
"""Updates to simulate at most, ten minutes' worth; `FIRST` updates tell how many there will be."""


def forecast(
    config: RunConfig,
    vocab_size: int,
    rows: int | None,
    speed: PartTimes,
    suited: Chosen | None = None,
    text_bytes: float | None = None,
) -> dict[str, Any]:
    """Simulate the whole run at a given speed.

    The forecast includes all that is charged: compiling, every update with its rows and its mask
    rate, log points, checkpoints, held-out measurements, and the last update, which does not fit.

    Args:
        rows: number of rows in the corpus; None if there is no corpus yet.
        suited: the recipe in the size that suits budget and text, as it was chosen; None leaves
            out other sizes.
        text_bytes: bytes of the corpus's text; None if unknown.

    Returns:
        ``updates``, ``tokens``, ``tokens_between`` (at the speeds of the slowest and the fastest
        tenth of the blocks measured), ``seconds`` (charged), ``compile_seconds``,
        ``first_compile_seconds``, ``exaflop``, ``epochs`` (None without a corpus),
        ``tokens_per_second``, ``parameters``, ``tokens_per_parameter``, ``memory`` (bytes),
        ``microbatch_rows``, ``sizes`` (see `candidates`), ``best_size`` (``layers``, ``width`` and
        ``why``), ``early_end`` (the fields of `EarlyEnd`; None if the budget is spent) and
        ``notes`` on what will go wrong.

    Raises:
        InputError: the budget pays for more updates than can be simulated.
    """
    ledger, work, charged = _play(config, vocab_size, rows, speed)
    training = sum(ledger.seconds[name] for name in TRAINING)
    size = parameters(config.model, vocab_size)
    epochs = work.rows / rows if rows is not None else None
    early = early_end(config, vocab_size, rows, text_bytes, work, charged)
    paid = work.tokens / (early.share if early is not None else 1.0)
    budget, seconds = config.budget.limit, ledger.charged()
    return {
        "updates": work.updates,
        "tokens": work.tokens,
        "tokens_between": _between(config, rows, speed, paid) or 2 * [work.tokens],
        "seconds": min(seconds, budget.limit) if budget.kind == "time" else seconds,
        "compile_seconds": speed.compile,
        "first_compile_seconds": speed.first_compile,
        "exaflop": work.flops / 1e18,
        "tokens_per_second": work.tokens / training if work.tokens else 0.0,
        "epochs": epochs,
        "parameters": size,
        "tokens_per_parameter": work.tokens / size,
        "memory": speed.memory,
        "microbatch_rows": speed.microbatch_rows,
        "sizes": candidates(config, vocab_size, rows, round(paid), suited)
        if suited and work.tokens
        else [],
        "best_size": best_size(suited, rows) if suited else None,
        "early_end": early.model_dump() if early is not None else None,
        "notes": list(_notes(config, work, rows, early)),
    }


def _between(config: RunConfig, rows: int | None, speed: PartTimes, paid: float) -> list[int]:
    """Tokens at the speeds of the slowest and fastest blocks; none unless the budget is of time."""
    if config.budget.limit.kind != "time":
        return []
    most = config.most_tokens(rows)
    return [round(min(most, paid / factor)) for factor in (speed.high, speed.low)]


def early_end(
    config: RunConfig,
    vocab_size: int,
    rows: int | None,
    text_bytes: float | None,
    work: Work,
    charged: float,
) -> EarlyEnd | None:
    """How the end of the text ends the run; None if the budget ends it."""
    if rows is None or not text_is_read(config, rows, work.tokens):
        return None
    spent = work_before_training(config, vocab_size) + work
    share = config.budget.limit.share(spent, charged)
    return EarlyEnd.of(config, rows, text_bytes, work.rows / rows, share)


def _play(
    config: RunConfig, vocab_size: int, rows: int | None, speed: PartTimes
) -> tuple[Ledger, Work, float]:
    """The training loop with its real planner and agenda, but a clock set forward instead of work.

    Returns the ledger, the work, and the seconds charged by the end of the last update.
    """
    now = 0.0
    ledger, work = Ledger(config.budget.charge, lambda: now), Work()
    planner = Planner(config, vocab_size, rows, ledger)
    with ledger.account("compile"):
        now += speed.start + speed.compile
    agenda = Agenda(config, ledger, planner.deadline.room_for)
    seconds = {"log": speed.log, "heldout": speed.evaluate, "checkpoint": speed.checkpoint}
    with ledger.account("step"):
        while (update := planner.next(work)) is not None:
            length = config.data.row_length // update.pieces
            predicted = update.pieces * predicted_positions(update.mask_rate, length)
            now += speed.seconds(update.rows, predicted)
            now += speed.first if work.updates == 0 else 0.0
            if not planner.deadline.met():
                break
            work += update.cost
            planner.deadline.end(update.rows)
            u = planner.progress(work)
            if work.updates == FIRST and u * MOST_PLAYED < FIRST:
                raise InputError(
                    f"{config.budget.limit} would take about {FIRST / u:.0e} updates, too many to "
                    "simulate: plan a smaller budget, or larger updates (batch.rows)"
                )
            for what in agenda.due(u):
                with agenda.booked(what, u):
                    now += seconds[what]
    ledger.charged()  # books the time up to now
    return ledger, work, planner.deadline.charged


def candidates(
    config: RunConfig, vocab_size: int, rows: int | None, tokens: int, suited: Chosen
) -> list[dict[str, Any]]:
    """This recipe in other sizes, the cheapest first, up to two beyond its own and the suited one.

    Every size is assumed to reach the FLOP/s of the measured one, unless it was measured as well;
    in truth, smaller ones reach somewhat less, and larger ones more.

    Args:
        rows: number of rows in the corpus; None if there is no corpus yet.
        tokens: how many tokens the budget pays for in the recipe's own size.

    Returns:
        for each size ``layers``, ``width``, ``measured``, ``parameters``, ``layer_parameters``
        (those of the layers' products), ``tokens``, ``tokens_per_layer_parameter``, ``epochs``
        (None without a corpus) and ``held_memory`` (bytes of weights, gradients and moments).
    """
    length, own = config.data.row_length, config.model
    rates = (config.masking.rate, config.masking.final_rate or config.masking.rate)
    predicted = predicted_positions(sum(rates) / 2, length)

    def cost(model: ModelConfig) -> float:
        return train_flops_per_token(model, vocab_size, length, predicted)

    free = "model.head_dim" in suited.choice.follows
    shapes = {(layers, width) for layers, width in SHAPES if free or width % own.head_dim == 0}
    ours, theirs = shape_of(config), shape_of(suited.config)
    paid, most = {ours: tokens}, config.most_tokens(rows)
    if theirs != ours and suited.choice.flops_per_second is not None:
        paid[theirs] = round(expected_tokens(suited.config, suited.choice.flops_per_second))
    # The width of heads changes no number here, but it has to be one that the width allows.
    keys = {"model.layers", "model.width", *(["model.head_dim"] if free else [])}
    tried = [in_shape(config, keys, *shape) for shape in shapes | {ours, theirs}]
    models = sorted((each.model for each in tried if each is not None), key=cost)
    last = max(n for n, each in enumerate(models) if (each.layers, each.width) in (ours, theirs))
    found = []
    for model in models[: last + 1 + BEYOND]:
        shape, size = (model.layers, model.width), parameters(model, vocab_size)
        layer_size = block_matrix_parameters(model)
        by_work = config.budget.limit.kind in ("tokens", "updates")
        count = tokens if by_work else paid.get(shape, round(tokens * cost(own) / cost(model)))
        count = round(min(count, most))
        found.append(
            {
                "layers": model.layers,
                "width": model.width,
                "measured": shape in paid,
                "parameters": size,
                "layer_parameters": layer_size,
                "tokens": count,
                "tokens_per_layer_parameter": count / layer_size,
                "epochs": count / length / rows if rows is not None else None,
                "held_memory": bytes_per_parameter(config) * size,
            }
        )
    return found


def best_size(suited: Chosen, rows: int | None) -> dict[str, Any]:
    """The size that suits budget and text: ``layers``, ``width`` and ``why``."""
    layers, width = shape_of(suited.config)
    return {"layers": layers, "width": width, "why": why_size(suited, rows)}


def _notes(
    config: RunConfig, work: Work, rows: int | None, early: EarlyEnd | None
) -> Iterator[str]:
    if work.updates == 0:
        yield "the budget ends before one update: raise it or lower batch.rows"
    elif work.updates < FEW_UPDATES:
        yield (
            f"only {counted(work.updates, 'update')}: raise the budget, lower batch.rows "
            f"({config.batch.rows}), or train a smaller model"
        )
    if rows is not None and rows < config.batch.rows:
        yield f"the corpus has {rows:,} rows, fewer than one batch: add text or lower batch.rows"
    if early is not None:
        yield f"the corpus {early.words(over=False)}"
    elif rows is not None and (epochs := work.rows / rows) > MOST_EPOCHS:
        yield f"the corpus is read {epochs:.1f} times: add text"
