"""A corpus that begins with all rows of another one, with rows of further text after them.

Only the further text is read. It is made into a corpus of its own, with the tokenizer, the held-out
documents and the settings of the first one, and the two are then joined.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from crammed.config import CleanConfig, ComputeConfig, DataConfig, Ordering, TokenizerConfig
from crammed.config.yamlfile import validated
from crammed.data.corpus import Corpus
from crammed.data.heldout import rows_of_corpus
from crammed.data.preparing.cleaning.downstream import downstream_settings
from crammed.data.preparing.cleaning.entities import of_pipeline
from crammed.data.preparing.cleaning.own import of_function
from crammed.data.preparing.driver import prepare
from crammed.data.preparing.manifest import changed_files, listed_files, read_parts, write_parts
from crammed.data.preparing.pack import order
from crammed.data.preparing.select.duplicates import known_documents, write_known
from crammed.data.preparing.workfolder import remove_left_overs
from crammed.data.samples import read_samples, write_samples
from crammed.data.statistics import unigram_cross_entropy, unknown_and_unused
from crammed.data.tokenization.tokenizer import Specials
from crammed.data.verification import verify_once
from crammed.errors import InputError
from crammed.files.folders import WORK, check_vacant, new_folder, sync_all
from crammed.files.hashes import json_hash
from crammed.files.writing import write_json
from crammed.machine.engine import Engine, open_engine
from crammed.terminal.progress import Progress

OF_NEW_TEXT = ("sources", "format", "text_field", "documents", "unreadable")
"""Settings of `DataConfig` that say how further text is read; all others are the corpus's own."""
NAMED_AGAIN = ("function", "entities", "downstream")
"""Steps of `CleanConfig` of which a corpus holds no more than a hash."""
_ADDED = ("documents", "characters", "tokens", "rows", "tokens_left_out")
"""What the manifest of a joined corpus adds up."""


def extend(
    base: Corpus,
    data: DataConfig,
    out: Path,
    progress: Progress,
    compute: ComputeConfig | None = None,
    work: Path | None = None,
) -> Corpus:
    """Make the corpus `out` of the rows of `base` and of rows of further text, and open it.

    Documents that `base` trains on, and copies of its held-out ones, are dropped from the text.

    Args:
        data: the further text; how it is cleaned and packed is as in `base`.
        compute, work: as for `prepare`.

    Raises:
        InputError: as for `prepare`, or `base` is damaged.
    """
    if (out / "manifest.json").exists():
        _remove_parts(out)
        remove_left_overs(out)
    check_vacant(out, "--out")
    verify_once(base, progress)
    if base.manifest["data"]["clean"]["exact"] and known_documents(base) is None:
        progress.line(
            f"extend  {base.path} is of an older version, and does not say what documents it has: "
            "text that repeats them stays"
        )
    wanted, tokenizer = settings_for_more(base, data)
    if within := _looked_for_within(wanted.clean):
        progress.line(f"extend  {' and '.join(within)} are looked for only within the new text")
    name = json_hash([base.sha256, wanted.model_dump(mode="json")])[:16]
    part = out.with_name(f".{out.name}.{name}")
    _remove_parts(out, but=part)
    piped = any(source.path == "-" for source in wanted.sources)
    if part.exists() and (piped or changed_files(Corpus(part), wanted)):
        shutil.rmtree(part)
    if part.exists():  # an earlier call was killed when it was done with the text
        new = Corpus(part)
    else:
        new = prepare(wanted, tokenizer, part, progress, compute, work, extends=base)
    with open_engine(compute or ComputeConfig()) as engine, new_folder(out) as made:
        with progress.task("joining the rows of both"):
            _join(base, new, made, engine)
    shutil.rmtree(part, ignore_errors=True)
    return Corpus(out)


def _remove_parts(out: Path, but: Path | None = None) -> None:
    """Remove what killed calls left beside `out`, except what is of the part `but`."""
    names = re.compile(rf"\.?(\.{re.escape(out.name)}\.[0-9a-f]{{16}})({re.escape(WORK)})?")
    near = [names.fullmatch(each.name) for each in out.parent.glob(".*")]
    for part in {out.with_name(found[1]) for found in near if found} - {but}:
        remove_left_overs(part)
        shutil.rmtree(part, ignore_errors=True)


def _looked_for_within(clean: CleanConfig) -> list[str]:
    """What is dropped only if it repeats other text of the same call, in words."""
    words = ["near-duplicates"] if clean.near is not None else []
    words += [f"repeated {clean.repeated.unit}s"] if clean.repeated is not None else []
    return [*words, "repeated passages"] if clean.substring is not None else words


def settings_for_more(base: Corpus, data: DataConfig) -> tuple[DataConfig, TokenizerConfig]:
    """The settings of a corpus, for further text.

    Raises:
        InputError: the sources are to be mixed, or the corpus was cleaned by tasks, a function or a
            pipeline that `data` does not name.
    """
    if data.mix.temperature is not None or any(each.share is not None for each in data.sources):
        raise InputError(
            f"{base.path} is packed already, so nothing can be mixed with it by share or "
            "temperature: give the new sources a weight"
        )
    saved = base.settings()
    own = validated(DataConfig, saved["data"], f"{base.path}, data")
    _check_named_again(base, own.clean, data.clean)
    named = {key: getattr(data.clean, key) for key in NAMED_AGAIN}
    clean = own.clean.model_copy(update=named)
    kept: dict[str, Any] = {name: getattr(data, name) for name in OF_NEW_TEXT}
    kept |= {"clean": clean, "mix": DataConfig().mix, "orders": ()}
    tokenizer = validated(TokenizerConfig, saved["tokenizer"], f"{base.path}, tokenizer")
    file = str(base.path / "tokenizer.json")
    return own.model_copy(update=kept), tokenizer.model_copy(update={"file": file})


