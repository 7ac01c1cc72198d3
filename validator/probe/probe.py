"""The program that runs inside an image: it tries sparse operations and reports what was seen.

One file, standard library and the image's own torch only; Python 3.6 to 3.14, torch 1.9 and newer. The host never
imports it: it sends the text along on the command line (validator/probe/__init__.py) and reads frames from standard
output (validator/probe/channel.py). By hand: `python probe.py [--json | --list] [--cases GLOB ...]`.

Processes: the supervisor (no torch) starts the server, which imports torch once, never touches CUDA and forks workers
that run cases. A crash, a hang or a poisoned CUDA context costs one worker and one case.

A case compares with a reference that is dense, float64 (complex128, int64, bool) and on the CPU, and that never goes
through sparse code. Operands are not square, have different patterns, an empty row and truly missing elements, because
full or alike operands hide faults. Their values are small whole numbers, so that sums are exact in every dtype.
"""

import argparse
import ctypes
import fnmatch
import glob
import hashlib
import importlib.util
import itertools
import json
import os
import platform
import re
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
import warnings
from typing import Any, Callable, NamedTuple

torch = None  # type: Any  # set by the server; the supervisor and --list never import it

# --------------------------------------------------------------------------- channel: frames on standard output

MARKER = "@image-matrix"


def frame(nonce: str, seq: int, body: "dict[str, Any]") -> bytes:
    """One line: marker, nonce, number, length and checksum of what follows, JSON in ASCII."""
    text = json.dumps(body, ensure_ascii=True, allow_nan=False, separators=(",", ":"), default=str)
    digest = hashlib.sha256(("%s %d %s" % (nonce, seq, text)).encode()).hexdigest()[:16]
    return ("\n%s %s %d %d %s %s\n" % (MARKER, nonce, seq, len(text), digest, text)).encode("ascii")


class Output:
    """The only writer of the report. Without a nonce (a run by hand) it keeps the frames instead of writing them."""

    def __init__(self, nonce: str) -> None:
        self.nonce = nonce
        self.seq = 0
        self.frames = []  # type: list[dict[str, Any]]
        self.counts = {}  # type: dict[str, int]
        # Whatever torch, its libraries or children print goes to stderr, so that it cannot cut a frame in two.
        sys.stdout.flush()
        self.fd = os.dup(1)
        os.dup2(2, 1)

    def emit(self, what: str, **body: Any) -> None:
        body = dict(body, frame=what)
        if what == "case":
            self.counts[body["outcome"]] = self.counts.get(body["outcome"], 0) + 1
        if self.nonce:
            self.write(frame(self.nonce, self.seq, body))
        else:
            self.frames.append(body)
        self.seq += 1

    def write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.fd, data) :]

    def end(self, complete: bool) -> None:
        self.emit("end", complete=complete, counts=self.counts)


# --------------------------------------------------------------------------- interpreter: who holds torch?

HANDOVER = "IMAGE_MATRIX_PROBE_INTERPRETERS"
SEEK = (
    "import sys,importlib.util as u;s=u.find_spec('torch');"
    "sys.stdout.write('%d.%d.%d %d'%(sys.version_info[:3]+(bool(s and s.origin),)))"
)


def has_torch() -> bool:
    """Whether this interpreter would find a torch. A bare folder named torch (a namespace package) is none."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return False
    return bool(spec and spec.origin)


def candidates() -> "list[str]":
    """Paths of other interpreters in the usual places, most likely first, one per folder and real file."""
    home = os.path.expanduser("~")
    prefixes = [os.environ.get(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    folders = [os.path.join(prefix, "bin") for prefix in prefixes if prefix]
    folders += os.environ.get("PATH", "").split(os.pathsep)
    for pattern in (
        "/opt/conda/bin", "/opt/conda/envs/*/bin", "/opt/venv*/bin", "/venv/bin", "/.venv/bin", "/app/.venv/bin",
        "/workspace/*venv*/bin", "/usr/local/bin", "/usr/bin", "/opt/*/bin", "/opt/*/*/bin", "/usr/local/*/bin",
        home + "/*conda*/bin", home + "/*conda*/envs/*/bin", home + "/*venv*/bin", home + "/.pyenv/versions/*/bin",
    ):  # fmt: skip
        folders += sorted(glob.glob(pattern))
    found = []  # type: list[str]
    seen = {(os.path.dirname(sys.executable or ""), os.path.realpath(sys.executable or ""))}
    for folder in folders:
        names = glob.glob(os.path.join(glob.escape(folder), "python*")) if folder else []
        for path in sorted(n for n in names if re.match(r"python(3(\.\d+)?)?$", os.path.basename(n))):
            key = (os.path.dirname(path), os.path.realpath(path))
            if key not in seen and os.access(path, os.X_OK):
                seen.add(key)
                found.append(path)
    return found[:60]


def find_interpreter(seconds: float = 60.0) -> "tuple[str, list[dict[str, Any]]]":
    """Ask other interpreters, in order, until one has torch: (its path or "", all that were asked)."""
    asked = []  # type: list[dict[str, Any]]
    until = time.monotonic() + seconds
    for path in candidates():
        if time.monotonic() > until:
            break
        try:
            answer = subprocess.run(
                [path, "-c", SEEK], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
                timeout=15,
            ).stdout.decode("ascii", "replace").split()  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            continue
        if len(answer) == 2:
            torch_there = answer[1] == "1"
            asked.append({"path": path, "version": answer[0], "torch": torch_there})
            if torch_there and tuple(int(p) for p in answer[0].split(".")) >= (3, 6):
                return path, asked
    return "", asked


def own_command() -> "list[bytes]":
    """The command line this process was started with, so that another interpreter can be started the same way."""
    with open("/proc/self/cmdline", "rb") as stream:
        return stream.read().split(b"\0")[:-1]


def choose_interpreter() -> "list[dict[str, Any]]":
    """Returns what is known of the interpreters here; when another one holds torch, it takes this process over."""
    handed = os.environ.pop(HANDOVER, "")
    me = {"path": sys.executable, "version": platform.python_version(), "torch": has_torch()}
    if handed:
        return [me] + json.loads(handed)  # type: ignore[no-any-return]
    if me["torch"]:
        return [me]
    path, asked = find_interpreter()
    if path:
        rest = [me] + [one for one in asked if one["path"] != path]
        try:
            os.environ[HANDOVER] = json.dumps(rest)
            os.execv(path, [os.fsencode(path)] + own_command()[1:])
        except OSError:
            os.environ.pop(HANDOVER, None)
    return [me] + asked


# --------------------------------------------------------------------------- facts

# Only these; an environment may hold secrets, and records are published.
ENVIRONMENT = re.compile(
    r"(NVIDIA_(VISIBLE_DEVICES|DRIVER_CAPABILITIES|REQUIRE_CUDA|DISABLE_REQUIRE|PRODUCT_NAME|BUILD_ID|PYTORCH_VERSION)"
    r"|CUDA_(VERSION|VISIBLE_DEVICES|HOME|MODULE_LOADING|DRIVER_VERSION)|(CUDNN|NCCL|CUBLAS|CUSPARSE|CUSPARSELT)_VERSION"
    r"|NV_CUDA_\w*VERSION|PYTORCH_(VERSION|BUILD_VERSION|BUILD_NUMBER|HOME|NVML_BASED_CUDA_CHECK)|TORCH_CUDA_ARCH_LIST"
    r"|LD_LIBRARY_PATH|LD_PRELOAD|PATH|OMP_NUM_THREADS|MKL_NUM_THREADS|CONDA_DEFAULT_ENV|ROCM_VERSION|LANG)$"
)
PACKAGES = re.compile(
    r"(torch|numpy|scipy|triton|pytorch.triton|nvidia_(cusparse|cusparselt|nvjitlink|cublas|cudnn|cuda_runtime|nccl)\w*"
    r"|cuda_toolkit|mkl|torch_(scatter|sparse|cluster|geometric|tensorrt)|pyg_lib|dgl|torchsparse|spconv\w*|torchao"
    r"|MinkowskiEngine|xformers|flash_attn|deepspeed|cupy\w*|torchvision|torchaudio)$",
    re.I,
)


def attempt(get: "Callable[[], Any]", default: Any = None) -> Any:
    """get(), or `default` when this system or this torch does not know it."""
    try:
        return get()
    except Exception:
        return default


def read(path: str, limit: int = 65536) -> str:
    with open(path, errors="replace") as stream:
        return stream.read(limit)


def os_release() -> "dict[str, str]":
    pairs = re.findall(r'^(ID|VERSION_ID|PRETTY_NAME|VERSION_CODENAME)="?([^"\n]*)"?$', read("/etc/os-release"), re.M)
    return {key.lower(): value for key, value in pairs}


def system_facts(interpreters: "list[dict[str, Any]]") -> "dict[str, Any]":
    """What is known before torch is touched."""
    driver = attempt(lambda: re.findall(r"Module\s+([\d.]+)", read("/proc/driver/nvidia/version")), [])
    return {
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": sys.executable,
            "prefix": sys.prefix,
            "interpreters": interpreters,
        },
        "system": {
            "libc": attempt(lambda: os.confstr("CS_GNU_LIBC_VERSION"), "") or " ".join(platform.libc_ver()).strip(),
            "os": attempt(os_release, {}),
            "machine": platform.machine(),
            "kernel": platform.release(),
            "cpus": attempt(lambda: len(os.sched_getaffinity(0)), os.cpu_count()),
            "uid": os.getuid(),
            "home": os.environ.get("HOME", ""),
            "pid": os.getpid(),
        },
        "environment": {name: os.environ[name][:1000] for name in sorted(os.environ) if ENVIRONMENT.match(name)},
        "nvidia": {
            "devices": sorted(glob.glob("/dev/nvidia[0-9]*") + glob.glob("/dev/dxg")),
            "kernel_module": driver[0] if driver else "",
        },
    }


def packages(site: str) -> "dict[str, str]":
    """Installed packages that matter here, from the names of their metadata folders (no import, no parsing)."""
    found = {}
    for name in os.listdir(site):
        match = re.match(r"(.+?)-([^-]+)\.(dist|egg)-info$", name)
        if match and PACKAGES.match(match.group(1).replace("-", "_")):
            found[match.group(1)] = match.group(2)
    return dict(sorted(found.items()))


def first_torch_facts() -> "dict[str, Any]":
    """What torch says of itself in plain attributes: sent at once, in case anything later goes wrong."""
    version = torch.version
    return {
        "version": str(torch.__version__),
        "git": getattr(version, "git_version", None),
        "cuda": getattr(version, "cuda", None),
        "hip": getattr(version, "hip", None),
        "xpu": getattr(version, "xpu", None),
        "debug": getattr(version, "debug", None),
        "file": torch.__file__,
    }


def torch_facts() -> "dict[str, Any]":
    """The rest: these calls enter native code, so they run in a worker. None of them initialises CUDA."""
    flags = attempt(lambda: torch._C._cuda_getArchFlags(), "") or ""
    nccl = attempt(lambda: torch.cuda.nccl.version())
    lt = getattr(torch.backends, "cusparselt", None)
    return {
        "cudnn": attempt(lambda: torch.backends.cudnn.version()),
        "nccl": ".".join(map(str, nccl)) if isinstance(nccl, tuple) else nccl,
        "arch_list": flags.split(),
        "cusparselt": {"version": attempt(lambda: lt.version()), "available": attempt(lambda: bool(lt.is_available()))}
        if lt
        else None,
        "built_with_cuda": attempt(lambda: torch.backends.cuda.is_built()),
        "mkl": attempt(lambda: torch.backends.mkl.is_available()),
        "mkldnn": attempt(lambda: torch.backends.mkldnn.is_available()),
        "openmp": attempt(lambda: torch.backends.openmp.is_available()),
        "cxx11_abi": attempt(lambda: torch.compiled_with_cxx11_abi()),
        "config": attempt(lambda: torch.__config__.show(), ""),
        "cpu_capability": attempt(lambda: torch.backends.cpu.get_cpu_capability()),
        "packages": attempt(lambda: packages(os.path.dirname(os.path.dirname(torch.__file__))), {}),
    }


def nvml_driver() -> str:
    """The driver's release ("550.54.14") as the driver library itself says it."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    text = ctypes.create_string_buffer(96)
    if library.nvmlInit_v2() or library.nvmlSystemGetDriverVersion(text, 96):
        return ""
    return text.value.decode("ascii", "replace")


