"""The program that goes into an image: it runs everywhere, says why it did not, and names what torch said truthfully.

No torch is needed: where one has to be there, a stub of a few lines stands for it.
"""

from __future__ import annotations

import ast
import base64
import importlib.util
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from validator import probe
from validator.model import Outcome
from validator.probe.channel import Frame, Reader, Report

NONCE = "fedcba9876543210" * 2
WORKING_STUB = "__version__ = '2.0.0+stub'\nclass version: git_version = cuda = hip = None\n"


def load() -> ModuleType:
    """The probe as a module, which only tests may do."""
    spec = importlib.util.spec_from_file_location("image_matrix_probe", probe.PROBE_PATH)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PROBE = load()


def run(
    python: str = sys.executable, options: dict[str, object] | None = None, **environment: str
) -> tuple[Report, list[Frame], subprocess.CompletedProcess[bytes]]:
    """Sends the probe to an interpreter as the host does. Other interpreters of this machine are hidden from it."""
    done = subprocess.run(
        [python, *probe.command(options or {"cases": ["coo.mm.float32.*"]}, NONCE)],
        capture_output=True,
        check=False,
        timeout=60,
        env={"PATH": "/nonexistent", "HOME": "/nonexistent", **environment},
    )
    reader = Reader(NONCE)
    frames = reader.feed(done.stdout)
    return reader.report(), frames, done


@pytest.fixture
def stub(tmp_path: Path) -> Any:
    """Writes a torch with this text; the environment that shows it to an interpreter."""

    def write(text: str) -> dict[str, str]:
        package = tmp_path / "site" / "torch"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(text, encoding="utf-8")
        return {"PYTHONPATH": str(package.parent)}

    return write


# --------------------------------------------------------------------------- where it can run


def test_it_parses_on_python_3_6_and_3_13() -> None:
    for minor in (6, 13):
        ast.parse(probe.source(), feature_version=(3, minor))


def test_it_imports_only_the_standard_library() -> None:
    tree = ast.parse(probe.source())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names
    assert {name.split(".")[0] for name in names} <= set(sys.stdlib_module_names)


def test_an_old_python_says_so_and_does_not_go_on() -> None:
    pretend = f"import sys\nsys.version_info = (2, 7, 18)\nsys.version = '2.7.18 (default)'\nexec({probe.BOOT!r})"
    done = subprocess.run([sys.executable, "-c", pretend], capture_output=True, check=False, timeout=60)
    assert done.returncode == probe.OLD_PYTHON_EXIT
    assert done.stdout == f"{probe.OLD_PYTHON_MARK} 2.7.18\n".encode()


def test_the_boot_is_python_2_too() -> None:
    assert not re.search(r"\bf['\"]|\bprint\b|->|:=|\bnonlocal\b|\bfrom None\b", probe.BOOT)


def test_every_argument_fits_the_kernels_limit_and_python_gets_the_text_back() -> None:
    flag, boot, nonce, options, *parts = probe.command({"tier": "quick"}, NONCE)
    assert (flag, boot, nonce, json.loads(options)) == ("-c", probe.BOOT, NONCE, {"tier": "quick"})
    assert parts
    assert max(map(len, (boot, options, *parts))) < 100_000
    assert zlib.decompress(base64.b64decode("".join(parts))).decode() == probe.source()


def test_an_unknown_option_is_refused() -> None:
    report, _, done = run(options={"casess": ["*"]})
    assert done.returncode != 0
    assert b"unknown option: casess" in done.stderr
    assert not report.hello


# --------------------------------------------------------------------------- no torch, broken torch


def test_without_torch_every_case_is_named_with_its_reason() -> None:
    report, frames, done = run(options={"tier": "full"})
    assert done.returncode == 0
    assert report.complete
    assert report.facts["torch_import"]["state"] == "absent"
    assert Counter(case.id for case in report.cases) == Counter(case["id"] for case in probe.cases())
    assert {(case.outcome, case.kind) for case in report.cases} == {(Outcome.NOT_RUN, "no-torch")}
    assert frames[0].data["probe"] == probe.version()


