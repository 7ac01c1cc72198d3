"""What is known of GPUs, CUDA, drivers and torch releases without running anything: JSON files with a source for each entry.

`load()` gives them as frozen data; docs/facts.md says what stands in which file and how it is kept true.
"""

from validator.facts.load import FILES, entries, load
from validator.facts.schema import (
    Branch,
    Build,
    Confidence,
    Cuda,
    DriverEnd,
    Entry,
    Facts,
    Forward,
    Gpu,
    Gpus,
    Kind,
    MinorVersion,
    Ngc,
    NgcImage,
    Origin,
    Release,
    Report,
    Rule,
    Toolkit,
    Torch,
)

__all__ = [
    "FILES",
    "Branch",
    "Build",
    "Confidence",
    "Cuda",
    "DriverEnd",
    "Entry",
    "Facts",
    "Forward",
    "Gpu",
    "Gpus",
    "Kind",
    "MinorVersion",
    "Ngc",
    "NgcImage",
    "Origin",
    "Release",
    "Report",
    "Rule",
    "Toolkit",
    "Torch",
    "entries",
    "load",
]
