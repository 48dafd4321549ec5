"""Follows a budget to the learning rate, and a norm to its layer: which files do they enter?

Usage: python way.py SRC, where SRC is the folder `src` of a checkout.
"""

import ast
import json
import pathlib
import sys
import tempfile

src = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(src))
tree = ast.parse((src.parent / "tests/test_architecture.py").read_text())
floors = next(
    ast.literal_eval(node.value)
    for node in ast.walk(tree)
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FLOORS"
)
FLOOR = {room: -number for number, rooms in enumerate(floors) for room in rooms}

from crammed.budget import Budget  # noqa: E402
from crammed.cli import corpora, training  # noqa: E402

HOLDERS = "Budget BudgetConfig RunConfig Asked Chosen Limits Planner Deadline Update".split()
WAYS = {  # the first function, the last, classes that hold the value, and names of it
    "budget": ("pretrain", "set_factor", HOLDERS, ("budget", "config", "asked", "fixed")),
    "norm": ("new_model", "norm_of", ["ModelConfig", "RunConfig"], ("config",)),
}
rooms = {way: [] for way in WAYS}
state = dict.fromkeys(WAYS, "before")


def trains(frame):
    while frame is not None and not frame.f_code.co_filename.endswith("training/loop.py"):
        frame = frame.f_back
    return frame is not None


def profile(frame, event, _):
    code = frame.f_code
    if event != "call" or "/crammed/" not in code.co_filename:
        return
    for way, (first, last, kinds, names) in WAYS.items():
        if state[way] == "before" and code.co_name == first:
            state[way] = "on"
        if state[way] != "on":
            continue
        given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        held = {name: frame.f_locals.get(name) for name in given}
        known = [v for n, v in held.items() if type(v).__name__ in kinds or n in names]
        if code.co_name == last or any(each is not None for each in known):
            rooms[way].append(code.co_filename.split("/crammed/")[-1])
        if code.co_name == last and (way == "norm" or trains(frame)):
            state[way] = "there"


home = pathlib.Path(tempfile.mkdtemp())
lines = (f"Line {n} says that {n * n} is the square of {n}, and no more. " * 3 for n in range(3000))
(home / "text.jsonl").write_text("\n".join(json.dumps({"text": line}) for line in lines))
model = ["model.max_length=32", "finetune.max_length=32"]
words = ["data.row_length=32", "tokenizer.vocab_size=256", "compute.workers=1", *model]
corpora.prepare(words, [str(home / "text.jsonl")], Budget.parse("1m"), home / "corpus", None)
sys.setprofile(profile)
training.pretrain(model, home / "corpus", Budget.parse("20s"), 0, home / "run", as_json=True)
sys.setprofile(None)
for way, entered in rooms.items():
    once = list(dict.fromkeys(entered))
    at = [FLOOR[room.split("/")[0].removesuffix(".py")] for room in once]
    climbs = sum(after > before for before, after in zip(at, at[1:], strict=False))
    print(way, f"{len(once)} rooms, {climbs} climbs:", *once)
