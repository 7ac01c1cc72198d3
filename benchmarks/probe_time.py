#!/usr/bin/env python3
"""The probe's standard tier on the CPU against a bare `import torch`, in one container of each image, run by run in turn.

    benchmarks/probe_time.py [--runs 5] IMAGE...

Both are whole Python processes, timed inside the container, so that starting the container is in neither.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INSIDE = """
import json, os, subprocess, sys, tempfile, time
text, runs = sys.stdin.read(), int(sys.argv[1])
path = os.path.join(tempfile.mkdtemp(), "probe.py")
open(path, "w").write(text)
def clock(*command):
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start
clock(sys.executable, "-c", "import torch")  # the files of torch come into the page cache
pairs = [(clock(sys.executable, "-c", "import torch"), clock(sys.executable, path, "--devices", "cpu")) for _ in range(runs)]
print(json.dumps(pairs))
"""


def interpreter(image: str) -> str:
    """The Python that holds torch: that of the virtual environment in our own images."""
    done = subprocess.run(
        ["docker", "run", "--rm", "--network", "none", "--entrypoint", "sh", image, "-c",
         "for p in /opt/venv/bin/python /opt/conda/bin/python python3 python; do $p -c 'import importlib.util as u,sys;"
         "sys.exit(u.find_spec(\"torch\") is None)' 2>/dev/null && echo $p && exit; done; exit 1"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("images", nargs="+")
    arguments = parser.parse_args()
    probe = (ROOT / "validator/probe/probe.py").read_text(encoding="utf-8")
    rows = []
    for image in arguments.images:
        done = subprocess.run(
            ["docker", "run", "--rm", "-i", "--network", "none", "--entrypoint", interpreter(image), image, "-c", INSIDE,
             str(arguments.runs)],
            input=probe, capture_output=True, text=True, check=True,
        )  # fmt: skip
        pairs = json.loads(done.stdout)
        bare, whole = (sorted(column) for column in zip(*pairs, strict=True))
        ratios = sorted(one / other for other, one in pairs)
        rows.append({
            "image": image, "import_s": round(statistics.median(bare), 3), "probe_s": round(statistics.median(whole), 3),
            "ratio": round(statistics.median(ratios), 2), "ratio_low": round(ratios[0], 2), "ratio_high": round(ratios[-1], 2),
            "runs": len(pairs),
        })  # fmt: skip
        row = rows[-1]
        print(f"{image}: import {row['import_s']} s, standard tier {row['probe_s']} s, ratio {row['ratio']} "
              f"({row['ratio_low']}-{row['ratio_high']}, {row['runs']} runs)", flush=True)  # fmt: skip
    Path(__file__).with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
