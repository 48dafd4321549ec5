"""``python -m crammed`` is ``crammed``."""

from crammed.cli import main

main()
