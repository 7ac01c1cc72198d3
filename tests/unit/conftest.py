"""A Python with torch, for the few tests that compare with the real thing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from validator import probe

SEEK = (
    "import runpy, sys, os; os.environ['HOME'] = os.path.expanduser('~');"
    "found = runpy.run_path(sys.argv[1], run_name='probe'); print(found['find_interpreter']()[0])"
)


@pytest.fixture(scope="session")
def torch_python() -> Path:
    """IMAGE_MATRIX_TORCH_PYTHON, else the first interpreter with torch that the probe itself would find on this machine."""
    named = os.environ.get("IMAGE_MATRIX_TORCH_PYTHON", "")
    if not named:
        command = [sys.executable, "-c", SEEK, str(probe.PROBE_PATH)]
        named = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.strip()
    if not named:
        pytest.skip("no Python with torch on this machine; IMAGE_MATRIX_TORCH_PYTHON names one")
    return Path(named)
