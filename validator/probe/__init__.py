"""The host's side of the probe: its text, its version, its catalogue and the command that carries it into a container.

The probe itself (probe.py) is never imported here; it is sent, as text, on the command line: that needs no bind mount, no
copy into the container and no shell.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PROBE_PATH = Path(__file__).with_name("probe.py")
CASES_PATH = Path(__file__).with_name("cases.json")

OLD_PYTHON_EXIT = 79
OLD_PYTHON_MARK = "@image-matrix-old-python"
# Linux refuses a single argument of 128 KiB or more (MAX_ARG_STRLEN).
_PART = 96_000

# Must be understood by Python 2 as well, where it only has to say so.
BOOT = (
    "import sys\n"
    "if sys.version_info < (3, 6):\n"
    f"    sys.stdout.write('{OLD_PYTHON_MARK} ' + sys.version.split()[0] + chr(10))\n"
    f"    sys.exit({OLD_PYTHON_EXIT})\n"
    "import base64, zlib\n"
    "SOURCE = zlib.decompress(base64.b64decode(''.join(sys.argv[3:])))\n"
    "exec(compile(SOURCE, 'image-matrix-probe', 'exec'))\n"
)


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    """What the probe is asked to do. cases: globs, () for all; tier: quick, standard or full; devices: () for all;
    case_timeout and import_timeout (for `import torch`) in seconds."""

    cases: tuple[str, ...] = ()
    tier: str = "standard"
    devices: tuple[str, ...] = ()
    case_timeout: float = 30.0
    import_timeout: float = 180.0

    def key(self) -> dict[str, object]:
        """The part of a record's content key that the probe decides."""
        devices = {"devices": list(self.devices)} if self.devices else {}
        return {"probe": version(), "cases": list(self.cases), "tier": self.tier, **devices}

    def given(self) -> dict[str, object]:
        """As the probe itself wants it; what is not said is its own default."""
        devices = {"devices": list(self.devices)} if self.devices else {}
        limits = {"case_timeout": self.case_timeout, "import_timeout": self.import_timeout}
        return {"cases": list(self.cases) or ["*"], "tier": self.tier, **limits, **devices}


@cache
def source() -> str:
    """The probe's text."""
    return PROBE_PATH.read_text(encoding="utf-8")


@cache
def version() -> str:
    """Short SHA-256 of the probe's text: records made by equal probes can be compared. The probe computes the same."""
    return hashlib.sha256(source().encode()).hexdigest()[:12]


def command(options: Mapping[str, Any], nonce: str) -> tuple[str, ...]:
    """The arguments for a Python interpreter of the image. options: see DEFAULTS in probe.py; nonce: 32 hex digits."""
    payload = base64.b64encode(zlib.compress(source().encode(), 9)).decode("ascii")
    parts = tuple(payload[start : start + _PART] for start in range(0, len(payload), _PART))
    return ("-c", BOOT, nonce, json.dumps(dict(options), sort_keys=True), *parts)


@cache
def cases() -> tuple[dict[str, Any], ...]:
    """The catalogue, one entry per case, as `python probe.py --list` writes it (`make cases`)."""
    return tuple(json.loads(CASES_PATH.read_text(encoding="utf-8")))
