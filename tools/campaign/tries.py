"""A try: a world, a fault in the middle of a command, the same command again, a verdict."""

from __future__ import annotations

import random
import re
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from campaign import faults, oracle, powerloss, processes
from campaign.faults import DAMAGES, NOTHING, Fault, Plan
from campaign.journal import Operation
from campaign.links import PlantedLink
from campaign.stages import BY_NAME as STAGES
from campaign.stages import UPDATES, Stage, make_world, write_inputs

RESUMED = 0.35
"""Share of tries whose fault strikes a command that resumes after a kill."""
_USERS_OWN = ("text/", "tasks/", "study.yaml")
"""What a user may change at any time, so that nothing has a hash of it."""
_LOGS = ("metrics.jsonl", "events.jsonl", "env.json", "heartbeat.json", ".lock", "lock")
"""Files that do not affect results."""


@dataclass(frozen=True)
class Baseline:
    """An undisturbed run of a stage: results, all files of the world afterwards, operations."""

    results: dict[str, str]
    names: set[str]
    journal: list[Operation]


@dataclass
class Try:
    """A try and its verdict.

    Attributes:
        prior: the kill from which the disturbed command resumes; `NOTHING` if there was none.
        damage: what was done to a file between the two commands.
        hit: whether the fault struck; otherwise the try proves nothing.
        verdict: ``held`` or what went wrong: ``silent``, ``traceback``, ``lost``, ``unclear``,
            ``left behind``, ``written`` (through a link) or ``hangs``.
    """

    number: int
    stage: str
    fault: str
    plan: Plan
    prior: Plan
    damage: dict[str, Any] = field(default_factory=dict)
    hit: bool = False
    verdict: str = "held"
    how: str = ""
    seconds: float = 0.0


