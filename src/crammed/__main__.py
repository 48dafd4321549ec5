"""Entry point of ``crammed`` and ``python -m crammed``: handles signals before heavy imports."""

from crammed.safepath import forget_working_directory


def main() -> None:
    """Run the command line."""
    forget_working_directory()  # before anything else is imported
    import signal

    from crammed.terminal.stopping import leave, stop_signals

    for each in stop_signals():
        signal.signal(each, leave)
    from crammed.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