def libcuda() -> str:
    """Path of the driver library that a program here would load. Raises when there is none."""
    ctypes.CDLL("libcuda.so.1")
    return re.findall(r"(/\S*/libcuda\.so\S*)$", read("/proc/self/maps", 1 << 24), re.M)[0]  # type: ignore[no-any-return]


def cuda_facts() -> "dict[str, Any]":
    """Runs in a CUDA worker: whether CUDA starts, with which driver and devices, or why not (torch's own words)."""
    facts = {
        "driver": attempt(nvml_driver, ""),
        "driver_cuda": attempt(lambda: torch._C._cuda_getDriverVersion()),
        "libcuda": attempt(libcuda),
    }
    try:
        torch.cuda.init()
        count = torch.cuda.device_count()
        if not count:
            return dict(facts, state="no-device", detail="torch.cuda.device_count() is 0")
        facts["devices"] = []
        for index in range(count):
            device = torch.cuda.get_device_properties(index)
            facts["devices"].append({
                "name": device.name,
                "compute_capability": "%d.%d" % (device.major, device.minor),
                "memory_mib": device.total_memory // 2**20,
                "multiprocessors": device.multi_processor_count,
            })  # fmt: skip
        return dict(facts, state="ok", detail="")
    except Exception as error:
        text = first_line(error)
        state = "driver-too-old" if "too old" in text else "no-device" if re.search(NO_DEVICE, text) else "error"
        return dict(facts, state=state, detail=text)


NO_DEVICE = r"no NVIDIA driver|no CUDA-capable device|No CUDA GPUs|No HIP GPUs"


# --------------------------------------------------------------------------- outcomes from error texts

# (pattern over "Class: message", outcome, kind); the first match wins, so order matters.
# A refusal is `unsupported` only when the text says so; what is not known stays `error`.
TEXTS = [
    # Only torch's own names: an attribute missing on anything else is somebody's bug, not an absent API.
    (r"(module|type object) '(torch[\w.]*|Tensor|Sparse\w*)' has no attribute|'(torch\.)?Tensor' object has no attribute"
     r"|takes (from \d+ to )?\d+ positional arguments? but|unexpected keyword argument", "absent", "api-missing"),
    (r"no kernel image is available|not compatible with the current PyTorch installation", "error", "no-gpu-code"),
    (r"cannot open shared object|undefined symbol|symbol \w+ version .* not defined", "error", "missing-library"),
    (
        r"requires? compiling PyTorch with|[Pp]lease use (a )?PyTorch built|without MKL|PyTorch built with MKL"
        r"|cuSPARSELT? not supported on your machine|hipSparseLt not supported|[Nn]ot compiled with CUDA",
        "unsupported", "build-option",
    ),
    (
        r"illegal memory access|misaligned address|device-side assert|unspecified launch failure|illegal instruction",
        "error", "poisoned",
    ),
    (r"out of memory|OutOfMemory|can't allocate memory", "error", "out-of-memory"),
    (r"insufficient resources when|internal error when|architecture mismatch|SPARSE_STATUS_|when calling .cu(sparse|blas)",
     "error", "library-status"),
    # Torch asks to report these as its bugs: nothing was refused, something went wrong.
    (r"INTERNAL ASSERT FAILED", "error", "internal-assert"),
    (r"Could not run 'aten::", "unsupported", "no-kernel"),
    (r"not (yet )?implemented for '|not implemented for .*(Half|BFloat16|Float|Double|Bool|Char|Int|Long|Complex)",
     "unsupported", "no-dtype"),
    (
        r"unsupported tensor layout|unsupported combination of layouts|[Uu]nsupported layout|expect(s|ed)? .*(layout|tensor)"
        r"|not implemented for (Sparse|Strided)|do(es)? not have (strides|is_contiguous)|[Cc]annot access (storage|data)"
        r"|memory format option|support for output with|no view exists|expand is unsupported|[Ss]parse \w* ?gradients"
        r"|(add|sub|mul|div)\(sparse, dense\)|only compressed sparse format|Only batched sparse compressed"
        r"|original_tensor\.(device|dtype|dim|shape)|computation on \w+ is not implemented|layout .* (is )?not supported"
        r"|[Ss]parse .* (is|are) not supported|(is|are) not supported for sparse|coalesced sparse"
        r"|to_sparse_\w+ .*(not supported|unsupported)|don't support|sparse_dim|can only be (called|used)"
        r"|requires the '\w+' tensor to be strided|can be converted to the Sparse\w+ layout"
        r"|to be of format CSR|Input type \(torch\.(cuda\.)?sparse|matrices expected, got",
        "unsupported", "no-layout",
    ),
    (r"only Tensors of floating point|for complex|Boolean inputs|only accepts floating", "unsupported", "no-dtype"),
    (r"NotImplementedError|[Nn]ot (yet )?implemented|[Nn]ot supported|[Uu]nsupported|does not support|doesn't support"
     r"|without a derivative|not differentiable|derivative for .* not",
     "unsupported", "refused"),
]  # fmt: skip
POISON = "poisoned"


class Absent(Exception):
    """An API that a case needs was looked up and this torch has none."""


def first_line(error: BaseException) -> str:
    """Exception class and first line, capped: what a person needs to recognise it."""
    lines = str(error).strip().splitlines()
    return ("%s: %s" % (type(error).__name__, lines[0] if lines else "")).strip()[:400]


def classify(error: BaseException) -> "tuple[str, str]":
    """(outcome, kind) of an exception that a case raised."""
    if isinstance(error, Absent):
        return "absent", "api-missing"
    text = "%s: %s" % (type(error).__name__, error)
    for pattern, outcome, kind in TEXTS:
        if re.search(pattern, text):
            if outcome == "absent" and not isinstance(error, (AttributeError, TypeError)):
                continue
            return outcome, kind
    return "error", "unclassified"


# --------------------------------------------------------------------------- operands and dense references

BLOCK = (2, 2)
COMPLEX = ("complex64", "complex128")
FLOATING = ("float16", "bfloat16", "float32", "float64") + COMPLEX
# rtol, atol as torch.testing.assert_close has them by default, the same from 1.9 to 2.13.
TOLERANCE = {
    "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float32": (1.3e-6, 1e-5), "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5), "complex128": (1e-7, 1e-7),
}  # fmt: skip
# Sparse operands: shape, and which 2x2 blocks hold anything; within a block every fourth element or so is missing.
SPARSE = {
    "A": ((6, 8), {(0, 0), (0, 2), (2, 1), (2, 3)}),  # block row 1 is empty: rows 2 and 3; column block patterns differ
    "B": ((6, 8), {(0, 1), (0, 2), (1, 0), (2, 3)}),  # same shape as A, other pattern
    "S": ((8, 4), {(0, 0), (1, 1), (2, 0)}),  # right side of A @ S; rows 6 and 7 are empty
}  # type: dict[str, tuple[tuple[int, ...], set[tuple[int, int]]]]
STACKED = {"T": ("A", "B"), "U": ("T", "T"), "V": ("U", "U")}  # 3, 4 and 5 dimensions, for batches and convolutions
DENSE = {"x": (8, 5), "d": (6, 8), "y": (6, 5), "v": (8,), "u": (6,), "w": (5, 8), "b": (5,), "l": (5, 6)}
MASTERS = {}  # type: dict[tuple[str, str], Any]


