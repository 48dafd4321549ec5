"""Cut large files, carry them in trips to a machine with limited transfers, and join them there.

    python benchmarks/gpu/carry.py split FILE ... --to DIR [--part-mib 20] [--trip-mib 60]
    python benchmarks/gpu/carry.py join DIR/trip-1 --to FOLDER        # there, once for each trip

Every trip is a folder with some of the parts and the whole manifest; trips may arrive in any order.
A file appears in FOLDER once all of its parts have arrived and its hash is correct. This needs only
Python, so that it can run before anything else is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MIB = 2**20
MANIFEST = "manifest.json"
WAITING = ".parts"


def split(files: Sequence[Path], to: Path, part_mib: float, trip_mib: float) -> int:
    """Cut the files, and distribute the parts over trips, largest first; returns how many trips."""
    part_bytes, trip_bytes = int(part_mib * MIB), int(trip_mib * MIB)
    if not 0 < part_bytes <= trip_bytes:
        raise SystemExit("--part-mib must be above 0 and at most --trip-mib")
    if len({file.name for file in files}) < len(files):
        raise SystemExit("two files have the same name: carry them one after the other")
    if to.exists() and any(to.iterdir()):
        raise SystemExit(f"{to} is not empty: choose another --to")
    cut = to / "cut"
    cut.mkdir(parents=True)
    manifest = {file.name: _cut(file, cut, part_bytes) for file in files}
    parts = {part for entry in manifest.values() for part in entry["parts"]}
    trips: list[tuple[int, list[str]]] = []
    for part in sorted(parts, key=lambda name: (-(cut / name).stat().st_size, name)):
        size = (cut / part).stat().st_size
        place = next((n for n, (full, _) in enumerate(trips) if full + size <= trip_bytes), None)
        if place is None:
            trips.append((size, [part]))
        else:
            full, names = trips[place]
            trips[place] = (full + size, [*names, part])
    for number, (_, names) in enumerate(trips, 1):
        folder = to / f"trip-{number}"
        folder.mkdir()
        for name in names:
            (cut / name).rename(folder / name)
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), "utf-8")
    cut.rmdir()
    return len(trips)


def _cut(file: Path, into: Path, part_bytes: int) -> dict[str, Any]:
    """Write the parts of a file, each named after its hash; returns its entry in the manifest."""
    parts, whole = [], hashlib.sha256()
    with file.open("rb") as content:
        while part := content.read(part_bytes):
            whole.update(part)
            name = hashlib.sha256(part).hexdigest()
            (into / name).write_bytes(part)
            parts.append(name)
    return {"sha256": whole.hexdigest(), "bytes": file.stat().st_size, "parts": parts}


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def join(trip: Path, to: Path) -> list[str]:
    """Store a trip's parts, and join the files that are complete; returns the others' names."""
    try:
        manifest = json.loads((trip / MANIFEST).read_text("utf-8"))
    except OSError:
        raise SystemExit(f"{trip} is not a trip: it has no {MANIFEST}") from None
    waiting = to / WAITING
    waiting.mkdir(parents=True, exist_ok=True)
    known = {part for entry in manifest.values() for part in entry["parts"]}
    for part in sorted(trip.iterdir()):
        if part.name in known:
            if hashlib.sha256(part.read_bytes()).hexdigest() != part.name:
                raise SystemExit(f"{part} is damaged: carry this trip again")
            shutil.copyfile(part, waiting / f"{part.name}.tmp")
            (waiting / f"{part.name}.tmp").replace(waiting / part.name)
    missing = []
    for name, entry in manifest.items():
        target = to / name
        if target.exists() and _sha256(target) == entry["sha256"]:
            continue
        if any(not (waiting / part).exists() for part in entry["parts"]):
            missing.append(name)
            continue
        aside, whole = to / f".{name}.tmp", hashlib.sha256()
        with aside.open("wb") as file:
            for part in entry["parts"]:
                content = (waiting / part).read_bytes()
                whole.update(content)
                file.write(content)
        if whole.hexdigest() != entry["sha256"]:
            raise SystemExit(f"{name} differs from the original: carry everything again")
        aside.replace(target)
    if not missing:
        shutil.rmtree(waiting)
    return missing


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    cutting = verbs.add_parser("split", help="cut files into trips")
    cutting.add_argument("files", nargs="+", type=Path)
    cutting.add_argument("--part-mib", type=float, default=20.0)
    cutting.add_argument("--trip-mib", type=float, default=60.0)
    joining = verbs.add_parser("join", help="store a trip, and join the files that are complete")
    joining.add_argument("trip", type=Path)
    for each in (cutting, joining):
        each.add_argument("--to", type=Path, required=True)
    given = parser.parse_args()
    if given.verb == "split":
        print(f"{split(given.files, given.to, given.part_mib, given.trip_mib)} trips in {given.to}")
    elif missing := join(given.trip, given.to):
        print(f"still waiting for parts of {', '.join(missing)}")
    else:
        print(f"all files are in {given.to}")


if __name__ == "__main__":
    main()
