"""The live page of `crammed watch`: the runs below a folder, laid over each other. It only reads.

The server listens on the loopback interface alone, and answers only those who ask for it by that
name, so that no page of others can read along. One page is drawn at a time, because matplotlib's
settings are those of the whole process.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from matplotlib.figure import Figure

from crammed.errors import InputError
from crammed.report.drawing import COLOURS, WIDTH, as_svg, drawn
from crammed.report.figures import Point, budget_axis, columns, norm_axis, plain, thinned
from crammed.report.page import HELDOUT_NUMBERS, rendered
from crammed.runs.listing import Listed, list_runs
from crammed.runs.logs import heldout_losses, read_events, read_metrics
from crammed.terminal.quiet import visible

REFRESH = 10
"""Seconds after which a browser asks again; drawing takes about one of a core."""
_RECENT = 20
"""The time left follows from this many of the last log points."""
ZOOMS = {"0.5": "the last half", "0.1": "the last tenth"}
"""Shares of the progress so far that the curves may be drawn of."""
_LABELLED = 50
"""Points of a curve at most that show their values under the pointer."""


@dataclass(frozen=True)
class Followed:
    """A run on the page.

    Attributes:
        place: its place among the colours; None if it is only listed.
        points: its log points, if it is drawn.
        heldout: its held-out measurements during training, likewise.
    """

    listed: Listed
    place: int | None = None
    points: list[Point] = field(default_factory=list)
    heldout: list[Point] = field(default_factory=list)
    problem: str | None = None

    @property
    def link(self) -> str:
        return f"?run={quote(self.listed.path, safe='', errors='surrogateescape')}"

    def last(self, name: str) -> float | None:
        value = self.points[-1].get(name) if self.points else None
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value)
        return None

    @property
    def left(self) -> float | None:
        """Seconds of training that are left at its speed of late; None if that is unknown."""
        times = [(p["u"], p.get("t_wall_s")) for p in self.points[-_RECENT:]]
        if self.listed.state != "running" or len(times) < 2:
            return None
        (u, began), (now, ended) = times[0], times[-1]
        if not (isinstance(began, float) and isinstance(ended, float) and now > u):
            return None
        return max(0.0, float((1.0 - now) * (ended - began) / (now - u)))


def live_page(folder: Path, alone: str | None = None, last: str | None = None) -> str:
    """The page of the runs below a folder.

    Args:
        alone: the path of the only run to draw; None draws as many as there are colours, those
            that are running first, then those that changed last.
        last: one of `ZOOMS`; anything else draws all progress.

    Raises:
        InputError: there is no such folder.
    """
    found = list_runs(folder)
    last = last if last in ZOOMS else None
    named = [each for each in found if each.path == alone]
    alone = alone if named else None
    drawn = named or _latest(found, folder)[: len(COLOURS)]
    end = max((each.u for each in drawn if each.u is not None), default=1.0)
    begin = 0.0 if last is None else (1.0 - float(last)) * end
    places = [drawn.index(each) if each in drawn else None for each in found]
    runs = [_read(each, folder, n, begin) for each, n in zip(found, places, strict=True)]
    shown = [run for run in runs if run.points]
    return rendered(
        "watch.html.j2",
        name=str(folder),
        runs=runs,
        alone=alone,
        figure=live_figure(shown, (begin, end)) if shown else None,
        zooms={None: "all", **ZOOMS},
        last=last,
        query=partial(_query, alone),
        refresh=REFRESH,
    )


def _query(alone: str | None, last: str | None) -> str:
    named = {name: value for name, value in (("run", alone), ("last", last)) if value is not None}
    return urlencode(named, errors="surrogateescape")


def _latest(found: Sequence[Listed], folder: Path) -> list[Listed]:
    def changed(run: Listed) -> float:
        file = _path(run, folder) / "metrics.jsonl"
        return file.stat().st_mtime if file.exists() else 0.0

    return sorted(found, key=lambda run: (run.state != "running", -changed(run)))


def _path(run: Listed, folder: Path) -> Path:
    """Where a run lies: below the folder, unless it is the folder itself."""
    return below if (below := folder / run.path).is_dir() else folder


def _read(listed: Listed, folder: Path, place: int | None, begin: float) -> Followed:
    """A run with what is to be drawn of it, from a share of its budget on."""
    if place is None:
        return Followed(listed)
    path = _path(listed, folder)
    try:
        known = read_metrics(path, "u", "loss")
        first = next((n for n, p in enumerate(known) if p["u"] >= begin), len(known))
        points = thinned(known[max(0, first - 1) :])  # the line comes from the point before
        events = read_events(path, heldout=HELDOUT_NUMBERS)
    except InputError as error:
        return Followed(listed, problem=str(error))
    return Followed(listed, place, points, heldout_losses(events))


@drawn
def live_figure(runs: Sequence[Followed], span: tuple[float, float]) -> str:
    """The loss of every run with its held-out losses as dots, and below it its gradient norm.

    Args:
        span: the shares of the budget to draw between.
    """
    figure = Figure(figsize=(WIDTH, 5.6))
    losses, norms = figure.subplots(2, 1, height_ratios=(3, 2))
    begin, end = (100 * share for share in span)
    values: dict[str, list[str]] = {}
    for run in runs:
        assert run.place is not None
        colour, name = COLOURS[run.place], plain(run.listed.path)
        points = run.points if run.points[-1]["u"] >= span[0] else []
        losses.plot(*columns(points, "loss"), color=colour, linewidth=1.2, label=name)
        known = [p for p in points if 0.0 < (p.get("grad_norm") or 0.0) < math.inf]
        norms.plot(*columns(known, "grad_norm"), color=colour, linewidth=1.2)
        heldout = [p for p in run.heldout if math.isfinite(p["loss@0.15"])]
        dots = {"marker": "o", "linestyle": "", "color": colour, "clip_on": False}
        for axes, chosen, what, key, more in (
            (losses, _few(points), "loss", "loss", {"markersize": 9, "alpha": 0.0}),
            (losses, heldout, "held-out loss", "loss@0.15", {"markersize": 4}),
            (norms, _few(known), "gradient norm", "grad_norm", {"markersize": 9, "alpha": 0.0}),
        ):
            seen = [p for p in chosen if begin <= 100 * p["u"] <= end and math.isfinite(p[key])]
            if seen:
                group = f"values-{run.place}-{len(values)}"
                values[group] = [f"{run.listed.path}\n{_words(p, what, key)}" for p in seen]
                axes.plot(*columns(seen, key), gid=group, **dots, **more)
    for axes, label in ((losses, "loss, nats per token"), (norms, "gradient norm")):
        budget_axis(axes)
        axes.set_xlim(begin, max(end, begin + 1e-3))
        axes.set_ylabel(label)
    losses.set_xlabel("")
    norm_axis(norms)
    return with_titles(as_svg(figure), values)


def _few(points: Sequence[Point]) -> Sequence[Point]:
    return points[:: math.ceil(len(points) / _LABELLED)] if points else points


def _words(point: Point, what: str, key: str) -> str:
    tokens = point.get("tokens")
    read = f", {tokens:,} tokens" if isinstance(tokens, int) else ""
    return f"{100 * point['u']:.1f} % of the run: {what} {point[key]:.4g}{read}"


def with_titles(svg: str, values: Mapping[str, Sequence[str]]) -> str:
    """SVG whose marks say their values under the pointer, which needs no script.

    Args:
        values: what each mark of a group says, by the group's id, in their order.
    """

    def titled(group: re.Match[str]) -> str:
        words = iter(values[group[1]])
        return re.sub(
            r"<use ([^>]*)/>",
            lambda mark: f"<use {mark[1]}><title>{html.escape(next(words))}</title></use>",
            group[0],
        )

    return re.sub(r'<g id="(values-\d+-\d+)">.*?</g>\s*</g>', titled, svg, flags=re.DOTALL)


class Server(ThreadingHTTPServer):
    """Serves the page of a folder on the loopback interface.

    Each connection has a thread of its own, because browsers open some before they need them.

    Args:
        port: 0 takes a free one.

    Raises:
        InputError: the port is in use, or not for us.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.drawing = folder, Lock()
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise InputError(
                f"--port {port}: {error.strerror}; name another one, or --port 0 for a free one"
            ) from None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    timeout = 10.0
    server: Server

    def do_GET(self) -> None:
        try:
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname
            asked = urlsplit(self.path)
        except ValueError:
            return self._answer(400, "this is no address")
        if name not in ("127.0.0.1", "localhost"):
            return self._answer(403, "this page is only for 127.0.0.1")
        if asked.path != "/":
            return self._answer(404, "there is only one page: /")
        try:
            query = parse_qs(asked.query, errors="surrogateescape")
            alone, last = (query.get(name, [None])[-1] for name in ("run", "last"))
            with self.server.drawing:
                page = live_page(self.server.folder, alone, last)
        except (InputError, OSError) as error:
            return self._answer(500, visible(str(error)))
        self._answer(200, page, "text/html")

    def _answer(self, code: int, text: str, kind: str = "text/plain") -> None:
        body = text.encode("utf-8", "replace")
        with suppress(OSError):  # the browser has gone
            self.send_response(code)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            if code == 500:  # the page asks again by itself, and so does what stands in for it
                self.send_header("Refresh", str(REFRESH))
            self.send_header(
                "Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'"
            )
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *values: Any) -> None:
        """Requests are not printed."""