def _check_named_again(base: Corpus, there: CleanConfig, here: CleanConfig) -> None:
    """Check that the code, the pipeline and the tasks that `base` was cleaned with are named again.

    None is taken from the corpus, which holds a hash of each: code never runs because one says so.
    """
    if isinstance(base.manifest["data"]["clean"].get("downstream"), str):
        raise InputError(
            f"{base.path} was cleaned of evaluation tasks by an older version, whose rule is no "
            "longer known: prepare all text anew, the old and the new, with data.clean.downstream"
        )
    function, (pipeline, _, digest) = there.function or "", (there.entities or "").rpartition("@")
    suites, name = there.downstream or (), function.partition("@")[0]
    named: dict[str, tuple[str, str, Callable[[], bool]]] = {
        "function": (
            f"with {name}",
            f"type data.clean.function=FOLDER/{name}, with the same file",
            lambda: of_function(here.function or "") == of_function(function),
        ),
        "entities": (
            f"with the spaCy pipeline {pipeline}",
            "name it again with data.clean.entities, in the same version",
            lambda: of_pipeline(here.entities or "") == digest,
        ),
        "downstream": (
            f"of the tasks of {' and '.join(each.suite for each in suites)}",
            "name them again with data.clean.downstream, with the same data",
            lambda: downstream_settings(here.downstream or ()) == [s.model_dump() for s in suites],
        ),
    }
    for key in NAMED_AGAIN:
        cleaned, again, is_same = named[key]
        saved, given = getattr(there, key), getattr(here, key)
        if saved is None and given is not None:
            raise InputError(f"data.clean.{key}: {base.path} was cleaned without it; leave it out")
        if saved is not None and (given is None or not is_same()):
            raise InputError(
                f"{base.path} was cleaned {cleaned}, and stores only a hash of that: {again}"
            )


def _join(base: Corpus, new: Corpus, out: Path, engine: Engine) -> None:
    """Write all files of the joined corpus to the empty folder `out`."""
    hashes = {}
    rows = [(each, name) for each in (base, new) for name in each.row_files]
    for number, (corpus, name) in enumerate(rows):
        joined = f"rows-{number:05d}.bin"
        _link(corpus.path / name, out / joined)
        hashes[joined] = corpus.manifest["files"][name]["sha256"]
    for name in ("tokenizer.json", "heldout.jsonl.gz"):
        _link(base.path / name, out / name)
    write_samples(out, chain(read_samples(base.path), read_samples(new.path)))
    first = len(base.manifest["sources"])
    further = ({**part, "source": first + part["source"]} for part in read_parts(new))
    if parts := [*read_parts(base), *further]:
        write_parts(out, parts)
    documents = [known_documents(each) for each in (base, new)]
    if documents[0] is not None and documents[1] is not None:
        write_known(out, [np.concatenate([documents[0], documents[1]])])
    counts = base.token_counts(sampled=False) + new.token_counts(sampled=False)
    names: list[Ordering] = [name for name in get_args(Ordering) if name in base.orders]
    length, tokenizer = base.row_length, base.tokenizer
    order.store(
        out, names, length, tokenizer, counts, lambda jobs: engine.map(order.score_file, jobs)
    )
    manifest = _manifest(base, new, counts)
    manifest["heldout"] = {**base.manifest["heldout"], **_heldout(base, new, counts)}
    manifest["files"] = listed_files(out, hashes)
    write_json(out / "manifest.json", manifest)
    sync_all(out.iterdir())


def _link(file: Path, place: Path) -> None:
    """Give a file a second name, or copy it where that cannot be, as on another disk."""
    try:
        os.link(file.resolve(), place)
    except OSError:
        shutil.copyfile(file, place)


def _manifest(base: Corpus, new: Corpus, counts: NDArray[np.int64]) -> dict[str, Any]:
    first, second = base.manifest, new.manifest
    taken = {source["name"] for source in first["sources"]}
    further = []
    for source in second["sources"]:
        name, number = source["name"], 2
        while name in taken:
            name, number = f"{source['name']} ({number})", number + 1
        taken.add(name)
        further.append({**source, "name": name})
    added = {name: first[name] + second[name] for name in _ADDED}
    histograms = {
        name: [one + other for one, other in zip(value, second["statistics"][name], strict=True)]
        for name, value in first.get("statistics", {}).items()
        if isinstance(value, list)
    }
    own = unknown_and_unused(counts, Specials.of(base.tokenizer).unk)
    return {
        **first,
        **added,
        "crammed": second["crammed"],
        "extends": {"sha256": base.sha256, "rows": base.rows},
        "sources": [*first["sources"], *further],
        "skipped": [*first["skipped"], *second["skipped"]],
        "steps": _added_steps(first["steps"], second["steps"]),
        "statistics": {**histograms, **own},
    }


def _added_steps(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Numbers of steps that occur in both, added up; then the others of the second."""
    steps = {step["step"]: dict(step) for step in first}
    for step in second:
        known_step = steps.setdefault(step["step"], {"step": step["step"]})
        for name, number in step.items():
            if name != "step":
                known_step[name] = known_step.get(name, 0) + number
    return list(steps.values())


def _heldout(base: Corpus, new: Corpus, counts: NDArray[np.int64]) -> dict[str, Any]:
    """What changes about the held-out documents: their share, and how well words predict them."""
    held = base.manifest["heldout"]
    rows = rows_of_corpus(base, base.manifest["data"]["heldout_rows"])
    changed = {"unigram_cross_entropy": unigram_cross_entropy(counts, rows.ids)}
    if share := held.get("share"):
        all_characters = held["characters"] / share + new.manifest["characters"]
        changed["share"] = held["characters"] / all_characters
    return changed
