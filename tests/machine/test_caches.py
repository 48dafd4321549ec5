"""The folder from which compiled code is loaded."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from crammed.errors import InputError
from crammed.machine.caches import COMPILED, own_compiled_code
from crammed.machine.device import Device
from support.steps import step_with
from support.text import tiny


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CRAMMED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(COMPILED, "")
    monkeypatch.delenv(COMPILED)
    return tmp_path / "cache" / "compiled"


def test_compiled_code_is_kept_where_only_its_user_can_write(compiled: Path) -> None:
    own_compiled_code()
    assert os.environ[COMPILED] == str(compiled)
    assert stat.S_IMODE(compiled.stat().st_mode) == 0o700


def test_a_folder_that_the_user_has_named_is_kept(
    compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(COMPILED, "/mine")
    own_compiled_code()
    assert os.environ[COMPILED] == "/mine"
    assert not compiled.exists()


def test_a_folder_that_others_can_write_to_is_refused(compiled: Path) -> None:
    compiled.mkdir(parents=True)
    compiled.chmod(0o777)
    with pytest.raises(InputError, match=r"others can write to .*compiled.* remove it"):
        own_compiled_code()
    compiled.rmdir()
    compiled.symlink_to(compiled.parent)
    with pytest.raises(InputError, match="compiled is not a folder of yours"):
        own_compiled_code()
    assert COMPILED not in os.environ


def test_a_folder_of_another_user_is_refused(
    compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_compiled_code()
    monkeypatch.delenv(COMPILED)
    monkeypatch.setattr(os, "getuid", lambda: compiled.stat().st_uid + 1)
    with pytest.raises(InputError, match="compiled is not a folder of yours"):
        own_compiled_code()


def test_a_home_folder_that_cannot_be_written_to_costs_no_run(compiled: Path) -> None:
    compiled.parent.write_text("")
    own_compiled_code()
    folder = Path(os.environ[COMPILED])
    assert folder != compiled
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("compiles", [False, True])
def test_a_step_that_compiles_keeps_its_code_there(
    compiled: Path, cpu: Device, compiles: bool
) -> None:
    step_with(cpu, tiny("crammed", "model.layers=1"), compile=compiles)
    assert compiled.exists() == compiles
    if compiles:
        assert os.environ[COMPILED] == str(compiled)


def test_what_pytorch_has_chosen_is_not_kept(compiled: Path) -> None:
    """Its compiler, once imported, has set the variable."""
    os.environ[COMPILED] = os.path.join(tempfile.gettempdir(), "torchinductor_somebody")
    own_compiled_code()
    assert os.environ[COMPILED] == str(compiled)
