"""The table of a campaign: tries that held, for each fault and stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from campaign.faults import FAULTS, NOTHING, Fault
from campaign.stages import STAGES, Stage
from campaign.tries import Try


def table(tries: Sequence[Try], cells: Sequence[tuple[Stage, Fault]]) -> str:
    """Rows are stages, columns are faults, and a cell says how many of its tries held.

    Tries whose fault did not strike, because the command had already ended, are not counted.
    """
    stages = [stage for stage in STAGES if any(stage == one for one, _ in cells)]
    kinds = [fault for fault in FAULTS if any(fault == one for _, one in cells)]
    counts, held = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for each in tries:
        if each.hit or each.verdict != "held":
            counts[each.stage, each.fault] += 1
            held[each.stage, each.fault] += each.verdict == "held"
    lines = [
        f"| stage | {' | '.join(fault.name for fault in kinds)} |",
        "|---|" + "---|" * len(kinds),
    ]
    for stage in stages:
        shown = []
        for fault in kinds:
            key = stage.name, fault.name
            shown.append(f"{held[key]} of {counts[key]}" if fault.applies(stage) else "none")
        lines.append(f"| {stage.name} | {' | '.join(shown)} |")
    lines += ["", *(f"{fault.name}: none where {fault.why}." for fault in kinds if fault.why)]
    verdicts = Counter(each.verdict for each in tries if each.hit or each.verdict != "held")
    missed = sum(not each.hit and each.verdict == "held" for each in tries)
    words = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    resumed = sum(each.prior != NOTHING for each in tries if each.hit)
    lines += [
        "",
        f"{sum(verdicts.values())} tries: {words}. {resumed} of the faults struck a command that "
        f"resumed after a kill. {missed} more commands ended before their fault could strike.",
    ]
    return "\n".join(lines)
