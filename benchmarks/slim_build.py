#!/usr/bin/env python3
"""Our slim build against the same packages by plain pip in a hand-written Dockerfile, without any cache, in turn.

    benchmarks/slim_build.py [--runs 3] ID

Both start from the same base image and install the same torch; both get this machine's CA bundle, index settings and local wheels.
What is timed is `docker build --no-cache`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from probe_time import ROOT

sys.path.insert(0, str(ROOT))

from validator.context import build_context, host_settings
from validator.matrix import load
from validator.model import Slim
from validator.render import render

PIP = """ARG BASE
FROM ${BASE}
RUN apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \\
    ca-certificates python3 python3-pip python3-venv && rm -rf /var/lib/apt/lists/*
COPY . /build/
RUN cd /build && if [ -f ca.pem ]; then export PIP_CERT=/build/ca.pem SSL_CERT_FILE=/build/ca.pem; fi; \\
    python3 -m venv /opt/venv && /opt/venv/bin/pip install -q --no-cache-dir --find-links /build torch==TORCH && rm -rf /build
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("id")
    arguments = parser.parse_args()
    image = next(one for one in load(ROOT / "images.yaml").images if one.id == arguments.id)
    assert isinstance(image.source, Slim)
    base = f"image-matrix/base:{image.source.base.name}"
    settings = host_settings(os.environ, ())
    times: dict[str, list[float]] = {"ours": [], "pip": []}
    for _ in range(arguments.runs):
        for name, text in (("pip", PIP.replace("TORCH", image.source.torch)), ("ours", render(image))):
            context = build_context(image, text, settings, base)
            with context.archive, tempfile.TemporaryDirectory() as folder:
                subprocess.run(["tar", "-x", "-C", folder], input=context.archive.read(), check=True)
                extra = [part for key, value in context.arguments.items() for part in ("--build-arg", f"{key}={value}")]
                start = time.perf_counter()
                subprocess.run(
                    ["docker", "build", "-q", "--no-cache", "--network", "host", *extra, "-t", f"image-matrix/benchmark:{name}", folder],
                    check=True, capture_output=True, env={**os.environ, "DOCKER_BUILDKIT": "0"},
                )  # fmt: skip
                times[name].append(time.perf_counter() - start)
                print(f"{name}: {times[name][-1]:.1f} s", flush=True)
    sizes = {
        name: int(subprocess.run(["docker", "image", "inspect", "-f", "{{.Size}}", f"image-matrix/benchmark:{name}"],
                                 check=True, capture_output=True, text=True).stdout)
        for name in times
    }  # fmt: skip
    subprocess.run(["docker", "rmi", *(f"image-matrix/benchmark:{name}" for name in times)], check=False, capture_output=True)
    ratios = sorted(one / other for one, other in zip(times["ours"], times["pip"], strict=True))
    row = {"id": image.id, "ours_s": round(statistics.median(times["ours"]), 1), "pip_s": round(statistics.median(times["pip"]), 1),
           "ratio": round(statistics.median(ratios), 2), "ratio_low": round(ratios[0], 2), "ratio_high": round(ratios[-1], 2),
           "runs": len(ratios), "bytes": sizes}  # fmt: skip
    print(
        f"{image.id}: ours {row['ours_s']} s, pip {row['pip_s']} s, ratio {row['ratio']} ({row['ratio_low']}-{row['ratio_high']})"
    )
    Path(__file__).with_suffix(".json").write_text(json.dumps([row], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