class Failed(Exception):
    """A try that did not hold: kind and reason."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class Campaign:
    """Templates of worlds, undisturbed results, and tries; `plant` is removed from the code."""

    def __init__(self, folder: Path, seed: int, plant: str | None) -> None:
        self.folder, self.seed, self.plant = folder, seed, plant
        self.templates = folder / "templates"
        self.baselines: dict[str, Baseline] = {}
        write_inputs(self.templates)

    def prepare(self, stages: list[Stage]) -> None:
        """Run every stage undisturbed, twice, and keep what later stages need.

        Raises:
            Failed: a stage fails, or two undisturbed runs differ, so that nothing can be judged.
        """
        wanted = [STAGES["prepare"], STAGES["pretrain, updates"], *stages]
        for stage in dict.fromkeys(wanted):
            known = next((b for n, b in self.baselines.items() if _same(STAGES[n], stage)), None)
            self.baselines[stage.name] = known or self._undisturbed(stage)

    def _undisturbed(self, stage: Stage) -> Baseline:
        found: list[Baseline] = []
        for number in range(2):
            place = self.folder / f"undisturbed-{stage.name}-{number}"
            world = place / "world"
            make_world(self.templates, stage, world)
            ended = processes.run(stage, world, place / "aside")
            for outcome in ended.outcomes:
                if outcome.code != 0:
                    raise Failed("unclear", f"{stage.name} fails undisturbed: {outcome.error}")
            names = {str(p.relative_to(world)) for p in world.rglob("*")}
            found.append(Baseline(oracle.results(world, stage), names, ended.journal))
            if number == 0:
                for made in ("corpus", "run"):
                    if not (self.templates / made).exists() and (world / made).exists():
                        shutil.copytree(world / made, self.templates / made)
            shutil.rmtree(place, ignore_errors=True)
        if differs := oracle.difference(found[1].results, found[0].results):
            raise Failed("silent", f"two undisturbed runs of {stage.name} differ: {differs}")
        return found[0]

    def draw(self, number: int, stage: Stage, fault: Fault) -> Try:
        """The try with this number in a cell; it depends on nothing but these and the seed."""
        draw = random.Random(f"{self.seed}/{number}/{stage.name}/{fault.name}")
        operations = stage.operations(self.baselines[stage.name].journal)
        plan, prior = fault.draw(draw, operations), NOTHING
        if fault.between != "damaged" and "at" in plan and draw.random() < RESUMED:
            prior = {"kind": "signal", "signal": "SIGKILL", **faults.place(draw, operations)}
            left = len(operations) - [_at(o) for o in operations].index(_at(prior))
            plan["at"] = draw.randint(1, max(4, left // 2))
        return Try(number, stage.name, fault.name, plan, prior)

    def run(self, tried: Try, core: int) -> Try:
        began = time.monotonic()
        place = self.folder / f"try-{tried.number}"
        shutil.rmtree(place, ignore_errors=True)
        try:
            tried.how = _Trial(self, tried, place, core).judge()
        except Failed as failed:
            tried.verdict, tried.how = failed.kind, str(failed)
        tried.seconds = round(time.monotonic() - began, 2)
        if tried.verdict == "held":
            shutil.rmtree(place, ignore_errors=True)
        return tried


def _same(one: Stage, other: Stage) -> bool:
    return replace(one, name="", where=None) == replace(other, name="", where=None)


def _at(place: Any) -> tuple[int, int]:
    if isinstance(place, Operation):
        return place.process, place.number
    return place["process"], place["at"]


class _Trial:
    """The steps of a try, each of which raises `Failed` if anything is wrong."""

    def __init__(self, campaign: Campaign, tried: Try, place: Path, core: int) -> None:
        self.campaign, self.tried, self.place, self.core = campaign, tried, place, core
        self.stage = STAGES[tried.stage]
        self.fault = faults.BY_NAME[tried.fault]
        self.baseline = campaign.baselines[self.stage.name]
        self.world = place / "world"
        self.draw = random.Random(f"{campaign.seed}/{tried.number}/after")
        self.commands = 0
        self.link: PlantedLink | None = None

    def judge(self) -> str:
        """Run all steps; returns what happened, in a few words."""
        make_world(self.campaign.templates, self.stage, self.world)
        self.before = oracle.contents(self.world)
        if self.tried.prior != NOTHING:
            self._type(self.tried.prior)
        known = powerloss.files_of(self.world)
        ended = self._type(self.tried.plan)
        self.tried.hit = ended.hit
        self._judge_disturbed(ended)
        if self.fault.between == "power":
            powerloss.lose_power(self.world, ended.journal, known, ended.kept, self.draw)
        made = oracle.finished(self.stage, self.world)
        done = oracle.newest_checkpoint(self.world)
        over = (self.world / "run" / "summary.json").exists()
        self._require_kept(ended.journal, done, over)
        if self.fault.between == "damaged":
            self._damage()
            done = oracle.newest_checkpoint(self.world, but=self.tried.damage.get("file", ""))
        if self.fault.between == "link":
            self._plant_link()
        logged = len(oracle.logged(self.world))
        again = self._type(NOTHING)
        self._require(self.link.touched() if self.link else None, "written")
        word = self._judge_again(again.outcomes)
        self._require(oracle.lost(self.before, self.world, self.tried.damage.get("file")), "lost")
        if not self.tried.damage:
            self._require(oracle.repeated(made, again.journal), "lost")
            there = {str(p.relative_to(self.world)) for p in self.world.rglob("*")}
            extra = there - self.baseline.names
            self._require(f"{min(extra)} is left behind" if extra else None, "left behind")
        trained = oracle.logged(self.world)[logged:]
        if word == "same result" and not over and trained and trained[0] <= done:
            raise Failed("lost", f"{done} updates were saved, but update {trained[0]} is repeated")
        return word

    def _type(self, fault: Plan) -> processes.Ended:
        self.commands += 1
        aside = self.place / f"command-{self.commands}"
        plant = self.campaign.plant
        return processes.run(self.stage, self.world, aside, fault, plant, self.core)

    def _require(self, fault: str | None, kind: str) -> None:
        if fault is not None:
            raise Failed(kind, fault)

    # ---- the disturbed command

    def _judge_disturbed(self, ended: processes.Ended) -> None:
        plan = self.tried.plan
        struck = {each.process for each in ended.journal if each.kind == "fault"}
        for rank, outcome in enumerate(ended.outcomes):
            fatal = plan["kind"] in ("signal", "peer") or "stuck" in plan
            killed = fatal and plan["process"] == rank
            self._clean(outcome, killed, may_be_mute=2 in plan.get("streams", ()))
        said = _said(ended.outcomes[0])
        over = self.tried.prior != NOTHING and "exists already" in said
        if plan["kind"] in ("clock", "slow") and ended.outcomes[0].code != 0 and not over:
            raise Failed("unclear", f"it ends with {said}")
        codes = (0, 2, 4) if self.stage.ranks > 1 else (0, 4)  # 2: one process differs
        if plan["kind"] == "poison" and struck and ended.outcomes[0].code not in codes:
            raise Failed("unclear", f"a gradient is NaN: {_said(ended.outcomes[0])}")
        if plan.get("signal") in faults.SIGNALS or plan["kind"] == "closed":
            self._require_saved(ended)

    def _clean(
        self, outcome: oracle.Outcome, may_be_killed: bool = False, may_be_mute: bool = False
    ) -> None:
        fault = outcome.complaint(may_be_killed, may_be_mute)
        if fault is not None:
            kind = "hangs" if outcome.code is None else "unclear"
            raise Failed("traceback" if fault.startswith("traceback") else kind, fault)

    def _require_saved(self, ended: processes.Ended) -> None:
        """Require that a signal during training ends it with a checkpoint and exit code 75."""
        if self.stage.name not in ("pretrain, updates", "two processes"):
            return
        if self.tried.plan["process"]:
            return  # the first process decides for all
        kinds = [(each.kind, each.path + each.to) for each in ended.journal]
        struck = next((n for n, (kind, _) in enumerate(kinds) if kind == "fault"), None)
        first = next((n for n, (_, path) in enumerate(kinds) if "metrics.jsonl" in path), None)
        end = f"step-{UPDATES:08d}"
        last = next((n for n, (_, path) in enumerate(kinds) if end in path), len(kinds))
        if struck is None or first is None or not first < struck < last:
            return
        if ended.outcomes[0].code not in (75, 0):
            raise Failed("lost", f"stopped during training: {_said(ended.outcomes[0])}")

    def _require_kept(self, journal: list[Operation], done: int, over: bool) -> None:
        """Require that the checkpoints that the disturbed command finished are still there."""
        if self.fault.between in ("power", "damaged") or over:
            return
        saved = [
            int(match[1])
            for each in journal
            if each.kind == "rename"
            and (match := re.search(r"^run/checkpoints/step-(\d+)", each.to))
        ]
        # The last rename may be the one that the fault prevented.
        if saved and done < max(saved[:-1], default=0):
            raise Failed("lost", f"{max(saved[:-1])} updates were saved, {done} are left")

    # ---- damage

    def _damage(self) -> None:
        """Damage a file that affects results."""
        # Once a run is over, the command no longer reads its result; other stages damage that.
        over = (self.world / "run" / "summary.json").exists() and "run" not in self.stage.needs
        spared = (*_USERS_OWN, "run/final/", "run/export/") if over else _USERS_OWN
        files = [
            file
            for file in sorted(self.world.rglob("*"))
            if file.is_file() and file.stat().st_size
            if file.name not in _LOGS and not file.name.endswith(".tmp")
            if not str(file.relative_to(self.world)).startswith(spared)
        ]
        if not files:
            self.tried.hit = False
            return
        sizes = [file.stat().st_size for file in files]
        by_size = self.draw.random() < 0.5  # as on a real disk; otherwise every file alike
        (file,) = self.draw.choices(files, sizes if by_size else None)
        how, size = self.draw.choice(DAMAGES), file.stat().st_size
        at = self.draw.randrange(size)
        name = str(file.relative_to(self.world))
        self.tried.damage = {"file": name, "how": how, "at": at}
        self.tried.hit = True
        self.whole = file.read_bytes()
        content = bytearray(self.whole)
        if how == "bit":
            content[at] ^= 1 << self.draw.randrange(8)
        elif how == "end":
            del content[at:]
        elif how == "middle":
            content[at : at + 4096] = bytes(len(content[at : at + 4096]))
        elif how == "empty":
            content.clear()
        if how == "gone":
            file.unlink()
        else:
            file.write_bytes(bytes(content))

    def _plant_link(self) -> None:
        outside, journal = self.place / "outside", self.baseline.journal
        self.link = PlantedLink(self.world, outside, journal, self.stage.words, self.draw)
        self.tried.damage = {"file": self.link.name, "how": f"a link to a {self.link.how}"}
        self.tried.hit = True

    # ---- the same command again

    def _judge_again(self, outcomes: list[oracle.Outcome]) -> str:
        for outcome in outcomes:
            self._clean(outcome)
        differs = self._difference()
        if all(outcome.code == 0 for outcome in outcomes):
            if differs is not None:
                raise Failed("silent", f"without a word, {differs}")
            return "same result"
        said = _said(next(each for each in outcomes if each.code))
        if "exists already" in said and differs is None:
            return "same result"
        if not self.tried.damage:
            raise Failed("lost", f"the same command again: {said}")
        return self._remedy(said)

    def _remedy(self, said: str) -> str:
        """Follow the advice of the line, after which the command must give the same result."""
        damaged = self.tried.damage["file"]
        parts = [part for part in Path(damaged).parts if part not in ("run", "corpus")]
        names = any(part in said for part in (*parts, str(Path(damaged).parent)))
        if not names and (self.link is None or "choose another" not in said):
            raise Failed("unclear", f"{damaged} is damaged, and it says: {said}")
        named = self._do_as_told(said, damaged)
        for outcome in self._type(NOTHING).outcomes:
            if outcome.code != 0:
                raise Failed("unclear", f"after {named}: {_said(outcome)}; first: {said}")
        if differs := self._difference():
            raise Failed("silent", f"after {named}, {differs}")
        return f"one line, then {named}"

    def _difference(self) -> str | None:
        return oracle.difference(oracle.results(self.world, self.stage), self.baseline.results)

    def _do_as_told(self, said: str, damaged: str) -> str:
        top = Path(damaged).parts[0]
        if self.link is not None and "choose another" not in said:
            self.link.take_back()
            return f"putting what it names in place of {damaged}"
        if match := re.search(r"\b(?:delete|remove) (\S+?)[,;:.]?(?: |$)", said):
            target = self.world / match[1]
            if target.is_dir():
                target.rename(self.place / "removed")
            else:
                target.unlink(missing_ok=True)
            if match[1] not in self.stage.needs:
                return f"removing {match[1]}"
            shutil.copytree(self.campaign.templates / match[1], target)
            return f"making {match[1]} again"
        made = {made.split("/")[0] for made in self.stage.makes}
        if re.search(r"choose another|name another folder|start(ing)? again", said) and top in made:
            (self.world / top).rename(self.place / "moved-aside")
            if top in self.stage.needs:
                shutil.copytree(self.campaign.templates / top, self.world / top)
            return f"choosing another {top}"
        advice = r"again|[Rr]estore|copy|make one with|the same configuration"
        if re.search(advice, said) and top in self.stage.needs:
            shutil.rmtree(self.world / top)
            shutil.copytree(self.campaign.templates / top, self.world / top)
            return f"making {top} again"
        if re.search(r"[Rr]estore|did you mean|must be|should be", said):
            (self.world / damaged).write_bytes(self.whole)
            return f"repairing {damaged}"
        raise Failed("unclear", f"it names no remedy: {said}")


def _said(outcome: oracle.Outcome) -> str:
    """The last line of a command, with the reasons that it refers to."""
    lines = outcome.lines or outcome.error.strip().splitlines() or [""]
    said = f"exit code {outcome.code}, {lines[-1][:300]}"
    if "printed above" in said:
        said = "; ".join((said, *re.findall(r'"failed": "([^"]*)"', outcome.out)))
    return said
