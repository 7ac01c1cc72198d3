#!/usr/bin/env python3
"""A whole `image-matrix run ID --refresh` against a bare `docker run IMAGE python -c "import torch"` of the same image, in turn.

    benchmarks/run_overhead.py [--runs 5] [--tier quick] ID...

Both are whole processes, from command line to exit, with the image on the engine already. The run includes looking at the host,
planning, starting the container, the probe's tier, the record and its judgement.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from probe_time import ROOT, interpreter


def clock(*command: str) -> float:
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tier", default="standard")
    parser.add_argument("ids", nargs="+")
    arguments = parser.parse_args()
    rows = []
    for ident in arguments.ids:
        image = f"image-matrix/{ident}"
        python = interpreter(image)
        with tempfile.TemporaryDirectory() as results:
            ours = (
                sys.executable,
                "-m",
                "validator",
                "--results",
                results,
                "run",
                "--refresh",
                "--tier",
                arguments.tier,
                ident,
            )
            bare = ("docker", "run", "--rm", "--network", "none", "--entrypoint", python, image, "-c", "import torch")
            clock(*bare)
            pairs = [(clock(*bare), clock(*ours)) for _ in range(arguments.runs)]
        ratios = sorted(whole / one for one, whole in pairs)
        rows.append({
            "id": ident, "tier": arguments.tier, "bare_s": round(statistics.median(one for one, _ in pairs), 2),
            "run_s": round(statistics.median(whole for _, whole in pairs), 2), "ratio": round(statistics.median(ratios), 2),
            "ratio_low": round(ratios[0], 2), "ratio_high": round(ratios[-1], 2), "runs": len(pairs),
        })  # fmt: skip
        row = rows[-1]
        print(f"{ident} ({row['tier']}): bare import {row['bare_s']} s, whole run {row['run_s']} s, ratio {row['ratio']} "
              f"({row['ratio_low']}-{row['ratio_high']}, {row['runs']} runs)", flush=True)  # fmt: skip
    Path(__file__).with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
