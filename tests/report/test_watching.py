"""`crammed watch`: a page of all runs, which reads what they log while they train."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from crammed.cli.machine import watch
from crammed.errors import InputError
from crammed.files.locks import FolderLock
from crammed.report import watching
from crammed.report.watching import Server, live_page
from support.command import PATIENCE
from support.html import check_balanced
from support.text import write_rows

FIXTURES = Path(__file__).parents[1] / "fixtures" / "2026-11-21"
HOSTILE = "<script>alert(1)</script> $x$ &amp; \x1b[31m"
LIGHT = shutil.ignore_patterns("corpus", "export", "checkpoints", "final", "predictions")


def point(update: int, **values: object) -> dict[str, object]:
    """A log point of a run that takes 1000 updates, a second each."""
    usual = {"loss": 9.0 - update / 200, "grad_norm": 1.5, "tokens_per_s": 1234.5}
    return {"update": update, "u": update / 1000, "t_wall_s": float(update), **usual, **values}


def logged(run: Path, *points: dict[str, object]) -> Path:
    """A run that has begun, with these log points."""
    shutil.copytree(FIXTURES / "stopped", run, ignore=LIGHT)
    write_rows(run / "metrics.jsonl", points)
    return run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A finished run, one with a hostile name, a damaged one, and one with no log yet."""
    folder = tmp_path / "runs"
    shutil.copytree(FIXTURES / "finished", folder / "finished", ignore=LIGHT)
    logged(folder / HOSTILE.replace("/", "\u2215"), *map(point, range(0, 300, 10)))
    logged(folder / "damaged", {"update": 1, "u": "x"})
    logged(folder / "begun")
    return folder


def checked(page: str) -> str:
    """The page, if it is balanced and has nothing that acts."""
    check_balanced(page)
    assert "<script" not in page
    assert "\x1b" not in page
    return page


def test_runs_are_laid_over_each_other(runs: Path) -> None:
    page = checked(live_page(runs))
    assert page.count('class="wide"') == 1
    assert page.count('class="chip" style') == 3
    assert "&lt;script&gt;alert(1)" in page
    assert "stopped at 29 %" in page
    assert "7.550" in page  # the loss of the last point
    assert "record 1 has no number" in page
    assert "4 runs" in page


def test_a_point_says_its_values_without_a_script(tmp_path: Path) -> None:
    logged(tmp_path / "a", *(point(n, tokens=n * 1000) for n in range(0, 1000, 10)))
    logged(tmp_path / "b", *map(point, range(0, 500, 10)))
    page = checked(live_page(tmp_path))
    said = re.findall(r"<use [^>]*><title>([^<]*)</title>", page)
    assert "a\n50.0 % of the run: loss 6.5, 500,000 tokens" in said
    assert "b\n20.0 % of the run: gradient norm 1.5" in said
    of_a = [words for words in said if words.startswith("a\n") and ": loss" in words]
    assert len(of_a) == 2 * 50  # wide and narrow
    assert not re.findall(r"<g id=\"values[^>]*>(?:(?!</g>).)*<use [^>]*/>", page, re.DOTALL)


def test_curves_are_drawn_of_the_last_part_alone(tmp_path: Path) -> None:
    logged(tmp_path / "a", *map(point, range(0, 1000, 10)))
    logged(tmp_path / "b", *map(point, range(0, 300, 10)))
    page = checked(live_page(tmp_path, None, "0.1"))
    shares = [float(s) for s in re.findall(r"([\d.]+) % of the run: ", page)]
    assert min(shares) >= 89.1
    assert max(shares) == 99.0
    assert "<b>the last tenth</b>" in page
    assert 'href="?last=0.5"' in page
    assert 'href="?run=a&amp;last=0.1"' in page
    assert "7.550" in page  # b, which had ended before, is still listed with its last loss
    alone = checked(live_page(tmp_path, "b", "0.5"))
    assert 'href="?run=b&amp;last=0.1"' in alone
    assert min(float(s) for s in re.findall(r"([\d.]+) % of the run: ", alone)) >= 14.5
    assert live_page(tmp_path, None, '0.3"><b>') == live_page(tmp_path)


