#!/usr/bin/env bash
# The judge's unit and golden tests in an environment with the wheel's own dependencies, frames, and what tests need.
# Usage: scripts/test_light.sh [highest|lowest-direct]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

uv venv --quiet ${UV_PYTHON:+--python "$UV_PYTHON"} "$work/light"
python="$work/light/bin/python"
[[ -x $python ]] || python="$work/light/Scripts/python.exe" # Windows
uv pip install --quiet --python "$python" --resolution "${1:-highest}" '.[frames]'
uv pip install --quiet --python "$python" 'pytest>=8.3' 'pytest-xdist>=3.6' 'hypothesis>=6.120' pyyaml statsmodels 'pyndeval>=0.0.8'
uv pip list --python "$python" | grep -iE '^(numpy|scipy|pandas|pydantic|typer|matplotlib|polars|pyarrow) '

"$python" -m pytest tests/unit/{analysis,core,results} tests/unit/data/test_language.py tests/unit/test_shown.py \
  tests/golden/test_{compare,door,gates,measures,statistics}_golden.py
