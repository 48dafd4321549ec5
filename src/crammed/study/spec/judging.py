"""The names of judges: ``heldout``, ``blimp``, ``SUITE`` or ``SUITE.TASK``.

The last two may end with ``@PROTOCOL``, and the suite may be the user's own file.
"""

from __future__ import annotations

import re

from crammed.tasks.task import WITHOUT_FINETUNING, suite_names

OWN = re.compile(r"(.+\.ya?ml)(?:\.(.+))?")
"""A suite's file and, after a dot, one of its tasks."""


def parted(name: str) -> tuple[str, str, str]:
    """What judges, ``@`` and the protocol; the folder of a suite's file may have an @, too."""
    known = (*WITHOUT_FINETUNING, *suite_names())
    for end in (*(n for n, each in enumerate(name) if each == "@"), len(name)):
        kind = name[:end]
        if kind.partition(".")[0] in known or OWN.fullmatch(kind):
            return kind, name[end : end + 1], name[end + 1 :]
    return name.partition("@")
