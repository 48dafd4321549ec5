# Begins a call on a GPU machine, the first or a later one: source it in the repository's root.
#
#   KEEP   a folder that outlives the call (/tmp/keep unless it is set); the call continues there
#   OUT    the folder that comes back when the call ends
#   BENCH  the benchmarks of the commit that carry/commit names
#
# It unpacks what was sent in carry/ (README.md says what). Each commit has its own copy of the
# code, so that a run that outlives a call continues with the code it began with.
export KEEP=${KEEP:-/tmp/keep} PYTHONUNBUFFERED=1
OUT=$(realpath "$OUT") && CRAMMED_COMMIT=$(cat carry/commit) || exit
export OUT CRAMMED_COMMIT BENCH=$KEEP/code-$CRAMMED_COMMIT/benchmarks
mkdir -p "$KEEP/data"
if [ ! -d "$KEEP/code-$CRAMMED_COMMIT" ]; then
    mkdir "$KEEP/code-$CRAMMED_COMMIT" && cp -r src benchmarks "$KEEP/code-$CRAMMED_COMMIT" || exit
fi
if [ -d carry/data ]; then cp -r carry/data/. "$KEEP/data"; fi
if [ -d carry/wheels ] && [ ! -d "$KEEP/site" ]; then
    python3 -m pip install -q --no-index --no-deps --target "$KEEP/site" carry/wheels/*.whl || exit
fi
for trip in carry/text/trip-*; do
    if [ -d "$trip" ]; then python3 "$BENCH/gpu/carry.py" join "$trip" --to "$KEEP/text" || exit; fi
done
export PYTHONPATH=$KEEP/site:$KEEP/code-$CRAMMED_COMMIT/src
cd "$KEEP" || exit
