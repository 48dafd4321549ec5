"""Run every test there is, and write the results to records/test-all/output.txt.

    make test-all
    python tools/test_all.py "long tests"     # repeats these steps; the others' results stay

The steps are `make test`, the tests marked `long`, the properties with examples drawn anew (`make
test` tries the same ones each time), a recomputation of what is published about studies
(`recompute.py`), ten minutes of faults of all kinds (`chaos.py`), the tests of commands with a
fresh interpreter for each command, and the tests of the code that depends most on libraries, with
the oldest and the newest libraries that pyproject.toml allows; there, exported models also go
through the Trainer, sentence-transformers and ONNX. Then every cell of the notebooks is run, and a
site made of the pages, with warnings as errors. All steps run, even if one fails.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "records" / "test-all" / "output.txt"
PYTEST = ["-m", "pytest", "-n", "auto", "-q"]
EXPLORE = ["--hypothesis-profile", "fresh"]
COMMANDS = ["tests/cli", "tests/study", "tests/training/test_resume.py"]
COMMANDS += ["tests/training/test_distributed.py", "tests/data/preparing/test_preparation.py"]
COMMANDS += ["tests/evaluation/test_failing.py", "tests/test_older_versions.py", "tests/workshop"]
LIBRARIES = ["tests/config", "tests/cli", "tests/adaptation", "tests/export", "tests/evaluation"]
LIBRARIES += ["tests/report", "tests/data/test_tokenizer.py", "tests/formats"]
LIBRARIES += ["tests/embedding", "tests/finetuned", "tests/test_older_versions.py"]
PYTORCH = ["tests/model", "tests/optim", "tests/training", "tests/machine"]
CAMPAIGN = ["tools/chaos.py", "--minutes", "10", "--jobs", "2"]
SHOWN = (
    *("jinja2", "matplotlib", "numpy", "pyarrow", "pydantic", "pyyaml", "rich", "safetensors"),
    *("scipy", "tokenizers", "torch", "transformers", "typer"),
)


TEST, OLDEST, NEWEST = (f".venv-{name}/bin/python" for name in ("test", "oldest", "newest"))
STEPS = {
    "make test": ["make", "test"],
    "long tests": [TEST, *PYTEST, "-m", "long", *EXPLORE],
    "new examples of properties": [TEST, *PYTEST, "-m", "hypothesis", *EXPLORE],
    "studies recomputed without our code": [TEST, "tools/recompute.py"],
    "the campaign of faults": [TEST, *CAMPAIGN],
    "a fresh interpreter for every command": [
        *("env", "CRAMMED_TESTS_FORK=0", TEST, *PYTEST, *COMMANDS),
    ],
    "the oldest libraries": [OLDEST, *PYTEST, *LIBRARIES, *PYTORCH],
    "the newest libraries": [NEWEST, *PYTEST, *LIBRARIES],
    "the notebooks": [".venv-docs/bin/python", "tools/notebooks.py"],
    "the pages as a site": ["make", "docs"],
}


def run(name: str) -> str:
    """Run a step, showing its output; returns the verdict, the command and the summary line."""
    began, last = time.monotonic(), ""
    shown = " ".join(STEPS[name])
    print(f"\n=== {name}: {shown}", flush=True)
    with subprocess.Popen(
        STEPS[name],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            if re.search(r"\d+ (passed|failed|error|tries: |published)", line):
                last = re.sub(r" in [\d.]+s.*", "", line).strip("= \n")
    minutes = (time.monotonic() - began) / 60
    verdict = "passed" if process.returncode == 0 else f"FAILED with {process.returncode}"
    return f"{name}: {verdict}, {minutes:.1f} min, commit {commit()}\n  {shown}\n  {last}\n"


def versions(python: str) -> str:
    """Versions of Python and the packages in `SHOWN` in an environment, if it has been made."""
    if not (ROOT / python).exists():
        return "not made"
    code = "import platform; from importlib import metadata; v = metadata.version; "
    code += f"print('python', platform.python_version(), *(f' {{n}} {{v(n)}}' for n in {SHOWN}))"
    return subprocess.check_output([python, "-c", code], cwd=ROOT, text=True).strip()


def commit() -> str:
    """The commit that is tested, and whether the working tree differs from it."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", ".", ":!records/test-all"])
    return head.stdout.strip()[:12] + (" with changes" if changed.returncode else "")


def before() -> dict[str, str]:
    """The results of earlier runs of the steps, by their names."""
    text = OUTPUT.read_text("utf-8") if OUTPUT.exists() else ""
    return {words.partition(": ")[0]: words + "\n" for words in text.split("\n\n")[1:]}


def main(names: list[str]) -> None:
    if unknown := set(names) - STEPS.keys():
        sys.exit(f"error: no step {', '.join(sorted(unknown))}: choose from {', '.join(STEPS)}")
    found = before() if names else {}
    for name in STEPS:
        if not names or name in names:
            found[name] = run(name)
    results = [found[name].strip("\n") for name in STEPS if name in found]
    lines = [
        f"date      {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"machine   {platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        *(f"{e:<10}{versions(f'.venv-{e}/bin/python')}" for e in ("test", "oldest", "newest")),
    ]
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text("\n\n".join(("\n".join(lines), *results)) + "\n", "utf-8")
    print(f"\n{OUTPUT.read_text('utf-8')}\nwritten to {OUTPUT.relative_to(ROOT)}: commit it")
    sys.exit(1 if any(": FAILED" in words for words in results) else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
