"""Tables about little text, from the file that ``benchmarks/grid.py`` writes.

Each function takes the name of a record, a folder of ``records/`` with a ``runs.json``, and returns
Markdown.
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np

import layout
from crammed.budget import format_seconds
from crammed.config import ModelConfig, RunConfig
from crammed.machine.device import known_peak
from crammed.machine.speed import SHARE_OF_PEAK
from crammed.model.count import block_matrix_parameters
from crammed.quantity import quantity
from crammed.rules.choosing import choose, shape_of
from crammed.rules.recipe import ask
from crammed.rules.sizing import expected_tokens, flops_per_token
from crammed.study.findings.table import mean_text
from crammed.study.result import RATES
from layout import compared, difference_cell, row_of, table, tabled, wrapped

DEFAULT = "default"
"""The variant that is the default recipe, except for its size."""
MINUTES = (1, 2, 5, 10, 30, 60)
MORE_TEXT = 100e6
"""Characters of a text that the rule is asked about besides those that were measured."""
GPU, GPU_MINUTES, MOST_TEXT = "H100", (1, 10, 60), 1e9
"""A card that was not measured, its budgets, and the characters of one more text for it."""
NEARLY = 1.02
"""A run may read this many times the tokens of the longest measured one, because of its last
update."""

Run = dict[str, Any]
Shape = tuple[int, int]


@dataclass(frozen=True)
class Text:
    """The length of a text that runs were, or might be, trained on."""

    tokens: int
    characters: float

    def __str__(self) -> str:
        return f"{quantity(self.characters, 'B')}, {quantity(self.tokens)} tokens"


@dataclass(frozen=True)
class Grid:
    """Runs over texts, sizes and lengths."""

    texts: list[Text]
    runs: list[Run]

    @classmethod
    def read(cls, names: list[str]) -> Grid:
        """The grid of the only record in `names`."""
        (name,) = names
        values = layout.found(layout.RECORDS / name / "runs.json")
        there = {run["text_tokens"] for run in values["runs"]}
        texts = {
            each["tokens"]: Text(each["tokens"], each["characters"])
            for each in values["corpora"].values()
            if each["tokens"] in there
        }
        return cls([texts[tokens] for tokens in sorted(texts)], values["runs"])

    def of(self, text: Text | None = None, shape: Shape | None = None) -> list[Run]:
        """The runs of the default variant, on one text and in one size if these are given."""
        return [
            run
            for run in self.runs
            if run["variant"] == DEFAULT
            and (text is None or run["text_tokens"] == text.tokens)
            and (shape is None or _shape(run) == shape)
        ]

    @property
    def speeds(self) -> dict[Shape, float]:
        """The tokens per second of each size, from its fastest run: that was disturbed least."""
        found: dict[Shape, float] = {}
        for run in self.of():
            speed = run["tokens"] / run["charged_seconds"]
            found[_shape(run)] = max(speed, found.get(_shape(run), 0.0))
        return found


def epochs_table(names: list[str]) -> str:
    """Loss by how often the text is read, for each text and size; the best size is in bold."""
    grid = Grid.read(names)
    runs = grid.of()
    columns = sorted({_epochs(run) for run in runs}, key=float)
    rows = []
    for text in grid.texts:
        shapes = sorted({_shape(run) for run in grid.of(text)}, key=_weight)
        means = {shape: _means(grid.of(text, shape)) for shape in shapes}
        for shape in shapes:
            cells = [_best_bold(means, shape, column) for column in columns]
            rows.append(f"| {text} | {_size(shape)} | {' | '.join(cells)} |")
    read = " | ".join(_reads(column) for column in columns)
    seeds = sorted({len(losses) for losses in _by_cell(runs).values()})
    many = " to ".join(dict.fromkeys(map(str, (seeds[0], seeds[-1]))))
    words = (
        "Held-out loss at 15 % masking. Each text has its own held-out documents and tokenizer. "
        f"Losses are means over seeds ({many}); where there are several sizes, the best is in bold."
    )
    return tabled(f"| text | layers x width | {read} |", rows, runs, words)


def larger_table(names: list[str]) -> str:
    """Each size compared with the next smaller one after the same time, by tokens per parameter."""
    grid = Grid.read(names)
    shapes, speeds, found = sorted({_shape(run) for run in grid.of()}, key=_weight), grid.speeds, []
    for text, (small, large) in itertools.product(grid.texts, itertools.pairwise(shapes)):
        losses = _by_tokens(grid.of(text, small))
        for tokens, loss in _by_tokens(grid.of(text, large)).items():
            read = tokens * speeds[small] / speeds[large]
            if losses and min(losses) <= read <= NEARLY * max(losses):
                weights = block_matrix_parameters(_of_shape(large))
                rival = _between(losses, read)
                run = f"{_size(large)} | {text} | {quantity(tokens)} | {loss:.3f}"
                beside = f"{_size(small)} | {rival:.3f} | {loss - rival:+.3f}"
                found.append((tokens / weights, f"{run} | {beside}"))
    rows = [f"| {ratio:.2g} | {cells} |" for ratio, cells in sorted(found)]
    head = (
        "| tokens per parameter | layers x width | text | tokens | held-out loss | beside "
        "| its loss after the same time | difference |"
    )
    words = "Losses are at 15 % masking, on held-out documents of each text; means over seeds."
    return tabled(head, rows, grid.of(), words)


def _of_shape(shape: Shape) -> ModelConfig:
    """The model of the default recipe in a size."""
    layers, width = shape
    return ask("crammed", [f"model.layers={layers}", f"model.width={width}"]).config.model


def variants_table(names: list[str]) -> str:
    """Other variants compared with the default, for each text, size and length they were run in."""
    grid = Grid.read(names)
    cells: dict[tuple[int, Shape, str], list[Run]] = {}
    for run in grid.runs:
        cells.setdefault((run["text_tokens"], _shape(run), _epochs(run)), []).append(run)
    rows, shown = [], []
    for text in grid.texts:
        for (tokens, shape, epochs), runs in sorted(cells.items()):
            if tokens != text.tokens or all(run["variant"] == DEFAULT for run in runs):
                continue
            where = f"{text}, {_size(shape)}, {_reads(epochs)}"
            rows += [f"| {where} | {each} |" for each in _compared(runs)]
            shown += runs
    head = (
        "| text and size | variant | seeds | held-out loss at 15 % masking | at 25 % masking "
        f"| difference from {DEFAULT}, 95 % interval |"
    )
    return tabled(head, rows, shown)


def minutes_table(names: list[str]) -> str:
    """What the default recipe does with each text in some minutes, and the loss to expect."""
    grid = Grid.read(names)
    runs = grid.of()
    texts = _texts(grid, MORE_TEXT)
    rows = [row_of(*_foreseen(grid, text, n)) for text in texts for n in MINUTES]
    head = (
        "| text | minutes | layers x width | tokens read | readings | ends after "
        "| held-out loss to expect |"
    )
    cores = runs[0]["cores"]
    words = (
        f"Minutes are those of {cores} core{'s' if cores > 1 else ''} of the machine below, at the "
        "speed measured there for the size; losses are at 15 % masking."
    )
    return tabled(head, rows, runs, words)


def gpu_table(names: list[str]) -> str:
    """What a GPU would make of each text that is too short for one of its budgets: a count."""
    grid, rows = Grid.read(names), []
    for text in _texts(grid, MORE_TEXT, MOST_TEXT):
        ends: dict[tuple[str, ...], list[str]] = {}
        for minutes in GPU_MINUTES:
            if (cells := _on_gpu(text, minutes)) is not None:
                ends.setdefault(cells, []).append(str(minutes))
        rows += [row_of(str(text), ", ".join(each), *cells) for cells, each in ends.items()]
    head = "| text | minutes | layers x width | tokens read | readings | ends after |"
    words = (
        f"Counted, not measured: the FLOPs of the tokens at {SHARE_OF_PEAK} of an {GPU}'s peak. "
        "Models this small do not come near that, so runs take longer, and where they need more "
        "than the budget, they read less. Budgets that a text outlasts are left out.",
    )
    return table(head, rows, wrapped(*words))


def _on_gpu(text: Text, minutes: int) -> tuple[str, ...] | None:
    """What the rule chooses for a budget of the GPU that the text ends; None if it does not."""
    speed = SHARE_OF_PEAK * (known_peak(GPU) or math.nan)
    asked = ask("crammed", [], {"budget": {"limit": f"{minutes}m"}})
    rows = text.tokens / asked.config.data.row_length
    config = asked.nominally(rows, speed)
    paid, read = expected_tokens(config, speed), expected_tokens(config, speed, rows)
    if read >= paid:
        return None
    seconds = read * flops_per_token(config) / speed
    ends = "under a second" if seconds < 1.0 else format_seconds(seconds)
    return _size(shape_of(config)), quantity(read), _times(read / text.tokens), ends


def _texts(grid: Grid, *more: float) -> list[Text]:
    """The texts of a grid, and longer ones of the same kind with so many characters."""
    longest = grid.texts[-1]
    rate = longest.tokens / longest.characters
    longer = [Text(round(rate * each), each) for each in more if each > longest.characters]
    return [*grid.texts, *longer]


def _foreseen(grid: Grid, text: Text, minutes: int) -> tuple[str, ...]:
    """The row of `minutes_table` for a text and a budget."""
    config, speed = _chosen(grid, text, minutes)
    rows, shape = text.tokens / config.data.row_length, shape_of(config)
    paid, read = expected_tokens(config, speed), expected_tokens(config, speed, rows)
    return (
        str(text),
        str(minutes),
        _size(shape),
        quantity(read),
        _times(read / text.tokens),
        config.budget.limit.part(read / paid) if read < paid else "",
        _expected(_by_tokens(grid.of(text, shape)), read),
    )


def _chosen(grid: Grid, text: Text, minutes: int) -> tuple[RunConfig, float]:
    """The default recipe for a text and a budget on the machine of a grid, and its FLOP/s there."""
    threads = f"compute.threads={grid.runs[0]['cores']}"
    fixed = {"budget": {"limit": f"{minutes}m"}}
    asked = ask("crammed", ["compute.device=cpu", threads], fixed)
    speeds = grid.speeds

    def measured(config: RunConfig) -> float:
        """The FLOP/s of a size, or of the nearest one that was measured."""
        weight = math.log(_weight(shape_of(config)))
        nearest = min(speeds, key=lambda shape: abs(math.log(_weight(shape)) - weight))
        layers, width = nearest
        model = config.model.model_copy(update={"layers": layers, "width": width})
        return speeds[nearest] * flops_per_token(config.model_copy(update={"model": model}))

    chosen = choose(asked, text.tokens / asked.config.data.row_length, measured).config
    return chosen, measured(chosen)


def _expected(losses: dict[float, float], read: float) -> str:
    """The loss after `read` tokens, interpolated between runs of the same text and size."""
    if not losses:
        return "not measured"
    if read > NEARLY * max(losses):
        return "beyond what was measured"
    if read < min(losses):
        return "shorter than what was measured"
    return f"{_between(losses, read):.2f}"


def _between(losses: dict[float, float], read: float) -> float:
    """The loss after `read` tokens, interpolated between those measured, in the log of tokens."""
    tokens = sorted(losses)
    return float(np.interp(math.log(read), np.log(tokens), [losses[each] for each in tokens]))


def _by_tokens(runs: list[Run]) -> dict[float, float]:
    """The mean loss of runs by the tokens that they read."""
    found = _by_cell(runs)
    tokens = {_cell(run): run["tokens"] for run in runs}
    return {tokens[cell]: statistics.fmean(losses) for cell, losses in found.items()}


def _by_cell(runs: list[Run]) -> dict[tuple[int, Shape, str], list[float]]:
    """The losses of all seeds of each text, size and number of readings."""
    found: dict[tuple[int, Shape, str], list[float]] = {}
    for run in runs:
        found.setdefault(_cell(run), []).append(run["heldout"][RATES[0]])
    return found


def _cell(run: Run) -> tuple[int, Shape, str]:
    return run["text_tokens"], _shape(run), _epochs(run)


def _means(runs: list[Run]) -> dict[str, float]:
    """The mean loss by the number of readings."""
    return {epochs: statistics.fmean(each) for (_, _, epochs), each in _by_cell(runs).items()}


def _best_bold(means: dict[Shape, dict[str, float]], shape: Shape, epochs: str) -> str:
    """The loss of a size, in bold if no other size is better there."""
    others = [each[epochs] for each in means.values() if epochs in each]
    if epochs not in means[shape]:
        return "not run"
    loss = f"{means[shape][epochs]:.3f}"
    return f"**{loss}**" if len(others) > 1 and means[shape][epochs] == min(others) else loss


def _compared(runs: list[Run]) -> list[str]:
    """The variants of a cell as cells of a table, the default first."""
    kept = ((run["variant"], run, run["tokens"], run["charged_seconds"]) for run in runs)
    lines = []
    for row in sorted(compared(kept, DEFAULT), key=lambda row: row["arm"] != DEFAULT):
        if RATES[0] not in row:
            lines.append(f"{row['arm']} | 0 | not run | not run | ")
            continue
        means = [mean_text(row[rate]) for rate in RATES]
        cells = [row["arm"], str(row["seeds"]), *means, difference_cell(row[RATES[0]])]
        lines.append(" | ".join(cells))
    return lines


def _epochs(run: Run) -> str:
    """How often the text was read."""
    return _times(run["tokens"] / run["text_tokens"])


def _times(epochs: float) -> str:
    """A number of readings; rounded, because a run ends before the update that does not fit."""
    return f"{epochs:.2g}" if epochs < 99.5 else f"{epochs:.0f}"


def _reads(epochs: str) -> str:
    return "read once" if epochs == "1" else f"read {epochs} times"


def _shape(run: Run) -> Shape:
    return run["layers"], run["width"]


def _weight(shape: Shape) -> int:
    """The order of sizes: roughly their number of parameters."""
    return shape[0] * shape[1] ** 2


def _size(shape: Shape) -> str:
    return f"{shape[0]} x {shape[1]}"