def test_the_last_held_out_loss_is_listed_also_where_it_is_not_drawn(tmp_path: Path) -> None:
    run = logged(tmp_path / "a", *map(point, range(0, 1000, 10)))
    heldout = {"event": "heldout", "update": 500, "u": 0.5, "loss@0.15": 4.321, "loss@0.25": 5.0}
    write_rows(run / "events.jsonl", [heldout])
    said = "50.0 % of the run: held-out loss 4.321"
    for zoom, drawn in ((None, True), ("0.1", False)):
        page = checked(live_page(tmp_path, None, zoom))
        assert '<td class="n">4.321</td>' in page
        assert (said in page) == drawn


def test_one_run_alone(runs: Path) -> None:
    page = checked(live_page(runs, "finished"))
    assert page.count('class="chip" style') == 1
    assert "Show all runs" in page
    assert "Show all runs" not in live_page(runs, "no such run")


def test_the_time_left_is_that_of_a_run_that_is_running(runs: Path) -> None:
    run = logged(runs / "new", *map(point, range(0, 300, 10)))
    assert "11m 50s" not in live_page(runs)
    lock = FolderLock(run)
    try:
        assert "11m 50s" in live_page(runs)
    finally:
        lock.release()


def test_a_run_that_has_come_back_from_a_crash(tmp_path: Path) -> None:
    run = logged(tmp_path / "run", point(10), point(20), point(15, loss=4.25, grad_norm=None))
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"update": 21, "lo')  # which is being written
    assert "4.250" in checked(live_page(tmp_path))
    assert "4.250" in live_page(run)  # the folder may be the run itself


def test_nothing_is_written(runs: Path) -> None:
    before = {str(path): path.stat().st_mtime_ns for path in runs.rglob("*")}
    live_page(runs)
    assert {str(path): path.stat().st_mtime_ns for path in runs.rglob("*")} == before


@pytest.fixture
def server(runs: Path) -> Iterator[Server]:
    with Server(runs, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def asked(server: Server, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request("GET", path, headers={"Host": host})
    answer = connection.getresponse()
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    return answer.status, answer.read().decode()


def test_the_server_answers_this_machine_alone(server: Server, runs: Path) -> None:
    status, page = asked(server, "/?run=finished")
    assert status == 200
    assert "Show all runs" in checked(page)
    assert asked(server, "/", "evil.example")[0] == 403
    assert asked(server, "/", "")[0] == 403
    assert asked(server, "/", "[") == (400, "this is no address")
    assert asked(server, "/../../etc/passwd") == (404, "there is only one page: /")
    os.rename(runs, runs.with_name("gone"))
    assert asked(server, "/")[0] == 500


def test_a_connection_without_a_request_keeps_no_other_waiting(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Browsers open some to spare."""
    monkeypatch.setattr(watching._Handler, "timeout", PATIENCE)
    with socket.create_connection(("127.0.0.1", server.server_port)):
        assert asked(server, "/other")[0] == 404


def test_an_error_is_asked_for_again_as_the_page_is(server: Server, runs: Path) -> None:
    os.rename(runs, runs.with_name("gone"))
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    for path, seconds in (("/", "10"), ("/other", None)):
        connection.request("GET", path, headers={"Host": "127.0.0.1"})
        answer = connection.getresponse()
        assert answer.headers["Refresh"] == seconds
        answer.read()


def test_a_port_that_is_taken_and_a_folder_that_is_not(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^--port \d+: Address already in use; name another"):
        watch(tmp_path, server.server_port)
    with pytest.raises(InputError, match="is not a folder"):
        watch(tmp_path / "no")


def test_ctrl_c_ends_it_without_an_error(runs: Path) -> None:
    command = [sys.executable, "-P", "-m", "crammed", "watch", str(runs), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "Ctrl-C ends it" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0
