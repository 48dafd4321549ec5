"""Reports of runs whose files were edited or cut, or whose folders have unusual names."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import matplotlib
import pytest
from cycler import cycler
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from crammed.cli.exporting import export
from crammed.cli.models import report as report_command
from crammed.errors import InputError
from crammed.report import drawing
from crammed.report.page import losses_of, write_report
from crammed.runs.directory import RunDir, read_config
from crammed.runs.logs import read_events, read_lines, read_metrics

FINISHED = Path(__file__).parents[1] / "fixtures" / "2026-11-21" / "finished"


def copied(to: Path) -> Path:
    """A finished run without what makes its report slow."""
    shutil.copytree(FINISHED, to, ignore=shutil.ignore_patterns("corpus", "evaluation", "export"))
    return to


def appended(run: Path, name: str, line: bytes) -> Path:
    with (run / name).open("ab") as file:
        file.write(line + b"\n")
    return run


ACTING = "\x1b[2J\u202e"


def test_names_do_not_act_where_a_report_is_written_or_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = copied(tmp_path / f"run{ACTING}"), tmp_path / f"page{ACTING}.html"
    report_command([run], out)
    assert capsys.readouterr().out == f"{tmp_path}/page␛[2J\ufffd.html\n"
    page = out.read_text("utf-8")
    assert "run␛[2J\ufffd" in page
    assert not set(ACTING[::4]) & set(page)


@pytest.mark.parametrize(
    ("name", "line", "words"),
    [
        ("metrics.jsonl", b"[1, 2]", "is not an object"),
        ("metrics.jsonl", b"{}", "has no number 'update'"),
        ("metrics.jsonl", b'{"update": true}', "has no number 'update'"),
        ("metrics.jsonl", b'{"update": NaN}', "has no number 'update'"),
        ("metrics.jsonl", b'{"update": 1' + b"0" * 400 + b"}", "has no number 'update'"),
        ("metrics.jsonl", b'{"update": 99999}', "has no number 'u'"),
        ("events.jsonl", b"{}", "does not name an event"),
        ("events.jsonl", b'{"event": ["stage"]}', "does not name an event"),
        ("events.jsonl", b'{"event": "stage", "name": "x"}', "has no number 'seconds'"),
        ("events.jsonl", b'{"event": "heldout", "u": 1, "update": 1}', "has no number 'loss@0.15'"),
        ("events.jsonl", b'{"event": "busy", "update": 3}', "has no number 'share'"),
        ("events.jsonl", b'{"event": "busy", "share": 0.4}', "has no number 'update'"),
    ],
)
def test_a_line_of_another_form_is_named(
    tmp_path: Path, name: str, line: bytes, words: str
) -> None:
    run = appended(copied(tmp_path / "run"), name, line)
    with pytest.raises(InputError, match=rf"{name} is damaged: record \d+ {words}; restore"):
        write_report([run], tmp_path / "report.html")


@pytest.mark.parametrize("name", ["", ', "name": ["x"]'])
def test_a_stage_without_a_name_has_its_seconds_all_the_same(tmp_path: Path, name: str) -> None:
    line = f'{{"event": "stage", "seconds": 4321{name}}}'
    run = appended(copied(tmp_path / "run"), "events.jsonl", line.encode())
    assert "1h 12m" in write_report([run], tmp_path / "report.html").read_text("utf-8")


@pytest.mark.parametrize("line", [b'{"update": 3, "lo', b"\xff\xfe\x00", b"[" * 100_000, b""])
def test_what_is_no_json_is_skipped(tmp_path: Path, line: bytes) -> None:
    run = copied(tmp_path / "run")
    before = read_metrics(run), read_events(run)
    for name in ("metrics.jsonl", "events.jsonl"):
        appended(run, name, line)
    assert (read_metrics(run), read_events(run)) == before


@given(content=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_content_of_a_file_of_lines_is_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    run = tmp_path_factory.mktemp("any")
    for name in ("metrics.jsonl", "events.jsonl"):
        (run / name).write_bytes(content)
    for read in (read_metrics, read_events, lambda run: list(read_lines(run / "events.jsonl"))):
        with contextlib.suppress(InputError):
            read(run)


def test_points_of_updates_that_the_model_never_had_are_not_drawn(tmp_path: Path) -> None:
    run = copied(tmp_path / "run")
    before = losses_of(run)["metrics"]
    undone = {**before[-1], "update": before[-1]["update"] + 20, "u": 0.99}
    losses = losses_of(appended(run, "metrics.jsonl", json.dumps(undone).encode()))
    assert losses["metrics"] == before


def test_a_run_without_log_points_says_so(tmp_path: Path) -> None:
    run = copied(tmp_path / "run")
    (run / "metrics.jsonl").write_bytes(b'{"upd')
    with pytest.raises(InputError, match="holds no log point"):
        write_report([run], tmp_path / "report.html")


def read_everything(run: Path) -> None:
    with RunDir.open(run, read_config(run)) as opened:
        opened.last_heartbeat()
    write_report([run], run / "report.html")


@pytest.mark.parametrize("name", ["summary.json", "env.json", "heartbeat.json"])
def test_a_damaged_file_of_a_run_is_one_line(tmp_path: Path, name: str) -> None:
    run = copied(tmp_path / "run")
    (run / name).write_text("{")
    with pytest.raises(InputError, match=f"{name} is damaged: it "):
        read_everything(run)


@pytest.mark.parametrize("folder", ["evaluation", "evaluation-mine"])
@pytest.mark.parametrize("scores", ["{", '{"suites": []}', '{"suites": {"glue": {"tasks": []}}}'])
def test_damaged_scores_of_a_run_are_one_line(tmp_path: Path, folder: str, scores: str) -> None:
    own = copied(tmp_path / "run") / folder
    own.mkdir()
    shutil.copy(FINISHED / "evaluation" / "evaluation.json", own)
    (own / "scores.json").write_text(scores)
    with pytest.raises(InputError, match=rf"{folder}/scores\.json is damaged: remove it, and eval"):
        write_report([tmp_path / "run"], tmp_path / "report.html")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("heldout", "loss@0.15"), "x"),
        (("heldout", "loss@x"), 1.0),
        (("accounts", "lunch"), 1.0),
        (("accounts", "step"), None),
        (("tokens",), None),
        (("charged_seconds",), 1e300),
        (("exaflop",), -1.0),
        (("corpus", "sha256"), 7),
        (("fill_mask",), [{}]),
    ],
)
def test_an_edited_summary_is_one_line(tmp_path: Path, path: tuple[str, ...], value: Any) -> None:
    run = copied(tmp_path / "run")
    summary = json.loads((run / "summary.json").read_text())
    part = summary
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    (run / "summary.json").write_text(json.dumps(summary))
    said = rf"summary.json is damaged: '{path[0]}.*; restore it from a copy$"
    with pytest.raises(InputError, match=said):
        write_report([run], tmp_path / "report.html")
    with pytest.raises(InputError, match=said):
        export(run, tmp_path / "export")
    with RunDir.open(run, read_config(run)) as opened, pytest.raises(InputError, match=said):
        opened.summary()  # which pretraining a finished run begins with


def test_a_run_that_lost_its_budget_before_the_first_update_is_shown(tmp_path: Path) -> None:
    run = copied(tmp_path / "run")
    summary = json.loads((run / "summary.json").read_text())
    summary |= {"exaflop": 0.0, "updates": 0, "tokens": 0, "accounts": {"step": 0.0}}
    (run / "summary.json").write_text(json.dumps(summary))
    assert write_report([run], tmp_path / "report.html").exists()


@pytest.mark.parametrize("seconds", ["1e300", "-1", '"1"', "true", "null"])
def test_a_heartbeat_of_no_possible_length_is_one_line(tmp_path: Path, seconds: str) -> None:
    run = copied(tmp_path / "run")
    (run / "heartbeat.json").write_text(f'{{"charged_s": {seconds}}}')
    with RunDir.open(run, read_config(run)) as opened:
        with pytest.raises(InputError, match=r"heartbeat.json is damaged: .*, or delete it"):
            opened.last_heartbeat()


@pytest.mark.parametrize("name", ["$", "a$b$c", r"$\frac{1}$", "100 $", r"\$x$", "_base"])
def test_a_folder_may_have_a_name_that_matplotlib_reads_otherwise(
    tmp_path: Path, name: str
) -> None:
    runs = [copied(tmp_path / name), copied(tmp_path / "other")]
    page = write_report(runs, tmp_path / "report.html").read_text("utf-8")
    legend = page[: page.index("</section>")]
    assert f">{name}</text>" in legend.replace("\u200b", "")


@pytest.mark.parametrize(
    ("skipped", "rate", "said"),
    [
        (4096, 0.5, ": 4,096 rows were skipped and learning rates were multiplied by 0.5."),
        (4096, 1.0, ": 4,096 rows were skipped."),
        (0, 0.5, ": learning rates were multiplied by 0.5."),
        (0, 1.0, "."),
    ],
)
def test_what_was_unusual_is_said_below_the_loss(
    tmp_path: Path, skipped: int, rate: float, said: str
) -> None:
    run = copied(tmp_path / "run")
    assert "Spikes" not in write_report([run], tmp_path / "report.html").read_text("utf-8")
    for update in (5, 6, 7, 8, 9, 1200, 1200):
        event = {"event": "spike", "of": "loss", "update": update, "value": 9.0, "usual": 5.0}
        appended(run, "events.jsonl", json.dumps(event).encode())
    back = {"event": "back", "update": 300, "lost_s": 1.5, "skipped_rows": skipped, "rate": rate}
    busy = {"event": "busy", "update": 1250, "share": 0.42}
    for other in (back, busy):
        appended(run, "events.jsonl", json.dumps(other).encode())
    page = write_report([run], tmp_path / "report.html").read_text("utf-8")
    assert "Spikes of the loss: after update 5, 6, 7, 8, 9 and 1 more." in page
    assert f"Training diverged and went back to update 300{said}" in page
    assert "Other work slowed training down: before update 1,250" in page


@pytest.mark.parametrize(
    "settings",
    [
        {"text.usetex": True},
        {"svg.fonttype": "path", "font.family": "no such font", "figure.dpi": 7.0},
        {"axes.prop_cycle": cycler(linestyle=["--"]), "lines.marker": "x"},
    ],
)
def test_settings_of_matplotlib_change_nothing(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = copied(tmp_path / "run"), tmp_path / "report.html"
    expected = write_report([run], out).read_text()
    for name, value in settings.items():
        monkeypatch.setitem(cast(dict[str, Any], matplotlib.rcParams), name, value)
    assert write_report([run], out).read_text() == expected


def test_a_figure_that_fails_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no room\nfor <this>")

    drawing._say.cache_clear()
    monkeypatch.setattr(Figure, "savefig", fail)
    page = write_report([copied(tmp_path / "run")], tmp_path / "report.html").read_text()
    assert "<svg" not in page
    assert page.count("This figure could not be drawn: no room for &lt;this&gt;</p>") == 2
    said = "report  without some figures, which could not be drawn: no room for <this>\n"
    assert capsys.readouterr().err == said


def test_settings_of_matplotlib_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "settings").write_bytes(b"\xff\xfe")
    broken = {"MPLBACKEND": "none", "MATPLOTLIBRC": "settings"}
    names = f"[os.environ[name] for name in {list(broken)}]"
    done = subprocess.run(
        [sys.executable, "-c", f"import os, crammed.report.drawing; print(*{names})"],
        cwd=tmp_path,
        env={**os.environ, **broken},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == list(broken.values())
    assert "report  without the settings of matplotlib: " in done.stderr
