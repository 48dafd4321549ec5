"""The statistics of studies in plain loops, for `recompute`: they share no code with `crammed`.

Studies are what ``study.json`` holds. `tested` follows docs/studies.md: variances moderated by the
moments of log variances (Smyth 2004), t-tests against the baseline, Holm's correction, and
intervals by Bonferroni.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import digamma, polygamma
from scipy.stats import t

Json = dict[str, Any]
DRAWS = 400


def parts(study: Json) -> dict[str, Json]:
    """The study at each of its budgets at which a run has finished, by label."""
    base = study["baseline"]
    if not study.get("budgets"):
        return {"": study}
    found = {}
    for label in study["budgets"]:
        arms = {a.rsplit("@", 1)[0]: e for a, e in study["arms"].items() if a.endswith(f"@{label}")}
        if any("tokens" in run for entry in arms.values() for run in entry["runs"].values()):
            found[label] = {**study, "arms": arms, "baseline": base.rsplit("@", 1)[0]}
    return found


def values(part: Json, arm: str, measure: str) -> list[float]:
    runs = [run for run in part["arms"][arm]["runs"].values() if not run.get("failed")]
    every = ({**run, **run.get("scores", {})}.get(measure) for run in runs)
    return [float(each) for each in every if each is not None]


def mean(own: Sequence[float]) -> float:
    return sum(own) / len(own)


def deviation(own: list[float]) -> float:
    middle = mean(own)
    return math.sqrt(sum((each - middle) ** 2 for each in own) / (len(own) - 1))


def main_measure(study: Json) -> str:
    corpora = {entry["corpus"] for entry in study["arms"].values() if entry.get("corpus")}
    return "bits_per_character@0.15" if len(corpora) > 1 else "loss@0.15"


def decidable(part: Json) -> bool | None:
    own = values(part, part["baseline"], "loss@0.15")
    if part.get("unigram") is None or not own:
        return None
    return mean(own) <= float(part["unigram"]) - 1.0


def plateau(part: Json) -> set[str]:
    """The arms that are less than a nat below the unigram cross-entropy."""
    if part.get("unigram") is None or main_measure(part) != "loss@0.15":
        return set()
    losses = {arm: values(part, arm, "loss@0.15") for arm in part["arms"]}
    return {arm for arm, own in losses.items() if own and mean(own) > part["unigram"] - 1.0}


def moderated(groups: dict[str, list[float]]) -> dict[str, tuple[float, float]]:
    """Variance and degrees of freedom of each arm with two seeds, if there are two such arms."""
    variances = {arm: deviation(own) ** 2 for arm, own in groups.items() if len(own) > 1}
    if len(variances) < 2 or not any(variances.values()):
        return {}
    free = {arm: len(groups[arm]) - 1 for arm in variances}
    floor = 1e-5 * mean([*variances.values()])
    logs, noise, fourth = [], [], []
    for arm, variance in variances.items():
        half = free[arm] / 2
        logs.append(math.log(max(variance, floor)) - float(digamma(half)) + math.log(half))
        noise.append(float(polygamma(1, half)))
        fourth.append(float(polygamma(3, half)) + 2 * float(polygamma(1, half)) ** 2)
    count, middle = len(logs), sum(logs) / len(logs)
    spread = sum((each - middle) ** 2 for each in logs) / (count - 1) - sum(noise) / count
    wanted = max(spread, 0.0) + 0.25 * math.sqrt(sum(fourth) / count / count)
    half = math.exp(
        brentq(lambda x: float(polygamma(1, math.exp(x))) - wanted, -12, 25, xtol=1e-13)
    )
    scale = math.exp(middle + float(digamma(half)) - math.log(half))
    return {
        arm: (
            (2 * half * scale + free[arm] * variance) / (2 * half + free[arm]),
            min(2 * half + free[arm], sum(free.values())),
        )
        for arm, variance in variances.items()
    }


def tested(part: Json, measure: str) -> dict[str, Json]:
    """Interval and corrected p-value of each arm that has them."""
    groups = {arm: values(part, arm, measure) for arm in part["arms"]}
    base, slow = part["baseline"], plateau(part)
    every = moderated(groups)
    learned = moderated({a: own for a, own in groups.items() if a not in slow})
    learned = learned if decidable(part) else every
    found: dict[str, Json] = {}
    for arm, own in groups.items():
        pool = every if arm in slow else learned
        few = min(len(own), len(groups[base])) < 3
        if few or arm == base or not {arm, base} <= pool.keys():
            continue
        (variance, free), (of_base, free_base) = pool[arm], pool[base]
        error = math.sqrt(variance / len(own) + of_base / len(groups[base]))
        apart = mean(own) - mean(groups[base])
        freedom = min(free, free_base)
        alone = 2 * float(t.sf(abs(apart) / error, freedom))
        found[arm] = {"apart": apart, "error": error, "free": freedom, "alone": alone}
    least = 0.0
    for rank, arm in enumerate(sorted(found, key=lambda each: found[each]["alone"])):
        one = found[arm]
        least = max(least, min(1.0, (len(found) - rank) * one["alone"]))
        reach = one["error"] * float(t.isf(0.025 / len(found), one["free"]))
        low, high = one["apart"] - reach, one["apart"] + reach
        if least < 0.05:
            low, high = (max(0.0, low), high) if one["apart"] > 0 else (low, min(0.0, high))
        one |= {"p": least, "interval": [low, high]}
    return found


def verdicts(part: Json, measure: str) -> dict[str, str | None]:
    """``better``, ``worse`` or, of losses, ``plateau`` for each tested arm, else None."""
    of_losses = measure.startswith(("loss", "bits", "document"))
    if decidable(part) is False:
        return {}
    found = {
        arm: None if one["p"] >= 0.05 else "better" if (one["apart"] < 0) == of_losses else "worse"
        for arm, one in tested(part, measure).items()
    }
    return found | dict.fromkeys(found.keys() & plateau(part) if of_losses else (), "plateau")


def counts(part: Json, measure: str) -> str:
    """The verdict of a study in words."""
    if decidable(part) is False:
        return "not decidable at this budget"
    found = verdicts(part, measure)
    if not found:
        return "leads only, because a verdict takes 3 seeds"
    each = [*found.values()]
    said = {"better": each.count("better"), "worse": each.count("worse")}
    said["no difference shown"] = each.count(None)
    few = {arm for arm in part["arms"] if values(part, arm, measure)} - found.keys()
    said["with fewer than 3 seeds"] = len(few - {part["baseline"]} - plateau(part))
    said["still on the plateau, so not comparable"] = len(plateau(part))
    return ", ".join(f"{number} {words}" for words, number in said.items() if number)


def flops_span(part: Json) -> tuple[float, ...]:
    """The least and the most FLOPs of an arm, as multiples of the baseline's."""
    every = {arm: values(part, arm, "exaflop") for arm in part["arms"]}
    means = {arm: mean(own) for arm, own in every.items() if own}
    return tuple(end(means.values()) / means[part["baseline"]] for end in (min, max))