def master(name: str, dtype: str) -> Any:
    """The dense truth of an operand: float64, complex128, int64 or bool on the CPU. Callers must not write to it."""
    kind = (
        "complex" if dtype in COMPLEX else "real" if dtype in FLOATING else "bool" if dtype == "bool" else
        "unsigned" if dtype == "uint8" else "whole"
    )  # fmt: skip
    if (name, kind) not in MASTERS:
        MASTERS[name, kind] = make_master(name, kind, dtype)
    return MASTERS[name, kind]


def make_master(name: str, kind: str, dtype: str) -> Any:
    if name in STACKED:
        return torch.stack([master(part, dtype) for part in STACKED[name]])
    salt = ord(name)
    if name in DENSE:
        shape = DENSE[name]
        size = 1
        for side in shape:
            size *= side
        values = [float((7 * k + salt) % 9 - 4) for k in range(size)]
    else:
        shape, blocks = SPARSE[name]
        rows, columns = shape
        values = []
        for i, j in itertools.product(range(rows), range(columns)):
            there = (i // BLOCK[0], j // BLOCK[1]) in blocks and (i + 2 * j + salt) % 4 != 0
            values.append(float(((3 * i + 5 * j) % 4 + 1) * (-1 if (i + j + salt) % 3 == 0 else 1)) if there else 0.0)
    tensor = torch.tensor(values, dtype=torch.float64).reshape(shape)
    if kind == "complex":
        return torch.complex(tensor, tensor.flip(0) * (tensor != 0).to(torch.float64) - 0.5 * tensor)
    return {
        "real": lambda: tensor,
        "whole": lambda: tensor.to(torch.int64),
        "unsigned": lambda: tensor.abs().to(torch.int64),
        "bool": lambda: tensor != 0,
    }[kind]()


def torch_dtype(name: str) -> Any:
    if not hasattr(torch, name):
        raise Absent("torch.%s" % name)
    return getattr(torch, name)


def constructor(layout: str) -> "Callable[..., Any]":
    """The constructor of a compressed layout under its public name, else the private one of torch 1.9."""
    make = getattr(torch, "sparse_%s_tensor" % layout, None) or getattr(torch, "_sparse_%s_tensor" % layout, None)
    if make is None:
        raise Absent("torch.sparse_%s_tensor" % layout)
    return make  # type: ignore[no-any-return]


COMPONENTS = {}  # type: dict[tuple[str, str, str, str], tuple[Any, ...]]


def components(dense: Any, layout: str, shape: str) -> "tuple[Any, ...]":
    """Index tensors (int64) and values that make up `dense` in a layout, found without any sparse code."""
    if layout in ("coo", "hybrid"):
        there = dense != 0
        while layout == "hybrid" and there.dim() > 1:  # one sparse dimension, the rest dense
            there = there.any(-1)
        indices = there.nonzero().t().contiguous()
        values = dense[tuple(indices)]
        if shape == "dup":  # unsorted, and every element stored in two parts that must be added
            part = torch.ones_like(values)
            rest = values ^ part if values.dtype == torch.bool else values - part
            if values.dtype == torch.bool:
                rest, part = values, values
            indices = torch.cat([indices.flip(1), indices], 1)
            values = torch.cat([rest.flip(0), part])
        return indices, values
    rows, columns = dense.shape
    down, across = BLOCK if layout in ("bsr", "bsc") else (1, 1)
    blocks = dense.reshape(rows // down, down, columns // across, across).permute(0, 2, 1, 3)
    there = (blocks != 0).any(-1).any(-1)
    if layout in ("csc", "bsc"):
        there, blocks = there.t(), blocks.transpose(0, 1)
    pairs = there.nonzero()
    compressed = torch.cat([torch.zeros(1, dtype=torch.int64), there.sum(1).cumsum(0)])
    values = blocks[pairs[:, 0], pairs[:, 1]]
    if layout in ("csr", "csc"):
        values = values.reshape(-1)
    return compressed, pairs[:, 1].contiguous(), values.contiguous()


def make_sparse(name: str, layout: str, dtype: str, device: Any, shape: str = "", index: str = "") -> Any:
    """An operand built from its parts, never by a conversion, so that a broken conversion shows as its own case."""
    dense = master(name, dtype)
    key = (name, layout, shape, str(dense.dtype))
    if key not in COMPONENTS:
        COMPONENTS[key] = components(dense, layout, shape)
    parts = list(COMPONENTS[key])
    parts[-1] = parts[-1].to(torch_dtype(dtype), copy=True).to(device)
    for place in range(len(parts) - 1):
        part = parts[place]
        parts[place] = (part.to(torch.int32) if index == "i32" else part.clone()).to(device)
    if layout in ("coo", "hybrid"):
        return torch.sparse_coo_tensor(parts[0], parts[1], tuple(dense.shape))
    return constructor(layout)(parts[0], parts[1], parts[2], tuple(dense.shape))


def make_dense(name: str, dtype: str, device: Any) -> Any:
    return master(name, dtype).to(torch_dtype(dtype), copy=True).to(device)


LAYOUTS = ("coo", "csr", "csc", "bsr", "bsc")


def layout_of(tensor: Any) -> str:
    """`strided`, `coo`, `csr`, ... as the catalogue names them."""
    name = str(tensor.layout).replace("torch.", "").replace("sparse_", "")
    return "coo" if name == "sparse" else name


def parts_of(tensor: Any) -> "tuple[Any, ...]":
    """Index tensors and values of a sparse tensor, as stored."""
    layout = layout_of(tensor)
    if layout == "coo":
        return tensor._indices(), tensor._values()
    if layout in ("csr", "bsr"):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return tensor.ccol_indices(), tensor.row_indices(), tensor.values()


def wide(values: Any) -> Any:
    """Values on the CPU in the reference's precision, in which every dtype can be added and compared."""
    values = values.detach().to("cpu")
    if values.dtype == torch.bool:
        return values
    return values.to(torch.complex128 if values.dtype.is_complex else torch.float64)


class Broken(Exception):
    """A result whose own structure is invalid."""


def densify(tensor: Any) -> Any:
    """The matrix that a result stands for, on the CPU and wide, without torch's sparse code. Raises Broken."""
    layout = layout_of(tensor)
    if layout == "strided":
        return wide(tensor)
    parts = [wide(part) if place == 0 else part.detach().to("cpu") for place, part in enumerate(parts_of(tensor)[::-1])]
    values, indices = parts[0], parts[:0:-1]
    if layout == "coo":
        index = indices[0]
        sparse = tensor.shape[: index.shape[0]]
        if index.numel():
            sides = torch.tensor(list(sparse), dtype=torch.int64).unsqueeze(1)
            if bool((index < 0).any()) or bool((index >= sides).any()):
                raise Broken("COO indices outside of the shape")
        flat = torch.zeros(index.shape[1], dtype=torch.int64)
        for row, side in zip(index, sparse):
            flat = flat * side + row
        if tensor.is_coalesced() and flat.numel() > 1 and not bool((flat[1:] > flat[:-1]).all()):
            raise Broken("says it is coalesced, but its indices are not sorted and unique")
        return scatter(tensor.shape, tuple(index), values)
    return densify_compressed(tensor.shape, layout, indices[0], indices[1], values)


def scatter(shape: "tuple[int, ...]", index: "tuple[Any, ...]", values: Any) -> Any:
    """Dense sum of values at places. Bool has no sum: any of them."""
    if values.dtype == torch.bool:
        return scatter(shape, index, values.to(torch.float64)) != 0
    return torch.zeros(tuple(shape), dtype=values.dtype).index_put_(index, values, accumulate=True)


def densify_compressed(shape: "tuple[int, ...]", layout: str, compressed: Any, plain: Any, values: Any) -> Any:
    if compressed.dim() > 1:
        each = [
            densify_compressed(tuple(shape)[1:], layout, c, p, v)
            for c, p, v in zip(compressed.unbind(0), plain.unbind(0), values.unbind(0))
        ]
        return torch.stack(each)
    compressed, plain = compressed.to(torch.int64), plain.to(torch.int64)
    counts = compressed[1:] - compressed[:-1]
    if int(compressed[0]) != 0 or int(compressed[-1]) != plain.numel() or bool((counts < 0).any()):
        raise Broken("%s: compressed indices do not run from 0 to the number of elements" % layout.upper())
    major = torch.repeat_interleave(torch.arange(counts.numel()), counts)
    if major.numel() > 1 and bool(((major[1:] == major[:-1]) & (plain[1:] <= plain[:-1])).any()):
        raise Broken("%s: indices within a row are not sorted and unique" % layout.upper())
    blocked = layout in ("bsr", "bsc")
    down, across = values.shape[-2:] if blocked else (1, 1)
    row, column = (plain, major) if layout in ("csc", "bsc") else (major, plain)
    if plain.numel() and (
        int(plain.min()) < 0 or int(row.max()) * down >= shape[-2] or int(column.max()) * across >= shape[-1]
    ):
        raise Broken("%s: indices outside of the shape" % layout.upper())
    if not blocked:
        return scatter(shape, (row, column), values)
    row = (row * down).reshape(-1, 1, 1) + torch.arange(down).reshape(1, -1, 1)
    column = (column * across).reshape(-1, 1, 1) + torch.arange(across).reshape(1, 1, -1)
    return scatter(shape, (row.expand(values.shape), column.expand(values.shape)), values)


# --------------------------------------------------------------------------- case registry

REAL = ("float32", "float64")
NUMERIC = REAL + ("float16", "bfloat16", "complex64", "int64")
ANY = NUMERIC + ("complex128", "int32", "bool")
DEVICES = ("cpu", "cuda")
TIERS = ("quick", "standard", "full")


class Recipe(NamedTuple):
    """How cases run: fn over the operands, ref over their dense twins. Without operands fn(kit) gives both results.

    result: layout that the result must have; out: dtype that it must have, "" the case's own, "any" unchecked.
    tol: factor on the tolerance, for results that are not exact by construction (many steps, divisions).
    """

    fn: "Callable[..., Any]"
    ref: "Callable[..., Any]"
    operands: "tuple[str, ...]"
    result: str
    out: str
    tol: float


class Case(NamedTuple):
    """One entry of the catalogue; this is what `--list` prints and the host reads."""

    id: str
    layout: str
    op: str
    dtype: str
    index: str
    shape: str
    device: str
    backward: bool
    tier: str
    since: str
    profiles: "tuple[str, ...]"
    claim: str
    source: str
    recipe: Recipe

    def data(self) -> "dict[str, Any]":
        """Without the recipe, and without what is empty."""
        return {key: value for key, value in self._asdict().items() if key != "recipe" and value not in ("", ())}


CASES = {}  # type: dict[str, Case]


def op(
    name: str,
    layouts: str,
    operands: str,
    fn: "Callable[..., Any]",
    ref: "Callable[..., Any] | None" = None,
    *,
    dtypes: "tuple[str, ...]" = REAL,
    devices: "tuple[str, ...]" = DEVICES,
    grad: bool = False,
    shapes: "tuple[str, ...]" = ("",),
    index: "tuple[str, ...]" = ("",),
    result: str = "",
    out: str = "",
    tol: float = 1.0,
    tier: str = "standard",
    since: str = "",
    profiles: str = "",
    claim: str = "",
    source: str = "",
) -> None:
    """Declares the cases of one operation: layouts x dtypes x index dtypes x shapes x devices [x backward].

    operands: names of SPARSE (capitals, in the case's layout or as `B:csr`) and DENSE (small letters), space between.
    fn: over the operands; ref: over their dense twins, by default the same expression. A name with `{layout}` in it is
    an id of its own (`module.linear-{layout}-weight`). result: `same` is the case's layout.
    `quick` holds the float32 cases of the `core` profile; `tier` says where the rest stands.
    """
    names = tuple(operands.split())
    sparse = [one for one in names if one[0].isupper()]
    for layout in layouts.split():
        stored = "coo" if layout == "hybrid" else layout
        recipe = Recipe(fn, ref or fn, names, stored if result == "same" else result, out, tol)
        if "." in name:
            head = name.format(layout=layout)
        else:
            head = "-".join([one.partition(":")[2] or layout for one in sparse] or [layout]) + "." + name
        for dtype, wide_index, shape, device in itertools.product(dtypes, index, shapes, devices):
            for backward in (False, True) if grad and dtype in FLOATING else (False,):
                pieces = [head, dtype, wide_index, shape, device, "backward" if backward else ""]
                quick = "core" in profiles.split() and dtype == "float32"
                where = "quick" if quick and tier == "standard" else tier
                family, _, rest = head.partition(".")
                case = Case(
                    ".".join(piece for piece in pieces if piece), family, rest, dtype, wide_index, shape, device,
                    backward, where, since, tuple(profiles.split()), claim, source, recipe,
                )  # fmt: skip
                if case.id in CASES:
                    raise ValueError("case %s is declared twice" % case.id)
                CASES[case.id] = case


def work(name: str, layouts: str = "coo", **options: Any) -> "Callable[[Callable[..., Any]], Callable[..., Any]]":
    """Decorator for cases with more than one expression: the function gets a Kit and returns (actual, reference)."""

    def register(fn: "Callable[..., Any]") -> "Callable[..., Any]":
        op(name, layouts, "", fn, **options)
        return fn

    return register


class Kit:
    """What a `work` function gets: the case's own dtype, device and layout, and operands with their dense twins."""

    def __init__(self, case: Case, device: Any) -> None:
        self.case, self.device, self.dtype, self.layout = case, device, case.dtype, ""
        self.torch_dtype = torch_dtype(case.dtype)

    def sparse(self, name: str, layout: str = "", device: Any = None) -> Any:
        where = self.device if device is None else device
        return make_sparse(name, layout or self.case.layout, self.dtype, where, self.case.shape, self.case.index)

    def dense(self, name: str) -> Any:
        return make_dense(name, self.dtype, self.device)

    def truth(self, name: str) -> Any:
        return master(name, self.dtype).clone()

    def move(self, tensor: Any) -> Any:
        """A float64 tensor as the case wants it."""
        return tensor.to(self.torch_dtype, copy=True).to(self.device)


# --------------------------------------------------------------------------- cases: creation and conversion

EVERY = "coo csr csc bsr bsc"
COMPRESSED = "csr csc bsr bsc"
MATMUL = "torch.sparse: linear algebra operations"
IDENTITY = lambda a: a.clone()  # noqa: E731


def public(layout: str) -> "Callable[..., Any]":
    """The documented constructor only: a private predecessor does not count for a `create` case."""
    name = "sparse_%s_tensor" % layout
    if not hasattr(torch, name):
        raise Absent("torch.%s" % name)
    return getattr(torch, name)  # type: ignore[no-any-return]


@work("{layout}.create", EVERY, dtypes=ANY, result="same", profiles="core", since="1.9", claim="yes")
def create(kit: Kit) -> Any:
    public(kit.case.layout)
    return kit.sparse("A"), kit.truth("A")


@work("{layout}.create", COMPRESSED, dtypes=REAL, index=("i32",), result="same", since="1.10", claim="yes")
def create_i32(kit: Kit) -> Any:
    public(kit.case.layout)
    made = kit.sparse("A")
    if parts_of(made)[0].dtype != torch.int32:
        raise Broken("int32 indices came back as %s" % parts_of(made)[0].dtype)
    return made, kit.truth("A")


op("create", "hybrid", "A", lambda a: a, IDENTITY, dtypes=ANY, result="coo", claim="yes")
op("coalesce", "coo hybrid", "A", lambda a: a.coalesce(), IDENTITY, dtypes=ANY, shapes=("", "dup"), result="coo",
   profiles="core gnn", claim="yes")  # fmt: skip
op("to-dense", EVERY + " hybrid", "A", lambda a: a.to_dense(), IDENTITY, dtypes=ANY, grad=True, result="strided",
   profiles="core", claim="yes")  # fmt: skip
op("to-dense", "coo", "A", lambda a: a.to_dense(), IDENTITY, dtypes=NUMERIC, shapes=("dup",), result="strided")
op("clone", EVERY, "A", lambda a: a.clone(), IDENTITY, result="same")
op("copy", EVERY, "A", lambda a: a.to(a.device, copy=True), IDENTITY, result="same")


@work("{layout}.to-device", EVERY, devices=("cuda",), dtypes=REAL, result="same", profiles="core gnn", claim="yes")
def to_device(kit: Kit) -> Any:
    return kit.sparse("A", device="cpu").to(kit.device), kit.truth("A")


@work("coo.to-device", devices=("cuda",), shapes=("dup",), result="coo", profiles="core")
def to_device_uncoalesced(kit: Kit) -> Any:
    return kit.sparse("A", device="cpu").to(kit.device), kit.truth("A")


@work("{layout}.to-cpu", EVERY, devices=("cuda",), dtypes=REAL, claim="yes")
def to_cpu(kit: Kit) -> Any:
    back = kit.sparse("A").to("cpu")
    if back.device.type != "cpu" or layout_of(back) != kit.case.layout:
        raise Broken("to('cpu') gave %s on %s" % (layout_of(back), back.device))
    return densify(back).to(kit.device).to(kit.torch_dtype), kit.truth("A")


def convert(tensor: Any, target: str) -> Any:
    """tensor.to_sparse_<target>(), with the block size where one is needed."""
    if target == "coo":
        return tensor.to_sparse()
    method = getattr(tensor, "to_sparse_" + target, None)
    if method is None:
        raise Absent("Tensor.to_sparse_" + target)
    return method(BLOCK) if target in ("bsr", "bsc") else method()


for TARGET in LAYOUTS:
    CONVERT = lambda a, target=TARGET: convert(a, target)  # noqa: E731
    op("to-" + TARGET, EVERY + " hybrid", "A", CONVERT, IDENTITY, result=TARGET, profiles="core" * (TARGET == "csr"))
    op("strided.to-%s" % TARGET, "strided", "d", CONVERT, IDENTITY, dtypes=NUMERIC, result=TARGET)

# --------------------------------------------------------------------------- cases: products

DENSE_MM = lambda a, x: a @ x  # noqa: E731

op("mm", EVERY, "A x", lambda a, x: torch.sparse.mm(a, x), DENSE_MM, dtypes=NUMERIC, grad=True, result="strided",
   profiles="core gnn", claim="yes", source=MATMUL)  # fmt: skip
op("mm", "coo", "A x", lambda a, x: torch.sparse.mm(a, x), DENSE_MM, shapes=("dup",), grad=True, result="strided",
   profiles="core", source=MATMUL)  # fmt: skip
op("mm", COMPRESSED, "A x", lambda a, x: torch.sparse.mm(a, x), DENSE_MM, index=("i32",), result="strided")
op("matmul", EVERY + " hybrid", "A x", DENSE_MM, grad=True, result="strided", profiles="gnn", source=MATMUL)
op("matmul-left", EVERY, "l A", DENSE_MM, grad=True, result="strided", source=MATMUL)
op("mv", EVERY, "A v", lambda a, v: a.mv(v), grad=True, result="strided", claim="yes", source=MATMUL)
op("addmm", EVERY, "y A x", lambda y, a, x: torch.addmm(y, a, x, beta=0.5, alpha=2.0), grad=True, result="strided",
   source=MATMUL)  # fmt: skip
op("sparse-addmm", EVERY, "y A x", lambda y, a, x: torch.sparse.addmm(y, a, x, beta=0.5, alpha=2.0),
   lambda y, a, x: 0.5 * y + 2.0 * (a @ x), grad=True, result="strided", source=MATMUL)  # fmt: skip
op("mm", EVERY, "A S", lambda a, s: torch.sparse.mm(a, s), DENSE_MM, grad=True, claim="yes", source=MATMUL)
op("matmul", EVERY, "A S", DENSE_MM, source=MATMUL)
op("bmm", "coo", "T t", lambda a, x: torch.bmm(a, x), dtypes=REAL, result="strided", source=MATMUL)
op("sampled-addmm", "csr", "A m n", lambda a, m, n: torch.sparse.sampled_addmm(a, m, n, beta=0.5, alpha=2.0),
   lambda a, m, n: 0.5 * a + 2.0 * (m @ n) * (a != 0), grad=True, result="csr", since="1.12", profiles="attention",
   source=MATMUL)  # fmt: skip
for REDUCE in ("sum", "mean", "amax", "amin"):
    op("mm-" + REDUCE, "csr", "P x", lambda a, x, reduce=REDUCE: torch.sparse.mm(a, x, reduce),
       lambda a, x, reduce=REDUCE: reduced(a, x, reduce), result="strided", since="2.0", profiles="gnn",
       source=MATMUL)  # fmt: skip


def reduced(a: Any, x: Any, reduce: str) -> Any:
    """Row by row over the stored elements; a row without any gives 0."""
    rows = []
    for row in a:
        terms = row[row != 0].unsqueeze(1) * x[row != 0]
        rows.append(getattr(terms, reduce)(0) if len(terms) else torch.zeros_like(x[0]))
    return torch.stack(rows)


DENSE.update({"t": (2, 8, 5), "m": (6, 4), "n": (4, 8)})
SPARSE["P"] = ((6, 8), {(0, 0), (0, 2), (2, 1), (2, 3), (1, 3)})

# --------------------------------------------------------------------------- cases: arithmetic

PAIR = "coo-coo: both operands sparse, different patterns"
op("add", EVERY + " hybrid", "A B", lambda a, b: a + b, dtypes=NUMERIC, grad=True, result="same", profiles="core",
   claim="yes")  # fmt: skip
op("sub", EVERY + " hybrid", "A B", lambda a, b: a - b, grad=True, result="same", profiles="core")
op("mul", EVERY + " hybrid", "A B", lambda a, b: a * b, grad=True, result="same", profiles="core")
op("add-alpha", EVERY, "A B", lambda a, b: torch.add(a, b, alpha=3))
op("add-inplace", EVERY, "A B", lambda a, b: a.add_(b), lambda a, b: a + b, result="same")
op("mul-scalar", EVERY + " hybrid", "A", lambda a: a * 3, dtypes=NUMERIC, grad=True, result="same", profiles="core")
op("div-scalar", EVERY + " hybrid", "A", lambda a: a / 2, grad=True, result="same", profiles="core")
op("neg", EVERY, "A", lambda a: -a, grad=True, result="same")
op("add-dense", EVERY, "A d", lambda a, d: a + d)
op("dense-add", EVERY, "d A", lambda d, a: d + a, grad=True, result="strided")
op("mul-dense", EVERY, "A d", lambda a, d: a * d, grad=True)
op("sum", EVERY, "A", lambda a: a.sum(), grad=True, result="strided")
op("sparse-sum", EVERY, "A", lambda a: torch.sparse.sum(a), lambda a: a.sum(), grad=True, result="strided")
op("transpose", EVERY, "A", lambda a: a.t(), claim="yes")
op("relu", EVERY, "A", lambda a: torch.relu(a), grad=True, result="same", profiles="gnn")

# --------------------------------------------------------------------------- cases: what is said to be unsupported


def masked_softmax(a: Any, log: bool = False) -> Any:
    """Softmax over the stored elements of each row, which is what torch.sparse.softmax means; the rest stays 0."""
    there = a != 0
    result = torch.softmax(a.masked_fill(~there, float("-inf")), 1)
    result = torch.log(result) if log else result
    return torch.where(there, result, torch.zeros_like(result))


op("softmax", EVERY, "A", lambda a: torch.softmax(a, 1), tier="standard", profiles="core")
op("sparse-softmax", EVERY, "A", lambda a: torch.sparse.softmax(a, 1), masked_softmax, grad=True, result="same",
   profiles="core attention", claim="yes", tol=4)  # fmt: skip
op("sparse-log-softmax", EVERY, "A", lambda a: torch.sparse.log_softmax(a, 1), lambda a: masked_softmax(a, True),
   result="same", profiles="core", claim="yes", tol=4)  # fmt: skip
op("norm", EVERY, "A", lambda a: a.norm(), grad=True, result="strided", profiles="core", tol=4)
op("module.layernorm-{layout}", EVERY, "A", lambda a: torch.nn.LayerNorm(8).to(a.device, a.dtype)(a), profiles="core",
   tol=4)  # fmt: skip
op("module.linear-{layout}-input", EVERY, "A w b", lambda a, w, b: torch.nn.functional.linear(a, w, b), grad=True,
   profiles="core pruning")  # fmt: skip
op("module.linear-{layout}-weight", EVERY, "d A u", lambda d, a, u: torch.nn.functional.linear(d, a, u), grad=True,
   profiles="core pruning")  # fmt: skip
op("module.linear-nobias-{layout}-weight", EVERY, "d A", lambda d, a: torch.nn.functional.linear(d, a), grad=True,
   profiles="pruning")  # fmt: skip
for RANK, NAME in enumerate("TUV", 1):
    op("module.conv%dd-coo" % RANK, "coo", "%s %s" % (NAME, "fgh"[RANK - 1]),
       lambda a, f, rank=RANK: getattr(torch.nn.functional, "conv%dd" % rank)(a, f), profiles="core")  # fmt: skip
DENSE.update({"f": (3, 6, 3), "g": (3, 2, 3, 3), "h": (3, 2, 1, 3, 3)})


@work("module.dropout-{layout}", EVERY, profiles="core")
def dropout(kit: Kit) -> Any:
    a = kit.sparse("A", kit.case.op.partition("-")[2])
    result = torch.nn.functional.dropout(a, 0.5, True)
    kept = densify(result) != 0  # which elements are dropped is chance; those kept must be doubled
    return result, 2 * kit.truth("A") * kept


# --------------------------------------------------------------------------- cases: 2:4 and workloads


@work("module.linear-2to4-cutlass-weight", "strided", dtypes=("float16",), since="2.1", profiles="core pruning", tol=4)
@work("module.linear-2to4-cusparselt-weight", "strided", dtypes=("float16",), since="2.1", profiles="pruning", tol=4)
def linear_2to4(kit: Kit) -> Any:
    """Two of four along a row are zero; 128 x 128 is over every minimum of every version."""
    if not hasattr(torch.sparse, "to_sparse_semi_structured"):
        raise Absent("torch.sparse.to_sparse_semi_structured")
    torch.sparse.SparseSemiStructuredTensor._FORCE_CUTLASS = "cutlass" in kit.case.op
    index = torch.arange(128 * 128, dtype=torch.float64).reshape(128, 128)
    weight = ((index * 7) % 5 - 2) * ((index % 4) < 2).to(torch.float64)
    x = (index * 5) % 3 - 1
    packed = torch.sparse.to_sparse_semi_structured(kit.move(weight))
    return torch.nn.functional.linear(kit.move(x), packed), x @ weight.t()


# Edges of a small directed graph, with a repeated edge, as data sets have them; node 4 has none.
EDGES = [(0, 1), (1, 0), (1, 2), (2, 1), (0, 3), (3, 0), (3, 5), (5, 3), (2, 5), (5, 2), (0, 1)]


def gcn_train(adjacency: Any, product: "Callable[..., Any]", x: Any, w1: Any, w2: Any, y: Any) -> Any:
    """Three SGD steps of a two-layer graph network; all losses and the trained weights."""
    losses = []
    for _ in range(3):
        w1, w2 = w1.detach().requires_grad_(), w2.detach().requires_grad_()
        hidden = torch.relu(product(adjacency, x @ w1))
        loss = ((product(adjacency, hidden @ w2) - y) ** 2).mean()
        loss.backward()
        losses.append(loss.detach())
        w1, w2 = w1 - 0.1 * w1.grad, w2 - 0.1 * w2.grad
    return torch.stack(losses), w1, w2


@work("work.gcn", profiles="core gnn training", result="strided", tol=50)
def gcn(kit: Kit) -> Any:
    nodes = 6
    both = torch.tensor(EDGES + [(i, i) for i in range(nodes)], dtype=torch.int64).t()
    truth = scatter((nodes, nodes), tuple(both), torch.ones(both.shape[1], dtype=torch.float64))
    scale = truth.sum(1).rsqrt()
    weights = scale[both[0]] * scale[both[1]]  # D^-1/2 (A + I) D^-1/2, per edge
    adjacency = torch.sparse_coo_tensor(both, weights.to(kit.torch_dtype), (nodes, nodes)).coalesce().to(kit.device)
    tables = [
        torch.tensor([((5 * k + 3) % 11 - 5) / 8.0 for k in range(rows * columns)], dtype=torch.float64)
        .reshape(rows, columns)
        for rows, columns in ((nodes, 4), (4, 5), (5, 3), (nodes, 3))
    ]  # fmt: skip
    dense = scale.unsqueeze(1) * truth * scale
    actual = gcn_train(adjacency, lambda a, h: torch.sparse.mm(a, h), *[kit.move(t) for t in tables])
    return actual, gcn_train(dense, lambda a, h: a @ h, *tables)


# --------------------------------------------------------------------------- controls


class Control(NamedTuple):
    """A case that must come out as `expected`; otherwise the probe, or this machine, cannot be trusted."""

    expected: str
    device: str
    case: Case


CONTROLS = {}  # type: dict[str, Control]


def control(name: str, expected: str, devices: "tuple[str, ...]") -> "Callable[[Callable[..., Any]], None]":
    def register(fn: "Callable[..., Any]") -> None:
        for device in devices:
            recipe = Recipe(fn, fn, (), "", "", 1.0)
            name_here = "control.%s.%s" % (name, device)
            CONTROLS[name_here] = Control(expected, device, Case(
                name_here, "coo", name, "float32", "", "", device, False, "quick", "", (), "", "", recipe))  # fmt: skip

    return register


@control("dense", "pass", DEVICES)
def control_dense(kit: Kit) -> Any:
    return kit.dense("d") @ kit.dense("x"), kit.truth("d") @ kit.truth("x")


@control("wrong", "wrong", DEVICES)
def control_wrong(kit: Kit) -> Any:
    right = torch.sparse.mm(kit.sparse("A"), kit.dense("x"))
    right[4, 3] += 0.001  # one element, by a little
    return right, kit.truth("A") @ kit.truth("x")


@control("unsupported", "unsupported", ("cpu",))
def control_unsupported(kit: Kit) -> Any:
    return torch.exp(kit.sparse("A")), torch.exp(kit.truth("A"))  # exp(0) is not 0: torch refuses it for sparse


@control("fallback", "fallback", ("cuda",))
def control_fallback(kit: Kit) -> Any:
    moved = torch.sparse.mm(kit.sparse("A").to("cpu"), kit.dense("x").to("cpu"))
    return moved, kit.truth("A") @ kit.truth("x")


@control("crash", "crash", ("cpu",))
def control_crash(kit: Kit) -> Any:
    os.kill(os.getpid(), signal.SIGSEGV)


@control("timeout", "timeout", ("cpu",))
def control_timeout(kit: Kit) -> Any:
    time.sleep(3600)


# --------------------------------------------------------------------------- running one case


def differences(actual: Any, reference: Any, case: Case, device: Any) -> "tuple[str, str, str]":
    """(outcome, kind, detail) of comparing one result: device, layout, dtype, shape, structure, values, in that order."""
    recipe = case.recipe
    if not isinstance(actual, torch.Tensor):
        return "wrong", "type", "gave %s, not a tensor" % type(actual).__name__
    layout = layout_of(actual)
    places = [actual] if layout == "strided" else parts_of(actual)
    for place in places:
        if place.device.type != device.type:
            return "fallback", "result-device", "result is on %s, asked for %s" % (place.device, device)
    if recipe.result and layout != recipe.result:
        return "wrong", "layout", "layout is %s, expected %s" % (layout, recipe.result)
    dtype = str(actual.dtype).replace("torch.", "")
    if recipe.out != "any" and dtype != (recipe.out or case.dtype):
        return "wrong", "dtype", "dtype is %s, expected %s" % (dtype, recipe.out or case.dtype)
    if tuple(actual.shape) != tuple(reference.shape):
        return "wrong", "shape", "shape is %s, expected %s" % (tuple(actual.shape), tuple(reference.shape))
    try:
        seen = densify(actual)
    except Broken as error:
        return "wrong", "structure", str(error)
    return ("wrong", "values", unlike(seen, reference, case)) if unlike(seen, reference, case) else ("pass", "", "")


def unlike(seen: Any, reference: Any, case: Case) -> str:
    """ "" when both agree within the dtype's tolerance, else the worst place."""
    expected = wide(reference)
    if seen.dtype == torch.bool or expected.dtype == torch.bool:
        seen, expected = seen.to(torch.float64), expected.to(torch.float64)
    if seen.dtype != expected.dtype:
        seen, expected = seen.to(torch.complex128), expected.to(torch.complex128)
    if torch.equal(seen, expected):
        return ""
    rtol, atol = TOLERANCE.get(case.dtype, (0.0, 0.0))
    gap = (seen - expected).abs()
    fine = (gap <= case.recipe.tol * (atol + rtol * expected.abs())) | (seen == expected)
    fine = fine | ((seen != seen) & (expected != expected))
    if bool(fine.all()):
        return ""
    where = (~fine).nonzero()[0].tolist()
    bad, good = seen[tuple(where)].item(), expected[tuple(where)].item()
    return "%d of %d elements differ; at %s: %s, expected %s" % (int((~fine).sum()), fine.numel(), where, bad, good)


def compare(actual: Any, reference: Any, case: Case, device: Any) -> "tuple[str, str, str]":
    """One result or several; the first that is not good decides."""
    if not isinstance(actual, tuple):
        actual, reference = (actual,), (reference,)
    for one, other in zip(actual, reference):
        found = differences(one, other, case, device)
        if found[0] != "pass":
            return found
    return "pass", "", ""


def loss_of(result: Any, layout: str) -> Any:
    """A scalar to differentiate, the same for a result of that layout and for its reference.

    Strided results get uneven weights; for sparse ones torch offers only the plain sum.
    """
    if layout == "strided" and result.dim():
        weights = (torch.arange(result.numel(), device=result.device) % 5 - 2).reshape(result.shape)
        total = (result * weights.to(result.dtype)).sum()
    else:
        total = torch.sparse.sum(result) if layout_of(result) == "coo" else result.sum()
    return total.real if total.is_complex() else total


# A sparse result has to become a scalar before it can be differentiated. Torch refuses some ways for reasons that are
# not the operation's, as `sum` of CSR, whose gradient is strided; a user then goes through `to_dense`, and so do we.
ROUTES = ("sum", "to-dense")


def backward(actual: Any, reference: Any, route: str) -> None:
    """Differentiates result and reference through the same scalar."""
    layout = layout_of(actual)
    if route == "to-dense":
        actual, layout = actual.to_dense(), "strided"
    loss_of(actual, layout).backward()
    loss_of(reference, layout).backward()
    if actual.device.type == "cuda":
        torch.cuda.synchronize()


def grads_differ(case: Case, operands: "list[Any]", twins: "list[Any]", device: Any) -> "tuple[str, str, str, Any]":
    """Compares every operand's gradient. A sparse operand's may be whole or cut to a pattern; which one is kept."""
    kinds = {}
    for name, operand, twin in zip(case.recipe.operands, operands, twins):
        grad = operand.grad
        if grad is None:
            return "wrong", "no-gradient", "operand %s got no gradient" % name, kinds
        layout = layout_of(grad)
        places = [grad] if layout == "strided" else parts_of(grad)
        for place in places:
            if place.device.type != device.type:
                return "fallback", "result-device", "gradient of %s is on %s" % (name, place.device), kinds
        if tuple(grad.shape) != tuple(operand.shape):
            return "wrong", "shape", "gradient of %s has shape %s" % (name, tuple(grad.shape)), kinds
        try:
            seen = densify(grad)
        except Broken as error:
            return "wrong", "structure", "gradient of %s: %s" % (name, error), kinds
        problem = unlike(seen, twin.grad, case)
        if problem and name[0].isupper():
            # Torch may give elements that the operand does not store, or leave them out; those it gives must be right.
            masked = torch.where((stored(name, case) == 0) & (seen == 0), torch.zeros_like(seen), wide(twin.grad))
            problem, layout = unlike(seen, masked, case), layout + " masked"
        if problem:
            return "wrong", "gradient", "gradient of %s: %s" % (name, problem), kinds
        kinds[name] = layout
    return "pass", "", "", kinds


def stored(name: str, case: Case) -> Any:
    """1 where an operand stores an element (in a block: anywhere in it), else 0."""
    dense = master(name.partition(":")[0], case.dtype)
    layout = name.partition(":")[2] or case_layout(case)
    there = (dense != 0).to(torch.float64)
    if layout == "hybrid":
        return there.amax(-1, keepdim=True).expand_as(there)
    if layout in ("bsr", "bsc"):
        rows, columns = there.shape
        blocks = there.reshape(rows // BLOCK[0], BLOCK[0], columns // BLOCK[1], BLOCK[1]).amax(3, True).amax(1, True)
        return blocks.expand(rows // BLOCK[0], BLOCK[0], columns // BLOCK[1], BLOCK[1]).reshape(rows, columns)
    return there


def case_layout(case: Case) -> str:
    """The layout of operands that name none: `csr` of `csr-csr.mm` and of `module.linear-csr-weight`."""
    for word in case.layout.split("-") + case.op.split("-"):
        if word in LAYOUTS or word == "hybrid":
            return word
    return "strided"


def operands_of(case: Case, device: Any) -> "tuple[list[Any], list[Any]]":
    """New operands of a case and their dense twins, all leaves that want a gradient when the case goes backward."""
    operands, twins = [], []
    for name in case.recipe.operands:
        key, _, fixed = name.partition(":")
        if key.isupper():
            operand = make_sparse(key, fixed or case_layout(case), case.dtype, device, case.shape, case.index)
        else:
            operand = make_dense(key, case.dtype, device)
        twin = master(key, case.dtype).clone()
        operands.append(operand.requires_grad_() if case.backward else operand)
        twins.append(twin.requires_grad_() if case.backward else twin)
    return operands, twins


def run_case(case: Case, device: Any) -> "dict[str, Any]":
    """Runs one case here and now; never raises. device: where it really runs (differs from the id when injected)."""
    started = time.perf_counter()
    data = {}  # type: dict[str, Any]
    stage = "operands: "
    try:
        if case.recipe.operands:
            operands, twins = operands_of(case, device)
            stage = ""
            actual, reference = case.recipe.fn(*operands), case.recipe.ref(*twins)
        else:
            stage = ""
            actual, reference = case.recipe.fn(Kit(case, device))
        if device.type == "cuda":
            torch.cuda.synchronize()
        outcome, kind, detail = compare(actual, reference, case, device)
        if case.backward and outcome == "pass":
            stage = "backward: "
            try:
                backward(actual, reference, ROUTES[0])
            except Exception as error:
                if layout_of(actual) == "strided":
                    raise
                operands, twins = operands_of(case, device)  # the first try may have left half a gradient
                try:
                    backward(case.recipe.fn(*operands), case.recipe.ref(*twins), ROUTES[1])
                except Exception as second:
                    raise (second if classify(second)[1] == POISON else error) from None
                data["route"], data["refused"] = ROUTES[1], first_line(error)
            outcome, kind, detail, data["gradients"] = grads_differ(case, operands, twins, device)
        elif outcome == "pass" and isinstance(actual, torch.Tensor) and not case.recipe.result:
            data["layout"] = layout_of(actual)
    except Broken as error:
        outcome, kind, detail = "wrong", "structure", str(error)
    except Exception as error:
        outcome, kind = classify(error)
        detail = stage + first_line(error)
    result = {"id": case.id, "outcome": outcome, "duration_ms": round((time.perf_counter() - started) * 1e3, 3)}
    for key, value in (("kind", kind), ("detail", detail), ("data", data)):
        if value:
            result[key] = value
    return result


# --------------------------------------------------------------------------- workers


def die_with_parent() -> None:
    """Linux: no orphan outlives a killed supervisor."""
    attempt(lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL))


class Child:
    """A forked process that sends one JSON value per line. body(send) is all it does."""

    def __init__(self, body: "Callable[[Callable[[Any], None]], None]") -> None:
        reader, writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            code = 70
            try:
                os.close(reader)
                os.setpgid(0, 0)  # a hang is killed with everything it started
                die_with_parent()

                def send(value: Any) -> None:
                    data = (json.dumps(value, default=str) + "\n").encode()
                    while data:
                        data = data[os.write(writer, data) :]

                body(send)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(writer)
        self.fd = reader
        self.buffer = b""
        self.status = None  # type: int | None

    def receive(self, deadline: float) -> "tuple[str, Any]":
        """("value", it) | ("end", how it ended: "" for exit 0) | ("late", None) when `deadline` (monotonic) passed."""
        while b"\n" not in self.buffer:
            wait = max(0.0, deadline - time.monotonic())
            if not select.select([self.fd], [], [], wait)[0]:
                return "late", None
            data = os.read(self.fd, 1 << 16)
            if not data:
                return "end", self.ending()
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        return "value", json.loads(line.decode())

    def ending(self) -> str:
        os.close(self.fd)
        _, status = os.waitpid(self.pid, 0)
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            return attempt(lambda: signal.Signals(number).name, "signal %d" % number)  # type: ignore[no-any-return]
        return "" if status == 0 else "exit code %d" % os.WEXITSTATUS(status)

    def kill(self) -> None:
        attempt(lambda: os.killpg(self.pid, signal.SIGKILL))
        attempt(lambda: os.kill(self.pid, signal.SIGKILL))
        attempt(self.ending)


def no_cuda_kind(state: str, detail: str) -> str:
    """The `kind` of CUDA cases that did not run, from the state of CUDA; "" when it is fine."""
    if state == "no-device":
        return "no-driver" if "no NVIDIA driver" in detail else "no-device"
    return {"ok": "", "no-build": "cpu-build", "driver-too-old": "no-driver"}.get(state, "cuda-" + state)


class Session:
    """The server's work after `import torch`: which cases, where, and what came of them."""

    def __init__(self, options: "dict[str, Any]", send: "Callable[[Any], None]") -> None:
        self.options, self.send = options, send
        self.device_map = options["device_map"]

    def report(self, what: str, **body: Any) -> None:
        self.send(dict(body, frame=what))

    def device(self, name: str) -> Any:
        return torch.device(self.device_map.get(name, name))

    def worker(self, cases: "list[Case]") -> Child:
        def body(send: "Callable[[Any], None]") -> None:
            warnings.simplefilter("ignore")
            torch.set_num_threads(self.options["threads"])
            for case in cases:
                send(["start", case.id, time.monotonic()])
                result = run_case(case, self.device(case.device))
                send(["result", result])
                if result.get("kind") == POISON:
                    os._exit(0)  # nothing that this context says from here on can be believed

        return Child(body)

    def run(self, cases: "list[Case]", limit: float, tell: "Callable[[dict[str, Any]], None]", alone: bool = False) -> None:
        """Runs cases in order, in as many workers as it takes; `tell` gets one result for each."""
        pending = list(cases)
        while pending:
            pending = self.watch(self.worker(pending), pending, limit, tell, alone)

    def watch(
        self, child: Child, pending: "list[Case]", limit: float, tell: "Callable[[dict[str, Any]], None]", alone: bool
    ) -> "list[Case]":
        """Follows one worker to its end; what it could not do is returned."""
        current = ""
        since = time.monotonic()
        # A busy machine may fork late, and the first case on CUDA also pays for starting it.
        cuda = pending[0].device == "cuda"
        slack = 60.0 if cuda else 5.0
        while True:
            what, value = child.receive(since + limit + slack)
            if what == "value" and value[0] == "start":
                current, since, slack = value[1], value[2], slack if cuda else 0.0
                continue
            if what == "value":
                result, case, pending = value[1], pending[0], pending[1:]
                slack, current, since = 0.0, "", time.monotonic()
                if result.get("kind") == POISON and not alone:
                    result = self.confirm(case, result, limit)
                tell(result)
                continue
            if what == "late":
                child.kill()
                how = {"outcome": "timeout", "detail": "no result after %g s; killed" % limit}
            elif not pending or (value == "" and not current):
                return pending
            else:
                extra = " (out of memory?)" if value == "SIGKILL" else ""
                how = {"outcome": "crash", "detail": "worker died: %s%s" % (value, extra), "kind": value}
            case, pending = pending[0], pending[1:]
            result = dict(how, id=case.id)
            if how["outcome"] == "crash" and not alone:
                result = self.confirm(case, result, limit)
            tell(result)
            return pending

    def confirm(self, case: Case, first: "dict[str, Any]", limit: float) -> "dict[str, Any]":
        """Runs a case that ended badly once more, by itself: an earlier case may have been to blame."""
        again = []  # type: list[dict[str, Any]]
        self.run([case], limit, again.append, alone=True)
        second = again[0]
        same = second["outcome"] == first["outcome"]
        data = dict(second.get("data", {}), confirmed=same)
        if not same:
            data["first"] = {"outcome": first["outcome"], "detail": first.get("detail", "")}
            self.report("note", code="not-alone", message="%s: %s (%s) after other cases, %s by itself" % (
                case.id, first["outcome"], first.get("detail", ""), second["outcome"]))  # fmt: skip
        return dict(second, data=data)

    def control(self, name: str, child: "Child | None" = None) -> str:
        """Runs one control (or follows one that was started earlier) and reports it."""
        entry = CONTROLS[name]
        limit = 0.5 if entry.expected == "timeout" else self.options["case_timeout"]
        found = []  # type: list[dict[str, Any]]
        self.watch(child or self.worker([entry.case]), [entry.case], limit, found.append, True)
        result = found[0] if found else {"outcome": "error", "detail": "the worker gave no result"}
        self.report("control", id=name, expected=entry.expected, outcome=result["outcome"],
                    detail=result.get("detail", ""))  # fmt: skip
        return str(result["outcome"])

    def ask(self, get: "Callable[[], dict[str, Any]]", limit: float) -> "dict[str, Any]":
        """Facts from a worker of their own: `state` says so when it did not live to answer."""
        child = Child(lambda send: send(get()))
        what, value = child.receive(time.monotonic() + limit)
        if what == "value":
            child.receive(time.monotonic() + 5)
            return value  # type: ignore[no-any-return]
        if what == "late":
            child.kill()
        detail = "no answer after %g s" % limit if what == "late" else "worker died: %s" % value
        return {"state": "timeout" if what == "late" else "crash", "detail": detail}

    def cases_on(self, device: str, cases: "list[Case]", kind: str, reason: str) -> None:
        """All cases of one device, after its controls; with a reason (and its kind) none of them runs."""
        if not kind and self.control("control.dense." + device) != "pass":
            kind = "control-failed"
            reason = "the dense control on %s did not pass, so no sparse result could be believed" % device
        if kind:
            for case in cases:
                self.report("case", id=case.id, outcome="not-run", kind=kind, detail=reason)
            return
        limit = self.options["case_timeout"]
        self.run(cases, limit, lambda result: self.report("case", **result))
        for name, entry in CONTROLS.items():
            somewhere = entry.expected != "fallback" or self.device(device).type != "cpu"  # nothing falls from the CPU
            if entry.device == device and entry.expected not in ("pass", "timeout") and somewhere:
                self.control(name)

    def all(self, cases: "list[Case]") -> None:
        """The whole run, in the order in which things are known."""
        asleep = self.worker([CONTROLS["control.timeout.cpu"].case])  # waits while others work
        if "torch" in self.options["facts"]:
            self.report("facts", data={"torch": dict(first_torch_facts(), **self.ask(torch_facts, 60.0))})
        if "cpu" in self.options["devices"]:
            self.cases_on("cpu", [case for case in cases if case.device == "cpu"], "", "")
        if "cuda" in self.options["devices"]:
            self.cases_on("cuda", [case for case in cases if case.device == "cuda"], *self.no_cuda())
        self.control("control.timeout.cpu", asleep)

    def no_cuda(self) -> "tuple[str, str]":
        """Why CUDA cases cannot run: (kind, torch's own words), or ("", "")."""
        if "cuda" in self.device_map:
            self.report("facts", data={"cuda": {"state": "injected", "detail": "CUDA cases ran on %s" % self.device("cuda")}})
            return "", ""
        if not (getattr(torch.version, "cuda", None) or getattr(torch.version, "hip", None)):
            found = {"state": "no-build", "detail": "this torch is built without CUDA"}  # type: dict[str, Any]
        else:
            found = self.ask(cuda_facts, 120.0)
        self.report("facts", data={"cuda": found})
        return no_cuda_kind(found["state"], found["detail"]), found["detail"]


def serve(options: "dict[str, Any]", cases: "list[Case]", send: "Callable[[Any], None]") -> None:
    """The server: import torch, say how that went, then run everything."""
    global torch
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    started = time.monotonic()
    try:
        torch = importlib.import_module("torch")
        facts = first_torch_facts()
    except BaseException as error:
        send({"imported": {"state": "error", "detail": first_line(error), "seconds": round(time.monotonic() - started, 3)}})
        return
    send({"imported": {"state": "ok", "detail": "", "seconds": round(time.monotonic() - started, 3)}, "torch": facts})
    Session(options, send).all(cases)


# --------------------------------------------------------------------------- supervisor

DEFAULTS = {
    "cases": ["*"], "devices": ["cpu", "cuda"], "tier": "standard", "case_timeout": 20.0, "import_timeout": 180.0,
    "threads": 1, "device_map": {}, "facts": ["torch"],
}  # type: dict[str, Any]  # fmt: skip


def selected(options: "dict[str, Any]") -> "list[Case]":
    """Cases of the tier (and those under it) that match a glob and a device."""
    tiers = TIERS[: TIERS.index(options["tier"]) + 1]
    return [
        case
        for case in CASES.values()
        if case.tier in tiers
        and case.device in options["devices"]
        and any(fnmatch.fnmatchcase(case.id, pattern) for pattern in options["cases"])
    ]


def probe_version() -> str:
    """Short hash of this very text; the host computes the same from the file."""
    text = globals().get("SOURCE")
    if text is None:
        with open(__file__, "rb") as stream:
            text = stream.read()
    return hashlib.sha256(text).hexdigest()[:12]


def supervise(output: Output, options: "dict[str, Any]", interpreters: "list[dict[str, Any]]") -> None:
    """Runs the server and turns what it sends into frames; whatever happens to it, every case gets an outcome."""
    output.emit("hello", probe=probe_version(), python=platform.python_version(), pid=os.getpid(), options=options)
    output.emit("facts", data=system_facts(interpreters))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, str(options["threads"]))
    cases = selected(options)
    waiting = {case.id for case in cases}
    kind, reason, whole = "no-torch", "no torch in this image", True
    if interpreters[0]["torch"]:
        kind, reason, whole = follow(output, options, cases, waiting)
    else:
        output.emit("facts", data={"torch_import": {"state": "absent", "detail": reason}})
    for case in cases:
        if case.id in waiting:
            output.emit("case", id=case.id, outcome="not-run", kind=kind, detail=reason)
    output.end(whole)


def follow(output: Output, options: "dict[str, Any]", cases: "list[Case]", waiting: "set[str]") -> "tuple[str, str, bool]":
    """Relays one server to its end: (kind, why cases still in `waiting` did not run, whether the report is whole).

    An image whose torch cannot be imported gives a whole report; a server lost later does not.
    """
    server = Child(lambda send: serve(options, cases, send))
    # After the import every wait is bounded by a deadline of the server's own; this one is for a server that hangs.
    silence, limit, imported = 300.0 + 2 * options["case_timeout"], options["import_timeout"], ""
    try:
        while True:
            what, value = server.receive(time.monotonic() + limit)
            if what == "value" and "imported" in value:
                imported, limit = value["imported"]["state"], silence
                output.emit("facts", data={"torch_import": value["imported"], "torch": value.get("torch", {})})
                if imported != "ok":
                    return "import-failed", "import torch failed: %s" % value["imported"]["detail"], True
            elif what == "value":
                waiting.discard(value.get("id", ""))
                output.emit(value.pop("frame"), **value)
            elif what == "end" and value == "" and not waiting:
                return "", "", True
            else:
                late = what == "late"
                detail = "no answer after %g s" % limit if late else "the process died: %s" % (value or "exit code 0")
                if not imported:
                    state = "timeout" if late else "crash"
                    output.emit("facts", data={"torch_import": {"state": state, "detail": detail}})
                    return "import-" + state, "import torch: %s: %s" % (state, detail), True
                output.emit("note", code="server-lost", message="the probe's server: " + detail)
                return "server-lost", "the probe's server was lost: " + detail, False
    finally:
        server.kill()


# --------------------------------------------------------------------------- by hand


def summary(frames: "list[dict[str, Any]]") -> str:
    """What a person wants to read: the image, then outcomes, then everything that is not good."""
    facts = {}  # type: dict[str, Any]
    for one in frames:
        if one["frame"] == "facts":
            facts.update(one["data"])
    made = facts.get("torch_import", {})
    lines = [
        "python  %s (%s)" % (facts["python"]["version"], facts["python"]["executable"]),
        "torch   %s" % (facts.get("torch", {}).get("version") or "%s: %s" % (made.get("state"), made.get("detail"))),
        "cuda    %s" % (facts.get("cuda", {}).get("detail") or facts.get("cuda", {}).get("state", "not asked")),
    ]
    cases = [one for one in frames if one["frame"] == "case"]
    for one in frames:
        if one["frame"] == "control" and one["outcome"] != one["expected"]:
            lines.append("CONTROL %s gave %s, expected %s: do not trust this run" % (
                one["id"], one["outcome"], one["expected"]))  # fmt: skip
    order = ["wrong", "crash", "timeout", "fallback", "error", "unsupported", "absent", "pass", "not-run"]
    counts = [(outcome, sum(case["outcome"] == outcome for case in cases)) for outcome in order]
    lines.append("cases   " + ", ".join("%d %s" % (count, outcome) for outcome, count in counts if count))
    for outcome in order[:-2]:
        for case in cases:
            if case["outcome"] == outcome:
                lines.append("  %-11s %-48s %s" % (outcome, case["id"], case.get("detail", "")[:160]))
    return "\n".join(lines) + "\n"


def by_hand() -> "tuple[str, dict[str, Any], argparse.Namespace]":
    parser = argparse.ArgumentParser(description="Try sparse operations in this interpreter's torch.")
    parser.add_argument("--list", action="store_true", help="print the catalogue as JSON and stop (needs no torch)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--cases", nargs="+", default=DEFAULTS["cases"], metavar="GLOB", help="case ids to run")
    parser.add_argument("--devices", nargs="+", default=DEFAULTS["devices"], choices=DEVICES)
    parser.add_argument("--tier", default=DEFAULTS["tier"], choices=TIERS)
    parser.add_argument("--case-timeout", type=float, default=DEFAULTS["case_timeout"], metavar="SECONDS")
    parser.add_argument("--threads", type=int, default=DEFAULTS["threads"])
    arguments = parser.parse_args()
    options = {key: value for key, value in vars(arguments).items() if key in DEFAULTS}
    return "", options, arguments


def catalogue() -> str:
    """The catalogue as JSON, one case per line, so that a change reads well in a diff."""
    return "[\n%s\n]\n" % ",\n".join(json.dumps(case.data(), sort_keys=True) for case in CASES.values())


def main() -> int:
    if sys.version_info < (3, 6):
        sys.exit("the probe needs Python 3.6 or newer")
    here = os.path.dirname(os.path.abspath(sys.argv[0])) if sys.argv[0] != "-c" else ""
    # A folder that happens to be current (a checkout of torch, this very folder) must not shadow anything.
    sys.path[:] = [path for path in sys.path if path and path != here]
    if sys.argv[0] == "-c":
        nonce, given, arguments = sys.argv[1], json.loads(sys.argv[2]), None
    else:
        nonce, given, arguments = by_hand()
        if arguments.list:
            sys.stdout.write(catalogue())
            return 0
    unknown = sorted(set(given) - set(DEFAULTS))
    if unknown:
        sys.exit("unknown option: " + ", ".join(unknown))
    options = dict(DEFAULTS, **given)
    interpreters = choose_interpreter()
    output = Output(nonce)
    signal.signal(signal.SIGTERM, lambda number, stack: sys.exit(143))  # as process 1 nobody else would do it
    supervise(output, options, interpreters)
    if arguments:
        text = json.dumps(output.frames, indent=1) + "\n" if arguments.json else summary(output.frames)
        output.write(text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
