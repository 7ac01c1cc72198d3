#!/usr/bin/env python3
"""How far `declared` can be trusted: made for the CPU, as for CUDA without a GPU, and set beside what the same cases give.

benchmarks/declared.py IMAGE...
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from probe_time import ROOT, interpreter

INSIDE = """
import subprocess, sys, tempfile, os
path = os.path.join(tempfile.mkdtemp(), "probe.py")
open(path, "w").write(sys.stdin.read())
sys.exit(subprocess.call([sys.executable, "-W", "ignore", path, "--declared"]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", nargs="+")
    probe = (ROOT / "validator/probe/probe.py").read_text(encoding="utf-8")
    rows = []
    for image in parser.parse_args().images:
        done = subprocess.run(
            ["docker", "run", "--rm", "-i", "--network", "none", "--entrypoint", interpreter(image), image, "-c", INSIDE],
            input=probe, capture_output=True, text=True, check=True,
        )  # fmt: skip
        counts: dict[str, Counter[str]] = {}
        for case in json.loads(done.stdout):
            counts.setdefault(case["declared"], Counter())[case["outcome"]] += 1
        rows.append({"image": image, "counts": {known: dict(sorted(c.items())) for known, c in sorted(counts.items())}})
        for known in ("yes", "no", "unknown"):
            of = counts.get(known, Counter())
            share = f"{100 * of['pass'] / of.total():.1f} %" if of.total() else "-"
            print(f"{image}: declared {known:<8} {of.total():5} cases, of which pass {share}  {dict(of)}", flush=True)
    Path(__file__).with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