def power(part: Json, measure: str, stated: list[float], every: int = 0) -> list[float]:
    """How often each difference is found, in studies drawn and judged one by one.

    Each arm has its own number of seeds, or `every` if that is not 0.
    """
    slow = plateau(part) if decidable(part) else set()
    groups = {arm: values(part, arm, measure) for arm in part["arms"] if arm not in slow}
    found, base = moderated(groups), part["baseline"]
    if base not in found or not stated:
        return []
    seeds = {arm: every or max(3, len(groups[arm])) for arm in found}
    others = [arm for arm in found if arm != base]
    random, hits = np.random.default_rng(987), np.zeros(len(stated))
    for number in range(DRAWS):
        drawn = {a: list(random.normal(0.0, math.sqrt(found[a][0]), seeds[a])) for a in found}
        differs = others[number % len(others)]
        for place, size in enumerate(stated):
            arms = {**drawn, differs: [each + size for each in drawn[differs]]}
            made = {a: {"runs": {str(i): {measure: v} for i, v in enumerate(own)}}
                    for a, own in arms.items()}  # fmt: skip
            hits[place] += tested({"baseline": base, "arms": made}, measure)[differs]["p"] < 0.05
    return [float(hit) / DRAWS for hit in hits]


def laws(study: Json) -> Json:
    """Power laws by type, and the test whether types differ at equal size and FLOPs."""
    measure = main_measure(study)
    cells: list[tuple[str, str, str, float, dict[str, float]]] = []
    for label, part in parts(study).items():
        slow = plateau(part) if decidable(part) else set()
        for arm in part["arms"]:
            flops = values(part, arm, "exaflop")
            own = {
                seed: values({"arms": {arm: {"runs": {seed: run}}}}, arm, measure)[0]
                for seed, run in part["arms"][arm]["runs"].items()
                if not run.get("failed")
            }
            if own and flops and arm not in slow:
                kind, _, size = arm.partition(".")
                kind = kind if size else arm
                cells.append((kind, size, label, 1e18 * mean(flops), own))
    types: dict[str, tuple[float, float, list[str]]] = {}
    slopes: list[float] = []
    for kind in dict.fromkeys(cell[0] for cell in cells):
        points = [(flops, mean([*v.values()])) for k, _, _, flops, v in cells if k == kind]
        if len({cell[2] for cell in cells if cell[0] == kind}) > 1:
            best = sorted(
                (flops, loss)
                for flops, loss in points
                if not any(other <= 1.05 * flops and lower < loss for other, lower in points)
            )
            x, y = np.log(np.array(best)).T
            slope, height = np.polyfit(x, y, 1)
            slopes.append(-float(slope))
            types[kind] = math.exp(height), float(slope), [f"{loss:.3f}" for _, loss in best]
    compared = [cell for cell in cells if cell[0] in types]
    return {"types": types, **exchanged(compared, list(types), float(np.mean(slopes)))}