@pytest.mark.parametrize(
    ("text", "state", "kind"),
    [
        ("raise ImportError('libcudart.so.12: cannot open shared object file')", "error", "import-failed"),
        ("raise SystemExit(3)", "error", "import-failed"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crash", "import-crash"),
        ("import os; os._exit(0)", "crash", "import-crash"),
        ("import time; time.sleep(60)", "timeout", "import-timeout"),
    ],
)
def test_a_torch_that_cannot_be_imported_gives_a_whole_report(stub: Any, text: str, state: str, kind: str) -> None:
    report, _, _ = run(options={"cases": ["coo.mm.float32.*"], "import_timeout": 1.5}, **stub(text))
    assert report.complete
    assert report.problems == ()
    assert report.facts["torch_import"]["state"] == state
    assert report.facts["torch_import"]["detail"]
    assert report.cases
    assert {(case.outcome, case.kind) for case in report.cases} == {(Outcome.NOT_RUN, kind)}


def test_what_a_torch_prints_does_not_damage_the_report(stub: Any) -> None:
    noise = "import os\nfor _ in range(2000): os.write(1, b'@image-matrix \\xff noise\\n'); print('banner')\n"
    report, _, done = run(**stub(noise + "raise ImportError('x')"))
    assert report.complete
    assert report.problems == ()
    assert report.noise_head == ""
    assert b"banner" in done.stderr


def test_a_torch_in_which_even_dense_work_fails_is_not_believed(stub: Any) -> None:
    report, _, _ = run(**stub(WORKING_STUB))
    assert report.complete
    assert report.facts["torch"]["version"] == "2.0.0+stub"
    kinds = {("cuda" if ".cuda" in case.id else "cpu", case.kind) for case in report.cases}
    assert kinds == {("cpu", "control-failed"), ("cuda", "cpu-build")}
    assert {case.outcome for case in report.cases} == {Outcome.NOT_RUN}
    assert any(not control.held for control in report.controls)


def test_another_interpreter_that_holds_torch_takes_over(stub: Any, tmp_path: Path) -> None:
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    site = stub(WORKING_STUB)["PYTHONPATH"]
    other.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n', encoding="utf-8")
    other.chmod(0o755)
    report, _, _ = run(PATH=str(other.parent))
    assert report.complete
    assert report.facts["torch"]["file"].startswith(site)
    assert [one["torch"] for one in report.facts["python"]["interpreters"]] == [True, False]


def test_secrets_of_the_environment_stay_inside() -> None:
    report, _, done = run(API_TOKEN="hush", NVIDIA_VISIBLE_DEVICES="all")
    assert report.facts["environment"] == {"NVIDIA_VISIBLE_DEVICES": "all", "PATH": "/nonexistent"}
    assert b"hush" not in done.stdout


def test_a_path_that_is_no_utf_8_can_still_be_recorded() -> None:
    command = [sys.executable, *probe.command({"cases": ["coo.mm.float32.*"]}, NONCE)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60, env={b"PATH": b"/caf\xe9"})
    reader = Reader(NONCE)
    reader.feed(done.stdout)
    assert json.dumps(reader.report().facts, ensure_ascii=False).encode("utf-8")


# --------------------------------------------------------------------------- what torch said

# Real texts, with the torch they were seen in; class and message as torch raised them.
SAID: list[tuple[Exception, str, str]] = [
    (AttributeError("module 'torch.sparse' has no attribute 'sampled_addmm'"), "absent", "api-missing"),  # 1.9.1
    (AttributeError("'Tensor' object has no attribute 'to_sparse_csc'"), "absent", "api-missing"),  # 1.9.1
    (TypeError("_sparse_mm() takes 2 positional arguments but 3 were given"), "absent", "api-missing"),  # 1.13.1
    # A bug in the probe, or in torch's own Python, says nothing about what torch offers.
    (AttributeError("'Kit' object has no attribute 'spares'"), "error", "unclassified"),
    (AttributeError("'NoneType' object has no attribute 'grad_fn'"), "error", "unclassified"),
    (
        NotImplementedError("Could not run 'aten::bernoulli_.float' with arguments from the 'SparseCsrCPU' backend."),
        "unsupported",
        "no-kernel",
    ),  # 2.13.0
    (NotImplementedError("\"addmm_out_sparse_csr_impl_mkl\" not implemented for 'Half'"), "unsupported", "no-dtype"),
    (
        RuntimeError("The backward pass for this operation requires the 'mat1' tensor to be strided, but a sparse tensor"),
        "unsupported",
        "no-layout",
    ),  # 1.13.1
    (
        RuntimeError("Only tensors with two sparse dimensions can be converted to the SparseCsr layout, got self with 1"),
        "unsupported",
        "no-layout",
    ),  # 2.0.1
    (
        RuntimeError(
            'src.layout() == kSparseCsr || src.layout() == kSparseCsc INTERNAL ASSERT FAILED at "SparseCsrTensorMath'
            '.cpp":1, please report a bug to PyTorch.'
        ),
        "error",
        "internal-assert",
    ),  # 2.13.0
    (
        RuntimeError("MKL error: SPARSE_STATUS_INVALID_VALUE when calling `mkl_sparse_s_export_csr( source, indexing`"),
        "error",
        "library-status",
    ),  # 2.13.0
    (RuntimeError("CUDA error: no kernel image is available for execution on the device"), "error", "no-gpu-code"),
    (RuntimeError("CUDA error: an illegal memory access was encountered"), "error", "poisoned"),
    (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), "error", "out-of-memory"),
    (RuntimeError("sparse_mask_sparse_csr expects self to be 2D"), "error", "unclassified"),  # 1.13.1
    (ValueError("something nobody has seen"), "error", "unclassified"),
]


