#!/usr/bin/env python3
"""What `make matrix` adds on a machine that is set up: `make matrix ONLY=ID` against `image-matrix matrix ID`, in turn; ID is known.

    benchmarks/second_run.py [--runs 5] ID

Both are whole processes, from command line to the printed table; nothing is built or probed. The difference is the set-up: looking
whether the environment is that of the lock file, and whether an engine answers.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from probe_time import ROOT
from run_overhead import clock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("id")
    arguments = parser.parse_args()
    with_make = ("make", "--no-print-directory", "matrix", f"ONLY={arguments.id}")
    without = (str(ROOT / ".venv/bin/image-matrix"), "matrix", arguments.id)
    clock(*with_make)  # the first one may set up and test
    pairs = [(clock(*without), clock(*with_make)) for _ in range(arguments.runs)]
    ratios = sorted(whole / alone for alone, whole in pairs)
    row = {
        "id": arguments.id, "matrix_s": round(statistics.median(alone for alone, _ in pairs), 2),
        "make_s": round(statistics.median(whole for _, whole in pairs), 2),
        "setup_s": round(statistics.median(whole - alone for alone, whole in pairs), 2), "ratio": round(statistics.median(ratios), 2),
        "ratio_low": round(ratios[0], 2), "ratio_high": round(ratios[-1], 2), "runs": len(pairs),
    }  # fmt: skip
    print(f"{arguments.id}: make {row['make_s']} s, alone {row['matrix_s']} s, ratio {row['ratio']}, set-up {row['setup_s']} s")
    Path(__file__).with_suffix(".json").write_text(json.dumps([row], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
