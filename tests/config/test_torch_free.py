"""Worker processes that prepare data import the configuration, and must not wait for torch."""

from __future__ import annotations

import subprocess
import sys


def test_a_configuration_is_there_without_torch() -> None:
    script = (
        "import sys\n"
        "import crammed.config, crammed.config.migration, crammed.config.yamlfile\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
