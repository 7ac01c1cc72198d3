"""What `probe.py --coverage` tells -> docs/operators.md: every sparse kernel of torch with a case that reaches it, or why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SHORT = {"SparseCPU": "COO cpu", "SparseCUDA": "COO cuda", "SparseCsrCPU": "compressed cpu", "SparseCsrCUDA": "compressed cuda"}


def render(rows: Sequence[Mapping[str, Any]]) -> str:
    """rows: operator, keys, cases (how many reach it), first (one of them), reason (why there is none)."""
    reached = sum(bool(row["cases"]) for row in rows)
    lines = [
        "# Sparse kernels of torch and the cases that reach them",
        "",
        "Written by `scripts/docs --operators` from `probe.py --coverage` inside an image; a test in an image fails when a kernel",
        "is neither reached nor explained. A kernel is what torch registers under the dispatch keys SparseCPU, SparseCUDA,",
        "SparseCsrCPU and SparseCsrCUDA; reached means that a case, traced on the CPU, calls the operator with a sparse argument.",
        "The case of the same name on CUDA makes the same calls there.",
        "",
        f"{reached} of {len(rows)} operators are reached; the rest is explained.",
        "",
        "| operator | registered for | cases | for example |",
        "|---|---|---|---|",
    ]
    for row in rows:
        where = ", ".join(SHORT[key] for key in row["keys"])
        told = f"`{row['first']}`" if row["cases"] else f"none: {row['reason']}"
        lines.append(f"| `{row['operator']}` | {where} | {row['cases']} | {told} |")
    return "\n".join(lines) + "\n"