@pytest.mark.parametrize(("error", "outcome", "kind"), SAID, ids=lambda value: str(value)[:40])
def test_what_torch_says_is_named_as_what_it_is(error: Exception, outcome: str, kind: str) -> None:
    assert PROBE.classify(error) == (outcome, kind)


def test_a_detail_is_one_short_line() -> None:
    assert PROBE.first_line(RuntimeError("first\nsecond")) == "RuntimeError: first"
    assert len(PROBE.first_line(RuntimeError("x" * 5000))) == 400
    assert PROBE.first_line(KeyError()) == "KeyError:"


@pytest.mark.parametrize(
    ("state", "detail", "kind"),
    [
        ("ok", "", ""),
        ("no-build", "this torch is built without CUDA", "cpu-build"),
        ("no-device", "RuntimeError: No CUDA GPUs are available", "no-device"),
        ("no-device", "RuntimeError: Found no NVIDIA driver on your system.", "no-driver"),
        ("driver-too-old", "RuntimeError: The NVIDIA driver on your system is too old", "no-driver"),
        ("crash", "worker died: SIGSEGV", "cuda-crash"),
    ],
)
def test_why_cuda_cases_did_not_run(state: str, detail: str, kind: str) -> None:
    assert PROBE.no_cuda_kind(state, detail) == kind


# --------------------------------------------------------------------------- the catalogue

# layout[-layout].op[.dtype][.i32][.shape].device[.backward], as docs/design.md has it.
GRAMMAR = re.compile(
    r"(?P<layout>[a-z0-9]+(-[a-z]+)*)\.(?P<op>[a-z0-9-]+)\.(?P<dtype>bool|(int|float|complex|bfloat)\d+)"
    r"(\.(?P<index>i32))?(\.(?P<shape>[a-z][a-z0-9]*))?\.(?P<device>cpu|cuda)(?P<backward>\.backward)?"
)


def test_ids_say_what_the_case_is() -> None:
    for case in probe.cases():
        found = GRAMMAR.fullmatch(case["id"])
        assert found, case["id"]
        assert found["dtype"] == case["dtype"]
        assert found["device"] == case["device"]
        assert (found["index"] or "") == case.get("index", "")
        assert (found["shape"] or "") == case.get("shape", "")
        assert bool(found["backward"]) == case.get("backward", False)


def test_what_runs_on_the_cpu_runs_on_cuda_too() -> None:
    both = [{case["id"].replace(f".{d}", ".*") for case in probe.cases() if case["device"] == d} for d in ("cpu", "cuda")]
    # Numerical gradients belong to the CPU; so do processes that pass tensors on, and what is about the CPU's own memory.
    own = re.compile(
        r".*\.gradcheck\..*|work\.(dataloader|default-collate|multiprocessing|allreduce|ddp).*|.*\.(is-pinned|share-memory)\..*"
    )
    shared = {ident for ident in both[0] if not own.fullmatch(ident)}
    assert len(shared) > 2000
    assert shared <= both[1]


def test_there_are_profiles_and_each_names_cases_that_exist() -> None:
    members = Counter(name for case in probe.cases() for name in case.get("profiles", ()))
    assert set(members) == {"core", "gnn", "recsys", "attention", "pruning", "training", "solvers"}
    assert all(8 <= number <= 48 for number in members.values()), members
    assert {case["tier"] for case in probe.cases() if case.get("profiles")} <= {"quick", "standard"}


