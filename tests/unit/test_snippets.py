"""Cases as programs of their own: short, without us, and with the same outcome."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.records import case, record
from tests.unit.test_cli import IMAGE, run
from tests.unit.test_probe import PROBE
from validator import probe, snippet
from validator.model import Declared, Finding, ImageIdentity, Outcome, Record, Severity
from validator.store import Store, record_of

IDS = [one["id"] for one in probe.cases()]
KINDS = {(one["layout"], one["op"]): one["id"] for one in probe.cases()}
SAMPLE = sorted({*IDS[::23], *KINDS.values()})


@pytest.mark.parametrize("part", range(4))
def test_a_snippet_is_short_and_is_python(part: int) -> None:
    chosen = SAMPLE[part::4]
    assert len(chosen) > 50
    for ident in chosen:
        text = PROBE.snippet(PROBE.CASES[ident])
        assert len(text.splitlines()) <= 20, ident
        tree = ast.parse(text)
        names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        assert names <= {"torch", "inspect", "copy", "math", "io"} or text.startswith(PROBE.CARRIED), ident
        assert PROBE.CASES[ident].recipe.operands or text.startswith(PROBE.CARRIED), "a workload is more than an expression"


def test_most_operations_stand_alone() -> None:
    operations = [PROBE.CASES[ident] for ident in SAMPLE if PROBE.CASES[ident].recipe.operands][::2]
    alone = [one for one in operations if not PROBE.snippet(one).startswith(PROBE.CARRIED)]
    assert len(alone) > 0.85 * len(operations)


@pytest.mark.parametrize(
    ("ident", "lines"),
    [
        ("csr.mm.float32.cuda", ("result = torch.sparse.mm(a, x)", "expected = a_dense @ x_dense", "device, dtype = 'cuda', torch.float32")),
        ("coo.to-bsr.float32.cpu", ("result = a.to_sparse_bsr((2, 2))", "expected = a_dense.clone()")),
        ("csr.sampled-addmm.float32.cpu", ("result = torch.sparse.sampled_addmm(a, m, n, beta=0.5, alpha=2.0)",)),
        ("bsr.abs.float32.cpu", ("result = torch.abs(a)", "expected = torch.abs(a_dense)")),
        ("coo.mm-mean.float32.cpu", ("result = torch.sparse.mm(a, x, 'mean')", "expected = reduced(a_dense, x_dense, 'mean')")),
    ],
)  # fmt: skip
def test_it_says_what_a_user_would_write(ident: str, lines: tuple[str, ...]) -> None:
    assert set(lines) <= set(PROBE.snippet(PROBE.CASES[ident]).splitlines())


def test_operands_are_those_of_the_probe() -> None:
    text = PROBE.snippet(PROBE.CASES["csr.matmul.float32.cpu"])
    assert "torch.tensor([0, 4, 6, 6, 6, 10, 12], device=device)" in text, "row 2 and 3 of A are empty"
    sizes, flat = PROBE.numbers("A", "real", "")
    assert sizes == (6, 8) and sum(value != 0 for value in flat) == 12


def test_by_hand() -> None:
    command = [sys.executable, str(probe.PROBE_PATH), "--snippet"]
    done = subprocess.run([*command, "coo.mm.float32.cpu"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == PROBE.snippet(PROBE.CASES["coo.mm.float32.cpu"])
    wrong = subprocess.run([*command, "coo.mn.float32.cpu"], capture_output=True, text=True, check=False, timeout=60)
    assert wrong.returncode == 1 and "there is no case coo.mn.float32.cpu" in wrong.stderr


def test_snippets_give_what_the_probe_gives(torch_python: Path) -> None:
    chosen = [ident for ident in SAMPLE if ".cpu" in ident and PROBE.CASES[ident].recipe.operands][::2]
    script = Path(__file__).with_name("snippets_against_torch.py")
    done = subprocess.run(
        [torch_python, script, probe.PROBE_PATH, *chosen], capture_output=True, text=True, check=True, timeout=600
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert len(found) > 60
    assert {ident: both for ident, both in found.items() if both[0] != both[1]} == {}
    assert Counter(by_probe for by_probe, _ in found.values())["pass"] > 20


# --------------------------------------------------------------------------- the host's side


def made(kind: str = "build", torch: str = "2.6.0", executable: str = "/opt/conda/bin/python", **over: object) -> Record:
    image = ImageIdentity(
        id="a", family="f", kind=kind, reference="nvcr.io/nvidia/pytorch:24.12-py3", digest="sha256:" + "d" * 64
    )
    facts = {"torch": {"version": torch}, "python": {"executable": executable}}
    kept = record("a", case("csr.mm.float32.cpu"), facts=facts, options={"gpus": "all"}, **over)
    return kept.model_copy(update={"image": image})


def test_the_host_knows_what_does_not_stand_alone() -> None:
    assert snippet._CARRIED == PROBE.CARRIED


def test_the_command_runs_it_in_exactly_that_image() -> None:
    pulled = snippet.snippet("csr.mm.float32.cuda", made("pull"))
    first, *rest = pulled.command.splitlines()
    assert first == (f"docker run --rm -i --gpus all nvcr.io/nvidia/pytorch@sha256:{'d' * 64} /opt/conda/bin/python - <<'EOF'")
    assert "\n".join(rest) == pulled.program + "EOF"
    built = snippet.snippet("csr.mm.float32.cpu", made())
    assert built.command.startswith("docker run --rm -i image-matrix/a /opt/conda/bin/python - <<'EOF'\nimport torch")
    assert snippet.snippet("csr.mm.float32.cpu", made("local")).command.startswith("/opt/conda/bin/python - <<'EOF'\nimport")


def test_a_workload_runs_by_the_probe_itself() -> None:
    work = next(one for one in IDS if one.startswith("work.") and one.endswith(".cuda"))
    shown = snippet.snippet(work, made())
    assert shown.program == ""
    assert shown.command.startswith("image-matrix probe --emit | docker run --rm -i --gpus all image-matrix/a sh -c 'cat > ")
    assert snippet.snippet(work, made("local")).command == (
        f"image-matrix probe --python /opt/conda/bin/python --tier full --cases {work}"
    )


def test_torch_1_9_has_another_name_for_the_constructor() -> None:
    assert "torch._sparse_csr_tensor(" in snippet.snippet("csr.mm.float32.cpu", made(torch="1.9.1+cu102")).program
    assert "torch.sparse_csr_tensor(" in snippet.snippet("csr.mm.float32.cpu", made(torch="1.10.0a0")).program


def test_an_entrypoint_that_swallows_commands_is_left_out() -> None:
    finding = Finding(code="entrypoint-swallows", severity=Severity.WARNING, message="x")
    assert "--entrypoint '' image-matrix/a" in snippet.snippet("csr.mm.float32.cpu", made(findings=(finding,))).command


def test_what_an_image_says_of_its_python_cannot_become_a_command() -> None:
    command = snippet.snippet("csr.mm.float32.cpu", made(executable="/p; rm -rf /\n")).command
    assert "'/p; rm -rf /\n' - <<'EOF'" in command


# --------------------------------------------------------------------------- image-matrix show


def test_show_an_image(tmp_path: Path) -> None:
    cases = (case("coo.mm.float32.cpu"), case("csr.mm.float32.cpu", Outcome.WRONG, "differs"))
    older = record(IMAGE, case("coo.mm.float32.cpu"), started="2026-11-01T00:00:00Z")
    for one in (older, record(IMAGE, *cases)):
        Store(tmp_path).write_record(one)
    text = run("--results", str(tmp_path), "show", IMAGE).stdout
    for words in (
        IMAGE,
        "2.6.0+cpu",
        "ok: the probe ran",
        "COO cpu  ✓ 1/1",
        "CSR cpu  0/1, 1 wrong",
        "csr.mm.cpu (1 case): differs",
    ):
        assert words in text
    shown = record_of(run("--results", str(tmp_path), "show", IMAGE, "--json").stdout)
    assert shown.started == "2026-12-01T00:00:00Z" and len(shown.cases) == 2


def test_show_a_case_of_an_image(tmp_path: Path) -> None:
    not_run = case("csr.mm.float32.cuda", Outcome.NOT_RUN, "no GPU runtime").model_copy(
        update={"declared": Declared.NO, "missing": "aten::mm"}
    )
    Store(tmp_path).write_record(record(IMAGE, case("csr.mm.float32.cpu", Outcome.WRONG, "differs"), not_run))
    text = run("--results", str(tmp_path), "show", "csr.mm.float32.cpu", "--image", IMAGE).stdout
    for words in (
        "✕ wrong",
        "executed (2026-12-01",
        "differs",
        "documented",
        "core",
        "tier",
        "docker run",
        "torch.sparse.mm(a, x)",
    ):
        assert words in text
    text = run("--results", str(tmp_path), "show", "csr.mm.float32.cuda", "--image", IMAGE).stdout
    assert "– not-run" in text and "evidence   none" in text and "no (aten::mm has no kernel)" in text
    data = json.loads(run("--results", str(tmp_path), "show", "csr.mm.float32.cpu", "--image", IMAGE, "--json").stdout)
    assert (
        data["result"]["outcome"] == "wrong" and data["case"]["tier"] == "quick" and data["program"].startswith("import torch")
    )
    assert "does not have it" in run("--results", str(tmp_path), "show", "coo.mm.float32.cpu", "--image", IMAGE).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("csr.mm.float32.cpu",), 2, "--image"),
        (("csr.mm.float32.cpv", "--image", IMAGE), 2, "there is no case csr.mm.float32.cpv"),
        (("slim-torch2.7.1-cu126-py3.11-bookworm",), 3, "has no record yet"),
        (("slim-torch2.6.0-cu124-py3.11-bookwurm",), 3, f"did you mean {IMAGE}"),
    ],
)
def test_a_mistake_is_one_message_and_one_code(tmp_path: Path, arguments: tuple[str, ...], code: int, words: str) -> None:
    Store(tmp_path).write_record(record(IMAGE))
    done = run("--results", str(tmp_path), "show", *arguments)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert words in done.stderr and "Traceback" not in done.stderr
