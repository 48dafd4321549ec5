"""Entry point of ``crammed`` and ``python -m crammed``: handles signals before heavy imports."""

import signal

from crammed.terminal.stopping import leave, stop_signals


def main() -> None:
    """Run the command line."""
    for each in stop_signals():
        signal.signal(each, leave)
    from crammed.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