def exchanged(cells: list[Any], kinds: list[str], slope: float) -> Json:
    """The test of types by exchanging seeds, each with all its sizes and budgets."""
    blocks: dict[tuple[str, str], list[Any]] = {}
    for cell in cells:
        blocks.setdefault((cell[1], cell[2]), []).append(cell)
    whole = [block for block in blocks.values() if len(block) == len(kinds)]
    middles = [mean([math.log(cell[3]) for cell in block]) for block in whole]
    seeds = [
        seed for seed in whole[0][0][4] if all(seed in cell[4] for block in whole for cell in block)
    ]
    curves: list[list[float]] = [[] for _ in kinds for _ in seeds]
    for block, middle in zip(whole, middles, strict=True):
        own = {
            (kinds.index(cell[0]), seed): math.log(cell[4][seed])
            + slope * (math.log(cell[3]) - middle)
            for cell in block
            for seed in seeds
        }
        for number, key in enumerate(itertools.product(range(len(kinds)), seeds)):
            curves[number].append(own[key] - mean(list(own.values())))
    kind = [number for number in range(len(kinds)) for _ in seeds]
    x = np.array(middles) - np.mean(middles)
    total = math.factorial(len(kind)) // math.factorial(len(seeds)) ** len(kinds)
    exact = total <= 9999 and len(kind) < 10  # so few that all orders can be listed
    random = np.random.default_rng(5)
    chosen: Any = (tuple(random.permutation(kind)) for _ in range(4000))
    if exact:
        chosen = sorted(set(itertools.permutations(kind)))
    y = np.array(curves)
    real = rest(y, kind, x, len(kinds))
    p = mean([rest(y, way, x, len(kinds)) <= real + 1e-9 * abs(real) for way in chosen])
    least = max(math.factorial(len(kinds)) / total, 0.0 if exact else 1e-4)
    shifts = {}
    for number, name in enumerate(kinds):
        shift = float(np.mean([c for c, k in zip(curves, kind, strict=True) if k == number]))
        shifts[name] = 100 * math.expm1(shift), math.exp(-shift / slope)
    by = 5e-5 if exact else 4 * math.sqrt(max(p, 0.002) / 4000)
    return {"p": max(p, least), "least": least, "by": by, "seeds": len(seeds), "shifts": shifts}


def rest(y: Any, kind: Sequence[int], x: Any, kinds: int) -> float:
    """The squared errors of a straight line for each type."""
    left = 0.0
    line = np.stack([np.ones(len(x)), x], 1)
    for number in range(kinds):
        own = np.concatenate([c for c, k in zip(y, kind, strict=True) if k == number])
        design = np.tile(line, (len(own) // len(x), 1))
        left += float(np.sum((own - design @ np.linalg.lstsq(design, own, rcond=None)[0]) ** 2))
    return left
