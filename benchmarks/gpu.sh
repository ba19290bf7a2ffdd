#!/bin/sh
# Times the embedded engine and the learner on one GPU, in one command of less than eight minutes:
#
#   sh benchmarks/gpu.sh                          on the GPU; writes gpu.json into $OUT (default: the current folder)
#   sh benchmarks/gpu.sh --device cpu --tiny      tries the script itself, in a few seconds
#
# Nothing is downloaded: the models have random weights. PYTHON names another interpreter than the one that
# `make test` set up; it needs torch, transformers, pydantic and numpy, and dapo is taken from this checkout.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
if ! command -v "$python" >/dev/null; then
    echo "$0: no interpreter at $python; run make test first, or name one: PYTHON=python3 sh $0" >&2
    exit 2
fi
export HF_HUB_OFFLINE=1
export PYTHONPATH="$root/src${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" "$root/benchmarks/gpu.py" "$@"
