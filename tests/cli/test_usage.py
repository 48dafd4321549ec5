"""Mistyped commands: one line that says what to type, and nothing is made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from crammed import __version__
from support.command import crammed
from support.text import documents, write_jsonl


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A text, a folder named like a recipe, and something like a corpus."""
    write_jsonl(tmp_path / "text.jsonl", documents(3))
    (tmp_path / "crammed").mkdir()
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "manifest.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("ex", ["export"]),
        ("run --bud", ["--budget"]),
        ("run crammed-", ["crammed-2022", "crammed-2022-v1"]),
        ("study arch", ["architecture"]),
        ("recipes iz", ["izsak"]),
        ("run text", []),  # so that the shell offers files
    ],
)
def test_a_shell_completes_words(here: Path, words: str, offered: list[str]) -> None:
    typed = f"crammed {words}".split()
    asked = {"_CRAMMED_COMPLETE": "complete_bash", "COMP_CWORD": str(len(typed) - 1)}
    done = crammed(cwd=here, env={**asked, "COMP_WORDS": " ".join(typed)})
    assert done.stdout.split() == offered, done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("rn", "no command 'rn': did you mean run? choose one of run, prepare, "),
        ("data shw x", "no command 'shw': did you mean show? choose one of copy, show, verify"),
        ("run --buget 1h", "crammed run has no option --buget: did you mean --budget? see crammed"),
        ("runs -x", "crammed runs has no option -x: see crammed runs --help"),
        ("run --budget", "--budget needs a value: see crammed run --help"),
        (
            "evaluate m --untrained=false",
            "--untrained takes no value: leave out =...; see crammed evaluate --help",
        ),
        ("evaluate", "MODEL is missing: type crammed evaluate MODEL; see crammed evaluate --help"),
        ("data show", "CORPUS_DIR is missing: type crammed data show CORPUS_DIR; see "),
        (
            "finetune run --suite x --data y",
            "--out is missing: type crammed finetune --out VALUE; see ",
        ),
        ("export run", "name the folder to create with --to, or a model on the hub with --push"),
        ("run --seed x", "--seed: "),
        ("plan --seconds 0.1", "--seconds: "),
        ("recipes a b", "crammed recipes does not take b: leave it out, or see crammed recipes "),
        ("plan lr=4", "recipe crammed: lr: no such key; did you mean optim.lr? keys here: "),
        ("plan optm.lr=4", "recipe crammed: optm: no such key; did you mean optim? "),
        ("plan optim.name=adamm", "; did you mean adam?"),
        ("plan compute.device=gpu", "; did you mean cuda?"),
        ("run model.layers = 4", "spaces around =: write model.layers=4 as one word"),
        ("plan model.layers =4", "spaces around =: write model.layers=4 as one word"),
        ("plan model.layers= 4", "spaces around =: write model.layers=4 as one word"),
        ("run text.jsonl", "no recipe 'text.jsonl': name text with an option, as in --data text."),
        ("run corpus", "no recipe 'corpus': it is a corpus; name it as --corpus corpus"),
        ("plan text.jsonl", "make a corpus of text with crammed prepare --data text.jsonl --out "),
        ("run https://x.org/a.txt", "name text with an option, as in --data https://x.org/a.txt"),
        (
            "prepare --out c --data https://huggingface.co/datasets/allenai/c4/tree",
            "is a page about a data set: type --data hub:allenai/c4",
        ),
        ("run crammd", "no recipe 'crammd': did you mean crammed? "),
        ("recipes izsak.yaml", "izsak.yaml: No such file or directory; did you mean izsak?"),
        ("study --budget 1h --out s", "name the study to run, such as ablation or FILE.yaml"),
        ("study ablation --corpus corpus --out s --blimp=", "--blimp is empty: name a file or a "),
        ("study ablatoin", "no study 'ablatoin': did you mean ablation? "),
        ("run --data text.json", "text.json: did you mean text.jsonl? name a file, "),
        ("export run --to x --format brt", "no format 'brt': did you mean bert? choose one of "),
    ],
)
def test_a_mistyped_command_is_one_line(here: Path, words: str, message: str) -> None:
    before = sorted(here.rglob("*"))
    done = crammed(*words.split(), cwd=here)
    assert done.returncode == 2, done.stderr
    (said,) = (line for line in done.stderr.splitlines() if "error" in line.lower())
    assert said.startswith("error: ")
    assert message in said
    assert "Usage:" not in done.stderr
    assert done.stdout == ""
    assert sorted(here.rglob("*")) == before


def test_a_recipe_may_share_its_name_with_a_folder(here: Path) -> None:
    assert "no data: name a file" in crammed("run", "crammed", cwd=here).stderr


def test_the_version_is_shown() -> None:
    done = crammed("--version")
    assert (done.returncode, done.stdout) == (0, f"crammed {__version__}\n")
    assert "--version" in crammed("--help").stdout


def test_a_working_directory_that_was_removed_is_no_fault(tmp_path: Path) -> None:
    shell = ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", sys.executable, "-m", "crammed"]
    done = subprocess.run([*shell, "--version"], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_is_shown_where_nothing_was_asked() -> None:
    done = crammed()
    assert "recipes" in done.stderr + done.stdout


# ---- names of files and folders that cannot be made

TEXT = ["--data", "text.txt", "--budget", "1h"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["prepare", *TEXT, "--out", ""], "--out is empty: name a file or a folder"),
        (
            ["prepare", *TEXT, "--out", "caf\udce9"],
            r"--out caf\xe9 is not UTF-8 text: choose another",
        ),
        (["export", "run", "--to", ""], "--to is empty: name a file or a folder"),
        (["prepare", *TEXT, "--out", "."], "exists already: choose another --out"),
        (["run", *TEXT, "--out", "."], "holds something that is not a run: choose another --out"),
        (["export", "run", "--to", "."], "exists already: choose another --to"),
        (["export", "run", "--to", "link"], "exists already: choose another --to"),
        (["report", "run", "--out", "/"], "cannot write /: it is a folder; choose another place"),
        (
            ["report", "run", "--out", "run/summary.json"],
            "run/summary.json: the report is an HTML file",
        ),
        (
            ["evaluate", "run", "--data", "tasks", "--out", "run"],
            "cannot write run: it is a folder; choose another place",
        ),
    ],
)
def test_places_are_checked_first(words: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "text.txt").write_text("some text\n")
    (tmp_path / "link").symlink_to(".")
    done = crammed(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "run", "text.txt"]