def test_a_copy_over_the_cpu_is_seen_in_what_the_gpu_did() -> None:
    away, back = "Memcpy DtoH (Device -> Pageable)", "Memcpy HtoD (Pageable -> Device)"
    kernel = ("void cusparse::csrmm_kernel<float>()", 0)
    assert PROBE.judge_events([kernel, (away, 8), kernel], True) == ("", {"kernels": 2, "names": [kernel[0]]})
    assert PROBE.judge_events([(away, 8), (back, 8), kernel], True)[0] == "", "a count read back is no detour"
    assert "192 bytes went to the CPU" in PROBE.judge_events([(away, 192), (back, 160), kernel], True)[0]
    assert PROBE.judge_events([(back, 160), kernel, (away, 192)], True)[0] == "", "a result fetched at the end is no detour"
    assert PROBE.judge_events([], True)[0] == "no kernel ran on the GPU"
    assert PROBE.judge_events([], False)[0] == ""


def test_a_trace_is_read_in_the_order_of_time() -> None:
    trace = {"traceEvents": [
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH", "ts": 5, "args": {"bytes": 64}},
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 3},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1},
        {"ph": "M", "cat": "kernel", "name": "metadata"},
        {"ph": "X", "cat": "gpu_memset", "name": "Memset", "ts": 2},
    ]}  # fmt: skip
    assert PROBE.gpu_events(trace) == [("k", 0), ("Memcpy DtoH", 64)]


def test_the_crossover_lies_between_the_densities_that_bracket_it() -> None:
    assert PROBE.crossover([(0.5, 0.9), (0.1, 0.2)]) == 0.5
    assert PROBE.crossover([(0.5, 4.0), (0.1, 2.0)]) is None
    assert PROBE.crossover([(0.4, 2.0), (0.1, 0.5)]) == pytest.approx(0.4 * 0.25 ** (2 / 3))


def test_the_selection_is_by_tier_device_and_glob() -> None:
    def ids(**options: Any) -> set[str]:
        return {case.id for case in PROBE.selected({**PROBE.DEFAULTS, **options})}

    tiers = [ids(tier=tier) for tier in PROBE.TIERS]
    assert tiers[0]
    assert all(small <= large for small, large in itertools.pairwise(tiers))
    assert ids(cases=["coo.mm.float32.cpu", "nothing.*"]) == {"coo.mm.float32.cpu"}
    assert {case.rsplit(".backward")[0].rsplit(".")[-1] for case in ids(devices=["cuda"])} == {"cuda"}


def test_a_case_declared_twice_is_a_mistake() -> None:
    case = next(iter(PROBE.CASES.values()))
    with pytest.raises(ValueError, match="declared twice"):
        PROBE.op(case.op, case.layout, "A", lambda a: a, dtypes=(case.dtype,), devices=(case.device,))


def test_every_run_has_controls_that_must_fail() -> None:
    expected = {entry.expected for entry in PROBE.CONTROLS.values() if entry.device == "cpu"}
    assert expected == {"pass", "wrong", "unsupported", "crash", "timeout"}
    assert "fallback" in {entry.expected for entry in PROBE.CONTROLS.values() if entry.device == "cuda"}


# --------------------------------------------------------------------------- workers


def ended(body: Any) -> list[tuple[str, Any]]:
    """Everything one worker gave, up to its end."""
    child = PROBE.Child(body)
    found = []
    while not found or found[-1][0] == "value":
        found.append(child.receive(time.monotonic() + 20))
    return found


def test_a_worker_sends_values_and_says_how_it_ended() -> None:
    assert ended(lambda send: send({"a": 1})) == [("value", {"a": 1}), ("end", "")]
    assert ended(lambda send: os._exit(7)) == [("end", "exit code 7")]
    assert ended(lambda send: os.kill(os.getpid(), signal.SIGKILL)) == [("end", "SIGKILL")]


def test_a_worker_that_hangs_is_killed_with_what_it_started() -> None:
    def body(send: Any) -> None:
        send(subprocess.Popen(["sleep", "60"]).pid)
        time.sleep(60)

    child = PROBE.Child(body)
    pid = child.receive(time.monotonic() + 20)[1]
    assert child.receive(time.monotonic() + 0.2) == ("late", None)
    child.kill()
    until = time.monotonic() + 10
    while time.monotonic() < until and _runs(pid):
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
