"""``python -m crammed`` is ``crammed``."""

from crammed.cli.app import main

main()
