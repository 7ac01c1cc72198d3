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
import ast
import copy
import ctypes
import fnmatch
import gc
import glob
import hashlib
import importlib.util
import inspect
import io
import itertools
import json
import os
import pickle
import platform
import pwd
import re
import resource
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
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
    r"(NVIDIA_(VISIBLE_DEVICES|DRIVER_CAPABILITIES|REQUIRE_\w+|DISABLE_REQUIRE|PRODUCT_NAME|BUILD_ID|PYTORCH_VERSION)"
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
            "pid": os.getpid(),
        },
        "user": attempt(user_facts, {}),
        "tools": attempt(tools, {}),
        "environment": {name: os.environ[name][:4000] for name in sorted(os.environ) if ENVIRONMENT.match(name)},
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
        "loaded": attempt(loaded_libraries, {}),
        "numpy": numpy_bridge(),
        "semi_structured": {
            name: has_kernel("aten::" + name, "CUDA")
            for name in ("_sparse_semi_structured_linear", "_sparse_semi_structured_mm", "_cslt_sparse_mm")
        },
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


# --------------------------------------------------------------------------- shared libraries, by the standard library alone

# Which function of a library tells its version, and how: "property" is NVIDIA's xGetProperty(kind, int*), "pointer" f(int*),
# "pair" f(int*, int*), "value" what it returns.
VERSIONS = {
    "cudart": ("cudaRuntimeGetVersion", "pointer"), "cublas": ("cublasGetProperty", "property"), "cusparse": ("cusparseGetProperty", "property"),
    "cusparseLt": ("cusparseLtGetProperty", "property"), "cusolver": ("cusolverGetProperty", "property"), "cudnn": ("cudnnGetVersion", "value"),
    "nccl": ("ncclGetVersion", "pointer"), "nvJitLink": ("nvJitLinkVersion", "pair"), "nvrtc": ("nvrtcVersion", "pair"),
}  # fmt: skip
LIBRARY = re.compile(r"lib(%s)(?:[-_][0-9a-f]{8})?\.so[\d.]*$" % "|".join(VERSIONS))
OF_THE_DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1")  # never part of an image
FLOORS = ("GLIBC", "GLIBCXX", "CXXABI")


def library_version(path: str, name: str) -> str:
    """What a library says of its own version; "" when it does not."""
    function, how = VERSIONS[name]
    call = attempt(lambda: getattr(ctypes.CDLL(path), function))
    if call is None:
        return ""
    one, two = ctypes.c_int(), ctypes.c_int()
    if how == "value":
        call.restype = ctypes.c_size_t
        return str(call())
    if how == "property":
        parts = [one.value for kind in range(3) if not call(kind, ctypes.byref(one))]
        return ".".join(map(str, parts))
    failed = call(ctypes.byref(one), ctypes.byref(two)) if how == "pair" else call(ctypes.byref(one))
    return "" if failed else "%d.%d" % (one.value, two.value) if how == "pair" else str(one.value)


def loaded_libraries() -> "dict[str, dict[str, str]]":
    """The CUDA libraries that this process has loaded: name -> path and the version that each itself says."""
    found = {}  # type: dict[str, dict[str, str]]
    for path in sorted(set(re.findall(r"(/\S+\.so[\d.]*)$", read("/proc/self/maps", 1 << 24), re.M))):
        match = LIBRARY.match(os.path.basename(path))
        if match:
            found[match.group(1)] = {"path": path, "version": library_version(path, match.group(1))}
    return found


class Elf:
    """What the dynamic section of a 64-bit little-endian shared library says. Raises OSError or ValueError for any other file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.needed, self.rpath, self.runpath = [], [], []  # type: list[str], list[str], list[str]
        self.floors = {}  # type: dict[str, tuple[int, ...]]
        with open(path, "rb") as stream:
            head = stream.read(64)
            if head[:6] != b"\x7fELF\x02\x01":
                raise ValueError("no 64-bit ELF file")
            offset, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
            stream.seek(offset)
            table = stream.read(size * count)
            segments = [struct.unpack_from("<IIQQQQQQ", table, size * i) for i in range(count)]
            loads = [(s[3], s[2], s[5]) for s in segments if s[0] == 1]  # address, offset, bytes in the file

            def at(address: int, length: int) -> bytes:
                start = next(o + address - a for a, o, n in loads if a <= address < a + n)
                stream.seek(start)
                return stream.read(length)

            for dynamic in (s for s in segments if s[0] == 2):
                stream.seek(dynamic[2])
                data = stream.read(dynamic[5])
                self.parse(list(struct.iter_unpack("<qQ", data[: len(data) // 16 * 16])), at)

    def parse(self, entries: "list[Any]", at: "Callable[[int, int], bytes]") -> None:
        known = dict(entries)
        strings = at(known[5], known[10])

        def text(start: int) -> str:
            return strings[start : strings.index(b"\0", start)].decode("ascii", "replace")

        here = os.path.dirname(os.path.realpath(self.path))
        folders = lambda value: [re.sub(r"\$\{?ORIGIN\}?", here, one) for one in text(value).split(":") if one]  # noqa: E731
        for tag, value in entries:
            if tag == 1:
                self.needed.append(text(value))
            elif tag == 15:
                self.rpath = folders(value)
            elif tag == 29:
                self.runpath = folders(value)
        address = known.get(0x6FFFFFFE)
        for _ in range(known.get(0x6FFFFFFF, 0) if address else 0):  # the versions of symbols that are needed of others
            _, count, _, first, following = struct.unpack("<HHIII", at(address, 16))
            entry = address + first
            for _ in range(count):
                _, _, _, name, rest = struct.unpack("<IHHII", at(entry, 16))
                family, _, number = text(name).partition("_")
                if family in FLOORS and re.match(r"[\d.]+$", number):
                    self.floors[family] = max(self.floors.get(family, ()), release(number))
                entry += rest
            address += following


def release(text: str) -> "tuple[int, ...]":
    return tuple(int(one) for one in text.split(".") if one)


def system_libraries() -> "dict[str, str]":
    """What the loader's cache gives: name -> path; without ldconfig what lies in the usual folders."""
    for tool in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
        if os.access(tool, os.X_OK):
            done = subprocess.run(
                [tool, "-p"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, timeout=20
            )
            pairs = re.findall(
                r"^\s+(\S+) \([^)]*(?:x86-64|AArch64)[^)]*\) => (\S+)", done.stdout.decode("utf-8", "replace"), re.M
            )
            return dict(reversed(pairs))
    folders = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", *glob.glob("/usr/lib/*-linux-gnu"), *glob.glob("/lib/*-linux-gnu"))
    return {os.path.basename(path): path for folder in folders for path in glob.glob(folder + "/*.so*")}


class Loader:
    """Looks libraries up as the system's loader would. variable: the folders of LD_LIBRARY_PATH."""

    def __init__(self, variable: str, system: "dict[str, str]") -> None:
        self.variable = [folder for folder in variable.split(":") if folder]
        self.system = system

    def find(self, name: str, elf: Elf, above: "tuple[str, ...]") -> "tuple[str, str, str]":
        """(path or "", by which rule, path without LD_LIBRARY_PATH or ""). above: RPATH of those that led here."""
        rpath = () if elf.runpath else (*elf.rpath, *above)
        known, plain = "", ""
        for rule, folders in (("rpath", rpath), ("LD_LIBRARY_PATH", self.variable), ("runpath", elf.runpath)):
            for folder in folders:
                path = os.path.join(folder, name)
                if os.path.exists(path):
                    known = known or rule + "\0" + path
                    if rule != "LD_LIBRARY_PATH":
                        plain = plain or path
        plain = plain or self.system.get(name, "")
        rule, _, path = (known or "system\0" + plain).partition("\0")
        return path, rule, plain


def library_health(top: str) -> "dict[str, Any]":
    """Torch's shared libraries and all that they need, looked up without loading any. top: the folder of the torch package.

    missing: what nothing provides; shadowed: what LD_LIBRARY_PATH puts before the library that would be taken without it;
    broken: files that are no shared library; needs: the newest symbol versions asked of the C and C++ libraries.
    """
    loader = Loader(os.environ.get("LD_LIBRARY_PATH", ""), attempt(system_libraries, {}))
    first = sorted(glob.glob(top + "/_C*.so") + glob.glob(top + "/lib/libtorch*.so") + glob.glob(top + "/lib/libc10*.so"))
    waiting = [(path, (), "") for path in first]  # type: list[tuple[str, tuple[str, ...], str]]
    seen, floors = {os.path.realpath(path) for path in first}, {}  # type: set[str], dict[str, tuple[int, ...]]
    names = {os.path.basename(path) for path in first}  # a library of this name that is loaded is not looked for again
    health = {"missing": [], "shadowed": [], "broken": []}  # type: dict[str, list[dict[str, str]]]
    while waiting:
        path, above, who = waiting.pop(0)
        try:
            elf = Elf(path)
        except (OSError, ValueError, LookupError, struct.error, StopIteration) as error:
            health["broken"].append({"path": path, "needed_by": who, "detail": first_line(error)})
            continue
        if path.startswith(top):
            for family, number in elf.floors.items():
                floors[family] = max(floors.get(family, ()), number)
        for name in elf.needed:
            if name in names or name.startswith("ld-linux") or name in OF_THE_DRIVER:
                continue
            names.add(name)
            found, rule, plain = loader.find(name, elf, above)
            if not found:
                health["missing"].append({"library": name, "needed_by": path})
            elif rule == "LD_LIBRARY_PATH" and plain and os.path.realpath(plain) != os.path.realpath(found):
                health["shadowed"].append({"library": name, "path": found, "instead_of": plain, "needed_by": path})
            if found and os.path.realpath(found) not in seen:
                seen.add(os.path.realpath(found))
                waiting.append((found, () if elf.runpath else (*elf.rpath, *above), path))
    needs = {family: ".".join(map(str, floors[family])) for family in FLOORS if family in floors}
    return dict(health, needs=needs, has=attempt(lambda: provided(loader.system, top), {}), looked_at=len(seen))


def provided(system: "dict[str, str]", top: str) -> "dict[str, str]":
    """The newest symbol versions that the image's own C++ library offers, and where it lies (conda's beside Python's prefix first)."""
    path = next(
        (p for p in (os.path.join(sys.prefix, "lib", "libstdc++.so.6"), system.get("libstdc++.so.6", "")) if os.path.exists(p)),
        "",
    )
    if not path:
        return {}
    with open(path, "rb") as stream:
        data = stream.read()
    found = {"libstdc++": os.path.realpath(path)}
    for family in ("GLIBCXX", "CXXABI"):
        versions = re.findall(rb"\0" + family.encode() + rb"_([\d.]+)(?=\0)", data)
        if versions:
            found[family] = max((one.decode() for one in versions), key=release)
    return found


# --------------------------------------------------------------------------- what else a program needs of its image

TOOLS = {
    "cc": ("cc", "gcc", "clang"),
    "c++": ("c++", "g++", "clang++"),
    "nvcc": ("nvcc",),
    "ptxas": ("ptxas",),
    "ninja": ("ninja",),
}


def tools() -> "dict[str, dict[str, str]]":
    """The compilers on PATH, CUDA_HOME and CC or CXX: path, and the version that each itself says."""
    found = {}
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    path = os.pathsep.join((os.environ.get("PATH", ""), os.path.join(home, "bin")))
    for name, programs in TOOLS.items():
        named = os.environ.get({"cc": "CC", "c++": "CXX"}.get(name, ""), "")
        where = next(filter(None, (shutil.which(one, path=path) for one in ([named] if named else []) + list(programs))), "")
        if where:
            match = re.search(r"(?:release |V|\b)(\d+\.\d[\w.]*)", output_of([where, "--version"]))
            found[name] = {"path": where, "version": match.group(1) if match else ""}
    return found


def output_of(command: "list[str]") -> str:
    """What a program says; "" when it cannot be run or does not end."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace")


def writable(path: str) -> bool:
    """Whether a file can be made there (access() says nothing of a read-only mount that root sees)."""
    try:
        with tempfile.TemporaryFile(dir=path):
            return True
    except OSError:
        return False


def user_facts() -> "dict[str, Any]":
    """Who runs here, and where they may write; sizes in bytes."""
    home = os.path.expanduser("~")
    shm = attempt(lambda: os.statvfs("/dev/shm"))
    return {
        "uid": os.getuid(),
        "gid": os.getgid(),
        "name": attempt(lambda: pwd.getpwuid(os.getuid()).pw_name, ""),
        "home": home,
        "writable": {"home": writable(home), "tmp": writable("/tmp"), "directory": writable("."), "root": writable("/")},
        "shm_bytes": shm.f_frsize * shm.f_blocks if shm else None,
    }


def compile_facts(device: str) -> "dict[str, Any]":
    """Whether torch.compile makes machine code here: Inductor with the image's compilers, no cache, a dense function."""
    compiler = getattr(torch, "compile", None)
    if compiler is None:
        return {"state": "absent", "detail": "this torch has no torch.compile"}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ["TRITON_CACHE_DIR"] = folder
        try:
            x = torch.ones(64, device=device)
            if torch.equal(compiler(lambda t: (t + 1).sin())(x), (x + 1).sin()):
                made = sum(1 for _, _, files in os.walk(folder) for one in files if one.endswith((".so", ".cubin")))
                return {"state": "ok" if made else "not-compiled", "detail": "%d binaries made" % made}
            return {"state": "wrong", "detail": "another result than without torch.compile"}
        except Exception as error:
            return {"state": "failed", "detail": first_line(error)}


def numpy_bridge() -> "dict[str, Any]":
    """Whether tensors and NumPy's arrays share memory here; torch works without."""
    try:
        numpy = importlib.import_module("numpy")
    except Exception as error:
        return {"state": "absent", "detail": first_line(error)}
    try:
        x = torch.zeros(2)
        x.numpy()[0] = 1
        ok = float(x[0]) == 1.0 and float(torch.from_numpy(numpy.ones(1))[0]) == 1.0
        return {"state": "ok" if ok else "wrong", "version": str(numpy.__version__), "detail": ""}
    except Exception as error:
        return {"state": "broken", "version": str(getattr(numpy, "__version__", "")), "detail": first_line(error)}


# --------------------------------------------------------------------------- outcomes from error texts

# (pattern over "Class: message", outcome, kind); the first match wins, so order matters.
# A refusal is `unsupported` only when the text says so; what is not known stays `error`.
TEXTS = [
    # Only torch's own names: an attribute missing on anything else is somebody's bug, not an absent API.
    (r"No module named 'torch[\w.]*'|(module|type object) '(torch[\w.]*|Tensor|Sparse\w*)' has no attribute|'(torch\.)?Tensor' object has no attribute"
     r"|takes (from \d+ to )?\d+ positional arguments? but|unexpected keyword argument", "absent", "api-missing"),
    (r"no kernel image is available|not compatible with the current PyTorch installation", "error", "no-gpu-code"),
    (r"No module named '|cannot open shared object|undefined symbol|symbol \w+ version .* not defined", "error", "missing-library"),
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
        r"|requires the '\w+' tensor to be strided|Expected result to have sparse csr layout|layout must be SparseCsr but got|requires coalesced input|grad is incorrect layout|expects mask to be sparse csr|only sparse compressed tensors with the same number|expect self to be SparseCsr, got"
        r"|transpositions between sparse and dense dimensions|can be converted to the Sparse\w+ layout"
        r"|to be of format CSR|Input type \(torch\.(cuda\.)?sparse|matrices expected, got",
        "unsupported", "no-layout",
    ),
    (r"only Tensors of floating point|Expected self to be a floating-point or complex tensor|for complex|Boolean inputs|only accepts floating", "unsupported", "no-dtype"),
    (r"does not require grad and does not have a grad_fn", "unsupported", "no-grad"),
    (r"does not currently support broadcasting|operands have incompatible sizes|currently only support|same shape, but got tensor|dim must be non-negative|divisor \(got shape",
     "unsupported", "no-broadcast"),
    (r"NotImplementedError|[Nn]ot (yet )?implemented|[Nn]ot (currently )?supported|[Uu]nsupported|does not support|doesn't support"
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
    key = (isinstance(error, (AttributeError, TypeError, ImportError)), text)
    if key not in CLASSIFIED:  # the same refusal comes from many cases
        CLASSIFIED[key] = classify_text(*key)
    return CLASSIFIED[key]


CLASSIFIED = {}  # type: dict[tuple[bool, str], tuple[str, str]]


def classify_text(api: bool, text: str) -> "tuple[str, str]":
    """api: the exception is of a class that a missing API raises."""
    for pattern, outcome, kind in TEXTS:
        if re.search(pattern, text):
            if outcome == "absent" and not api:
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
    "P": ((6, 8), {(0, 0), (0, 2), (2, 1), (2, 3), (1, 3)}),  # no empty row, which a minimum over rows needs
    "S": ((8, 4), {(0, 0), (1, 1), (2, 0)}),  # right side of A @ S; rows 6 and 7 are empty
    "C": ((6, 4), {(0, 1), (1, 0), (2, 1)}),  # what A @ S is added to
    "L": ((6, 6), {(0, 0), (1, 0), (1, 1), (2, 2)}),  # lower triangular with a full diagonal: see make_master
}  # type: dict[str, tuple[tuple[int, ...], set[tuple[int, int]]]]
# 3, 4 and 5 dimensions, for batches and convolutions; Q holds as many elements in each matrix, as compressed layouts ask.
STACKED = {"T": ("A", "B"), "Q": ("A", "A*"), "U": ("T", "T"), "V": ("U", "U")}
DENSE = {
    "x": (8, 5), "d": (6, 8), "y": (6, 5), "v": (8,), "u": (6,), "w": (5, 8), "b": (5,), "l": (5, 6), "m": (6, 4),
    "n": (4, 8), "t": (2, 8, 5), "q": (2, 6, 5), "k": (6, 1), "f": (3, 6, 3), "g": (3, 2, 3, 3), "h": (3, 2, 1, 3, 3),
    "z": (6, 2),
}  # fmt: skip
# Shapes that break things, as changes of sides; "dup", "nnz0" and "noncontig" change how an operand is stored or filled.
SIDES = {
    "odd": {6: 5, 8: 7, 5: 3, 4: 3},
    "one": {6: 1, 8: 1, 5: 1, 4: 1},
    "empty": {6: 0},
    "gradcheck": {8: 6, 5: 3, 4: 2},
}  # type: dict[str, dict[int, int]]
MASTERS = {}  # type: dict[tuple[str, str, str], Any]


def master(name: str, dtype: str, shape: str = "") -> Any:
    """The dense truth of an operand: float64, complex128, int64 or bool on the CPU. Callers must not write to it."""
    kind = kind_of(dtype)
    if (name, kind, shape) not in MASTERS:
        MASTERS[name, kind, shape] = make_master(name, kind, dtype, shape)
    return MASTERS[name, kind, shape]


def kind_of(dtype: str) -> str:
    """What numbers an operand of this dtype holds."""
    return (
        "complex" if dtype in COMPLEX else "real" if dtype in FLOATING else "bool" if dtype == "bool" else
        "unsigned" if dtype == "uint8" else "whole"
    )  # fmt: skip


def make_master(name: str, kind: str, dtype: str, shape: str) -> Any:
    sizes, values = numbers(name, kind, shape)
    return torch.tensor(values, dtype=getattr(torch, WIDE[kind])).reshape(sizes)


# What the truth of an operand is kept in, by the kind of its dtype.
WIDE = {"real": "float64", "complex": "complex128", "whole": "int64", "unsigned": "int64", "bool": "bool"}


def numbers(name: str, kind: str, shape: str) -> "tuple[tuple[int, ...], list[Any]]":
    """Sizes and elements (row after row) of an operand; plain Python, since a snippet is written where no torch is."""
    if name in STACKED:
        each = [numbers(part, kind, shape) for part in STACKED[name]]
        return (len(each),) + each[0][0], [value for _, values in each for value in values]
    if name.endswith("*"):
        sizes, values = numbers(name[0], kind, shape)
        return sizes, [value for start in range(0, len(values), sizes[1]) for value in values[start : start + sizes[1]][::-1]]
    salt = ord(name)
    sides = SIDES.get(shape, {})
    full = DENSE[name] if name in DENSE else SPARSE[name][0]
    sizes = tuple(sides.get(side, side) for side in full)
    size = product_of(sizes)
    if name in DENSE:
        values = [float((7 * k + salt) % 9 - 4) for k in range(size)]
    else:
        blocks = SPARSE[name][1]
        values = []
        for i, j in itertools.product(range(sizes[0]), range(sizes[1])):
            there = (i // BLOCK[0], j // BLOCK[1]) in blocks and (i + 2 * j + salt) % 4 != 0
            value = float(((3 * i + 5 * j) % 4 + 1) * (-1 if (i + j + salt) % 3 == 0 else 1))
            if name == "L":  # solvers divide by the diagonal: powers of two keep that exact
                there, value = (there and i > j) or i == j, 2.0 if i == j else value
            values.append(value if there and shape != "nnz0" else 0.0)
    if kind == "complex":
        row = product_of(sizes[1:])
        flipped = [value for start in range(size - row, -1, -row) for value in values[start : start + row]] if size else []
        return sizes, [complex(value, (other if value else 0.0) - 0.5 * value) for value, other in zip(values, flipped)]
    turn = {"real": float, "whole": int, "unsigned": lambda value: abs(int(value)), "bool": bool}[kind]
    return sizes, [turn(value) for value in values]


def product_of(sizes: "tuple[int, ...]") -> int:
    """How many elements a tensor of these sizes holds."""
    size = 1
    for side in sizes:
        size *= side
    return size


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
    parts = stored_parts(tuple(dense.shape), dense.reshape(-1).tolist(), layout, shape)
    dtypes = [torch.int64] * (len(parts) - 1) + [dense.dtype]
    return tuple(torch.tensor(flat, dtype=dtype).reshape(sizes) for (sizes, flat), dtype in zip(parts, dtypes))


def stored_parts(
    sizes: "tuple[int, ...]", flat: "list[Any]", layout: str, shape: str
) -> "list[tuple[tuple[int, ...], list[Any]]]":
    """(sizes, elements) of the indices and then of the values of a dense array in a layout; plain Python, as `numbers`."""
    if layout in ("coo", "hybrid"):
        sparse = sizes[:1] if layout == "hybrid" else sizes  # hybrid: one sparse dimension, the rest dense
        inner = product_of(sizes[len(sparse) :])
        places = list(itertools.product(*[range(side) for side in sparse]))
        held = [(place, flat[k * inner : (k + 1) * inner]) for k, place in enumerate(places)]
        held = [(place, values) for place, values in held if any(values)]
        if shape == "dup":  # unsorted, and every element stored in two parts that must be added
            rests = [(place, [v if v is True or v is False else v - 1 for v in values]) for place, values in held]
            ones = [(place, [v if v is True or v is False else type(v)(1) for v in values]) for place, values in held]
            held = rests[::-1] + ones
        return [
            ((len(sparse), len(held)), [place[axis] for axis in range(len(sparse)) for place, _ in held]),
            ((len(held),) + sizes[len(sparse) :], [value for _, values in held for value in values]),
        ]
    if len(sizes) > 2:
        inner = product_of(sizes[1:])
        each = [stored_parts(sizes[1:], flat[k * inner : (k + 1) * inner], layout, shape) for k in range(sizes[0])]
        return [((len(same),) + same[0][0], [one for _, part in same for one in part]) for same in zip(*each)]
    rows, columns = sizes
    down, across = BLOCK if layout in ("bsr", "bsc") else (1, 1)
    turned = layout in ("csc", "bsc")
    majors, minors = (columns // across, rows // down) if turned else (rows // down, columns // across)
    compressed, plain, kept = [0], [], []  # type: tuple[list[int], list[int], list[Any]]
    for major in range(majors):
        for minor in range(minors):
            top, left = (minor * down, major * across) if turned else (major * down, minor * across)
            block = [flat[(top + y) * columns + left + x] for y in range(down) for x in range(across)]
            if any(block):
                plain.append(minor)
                kept += block
        compressed.append(len(plain))
    whole = (len(plain), down, across) if layout in ("bsr", "bsc") else (len(plain),)
    return [((len(compressed),), compressed), ((len(plain),), plain), (whole, kept)]


def make_sparse(name: str, layout: str, dtype: str, device: Any, shape: str = "", index: str = "") -> Any:
    """An operand built from its parts, never by a conversion, so that a broken conversion shows as its own case."""
    dense = master(name, dtype, shape)
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


def make_dense(name: str, dtype: str, device: Any, shape: str = "") -> Any:
    made = master(name, dtype, shape).to(torch_dtype(dtype), copy=True).to(device)
    return made.t().contiguous().t() if shape == "noncontig" and made.dim() == 2 else made


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
    layout: str
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
GRADCHECK = "gradcheck"  # as a case's shape: numerical against analytical gradients instead of a dense twin


def op(
    name: str,
    layouts: str,
    operands: str,
    fn: "Callable[..., Any]",
    ref: "Callable[..., Any] | None" = None,
    *,
    dtypes: "tuple[str, ...]" = ("float32",),
    more: "tuple[str, ...]" = (),
    devices: "tuple[str, ...]" = DEVICES,
    grad: bool = False,
    smooth: bool = True,
    shapes: "tuple[str, ...]" = ("",),
    index: "tuple[str, ...]" = ("",),
    result: str = "",
    out: str = "",
    tol: float = 1.0,
    tier: str = "standard",
    since: str = "",
    claim: str = "",
    source: str = "",
) -> None:
    """Declares the cases of one operation: layouts x dtypes x index dtypes x shapes x devices [x backward].

    operands: names of SPARSE (capitals, in the case's layout or as `B:csr`) and DENSE (small letters), space between.
    more: dtypes that only the full tier runs. fn: over the operands; ref: over their dense twins, by default the same expression. A name with `{layout}` in it is
    an id of its own (`module.linear-{layout}-weight`). result: `same` is the case's layout.
    claim: layouts for which PyTorch's documentation says that it works, `coo:grad` when backward is included.
    smooth: differentiable at the operands' values, and its gradient is that of the dense twin, so gradcheck applies.
    Profiles, and with `core` the quick tier, are written in at the end (assign_profiles).
    """
    names = tuple(operands.split())
    sparse = [one for one in names if one[0].isupper()]
    claims = claim.split()
    for layout in layouts.split():
        stored = "coo" if layout == "hybrid" else layout
        recipe = Recipe(fn, ref or fn, names, layout, stored if result == "same" else result, out, tol)
        if "." in name:
            head = name.format(layout=layout)
        else:
            head = "-".join([one.partition(":")[2] or layout for one in sparse] or [layout]) + "." + name
        for dtype, wide_index, shape, device in itertools.product(dtypes + more, index, shapes, devices):
            for backward in (False, True) if grad and dtype in FLOATING else (False,):
                pieces = [head, dtype, wide_index, shape, device, "backward" if backward else ""]
                family, _, rest = head.partition(".")
                claimed = layout + ":grad" in claims or (layout in claims and not backward)
                case = Case(
                    ".".join(piece for piece in pieces if piece), family, rest, dtype, wide_index, shape, device,
                    backward, "full" if dtype in more else tier, since, (), "yes" if claimed else "", source, recipe,
                )  # fmt: skip
                if case.id in CASES:
                    raise ValueError("case %s is declared twice" % case.id)
                CASES[case.id] = case
        if grad and smooth and len(sparse) < 2 and names and shapes == ("",) and index == ("",) and "cpu" in devices:
            ident = head + ".float64." + GRADCHECK + ".cpu.backward"
            case = Case(ident, family, rest, "float64", "", GRADCHECK, "cpu", True, "full", since, (), "", source, recipe)
            CASES.setdefault(ident, case)


def work(name: str, layouts: str = "coo", **options: Any) -> "Callable[[Callable[..., Any]], Callable[..., Any]]":
    """Decorator for cases with more than one expression: the function gets a Kit and returns (actual, reference)."""

    def register(fn: "Callable[..., Any]") -> "Callable[..., Any]":
        op(name, layouts, "", fn, **options)
        return fn

    return register


class Kit:
    """What a `work` function gets: the case's own dtype, device and layout, and operands with their dense twins."""

    def __init__(self, case: Case, device: Any) -> None:
        self.case, self.device, self.dtype, self.layout = case, device, case.dtype, case.recipe.layout
        self.torch_dtype = torch_dtype(case.dtype)

    def sparse(self, name: str, layout: str = "", device: Any = None) -> Any:
        where = self.device if device is None else device
        return make_sparse(name, layout or self.layout, self.dtype, where, self.case.shape, self.case.index)

    def dense(self, name: str) -> Any:
        return make_dense(name, self.dtype, self.device, self.case.shape)

    def truth(self, name: str) -> Any:
        return master(name, self.dtype, self.case.shape).clone()

    def stored(self, name: str) -> Any:
        """True where the operand stores an element, which in a block may be a zero."""
        return stored(name, self.case) != 0

    def move(self, tensor: Any) -> Any:
        """A float64 tensor as the case wants it."""
        return tensor.to(self.torch_dtype, copy=True).to(self.device)


# --------------------------------------------------------------------------- cases: creation

EVERY = "coo csr csc bsr bsc"
COMPRESSED = "csr csc bsr bsc"
ALL = EVERY + " hybrid"
HALVES = ("float16", "bfloat16")
REST = tuple(dtype for dtype in ANY if dtype not in REAL)
SHAPES = ("odd", "one", "empty", "nnz0")  # block layouts have no odd sides: 2x2 blocks must divide
BLOCK_SHAPES = ("empty", "nnz0")
LINALG = "torch.sparse: Supported Linear Algebra operations"
UNARY = "torch.sparse: Unary functions"
TENSOR = "torch.sparse: Tensor methods and sparse"
SPECIFIC = "torch.sparse: Torch functions specific to sparse Tensors"
IDENTITY = lambda a: a.clone()  # noqa: E731


def public(layout: str) -> "Callable[..., Any]":
    """The documented constructor only: a private predecessor does not count for a `create` case."""
    name = "sparse_%s_tensor" % layout
    if not hasattr(torch, name):
        raise Absent("torch.%s" % name)
    return getattr(torch, name)  # type: ignore[no-any-return]


def need(*path: str) -> Any:
    """torch.<path>, or Absent."""
    found = torch
    for name in path:
        if not hasattr(found, name):
            raise Absent("torch." + ".".join(path))
        found = getattr(found, name)
    return found


def method(tensor: Any, name: str) -> "Callable[..., Any]":
    """A method of tensors, or Absent: in old torch `tensor.name` says only that Tensor has no attribute."""
    if not hasattr(tensor, name):
        raise Absent("Tensor." + name)
    return getattr(tensor, name)  # type: ignore[no-any-return]


@work("{layout}.create", EVERY, dtypes=ANY, result="same", since="1.9", claim=EVERY)
@work("{layout}.create", "coo csr csc", shapes=SHAPES, result="same", claim=EVERY)
@work("{layout}.create", "bsr bsc", shapes=BLOCK_SHAPES, result="same", claim=EVERY)
def create(kit: Kit) -> Any:
    public(kit.layout)
    return kit.sparse("A"), kit.truth("A")


@work("{layout}.create", COMPRESSED, index=("i32",), result="same", since="1.10", claim=EVERY)
def create_i32(kit: Kit) -> Any:
    public(kit.layout)
    made = kit.sparse("A")
    if parts_of(made)[0].dtype != torch.int32:
        raise Broken("int32 indices came back as %s" % parts_of(made)[0].dtype)
    return made, kit.truth("A")


@work("{layout}.create-batch", COMPRESSED, result="same", since="1.12")
def create_batch(kit: Kit) -> Any:
    public(kit.layout)
    return kit.sparse("Q"), kit.truth("Q")


@work("{layout}.create-checked", EVERY, result="same", since="2.0", claim=EVERY)
def create_checked(kit: Kit) -> Any:
    need("sparse", "check_sparse_tensor_invariants")
    made = kit.sparse("A")
    shape = tuple(made.shape)
    if kit.layout == "coo":
        return torch.sparse_coo_tensor(*parts_of(made), shape, check_invariants=True), kit.truth("A")
    return public(kit.layout)(*parts_of(made), shape, check_invariants=True), kit.truth("A")


@work("{layout}.create-compressed", COMPRESSED, result="same", since="1.12", claim=EVERY)
def create_compressed(kit: Kit) -> Any:
    made = kit.sparse("A")
    make = need("sparse_compressed_tensor")
    return make(*parts_of(made), tuple(made.shape), layout=made.layout), kit.truth("A")


@work("{layout}.create-from-lists", EVERY, result="same", claim=EVERY)
def create_from_lists(kit: Kit) -> Any:
    made = kit.sparse("A")
    lists = [part.tolist() for part in parts_of(made)]
    return public(kit.layout)(*lists, tuple(made.shape), dtype=kit.torch_dtype, device=kit.device), kit.truth("A")


@work("{layout}.create-inferred-size", EVERY, result="same", claim=EVERY)
def create_inferred(kit: Kit) -> Any:
    return public(kit.layout)(*parts_of(kit.sparse("P"))), kit.truth("P")


@work("{layout}.zeros", EVERY, result="same")
def zeros(kit: Kit) -> Any:
    made = kit.sparse("A")
    return torch.zeros((6, 8), dtype=made.dtype, layout=made.layout, device=kit.device), 0 * kit.truth("A")


@work("coo.create-empty", result="coo", claim="coo")
def create_empty(kit: Kit) -> Any:
    return torch.sparse_coo_tensor((6, 8), dtype=kit.torch_dtype, device=kit.device), 0 * kit.truth("A")


def refusal(act: "Callable[[], Any]") -> Any:
    """(1, 1) when `act` ends in a clean exception, as malformed input should; (0, 1) when it is taken in silence."""
    try:
        act()
    except (RuntimeError, ValueError, IndexError, TypeError):
        return torch.ones(()), torch.ones(())
    return torch.zeros(()), torch.ones(())


@work("coo.malformed-index-above", "coo", dtypes=("float32",), out="any", tier="full", source="pytorch#114454")
def malformed_above(kit: Kit) -> Any:
    return refusal(lambda: torch.sparse_coo_tensor([[100000000], [0]], [1.0], (2, 2), device=kit.device).to_dense())


@work("coo.malformed-index-below", "coo", dtypes=("float32",), out="any", tier="full", source="pytorch#182662")
def malformed_below(kit: Kit) -> Any:
    return refusal(lambda: torch.sparse_coo_tensor([[-4702111234474983746]], [1.0], (1,), device=kit.device).to_dense())


@work("csr.malformed-pointers", "csr", dtypes=("float32",), out="any", tier="full", source="pytorch#141004")
def malformed_pointers(kit: Kit) -> Any:
    make = public("csr")

    def act() -> None:
        crow, col = torch.tensor([0, 900000000, 3]), torch.tensor([0, 1, 1])
        convert(make(crow, col, torch.ones(3), (2, 2), device=kit.device), "coo").coalesce().to_dense()

    return refusal(act)


@work("csr.malformed-no-columns", "csr", dtypes=("float32",), out="any", tier="full", source="pytorch#190045")
def malformed_columns(kit: Kit) -> Any:
    make = public("csr")
    return refusal(lambda: make([0, 1, 2, 3], [0, 1, 2], [1.0, 2.0, 3.0], (3, 0), device=kit.device) @ torch.ones(
        (0, 2), device=kit.device))  # fmt: skip


@work("bsr.malformed-empty-blocks", "bsr", dtypes=("float32",), out="any", tier="full", source="pytorch#190048")
def malformed_blocks(kit: Kit) -> Any:
    make = public("bsr")
    return refusal(lambda: make(
        torch.tensor([0, 0]), torch.zeros(0, dtype=torch.int64), torch.zeros(0, 0, 0), (2, 2), device=kit.device
    ).to_dense())  # fmt: skip


op("create", "hybrid", "A", lambda a: a, IDENTITY, dtypes=ANY, result="coo", claim="hybrid")
op("coalesce", "coo hybrid", "A", lambda a: a.coalesce(), IDENTITY, dtypes=REAL, more=REST, shapes=("", "dup"), result="coo",
   claim="coo hybrid", source=TENSOR)  # fmt: skip
op("coalesce", "coo", "A", lambda a: a.coalesce(), IDENTITY, shapes=SHAPES, result="coo", claim="coo", source=TENSOR)
op("clone", ALL, "A", lambda a: a.clone(), IDENTITY, grad=True, result="same", more=("float64",))
op("copy", EVERY, "A", lambda a: a.to(a.device, copy=True), IDENTITY, result="same")
op("copy-into", EVERY, "A B", lambda a, b: b.copy_(a), lambda a, b: a, result="same")
op("deepcopy", EVERY, "A", lambda a: copy.deepcopy(a), IDENTITY, result="same")
op("detach", EVERY, "A", lambda a: a.detach(), IDENTITY, result="same")
op("contiguous", EVERY, "A", lambda a: a.contiguous(), IDENTITY, result="same")
op("to-float64", ALL, "A", lambda a: a.to(torch.float64), lambda a: a.to(torch.float64), dtypes=("float32", "float16", "int64"),
   result="same", out="float64")  # fmt: skip
op("half", EVERY, "A", lambda a: a.half(), IDENTITY, dtypes=("float32",), result="same", out="float16")
op("zeros-like", ALL, "A", lambda a: torch.zeros_like(a), lambda a: 0 * a, result="same")
op("empty-like", ALL, "A", lambda a: torch.empty_like(a).zero_(), lambda a: 0 * a, result="same")
op("zero-inplace", ALL, "A", lambda a: a.zero_(), lambda a: 0 * a, result="same", source=TENSOR)
op("indices", "coo", "A", lambda a: a.coalesce().indices(), lambda a: a.nonzero().t(),
   dtypes=("float32",), out="int64", result="strided", claim="coo", source=TENSOR)  # fmt: skip
op("values", "coo", "A", lambda a: a.coalesce().values(), lambda a: a[a != 0], more=("float64",), result="strided", claim="coo", grad=True,
   source=TENSOR)  # fmt: skip
op("values", "csr", "A", lambda a: a.values(), lambda a: a[a != 0], more=("float64",), result="strided", claim="csr", grad=True,
   source=TENSOR)  # fmt: skip
op("resize-as", EVERY, "A B", lambda a, b: b.resize_as_sparse_(a).zero_(), lambda a, b: 0 * a, result="same")
op("sparse-resize", "coo", "A", lambda a: a.sparse_resize_((7, 8), 2, 0), lambda a: torch.cat([a, a[:1] * 0]), result="coo",
   source=TENSOR)  # fmt: skip
op("sparse-resize-and-clear", "coo", "A", lambda a: a.sparse_resize_and_clear_((6, 8), 2, 0), lambda a: 0 * a, result="coo",
   source=TENSOR)  # fmt: skip
op("resize", "csr", "A", lambda a: a.resize_((8, 8)), lambda a: torch.cat([a, a[:2] * 0]), result="csr")
op("requires-grad", EVERY, "A", lambda a: a.requires_grad_(), IDENTITY, result="same")


@work("{layout}.ones-like", EVERY, result="same")
def ones_like(kit: Kit) -> Any:
    return torch.ones_like(kit.sparse("A")), kit.stored("A").to(torch.float64)


@work("{layout}.fill-inplace", EVERY, result="same")
def fill_in_place(kit: Kit) -> Any:
    return kit.sparse("A").fill_(3), 3 * kit.stored("A").to(torch.float64)


@work("{layout}.randn-like", EVERY, result="same")
def randn_like(kit: Kit) -> Any:
    """Chance fills the values, so the reference can only be the pattern."""
    made = torch.randn_like(kit.sparse("A"))
    dense = densify(made)
    if not bool(dense.abs().max() > 0):
        raise Broken("randn_like gave only zeros")
    return made, torch.where(kit.stored("A"), dense, torch.zeros_like(dense))


@work("{layout}.normal-inplace", COMPRESSED, result="same")
def normal_in_place(kit: Kit) -> Any:
    made = kit.sparse("A").normal_(5.0, 0.1)
    dense = densify(made)
    return made, torch.where(kit.stored("A") & (dense > 0), dense, torch.zeros_like(dense))


@work("coo.zeros-out", result="coo")
def zeros_out(kit: Kit) -> Any:
    return torch.zeros((6, 8), out=kit.sparse("A")), 0 * kit.truth("A")


@work("{layout}.counts", EVERY, dtypes=("float32",), out="int64")
def counts(kit: Kit) -> Any:
    """nnz, sparse_dim and dense_dim as torch tells them."""
    made, dense = kit.sparse("A"), kit.truth("A")
    stored_parts = components(dense, kit.layout, "")[-1].shape[0]
    told = [made._nnz(), made.sparse_dim() if kit.layout == "coo" else 2, made.dense_dim() if kit.layout == "coo" else 0]
    return torch.tensor(told).to(kit.device), torch.tensor([stored_parts, 2, 0])


@work("{layout}.to-device", EVERY, devices=("cuda",), more=("float64",), result="same", claim=EVERY)
@work("coo.to-device", devices=("cuda",), shapes=("dup",), result="coo", claim="coo")
def to_device(kit: Kit) -> Any:
    return kit.sparse("A", device="cpu").to(kit.device), kit.truth("A")


@work("{layout}.to-cpu", EVERY, devices=("cuda",), more=("float64",), claim=EVERY)
def to_cpu(kit: Kit) -> Any:
    back = kit.sparse("A").to("cpu")
    if back.device.type != "cpu" or layout_of(back) != kit.layout:
        raise Broken("to('cpu') gave %s on %s" % (layout_of(back), back.device))
    return densify(back).to(kit.device).to(kit.torch_dtype), kit.truth("A")


@work("{layout}.pin-memory", EVERY, devices=("cuda",), dtypes=("float32",), since="2.5", result="same")
def pin_memory(kit: Kit) -> Any:
    pinned = kit.sparse("A", device="cpu").pin_memory()
    if not pinned.is_pinned():
        raise Broken("pin_memory() gave a tensor that is not pinned")
    return pinned.to(kit.device, non_blocking=True), kit.truth("A")


@work("{layout}.is-pinned", EVERY, devices=("cpu",), dtypes=("float32",), out="any")
def is_pinned(kit: Kit) -> Any:
    return torch.tensor(float(kit.sparse("A").is_pinned())), torch.zeros(())


@work("{layout}.pickle", EVERY, result="same", since="1.11", more=("float64",))
def pickled(kit: Kit) -> Any:
    made = kit.sparse("A").coalesce() if kit.layout == "coo" else kit.sparse("A")
    back = pickle.loads(pickle.dumps(made))
    if kit.layout == "coo" and not back.is_coalesced():
        raise Broken("a coalesced tensor came back as not coalesced (pytorch#101186)")
    return back, kit.truth("A")


@work("{layout}.save-load", EVERY, result="same", since="1.11")
def saved(kit: Kit) -> Any:
    stream = io.BytesIO()
    torch.save({"adjacency": kit.sparse("A")}, stream)
    stream.seek(0)
    return torch.load(stream, map_location=kit.device)["adjacency"], kit.truth("A")


@work("{layout}.share-memory", EVERY, devices=("cpu",), dtypes=("float32",), result="same")
def share_memory(kit: Kit) -> Any:
    return kit.sparse("A").share_memory_(), kit.truth("A")


@work("coo.coalesce-int32-limit", dtypes=("float32",), tier="full", out="any", source="pytorch#102520")
def coalesce_limit(kit: Kit) -> Any:
    """Indices over 2**31 in a matrix of hardly any elements: costs no memory."""
    far = 2**31 + 7
    made = torch.sparse_coo_tensor([[far, 1, far], [0, 1, 0]], [1.0, 2.0, 3.0], (far + 1, 3), device=kit.device).coalesce()
    return torch.cat([made.indices().to(torch.float64).reshape(-1), made.values().to(torch.float64)]), torch.tensor(
        [1.0, far, 1.0, 0.0, 2.0, 4.0], dtype=torch.float64)  # fmt: skip


@work("coo.add-int32-limit", dtypes=("float32",), tier="full", out="any")
def add_limit(kit: Kit) -> Any:
    far = 2**31 + 7
    one = torch.sparse_coo_tensor([[0, far], [0, far]], [1.0, 2.0], (far + 1, far + 1), device=kit.device)
    made = (one + one.t()).coalesce()
    return torch.cat([made.indices().to(torch.float64).reshape(-1), made.values().to(torch.float64)]), torch.tensor(
        [0.0, far, 0.0, far, 2.0, 4.0], dtype=torch.float64)  # fmt: skip


# --------------------------------------------------------------------------- cases: conversion


def convert(tensor: Any, target: str) -> Any:
    """tensor.to_sparse_<target>(), with the block size where one is needed."""
    if target == "coo":
        return tensor.to_sparse()
    make = getattr(tensor, "to_sparse_" + target, None)
    if make is None:
        raise Absent("Tensor.to_sparse_" + target)
    return make(BLOCK) if target in ("bsr", "bsc") else make()


op("to-dense", ALL, "A", lambda a: a.to_dense(), IDENTITY, dtypes=ANY, grad=True, result="strided", claim=EVERY)
op("to-dense", "coo", "A", lambda a: a.to_dense(), IDENTITY, dtypes=NUMERIC + ("bool",), shapes=("dup",), result="strided",
   claim="coo", source="pytorch#81648")  # fmt: skip
op("to-dense", "coo csr csc", "A", lambda a: a.to_dense(), IDENTITY, shapes=SHAPES, result="strided", claim=EVERY)
op("to-dense", "bsr bsc", "A", lambda a: a.to_dense(), IDENTITY, shapes=BLOCK_SHAPES, result="strided", claim=EVERY)
op("to-dense-batch", COMPRESSED, "Q", lambda a: a.to_dense(), IDENTITY, result="strided", since="1.12")
op("to-dense-masked", EVERY, "A", lambda a: a.to_dense(masked_grad=True), IDENTITY, grad=True, result="strided", since="2.1")
for TARGET in LAYOUTS:
    CONVERT = lambda a, target=TARGET: convert(a, target)  # noqa: E731
    op(
        "to-" + TARGET,
        ALL,
        "A",
        CONVERT,
        IDENTITY,
        grad=True,
        smooth=TARGET not in ("bsr", "bsc"),
        result=TARGET,
        claim=EVERY,
        more=("float64",),
    )
    op("to-" + TARGET, "coo csr csc", "A", CONVERT, IDENTITY, shapes=("nnz0",), result=TARGET, claim=EVERY)
    op("to-" + TARGET, "coo csr csc", "A", CONVERT, IDENTITY, dtypes=REST, result=TARGET, tier="full", claim=EVERY)
    op("to-" + TARGET, "csr csc", "A", CONVERT, IDENTITY, index=("i32",), result=TARGET, claim=EVERY)
    op("strided.to-%s" % TARGET, "strided", "d", CONVERT, IDENTITY, dtypes=NUMERIC + ("bool",), grad=True, smooth=False, result=TARGET,
       claim="strided")  # fmt: skip
    op("strided.to-%s" % TARGET, "strided", "d", CONVERT, IDENTITY, shapes=("noncontig", "empty"), result=TARGET)
op("strided.to-sparse-dim", "strided", "d", lambda d: d.to_sparse(1), IDENTITY, result="coo", claim="strided")


@work("strided.to-csr-batch", "strided", result="csr", since="1.12")
def to_csr_batch(kit: Kit) -> Any:
    return convert(kit.move(kit.truth("Q")), "csr"), kit.truth("Q")


op("to-sparse-layout", EVERY, "A", lambda a: a.to_sparse(layout=torch.sparse_csr), IDENTITY, result="csr", since="2.0")


@work("{layout}.to-blocks-that-do-not-divide", "strided coo csr", dtypes=("float32",), out="any")
def undivided(kit: Kit) -> Any:
    tensor = kit.dense("d") if kit.layout == "strided" else kit.sparse("A")
    return refusal(lambda: method(tensor, "to_sparse_bsr")((4, 3)))


@work(
    "{layout}.sparse-mask", EVERY, dtypes=("float32", "float64", "float16", "int64"), result="same", claim="coo", source=TENSOR
)
def sparse_mask(kit: Kit) -> Any:
    """A dense tensor cut to the pattern of a sparse one."""
    a = kit.sparse("A")
    full = kit.truth("d")
    kept = torch.where(kit.stored("A"), full, torch.zeros_like(full))
    return kit.dense("d").sparse_mask(a.coalesce() if kit.layout == "coo" else a), kept


@work("{layout}-{layout}.sparse-mask", EVERY, result="same", source=TENSOR)
def sparse_mask_sparse(kit: Kit) -> Any:
    a, b, full = kit.sparse("A"), kit.sparse("B"), kit.truth("A")
    kept = torch.where(kit.stored("B"), full, torch.zeros_like(full))
    return a.sparse_mask(b.coalesce() if kit.layout == "coo" else b), kept


op("broadcast-to", "coo", "A", lambda a: need("_sparse_broadcast_to")(a.unsqueeze(0), (2, 6, 8)), lambda a: a.expand(2, 6, 8),
   result="coo")  # fmt: skip
op("spdiags", "strided", "z", lambda z: need("sparse", "spdiags")(z.t().contiguous().cpu(), torch.tensor([0, -2]), (6, 6)).to(z.device),
   lambda z: torch.diag(z[:, 0]) + torch.diag(z[:4, 1], -2), result="coo", since="1.13", claim="strided", source=SPECIFIC)  # fmt: skip

# --------------------------------------------------------------------------- cases: products

DENSE_MM = lambda a, x: a @ x  # noqa: E731
SPARSE_MM = lambda a, x: torch.sparse.mm(a, x)  # noqa: E731

op("mm", EVERY, "A x", SPARSE_MM, DENSE_MM, dtypes=NUMERIC, grad=True, result="strided", claim="coo:grad", source=LINALG)
op("mm", EVERY, "A x", SPARSE_MM, DENSE_MM, dtypes=("complex128", "int32"), tier="full", result="strided", claim="coo")
op("mm", "coo", "A x", SPARSE_MM, DENSE_MM, shapes=("dup",), grad=True, result="strided", claim="coo:grad", source=LINALG)
op("mm", COMPRESSED, "A x", SPARSE_MM, DENSE_MM, index=("i32",), grad=True, result="strided")
op("mm", "coo csr csc", "A x", SPARSE_MM, DENSE_MM, shapes=SHAPES, grad=True, result="strided", claim="coo:grad")
op("mm", "bsr bsc", "A x", SPARSE_MM, DENSE_MM, shapes=BLOCK_SHAPES, grad=True, result="strided")
op("mm", EVERY, "A x", SPARSE_MM, DENSE_MM, shapes=("noncontig",), grad=True, result="strided", claim="coo:grad")
op(
    "torch-mm",
    EVERY,
    "A x",
    lambda a, x: torch.mm(a, x),
    DENSE_MM,
    grad=True,
    result="strided",
    claim="coo",
    source=LINALG,
    more=("float64",),
)
op("mm-out", EVERY, "A x y", lambda a, x, y: torch.mm(a, x, out=y), lambda a, x, y: a @ x, result="strided")
op("matmul", ALL, "A x", DENSE_MM, grad=True, result="strided", claim="coo csr", source=LINALG, dtypes=REAL)
op("matmul", EVERY, "A x", DENSE_MM, dtypes=("float16", "bfloat16", "complex64", "int64"), result="strided", claim="coo csr")
op("matmul-left", ALL, "l A", DENSE_MM, grad=True, result="strided", source=LINALG, more=("float64",))
op("matmul-vector", EVERY, "A v", DENSE_MM, grad=True, result="strided", claim="coo csr", source=LINALG, more=("float64",))
op("matmul-batch", COMPRESSED, "Q t", DENSE_MM, result="strided", since="1.12")
op("matmul-broadcast", COMPRESSED, "A t", DENSE_MM, result="strided", since="1.12", source="pytorch#75784")
op("mv", ALL, "A v", lambda a, v: a.mv(v), grad=True, result="strided", claim="coo csr", source=LINALG, more=("float64",))
op("mv", EVERY, "A v", lambda a, v: a.mv(v), dtypes=("float16", "bfloat16", "complex64", "int64"), result="strided",
   claim="coo csr")  # fmt: skip
op(
    "addmv",
    EVERY,
    "u A v",
    lambda u, a, v: torch.addmv(u, a, v, beta=0.5, alpha=2.0),
    grad=True,
    result="strided",
    more=("float64",),
)
op("addmm", EVERY, "y A x", lambda y, a, x: torch.addmm(y, a, x, beta=0.5, alpha=2.0), grad=True, result="strided",
   claim="coo", source=LINALG, dtypes=REAL)  # fmt: skip
op("addmm-out", EVERY, "y A x", lambda y, a, x: torch.addmm(y, a, x, beta=0.5, alpha=2.0, out=torch.empty_like(y)),
   lambda y, a, x: torch.addmm(y, a, x, beta=0.5, alpha=2.0), result="strided")  # fmt: skip
op("addmm-inplace", EVERY, "y A x", lambda y, a, x: y.addmm_(a, x, beta=0.5, alpha=2.0),
   lambda y, a, x: torch.addmm(y, a, x, beta=0.5, alpha=2.0), result="strided")  # fmt: skip
op("addmm-left", EVERY, "k u A", lambda k, u, a: torch.addmm(k.t()[:, :1], u.unsqueeze(0), a, beta=0.5),
   lambda k, u, a: 0.5 * k.t()[:, :1] + u.unsqueeze(0) @ a, result="strided", dtypes=("float64",))  # fmt: skip
op("sparse-addmm", EVERY, "y A x", lambda y, a, x: torch.sparse.addmm(y, a, x, beta=0.5, alpha=2.0),
   lambda y, a, x: 0.5 * y + 2.0 * (a @ x), grad=True, result="strided", claim="coo:grad", source=LINALG, more=("float64",))  # fmt: skip
op(
    "addmm",
    EVERY,
    "C A S",
    lambda c, a, s: torch.addmm(c, a, s, beta=0.5, alpha=2.0),
    lambda c, a, s: 0.5 * c + 2.0 * (a @ s),
    dtypes=REAL,
)
op("addmv-out", COMPRESSED, "u A v", lambda u, a, v: torch.addmv(u, a, v, out=torch.empty_like(u)),
   lambda u, a, v: u + a @ v, result="strided")  # fmt: skip
op("addmm-dense", EVERY, "m A S", lambda m, a, s: torch.addmm(m, a, s, beta=0.5, alpha=2.0), result="strided")
op("mm", EVERY, "A S", SPARSE_MM, DENSE_MM, grad=True, claim="coo", source=SPECIFIC, dtypes=REAL)
op("mm", "csr csc", "A S", SPARSE_MM, DENSE_MM, index=("i32",), source=SPECIFIC)
op("mm", "coo csr csc", "A S", SPARSE_MM, DENSE_MM, shapes=SHAPES, claim="coo", source="pytorch#90836")
op("matmul", EVERY, "A S", DENSE_MM, grad=True, claim="coo", dtypes=REAL)
op("mm", "csr", "A S:coo", SPARSE_MM, DENSE_MM, dtypes=REAL)
op("mm", "coo", "A S:csr", SPARSE_MM, DENSE_MM, dtypes=REAL)
op("mm", "csr", "A S:csc", SPARSE_MM, DENSE_MM, dtypes=REAL)
op("bmm", "coo", "T t", lambda a, x: torch.bmm(a, x), more=NUMERIC[1:], grad=True, result="strided", claim="coo", source=LINALG)
op("bmm", COMPRESSED, "Q t", lambda a, x: torch.bmm(a, x), result="strided", since="1.12")
op("bmm-out", "coo", "T t q", lambda a, x, y: torch.bmm(a, x, out=y), lambda a, x, y: a @ x, result="strided")
op("baddbmm", COMPRESSED, "q Q t", lambda y, a, x: torch.baddbmm(y, a, x, beta=0.5), result="strided", since="1.12")
op("smm", EVERY, "A x", lambda a, x: torch.smm(a, x), DENSE_MM, result="coo", claim="coo", source=LINALG, more=("float64",))
op("hspmm", EVERY, "A x", lambda a, x: torch.hspmm(a, x), DENSE_MM, result="coo", claim="coo", source=LINALG, more=("float64",))
op("hspmm-out", "coo", "A x", lambda a, x: torch.hspmm(a, x, out=torch.hspmm(a, x) * 0), DENSE_MM, result="coo")
op("sspaddmm", EVERY, "C A n", lambda c, a, n: torch.sspaddmm(c, a, n.t().contiguous(), beta=0.5, alpha=2.0),
   lambda c, a, n: 0.5 * c + 2.0 * (a @ n.t()), result="coo", claim="coo", source=LINALG)  # fmt: skip
op("einsum", "coo csr", "A x", lambda a, x: torch.einsum("ij,jk->ik", a, x), DENSE_MM, result="strided")
op("tensordot", "coo csr", "A x", lambda a, x: torch.tensordot(a, x, dims=1), DENSE_MM, result="strided")
SAMPLED = lambda a, m, n: 0.5 * a + 2.0 * (m @ n) * (a != 0)  # noqa: E731
op("sampled-addmm", EVERY, "A m n", lambda a, m, n: need("sparse", "sampled_addmm")(a, m, n, beta=0.5, alpha=2.0), SAMPLED,
   grad=True, result="same", since="1.12", claim="csr", source=SPECIFIC, more=("float64",))  # fmt: skip
op("sampled-addmm", "csr", "A m n", lambda a, m, n: need("sparse", "sampled_addmm")(a, m, n, beta=0.5, alpha=2.0), SAMPLED,
   dtypes=("complex64", "float16", "bfloat16"), result="csr", since="1.12", claim="csr", source=SPECIFIC)  # fmt: skip
op("sampled-addmm", "csr", "A m n", lambda a, m, n: need("sparse", "sampled_addmm")(a, m, n, beta=0.5, alpha=2.0), SAMPLED,
   shapes=("odd", "one", "nnz0", "noncontig"), index=("", "i32"), result="csr", since="1.12", claim="csr",
   source="pytorch#76590")  # fmt: skip
op("sampled-addmm-out", "csr", "A m n", lambda a, m, n: need("sparse", "sampled_addmm")(a, m, n, beta=0.5, alpha=2.0, out=a.clone()),
   SAMPLED, result="csr", since="1.12")  # fmt: skip


def reduced(a: Any, x: Any, reduce: str) -> Any:
    """Row by row over the stored elements; a row without any gives 0."""
    rows = []
    for row in a:
        terms = row[row != 0].unsqueeze(1) * x[row != 0]
        rows.append(getattr(terms, reduce)(0) if len(terms) else torch.zeros_like(x[0]))
    return torch.stack(rows)


for REDUCE in ("sum", "mean", "amax", "amin"):
    op("mm-" + REDUCE, "coo csr csc", "P x", lambda a, x, reduce=REDUCE: torch.sparse.mm(a, x, reduce),
       lambda a, x, reduce=REDUCE: reduced(a, x, reduce), grad=REDUCE in ("sum", "mean"), result="strided", since="2.0",
       claim="csr:grad", source=SPECIFIC, more=("float64",))  # fmt: skip
    op("mm-" + REDUCE, "csr", "A x", lambda a, x, reduce=REDUCE: torch.sparse.mm(a, x, reduce),
       lambda a, x, reduce=REDUCE: reduced(a, x, reduce), dtypes=HALVES, result="strided", since="2.0", claim="csr", tol=4)  # fmt: skip
op("triangular-solve", EVERY, "y L", lambda y, a: torch.triangular_solve(y, a, upper=False)[0],
   lambda y, a: torch.linalg.solve(a.tril(), y),
   more=("float64", "complex64"), grad=True, result="strided", since="1.12", tol=10)  # fmt: skip
op("triangular-solve-out", "csr bsr", "y L",
   lambda y, a: torch.triangular_solve(y, a, upper=False, out=(torch.empty_like(y), torch.empty(0, dtype=y.dtype, device=y.device)))[0],
   lambda y, a: torch.linalg.solve(a.tril(), y), result="strided", since="1.12", tol=10)  # fmt: skip
op("spsolve", "csr", "L u", lambda a, u: need("sparse", "spsolve")(a, u), lambda a, u: torch.linalg.solve(a, u.unsqueeze(1))[:, 0],
   result="strided", since="2.5", claim="csr", tol=10, source=LINALG, more=("float64",))  # fmt: skip
op("svd-lowrank", EVERY, "A", lambda a: torch.svd_lowrank(a, q=6)[1], lambda a: torch.linalg.svd(a)[1][:6], result="strided",
   claim="coo csr", tol=100, source=LINALG, more=("float64",))  # fmt: skip
op("lobpcg", EVERY, "L", lambda a: torch.lobpcg(symmetric(a), k=1)[0], lambda a: torch.linalg.eigvalsh(a @ a.t())[-1:],
   result="strided", tier="full", claim="coo csr", tol=1000, source=LINALG)  # fmt: skip


def symmetric(a: Any) -> Any:
    """L @ L^T, built densely and stored in the layout of L."""
    dense = densify(a)
    layout = layout_of(a)
    parts = [part.to(a.device) for part in components(dense @ dense.t(), layout, "")]
    make = torch.sparse_coo_tensor if layout == "coo" else constructor(layout)
    return make(*parts[:-1], parts[-1].to(a.dtype), tuple(a.shape))


# --------------------------------------------------------------------------- cases: arithmetic

op("add", ALL, "A B", lambda a, b: a + b, dtypes=NUMERIC, grad=True, result="same", claim="coo", source=TENSOR)
op(
    "add",
    "coo csr csc",
    "A B",
    lambda a, b: a + b,
    dtypes=("bool", "int32", "complex128"),
    tier="full",
    result="same",
    claim="coo",
)
op("add", "coo", "A B", lambda a, b: a + b, shapes=("dup",) + SHAPES, result="same", claim="coo", source=TENSOR)
op("add", "csr csc", "A B", lambda a, b: a + b, shapes=SHAPES, result="same")
op("add-same-pattern", ALL, "A", lambda a: a + a, grad=True, result="same", claim="coo", more=("float64",))
op("add", "csr", "A B:coo", lambda a, b: a + b)
op("add", "coo", "A B:csr", lambda a, b: a + b)
op("sub", ALL, "A B", lambda a, b: a - b, grad=True, result="same", claim="coo", source=TENSOR, more=("float64",))
op("mul", ALL, "A B", lambda a, b: a * b, grad=True, result="same", claim="coo", source=TENSOR, more=("float64",))
op("mul", "coo csr", "A B", lambda a, b: a * b, dtypes=HALVES + ("complex64", "int64"), result="same", claim="coo")
op("mul", "coo csr", "A B", lambda a, b: a * b, shapes=SHAPES, result="same", claim="coo")
op("div", EVERY, "A P", lambda a, b: a / b, lambda a, b: a / b)
op("add-alpha", ALL, "A B", lambda a, b: torch.add(a, b, alpha=3), claim="coo")
op("sub-alpha", "coo", "A B", lambda a, b: torch.sub(a, b, alpha=3), claim="coo", source=TENSOR)
op("add-inplace", ALL, "A B", lambda a, b: a.add_(b), lambda a, b: a + b, result="same", claim="coo", source=TENSOR)
op("sub-inplace", ALL, "A B", lambda a, b: a.sub_(b), lambda a, b: a - b, result="same", claim="coo", source=TENSOR)
op("mul-inplace", ALL, "A B", lambda a, b: a.mul_(b), lambda a, b: a * b, result="same", claim="coo", source=TENSOR)
op("add-out", "coo csr", "A B", lambda a, b: torch.add(a, b, out=torch.zeros_like(a)), lambda a, b: a + b, result="same")
op("sub-out", "coo", "A B", lambda a, b: torch.sub(a, b, out=torch.zeros_like(a)), lambda a, b: a - b, result="same")
op("mul-out", "coo csr", "A B", lambda a, b: torch.mul(a, b, out=torch.zeros_like(a)), lambda a, b: a * b, result="same")
op("mul-scalar", ALL, "A", lambda a: a * 3, dtypes=NUMERIC, grad=True, result="same", claim="coo", source=TENSOR)
op("mul-scalar-inplace", ALL, "A", lambda a: a.mul_(3), lambda a: a * 3, result="same", claim="coo", source=TENSOR)
op("mul-0dim", EVERY, "A", lambda a: a * torch.tensor(3.0, device=a.device, dtype=a.dtype), lambda a: a * 3, result="same")
op("div-scalar", ALL, "A", lambda a: a / 2, grad=True, result="same", claim="coo", source=TENSOR, more=("float64",))
op("div-scalar-inplace", ALL, "A", lambda a: a.div_(2), lambda a: a / 2, result="same", claim="coo", source=TENSOR)
op("div-0dim", EVERY, "A", lambda a: a / torch.tensor(2.0, device=a.device, dtype=a.dtype), lambda a: a / 2, result="same")
op("div-scalar-trunc", "coo csr", "A", lambda a: torch.div(a, 2, rounding_mode="trunc"), result="same")
op("div-scalar-trunc-inplace", "coo", "A", lambda a: a.div_(2, rounding_mode="trunc"),
   lambda a: torch.div(a, 2, rounding_mode="trunc"), result="same")  # fmt: skip
op(
    "div-out",
    "coo",
    "A",
    lambda a: torch.div(a, torch.tensor(2.0, device=a.device, dtype=a.dtype), out=torch.zeros_like(a)),
    lambda a: a / 2,
    result="same",
)
op("div-trunc-out", "coo", "A", lambda a: torch.div(a, torch.tensor(2.0, device=a.device, dtype=a.dtype), rounding_mode="trunc", out=torch.zeros_like(a)),
   lambda a: torch.div(a, 2, rounding_mode="trunc"), result="same")  # fmt: skip
op("floor-divide-scalar", "coo csr", "A", lambda a: torch.floor_divide(a, 2), lambda a: torch.floor_divide(a, 2), result="same",
   tier="full")  # fmt: skip
op(
    "floor-divide-inplace",
    "coo",
    "A",
    lambda a: a.floor_divide_(2),
    lambda a: torch.floor_divide(a, 2),
    result="same",
    tier="full",
)
op("floor-divide-out", "coo", "A", lambda a: torch.floor_divide(a, torch.tensor(2.0, device=a.device, dtype=a.dtype), out=torch.zeros_like(a)),
   lambda a: torch.floor_divide(a, 2), result="same", tier="full")  # fmt: skip
op(
    "pow",
    ALL,
    "A",
    lambda a: a**2,
    more=("float64", "complex64", "int64"),
    grad=True,
    result="same",
    claim="coo",
    source=TENSOR,
)
op("pow-out", "coo", "A", lambda a: torch.pow(a, 2, out=torch.zeros_like(a)), lambda a: a**2, result="same")
op("square", EVERY, "A", lambda a: a.square(), result="same", claim="coo", source=TENSOR)
op("add-scalar", EVERY, "A", lambda a: a + 1)
op("add-dense", ALL, "A d", lambda a, d: a + d, grad=True)
op("dense-add", ALL, "d A", lambda d, a: d + a, more=NUMERIC[1:], grad=True, result="strided", claim="coo")
op("dense-add-inplace", ALL, "d A", lambda d, a: d.add_(a), lambda d, a: d + a, result="strided", claim="coo")
op("dense-sub", EVERY, "d A", lambda d, a: d - a, grad=True, result="strided")
op("mul-dense", ALL, "A d", lambda a, d: a * d, grad=True, more=("float64",))
op("dense-mul", EVERY, "d A", lambda d, a: d * a, grad=True)
op("mul-dense-column", "coo csr", "A k", lambda a, k: a * k, grad=True)
op("mul-dense-row", "coo csr", "A v", lambda a, v: a * v, grad=True)
op("div-dense", EVERY, "A d", lambda a, d: a / (d.abs() + 1))
op(
    "equal",
    EVERY,
    "A",
    lambda a: torch.tensor(torch.equal(a, a.clone())).to(a.device),
    lambda a: torch.tensor(True),
    out="bool",
)
op("eq", EVERY, "A B", lambda a, b: a == b, out="bool", dtypes=("float32",))
op("isclose", EVERY, "A B", lambda a, b: torch.isclose(a, b), out="bool", dtypes=("float32",))
op(
    "masked-fill",
    EVERY,
    "A",
    lambda a: a.masked_fill(torch.ones(a.shape, dtype=torch.bool, device=a.device), 2.0),
    dtypes=("float32",),
)
op("where", EVERY, "A B", lambda a, b: torch.where(torch.ones(a.shape, dtype=torch.bool, device=a.device), a, b), lambda a, b: a,
   dtypes=("float32",))  # fmt: skip
op("clamp", EVERY, "A", lambda a: a.clamp(min=0), dtypes=("float32",))


@work("csr.add-keeps-index-dtype", "csr", more=("float64",), source="pytorch#95224")
def add_keeps_index(kit: Kit) -> Any:
    total = kit.sparse("A") + kit.sparse("B")
    if parts_of(total)[0].dtype != torch.int64:
        raise Broken("the sum of tensors with int64 indices has %s indices (pytorch#95224)" % parts_of(total)[0].dtype)
    return total, kit.truth("A") + kit.truth("B")


@work("csr.mm-expanded-values", "csr", more=("float64",), source="pytorch#111574")
def mm_expanded(kit: Kit) -> Any:
    """Values that are one number, expanded: stride 0."""
    crow, col, values = parts_of(kit.sparse("A"))
    one = torch.ones(1, dtype=kit.torch_dtype, device=kit.device).expand(values.shape[0])
    return public("csr")(crow, col, one, (6, 8)) @ kit.dense("x"), (kit.truth("A") != 0).to(torch.float64) @ kit.truth("x")


# --------------------------------------------------------------------------- cases: elementwise functions that keep zero

# name: reference where it is not the same function; every one maps 0 to 0, so that a sparse result makes sense.
REAL_FUNCTIONS = (
    "abs asin asinh atan ceil erf erfinv expm1 floor frac log1p neg round sgn sign sin sinh sqrt tan tanh trunc relu deg2rad rad2deg"
    " positive conj_physical nan_to_num angle"
).split()
BOOL_FUNCTIONS = "isnan isinf isposinf isneginf signbit".split()
# Documented as supported for every layout; the others have kernels but no word in the documentation.
DOCUMENTED = set(
    "abs asin asinh atan atanh ceil conj_physical floor log1p neg round sin sinh sign sgn signbit tan tanh trunc expm1 sqrt angle"
    " isinf isposinf isneginf isnan erf erfinv".split()
)
STEPS = {
    "ceil",
    "floor",
    "round",
    "trunc",
    "sign",
    "sgn",
    "frac",
    "angle",
    "abs",
    "relu",
}  # a kink or jump at whole numbers or at 0
SMALL = {"asin", "erfinv", "log1p", "sqrt", "atanh"}  # defined near zero only: the operand is scaled or squared into it
COMPLEX_TOO = set("abs asin asinh atan expm1 log1p neg sgn sin sinh sqrt tan tanh conj_physical angle positive atanh".split())


def prepared(name: str, a: Any) -> Any:
    """The operand, within the function's domain."""
    if name in ("sqrt", "log1p") and not a.dtype.is_complex:
        return a.abs() if a.layout == torch.strided or layout_of(a) == "coo" else scaled(a, 1.0, True)
    return scaled(a, 0.125, False) if name in SMALL else a


def scaled(a: Any, factor: float, positive: bool) -> Any:
    """a * factor (or its absolute), through its parts: no sparse arithmetic in what is not under test."""
    if a.layout == torch.strided:
        return a.abs() * factor if positive else a * factor
    parts = parts_of(a)
    values = parts[-1].abs() * factor if positive else parts[-1] * factor
    if layout_of(a) == "coo":
        made = torch.sparse_coo_tensor(parts[0], values, tuple(a.shape))
        return made._coalesced_(True) if a.is_coalesced() else made
    return constructor(layout_of(a))(*parts[:-1], values, tuple(a.shape))


def elementwise(name: str, a: Any) -> Any:
    return need(name)(prepared(name, a))


def in_place(name: str, a: Any) -> Any:
    tensor = prepared(name, a)
    return method(tensor.coalesce() if layout_of(tensor) == "coo" else tensor, name + "_")()


def into(name: str, a: Any, dtype: Any = None) -> Any:
    tensor = prepared(name, a)
    target = torch.zeros_like(tensor) if layout_of(tensor) == "coo" else tensor.clone()
    target = target if dtype is None else target.to(dtype)
    return need(name)(tensor, out=target)


for NAME in REAL_FUNCTIONS + ["atanh"] + BOOL_FUNCTIONS:
    APPLY = lambda a, name=NAME: elementwise(name, a)  # noqa: E731
    ID = "positive" if NAME == "positive" else NAME.replace("_", "-")
    GIVES = {"out": "bool"} if NAME in BOOL_FUNCTIONS else {}
    OPTIONS = {
        "result": "same", "tol": 4.0, "claim": EVERY if NAME in DOCUMENTED else "", "source": UNARY if NAME in DOCUMENTED else "",
    }  # type: dict[str, Any]  # fmt: skip
    FULL = dict(OPTIONS, tier="full")
    op(ID, ALL, "A", APPLY, **dict(OPTIONS, **GIVES))
    if GIVES:
        op(ID, "coo csr", "A", APPLY, dtypes=("float64",), **dict(FULL, **GIVES))
    else:
        op(ID, EVERY, "A", APPLY, dtypes=("float64",), grad=NAME not in SMALL, smooth=NAME not in STEPS, **FULL)
        op(ID, "coo csr", "A", APPLY, dtypes=HALVES, **dict(FULL, tol=16.0))
    if NAME in COMPLEX_TOO:
        op(
            ID,
            EVERY,
            "A",
            APPLY,
            dtypes=("complex64",),
            **dict(FULL, **({"out": "float32"} if NAME in ("abs", "angle") else {})),
        )
    op(ID, "coo csr", "A", APPLY, dtypes=("int64",), **dict(FULL, out="any", tol=100.0))
    if NAME not in BOOL_FUNCTIONS + ["positive", "angle"]:
        IN_PLACE = lambda a, name=NAME: in_place(name, a)  # noqa: E731
        op(ID + "-inplace", EVERY, "A", IN_PLACE, APPLY, **dict(FULL, claim="", source=""))
    if NAME not in ("positive", "isnan", "isinf", "relu"):
        INTO = lambda a, name=NAME: into(name, a, torch.bool if name in BOOL_FUNCTIONS else None)  # noqa: E731
        op(ID + "-out", "coo csr", "A", INTO, APPLY, **dict(FULL, claim="", source="", **GIVES))
# These give something at zero: torch must refuse them, or the whole table would be in doubt.
for NAME in ("cos", "exp", "log", "sigmoid", "reciprocal", "rsqrt", "cosh"):
    op(NAME, EVERY, "A", lambda a, name=NAME: getattr(torch, name)(a), dtypes=("float32",), tier="full")
op("view-as-real", "coo", "A", lambda a: torch.view_as_real(a), dtypes=("complex64",), out="float32", result="coo")
op(
    "view-as-complex",
    "coo",
    "A",
    lambda a: torch.view_as_complex(torch.view_as_real(a)),
    IDENTITY,
    dtypes=("complex64",),
    result="coo",
)
op("real", "coo csr", "A", lambda a: a.real, lambda a: a.real, dtypes=("complex64",), out="float32")

# --------------------------------------------------------------------------- cases: reductions


def masked_softmax(a: Any, log: bool = False, dim: int = 1) -> Any:
    """Softmax over the stored elements along `dim`, which is what torch.sparse.softmax means; the rest stays 0."""
    there, zero = a != 0, torch.zeros_like(a)
    shifted = a - a.detach().max()
    powers = torch.where(there, shifted.exp(), zero)
    total = powers.sum(dim, keepdim=True)
    total = torch.where(total == 0, torch.ones_like(total), total)
    return torch.where(there, shifted - total.log(), zero) if log else powers / total


op("sum", ALL, "A", lambda a: a.sum(), more=NUMERIC[1:], grad=True, result="strided")
op("sum", "coo csr", "A", lambda a: a.sum(), shapes=SHAPES, result="strided")
op("sum", "coo", "A", lambda a: a.sum(), shapes=("dup",), result="strided")
for DIM in (0, 1):
    op("sum-dim%d" % DIM, ALL, "A", lambda a, dim=DIM: a.sum(dim), grad=True, more=("float64",))
    op("sum-dim%d-keepdim" % DIM, EVERY, "A", lambda a, dim=DIM: a.sum(dim, keepdim=True), grad=True)
    op("sparse-sum-dim%d" % DIM, EVERY, "A", lambda a, dim=DIM: torch.sparse.sum(a, dim), lambda a, dim=DIM: a.sum(dim), grad=True,
       claim="coo:grad", source=SPECIFIC, more=("float64",))  # fmt: skip
    op("sparse-softmax-dim%d" % DIM, EVERY, "A", lambda a, dim=DIM: torch.sparse.softmax(a, dim),
       lambda a, dim=DIM: masked_softmax(a, False, dim), grad=True, result="same", claim="coo", tol=4, source=SPECIFIC, more=("float64",))  # fmt: skip
    op("sparse-log-softmax-dim%d" % DIM, EVERY, "A", lambda a, dim=DIM: torch.sparse.log_softmax(a, dim),
       lambda a, dim=DIM: masked_softmax(a, True, dim), grad=True, result="same", claim="coo", tol=4, source=SPECIFIC)  # fmt: skip
op("sparse-sum", ALL, "A", lambda a: torch.sparse.sum(a), lambda a: a.sum(), grad=True, result="strided", claim="coo:grad",
   source=SPECIFIC, more=("float64",))  # fmt: skip
op("sparse-sum", "coo", "A", lambda a: torch.sparse.sum(a), lambda a: a.sum(), dtypes=HALVES + ("complex64", "int64"),
   result="strided", claim="coo", source=SPECIFIC)  # fmt: skip
op("sparse-softmax", "coo", "A", lambda a: torch.sparse.softmax(a, -1), masked_softmax, more=("float64",), result="same", claim="coo",
   tol=4, source="pytorch#69516")  # fmt: skip
op("sparse-softmax-dim1", "coo", "A", lambda a: torch.sparse.softmax(a, 1), masked_softmax, dtypes=HALVES, result="same", tol=4)
op("sparse-softmax-dim1", "coo", "A", lambda a: torch.sparse.softmax(a, 1), masked_softmax, shapes=("nnz0", "one", "odd", "dup"),
   result="same", claim="coo", tol=4, source="pytorch#82107")  # fmt: skip
op("softmax", EVERY, "A", lambda a: torch.softmax(a, 1))
op("norm", ALL, "A", lambda a: a.norm(), grad=True, result="strided", tol=4, more=("float64",))
op("norm-1", EVERY, "A", lambda a: a.norm(1), result="strided", tol=4)
op("norm-dim", "coo csr", "A", lambda a: torch.norm(a, 2, 1), lambda a: a.norm(2, 1), tol=4)
op("native-norm", "coo", "A", lambda a: need("native_norm")(a), lambda a: a.norm(), result="strided", tol=4)
op("native-norm-dtype", "coo", "A", lambda a: need("native_norm")(a, 2.0, [0, 1], False, torch.float64), lambda a: a.norm(), dtypes=("float32",),
   result="strided", out="float64", tol=4)  # fmt: skip
op("norm-dtype", "coo", "A", lambda a: torch.norm(a, 2, [0, 1], False, None, torch.float64), lambda a: a.norm(), dtypes=("float32",), result="strided",
   out="float64", tol=4)  # fmt: skip
op("vector-norm", EVERY, "A", lambda a: torch.linalg.vector_norm(a), lambda a: a.norm(), result="strided", since="2.14", tol=4)
op("mean", EVERY, "A", lambda a: a.mean(), tol=4)
op("prod", EVERY, "A", lambda a: a.prod())
op("amax", EVERY, "A", lambda a: a.amax(1))
op("max", EVERY, "A", lambda a: a.max())
op("argmax", EVERY, "A", lambda a: a.argmax(), out="int64", dtypes=("float32",))
op("any", EVERY, "A", lambda a: a.any(), lambda a: a.any(), dtypes=("bool",), out="bool")
op("count-nonzero", EVERY, "A", lambda a: torch.count_nonzero(a), out="int64", dtypes=("float32",))
for NAME in ("sum", "prod", "mean", "amax"):
    op("masked-" + NAME, "coo csr", "P", lambda a, name=NAME: need("masked", name)(a, dim=1, mask=mask_of(a), keepdim=True),
       lambda a, name=NAME: torch.stack([getattr(row[row != 0], name)() for row in a]).unsqueeze(1), since="1.13", tol=4)  # fmt: skip


def mask_of(a: Any) -> Any:
    """True where an element is stored, in the layout of `a`."""
    parts = parts_of(a)
    there = torch.ones(parts[-1].shape, dtype=torch.bool, device=a.device)
    make = torch.sparse_coo_tensor if layout_of(a) == "coo" else constructor(layout_of(a))
    made = make(*parts[:-1], there, tuple(a.shape))
    return made.coalesce() if layout_of(a) == "coo" else made


# --------------------------------------------------------------------------- cases: shape and selection

op("transpose", ALL, "A", lambda a: a.t(), grad=True, claim="coo", source=TENSOR, more=("float64",))
op("transpose-01", EVERY, "A", lambda a: a.transpose(0, 1), claim="coo", source=TENSOR)
op("transpose-mm", EVERY, "A y", lambda a, y: a.t() @ y, grad=True, result="strided", more=("float64",))
op("permute", "coo csr hybrid", "A", lambda a: a.permute(1, 0), lambda a: a.permute(1, 0), claim="coo", source=TENSOR)
op("reshape", EVERY, "A", lambda a: a.reshape(4, 12))
op("view", EVERY, "A", lambda a: a.view(4, 12), dtypes=("float32",))
op("flatten", EVERY, "A", lambda a: a.flatten(), dtypes=("float32",))
op("unsqueeze", ALL, "A", lambda a: a.unsqueeze(0), claim="coo", source=TENSOR)
op("squeeze", EVERY, "A", lambda a: a.squeeze(), dtypes=("float32",))
op("select", ALL, "A", lambda a: a[1], claim="coo csr")
op("select-last", "coo csr csc", "A", lambda a: a[-1])
op("select-column", EVERY, "A", lambda a: a.select(1, 4))
op("select-copy", EVERY, "A", lambda a: need("select_copy")(a, 0, 1), lambda a: a[1], since="1.13")
op("element", EVERY, "A", lambda a: a[0, 5], lambda a: a[0, 5])
op("slice", EVERY, "A", lambda a: a[1:5])
op("narrow", EVERY, "A", lambda a: a.narrow(0, 1, 4), dtypes=("float32",))
op("narrow-copy", EVERY, "A", lambda a: a.narrow_copy(0, 1, 4), lambda a: a[1:5], claim="coo", source=TENSOR)
for DIM in (0, 1):
    op("index-select-dim%d" % DIM, ALL, "A", lambda a, dim=DIM: a.index_select(dim, torch.tensor([4, 0, 4], device=a.device)),
       lambda a, dim=DIM: a.index_select(dim, torch.tensor([4, 0, 4])), grad=True, claim="coo", source=TENSOR, more=("float64",))  # fmt: skip
    op(
        "cat-dim%d" % DIM,
        ALL,
        "A B",
        lambda a, b, dim=DIM: torch.cat([a, b], dim),
        grad=True,
        claim="coo",
        source=TENSOR,
        more=("float64",),
    )
op("stack", ALL, "A B", lambda a, b: torch.stack([a, b]), claim="coo")
op(
    "hstack",
    EVERY,
    "A B",
    lambda a, b: torch.hstack([a, b]),
    lambda a, b: torch.cat([a, b], 1),
    dtypes=("float32",),
    claim="coo",
)
op("expand", EVERY, "A", lambda a: a.expand(2, 6, 8), dtypes=("float32",))
op("diagonal", EVERY, "A", lambda a: a.diagonal(), dtypes=("float32",))
op("tril", EVERY, "A", lambda a: a.tril(), dtypes=("float32",))
op("nonzero", EVERY, "A", lambda a: a.nonzero(), out="int64", dtypes=("float32",))
op("unbind", EVERY, "A", lambda a: a.unbind(0)[1], dtypes=("float32",))
op("flip", EVERY, "A", lambda a: a.flip(0), dtypes=("float32",))
op("repeat", EVERY, "A", lambda a: a.repeat(2, 1), dtypes=("float32",))

# --------------------------------------------------------------------------- cases: autograd beyond `backward`


@work("{layout}.edge-weights", EVERY, result="strided", tol=4, more=("float64",))
def edge_weights(kit: Kit) -> Any:
    """Trainable weights: values -> constructor -> product -> loss; the gradient must reach the weights."""
    made = kit.sparse("A")
    parts = parts_of(made)
    weights = parts[-1].detach().clone().requires_grad_()
    make = torch.sparse_coo_tensor if kit.layout == "coo" else constructor(kit.layout)
    product = torch.sparse.mm if kit.layout == "coo" else DENSE_MM  # what has a documented gradient for COO in old torch, too
    out = product(make(*parts[:-1], weights, tuple(made.shape)), kit.dense("x"))
    (out * out).sum().backward()
    if weights.grad is None:
        raise Broken("the weights got no gradient")
    a = kit.truth("A").requires_grad_()
    ((a @ kit.truth("x")) ** 2).sum().backward()
    truth = components(torch.where(kit.truth("A") != 0, a.grad, torch.zeros_like(a.grad)), kit.layout, "")[-1]
    if kit.layout in ("bsr", "bsc"):  # a block stores zeros too, and they have gradients
        blocks = make(*parts[:-1], torch.ones_like(parts[-1]), tuple(made.shape))
        truth = components(torch.where(densify(blocks) != 0, a.grad, torch.zeros_like(a.grad)), kit.layout, "")[-1]
    return (out.detach(), weights.grad), (kit.truth("A") @ kit.truth("x"), truth)


@work("{layout}.double-backward", "coo csr", dtypes=("float64",), result="strided", tol=4)
def double_backward(kit: Kit) -> Any:
    x = kit.dense("x").requires_grad_()
    out = (torch.sparse.mm(kit.sparse("A"), x) ** 3).sum()
    (first,) = torch.autograd.grad(out, x, create_graph=True)
    first.sum().backward()
    twin = kit.truth("x").requires_grad_()
    (other,) = torch.autograd.grad(((kit.truth("A") @ twin) ** 3).sum(), twin, create_graph=True)
    other.sum().backward()
    return x.grad, twin.grad


# These import much of torch when they first run, so they are of the full tier.
@work("{layout}.func-grad", "coo csr", result="strided", since="2.0", tier="full")
def func_grad(kit: Kit) -> Any:
    grad = need("func", "grad")
    a, x = kit.sparse("A"), kit.dense("x")
    return grad(lambda x: (torch.sparse.mm(a, x) ** 2).sum())(x), 2 * kit.truth("A").t() @ (kit.truth("A") @ kit.truth("x"))


@work("{layout}.vmap", "coo csr", result="strided", since="2.0", tier="full")
def vmap(kit: Kit) -> Any:
    a = kit.sparse("A")
    return need("func", "vmap")(lambda x: a @ x)(kit.dense("t")), kit.truth("A") @ kit.truth("t")


@work("{layout}.jvp", "coo csr", result="strided", since="2.0", tier="full")
def jvp(kit: Kit) -> Any:
    a, x = kit.sparse("A"), kit.dense("x")
    return need("func", "jvp")(lambda x: a @ x, (x,), (x + 1,))[1], kit.truth("A") @ (kit.truth("x") + 1)


@work("{layout}.accumulate-grad", EVERY, result="same", tol=4)
def accumulate_grad(kit: Kit) -> Any:
    """Two backward passes into one sparse leaf; its gradient adds up."""
    a, x = kit.sparse("A").requires_grad_(), kit.dense("x")
    for _ in range(2):
        torch.sparse.mm(a, x).sum().backward()
    full = 2 * torch.ones(6, 5, dtype=torch.float64) @ kit.truth("x").t().real.to(torch.float64)
    return a.grad, torch.where(stored("A", kit.case) != 0, full, torch.zeros_like(full))


# --------------------------------------------------------------------------- cases: modules

op("module.layernorm-{layout}", EVERY, "A", lambda a: torch.nn.LayerNorm(8).to(a.device, a.dtype)(a), tol=4)
op(
    "module.batchnorm-{layout}",
    EVERY,
    "A",
    lambda a: torch.nn.BatchNorm1d(8).to(a.device, a.dtype)(a),
    tol=4,
    dtypes=("float32",),
)
op("module.relu-{layout}", EVERY, "A", lambda a: torch.nn.ReLU()(a), grad=True, smooth=False, result="same")
op("module.softmax-{layout}", EVERY, "A", lambda a: torch.nn.Softmax(1)(a), dtypes=("float32",))
op("module.linear-{layout}-input", EVERY, "A w b", lambda a, w, b: torch.nn.functional.linear(a, w, b), grad=True)
op("module.linear-nobias-{layout}-input", EVERY, "A w", lambda a, w: torch.nn.functional.linear(a, w), grad=True)
op("module.linear-{layout}-weight", EVERY, "d A u", lambda d, a, u: torch.nn.functional.linear(d, a, u), grad=True)
op("module.linear-nobias-{layout}-weight", EVERY, "d A", lambda d, a: torch.nn.functional.linear(d, a), grad=True)
op("module.linear-{layout}-weight", EVERY, "d A u", lambda d, a, u: torch.nn.functional.linear(d, a, u), dtypes=HALVES)
for RANK, NAME in enumerate("TUV", 1):
    op("module.conv%dd-coo" % RANK, "coo", "%s %s" % (NAME, "fgh"[RANK - 1]),
       lambda a, f, rank=RANK: getattr(torch.nn.functional, "conv%dd" % rank)(a, f))  # fmt: skip
op("module.embedding-coo-weight", "coo", "A", lambda a: torch.nn.functional.embedding(torch.tensor([4, 0, 1], device=a.device), a),
   lambda a: a[[4, 0, 1]])  # fmt: skip
op("module.mse-loss-{layout}", EVERY, "A d", lambda a, d: torch.nn.functional.mse_loss(a, d), tol=4, dtypes=("float32",))
op("module.cross-entropy-{layout}-target", EVERY, "d A", lambda d, a: torch.nn.functional.cross_entropy(d, a), tol=10,
   more=("float64",))  # fmt: skip


@work("module.dropout-{layout}", EVERY)
def dropout(kit: Kit) -> Any:
    a = kit.sparse("A")
    result = torch.nn.functional.dropout(a, 0.5, True)
    kept = densify(result) != 0  # which elements are dropped is chance; those kept must be doubled
    return result, 2 * kit.truth("A") * kept


# --------------------------------------------------------------------------- cases: 2:4 semi-structured

SEMI = "semi-cutlass semi-cusparselt"


def semi_parts(kit: Kit, side: int = 128) -> Any:
    """(packed 2:4 weight, x, dense weight, dense x). Two of four along a row are zero; 128 is over every minimum."""
    if not hasattr(torch.sparse, "to_sparse_semi_structured"):
        raise Absent("torch.sparse.to_sparse_semi_structured")
    torch.sparse.SparseSemiStructuredTensor._FORCE_CUTLASS = kit.layout == "semi-cutlass"
    index = torch.arange(side * side, dtype=torch.float64).reshape(side, side)
    weight = ((index * 7) % 5 - 2) * ((index % 4) < 2).to(torch.float64)
    x = (index * 5) % 3 - 1
    return torch.sparse.to_sparse_semi_structured(kit.move(weight)), kit.move(x), weight, x


SEMI_DTYPES = ("float16", "bfloat16", "float32", "int8")


@work(
    "{layout}.to-dense",
    SEMI,
    devices=("cuda",),
    dtypes=("float16", "bfloat16"),
    since="2.1",
    claim=SEMI,
    source="torch.sparse: Sparse Semi-Structured Tensors",
)
def semi_to_dense(kit: Kit) -> Any:
    packed, _, weight, _ = semi_parts(kit)
    return packed.to_dense(), weight


@work("{layout}.mm", SEMI, devices=("cuda",), dtypes=SEMI_DTYPES, since="2.1", claim=SEMI, tol=4, out="any", source=LINALG)
def semi_mm(kit: Kit) -> Any:
    packed, x, weight, dense = semi_parts(kit)
    return torch.mm(packed, x), weight @ dense


@work("{layout}.linear", SEMI, devices=("cuda",), dtypes=("float16", "bfloat16"), since="2.1", claim=SEMI, tol=4)
def semi_linear(kit: Kit) -> Any:
    packed, x, weight, dense = semi_parts(kit)
    return torch.nn.functional.linear(x, packed), dense @ weight.t()


@work("{layout}.addmm", SEMI, devices=("cuda",), dtypes=("float16",), since="2.1", claim=SEMI, tol=4, source=LINALG)
def semi_addmm(kit: Kit) -> Any:
    packed, x, weight, dense = semi_parts(kit)
    bias = torch.arange(128, dtype=torch.float64) % 5
    return torch.nn.functional.linear(x, packed, kit.move(bias)), dense @ weight.t() + bias


@work("{layout}.linear-backward", SEMI, devices=("cuda",), dtypes=("float16",), since="2.1", tol=4)
def semi_backward(kit: Kit) -> Any:
    """The gradient of the activation through a 2:4 weight."""
    packed, x, weight, dense = semi_parts(kit)
    x.requires_grad_()
    torch.nn.functional.linear(x, packed).sum().backward()
    return x.grad, torch.ones(128, 128, dtype=torch.float64) @ weight


@work("{layout}.transpose-mm", SEMI, devices=("cuda",), dtypes=("float16",), since="2.1", tol=4)
def semi_transposed(kit: Kit) -> Any:
    packed, x, weight, dense = semi_parts(kit)
    return torch.mm(x, packed.t()), dense @ weight.t()


# --------------------------------------------------------------------------- cases: whole workloads, against their dense twins

# Edges of a small directed graph, with a repeated edge, as data sets have them; node 4 has none.
EDGES = [(0, 1), (1, 0), (1, 2), (2, 1), (0, 3), (3, 0), (3, 5), (5, 3), (2, 5), (5, 2), (0, 1)]
NODES = 6


def grid(rows: int, columns: int, salt: int = 0) -> Any:
    """Small numbers in float64 that are exact in every float dtype."""
    return torch.tensor([((5 * k + 3 + salt) % 11 - 5) / 8.0 for k in range(rows * columns)], dtype=torch.float64).reshape(
        rows, columns)  # fmt: skip


def graph(loops: bool = True) -> Any:
    """(edge index of the graph, dense adjacency with repeated edges added up)."""
    edges = EDGES + [(i, i) for i in range(NODES)] if loops else EDGES
    both = torch.tensor(edges, dtype=torch.int64).t()
    return both, scatter((NODES, NODES), tuple(both), torch.ones(both.shape[1], dtype=torch.float64))


def stored_as(kit: Kit, dense: Any, layout: str = "") -> Any:
    """A dense float64 matrix in a sparse layout, from its parts, as the case wants it."""
    parts = components(dense, layout or kit.layout, "")
    parts = tuple(part.to(kit.device) for part in parts[:-1]) + (kit.move(parts[-1]),)
    if (layout or kit.layout) == "coo":
        return torch.sparse_coo_tensor(parts[0], parts[1], tuple(dense.shape)).coalesce()
    return constructor(layout or kit.layout)(*parts, tuple(dense.shape))


def descend(step: "Callable[..., Any]", weights: "list[Any]", rounds: int = 3, rate: float = 0.1) -> Any:
    """Plain gradient descent: every loss, then the trained weights."""
    losses = []
    for _ in range(rounds):
        weights = [w.detach().requires_grad_() for w in weights]
        loss = step(*weights)
        loss.backward()
        losses.append(loss.detach())
        weights = [w - rate * w.grad for w in weights]
    return (torch.stack(losses),) + tuple(w.detach() for w in weights)


def twins(kit: Kit, step: "Callable[..., Any]", sparse: Any, dense: Any, tables: "list[Any]", trained: int) -> Any:
    """`step(matrix, *tables)` trained with the sparse matrix and with its dense twin; the first `trained` tables learn."""
    moved = [kit.move(one) for one in tables]
    actual = descend(lambda *w: step(sparse, *w, *moved[trained:]), moved[:trained])
    return actual, descend(lambda *w: step(dense, *w, *tables[trained:]), tables[:trained])


def multiply(a: Any, x: Any) -> Any:
    return a @ x if a.layout == torch.strided else torch.sparse.mm(a, x)


def normalised() -> Any:
    """D^-1/2 (A + I) D^-1/2 of the graph, dense."""
    _, truth = graph()
    scale = truth.sum(1).rsqrt()
    return scale.unsqueeze(1) * truth * scale


def gcn_step(a: Any, w1: Any, w2: Any, x: Any, y: Any) -> Any:
    return ((multiply(a, torch.relu(multiply(a, x @ w1)) @ w2) - y) ** 2).mean()


@work("work.gcn-{layout}", EVERY, result="strided", tol=50, dtypes=REAL)
def gcn(kit: Kit) -> Any:
    """Two layers of graph convolution (Kipf and Welling), as an edge list user writes them; three training steps."""
    dense = normalised()
    tables = [grid(4, 5), grid(5, 3), grid(NODES, 4), grid(NODES, 3, 1)]
    if kit.layout in ("bsr", "bsc"):
        constructor(kit.layout)
    return twins(kit, gcn_step, stored_as(kit, dense), dense, tables, 2)


@work("work.gcn-edge-list", "coo", result="strided", tol=50)
def gcn_edges(kit: Kit) -> Any:
    """The same from a raw edge list with repeated edges that is coalesced on the device."""
    both, truth = graph()
    scale = truth.sum(1).rsqrt()
    weights = scale[both[0]] * scale[both[1]]
    sparse = torch.sparse_coo_tensor(both.to(kit.device), kit.move(weights), (NODES, NODES)).coalesce()
    tables = [grid(4, 5), grid(5, 3), grid(NODES, 4), grid(NODES, 3, 1)]
    return twins(kit, gcn_step, sparse, scale.unsqueeze(1) * truth * scale, tables, 2)


@work("work.gcn-half-{layout}", "coo csr", dtypes=HALVES, result="strided", tol=8)
def gcn_half(kit: Kit) -> Any:
    """One forward pass in half precision: what inference users run."""
    _, truth = graph()
    truth = (truth != 0).to(torch.float64)  # whole numbers stay exact
    return multiply(stored_as(kit, truth), kit.move(grid(NODES, 4) * 8)), truth @ (grid(NODES, 4) * 8)


@work("work.sage-mean-{layout}", "coo csr", result="strided", tol=50)
def sage(kit: Kit) -> Any:
    """GraphSAGE with a mean aggregator: rows divided by their degree."""
    _, truth = graph(False)
    dense = truth / truth.sum(1, keepdim=True).clamp(min=1)

    def step(a: Any, w1: Any, w2: Any, x: Any, y: Any) -> Any:
        return ((torch.relu(x @ w1 + multiply(a, x) @ w2) - y) ** 2).mean()

    return twins(kit, step, stored_as(kit, dense), dense, [grid(4, 3), grid(4, 3, 2), grid(NODES, 4), grid(NODES, 3, 1)], 2)


@work("work.gat", "coo", result="strided", tol=50)
def gat(kit: Kit) -> Any:
    """Attention over neighbours: scores on the edges, torch.sparse.softmax over each row, product with the features."""
    _, truth = graph()
    pattern = (truth != 0).to(torch.float64)
    edges = pattern.nonzero().t().to(kit.device)

    def step(a: Any, w: Any, left: Any, right: Any, x: Any, y: Any) -> Any:
        h = x @ w
        rows, columns = h @ left, h @ right
        if a.layout == torch.strided:
            scores = torch.nn.functional.leaky_relu(rows + columns.t(), 0.2)
            attention = torch.softmax(scores.masked_fill(a == 0, float("-inf")), 1)
            return ((attention @ h - y) ** 2).mean()
        scores = torch.nn.functional.leaky_relu(rows[edges[0], 0] + columns[edges[1], 0], 0.2)
        attention = torch.sparse.softmax(torch.sparse_coo_tensor(edges, scores, (NODES, NODES)), 1)
        return ((torch.sparse.mm(attention, h) - y) ** 2).mean()

    tables = [grid(4, 3), grid(3, 1, 1), grid(3, 1, 2), grid(NODES, 4), grid(NODES, 3, 1)]
    return twins(kit, step, stored_as(kit, pattern), pattern, tables, 3)


@work("work.propagate-{layout}", "coo csr csc", result="strided", tol=50)
def propagate(kit: Kit) -> Any:
    """APPNP: ten steps of personalised propagation without learning in between."""
    dense = normalised()

    def run(a: Any, x: Any) -> Any:
        h = x
        for _ in range(10):
            h = 0.9 * multiply(a, h) + 0.1 * x
        return h

    return run(stored_as(kit, dense), kit.move(grid(NODES, 4))), run(dense, grid(NODES, 4))


@work("work.two-hop-{layout}", "coo csr", result="same", tol=4)
def two_hop(kit: Kit) -> Any:
    """Neighbours of neighbours: the square of an adjacency matrix, sparse x sparse."""
    _, truth = graph(False)
    return torch.sparse.mm(stored_as(kit, truth), stored_as(kit, truth)), truth @ truth


@work("work.pagerank-{layout}", "coo csr", result="strided", tol=50, more=("float64",))
def pagerank(kit: Kit) -> Any:
    _, truth = graph(False)
    dense = (truth / truth.sum(1, keepdim=True).clamp(min=1)).t()

    def run(a: Any, rank: Any) -> Any:
        for _ in range(15):
            rank = 0.85 * multiply(a, rank) + 0.15 / NODES
            rank = rank / rank.sum()
        return rank

    start = torch.full((NODES, 1), 1.0 / NODES, dtype=torch.float64)
    return run(stored_as(kit, dense), kit.move(start)), run(dense, start)


def conjugate_gradient(a: Any, b: Any, rounds: int) -> Any:
    x, r = torch.zeros_like(b), b.clone()
    p, rs = r.clone(), (r * r).sum()
    for _ in range(rounds):
        q = a @ p
        alpha = rs / (p * q).sum()
        x, r = x + alpha * p, r - alpha * q
        new = (r * r).sum()
        p, rs = r + new / rs * p, new
    return x


@work("work.conjugate-gradient-{layout}", "coo csr", dtypes=("float64",), result="strided", tol=1e3)
def solve_cg(kit: Kit) -> Any:
    """A symmetric positive system by matrix-vector products, against a dense direct solution."""
    _, truth = graph(False)
    dense = truth + truth.t() + 12 * torch.eye(NODES, dtype=torch.float64)
    b = grid(NODES, 1)[:, 0]
    return conjugate_gradient(stored_as(kit, dense), kit.move(b), 6), torch.linalg.inv(dense) @ b


@work("work.jacobi", "csr", dtypes=("float64",), result="strided", tol=1e3)
def jacobi(kit: Kit) -> Any:
    _, truth = graph(False)
    dense = truth + truth.t() + 12 * torch.eye(NODES, dtype=torch.float64)
    b, diagonal = grid(NODES, 1)[:, 0], torch.diagonal(dense)
    rest = stored_as(kit, dense - torch.diag(diagonal))
    x = kit.move(torch.zeros_like(b))
    for _ in range(60):
        x = (kit.move(b) - rest.mv(x)) / kit.move(diagonal)
    return x, torch.linalg.inv(dense) @ b


def embed_train(kit: Kit, sparse: bool, optimizer: "Callable[..., Any]", bag: str = "", steps: int = 3) -> Any:
    """A table of 10 rows, of which a batch touches some, one twice; the trained table."""
    double = (lambda t: kit.move(t)) if sparse else (lambda t: t.clone())
    index = torch.tensor([[1, 3, 3], [0, 7, 1]])
    index = index.to(kit.device) if sparse else index
    weight = double(grid(10, 4))
    if bag:
        layer = torch.nn.EmbeddingBag(10, 4, mode=bag, sparse=sparse, _weight=weight)
    else:
        layer = torch.nn.Embedding(10, 4, sparse=sparse, _weight=weight)
    learn = optimizer(layer.parameters(), sparse)
    for step in range(steps):
        learn.zero_grad()
        out = layer((index + step) % 10)
        (out * out).sum().backward()
        if sparse and not layer.weight.grad.is_sparse:
            raise Broken("the gradient of a sparse embedding is %s" % layer.weight.grad.layout)
        learn.step()
    return layer.weight.detach()


def adam_on_touched(parameters: Any, sparse: bool) -> Any:
    return torch.optim.SparseAdam(list(parameters), lr=0.1)


@work("work.embedding-sgd", "coo", result="strided", tol=50, more=("float64",))
def embedding_sgd(kit: Kit) -> Any:
    make = lambda p, s: torch.optim.SGD(p, lr=0.1)  # noqa: E731
    return embed_train(kit, True, make), embed_train(kit, False, make)


@work("work.embedding-sgd-momentum", "coo", result="strided", tol=50)
def embedding_momentum(kit: Kit) -> Any:
    make = lambda p, s: torch.optim.SGD(p, lr=0.1, momentum=0.5)  # noqa: E731
    return embed_train(kit, True, make), embed_train(kit, False, make)


@work("work.embedding-adagrad", "coo", result="strided", tol=50)
def embedding_adagrad(kit: Kit) -> Any:
    make = lambda p, s: torch.optim.Adagrad(p, lr=0.1)  # noqa: E731
    return embed_train(kit, True, make), embed_train(kit, False, make)


@work("work.embedding-adam", "coo", result="strided", tol=50, dtypes=("float32",))
def embedding_adam(kit: Kit) -> Any:
    """Adam, which has no rule for sparse gradients: torch must refuse."""
    make = lambda p, s: torch.optim.Adam(p, lr=0.1)  # noqa: E731
    return embed_train(kit, True, make), embed_train(kit, False, make)


@work("work.embedding-sparse-adam", "coo", result="strided", tol=50)
def embedding_sparse_adam(kit: Kit) -> Any:
    """SparseAdam moves touched rows only: its rule, written out densely."""
    weight = grid(10, 4)
    first, second = torch.zeros_like(weight), torch.zeros_like(weight)
    for step in range(3):
        index = ((torch.tensor([1, 3, 3, 0, 7, 1]) + step) % 10).tolist()
        grad = torch.zeros_like(weight)
        for row in index:
            grad[row] += 2 * weight[row]
        for row in sorted(set(index)):
            first[row] += 0.1 * (grad[row] - first[row])
            second[row] += 0.001 * (grad[row] ** 2 - second[row])
            rate = 0.1 * (1 - 0.999 ** (step + 1)) ** 0.5 / (1 - 0.9 ** (step + 1))
            weight[row] = weight[row] - rate * first[row] / (second[row].sqrt() + 1e-8)
    return embed_train(kit, True, adam_on_touched), weight


@work("work.embedding-bag-sum", "coo", result="strided", tol=50)
@work("work.embedding-bag-mean", "coo", result="strided", tol=50)
@work("work.embedding-bag-max", "coo", result="strided", tol=50, dtypes=("float32",))
def embedding_bag(kit: Kit) -> Any:
    make = lambda p, s: torch.optim.SGD(p, lr=0.1)  # noqa: E731
    mode = kit.case.op.rpartition("-")[2]
    return embed_train(kit, True, make, mode), embed_train(kit, False, make, mode)


@work("work.clip-grad-norm", "coo", result="strided", tol=50)
def clip_grad(kit: Kit) -> Any:
    def run(sparse: bool) -> Any:
        weight = kit.move(grid(10, 4)) if sparse else grid(10, 4)
        layer = torch.nn.Embedding(10, 4, sparse=sparse, _weight=weight)
        layer(torch.tensor([1, 3, 3]).to(weight.device)).sum().backward()
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 0.5)
        grad = layer.weight.grad
        return grad.coalesce().to_dense() if grad.is_sparse else grad

    return run(True), run(False)


@work("work.gather-sparse-grad", "coo", result="strided")
def gather_grad(kit: Kit) -> Any:
    table = kit.move(grid(10, 4)).requires_grad_()
    index = torch.tensor([[1, 3, 3, 0], [2, 2, 9, 1]]).to(kit.device)
    torch.gather(table, 0, index, sparse_grad=True).sum().backward()
    twin = grid(10, 4).requires_grad_()
    torch.gather(twin, 0, index.cpu()).sum().backward()
    return table.grad.to_dense(), twin.grad


@work("work.recommender", "coo", result="strided", tol=100, more=("float64",))
def recommender(kit: Kit) -> Any:
    """A bag of categories, a dense part and a small network: sparse gradients beside dense ones, two optimizers."""

    def run(sparse: bool) -> Any:
        put = (lambda t: kit.move(t)) if sparse else (lambda t: t.clone())
        bag = torch.nn.EmbeddingBag(10, 4, mode="sum", sparse=sparse, _weight=put(grid(10, 4)))
        w1, w2 = put(grid(7, 5)).requires_grad_(), put(grid(5, 1, 2)).requires_grad_()
        index, offsets = torch.tensor([1, 3, 3, 0, 7, 2]), torch.tensor([0, 2, 5])
        x, y = put(grid(3, 3)), put(grid(3, 1, 1))
        if sparse:
            index, offsets = index.to(kit.device), offsets.to(kit.device)
        learners = [torch.optim.SGD(bag.parameters(), lr=0.1), torch.optim.SGD([w1, w2], lr=0.1)]
        losses = []
        for _ in range(3):
            for one in learners:
                one.zero_grad()
            loss = ((torch.relu(torch.cat([bag(index, offsets), x], 1) @ w1) @ w2 - y) ** 2).mean()
            loss.backward()
            losses.append(loss.detach())
            for one in learners:
                one.step()
        return torch.stack(losses), bag.weight.detach(), w1.detach(), w2.detach()

    return run(True), run(False)


@work("work.factorisation", "coo", result="strided", tol=100)
def factorisation(kit: Kit) -> Any:
    """Ratings of users for items: the loss runs over the stored ratings only (sparse_mask of a dense product)."""
    ratings = kit.truth("A")

    def step(a: Any, users: Any, items: Any) -> Any:
        guess = users @ items.t()
        if a.layout == torch.strided:
            return (((guess - a) * (a != 0)) ** 2).sum()
        indices, values = a.indices(), a.values()
        return ((guess[indices[0], indices[1]] - values) ** 2).sum()

    return twins(kit, step, stored_as(kit, ratings), ratings, [grid(6, 3), grid(8, 3, 1)], 2)


def pruned(rows: int = 8, columns: int = 8) -> Any:
    """A weight of which the half with the smallest magnitude is zero."""
    weight = grid(rows, columns, 4)
    bound = weight.abs().reshape(-1).sort()[0][weight.numel() // 2]
    return torch.where(weight.abs() > bound, weight, torch.zeros_like(weight))


@work("work.prune-{layout}", EVERY, result="strided", tol=50)
def prune(kit: Kit) -> Any:
    """Magnitude pruning, conversion, inference with the sparse weight."""
    weight = pruned()
    sparse = convert(kit.move(weight), kit.layout)
    x = grid(5, 8)
    return torch.nn.functional.linear(kit.move(x), sparse), x @ weight.t()


@work("work.prune-finetune-{layout}", "coo csr", result="strided", tol=50)
def prune_finetune(kit: Kit) -> Any:
    """Training goes on in the stored elements only: the weight's values are the parameters."""
    weight = pruned()
    parts = components(weight, kit.layout, "")
    index = [part.to(kit.device) for part in parts[:-1]]
    make = torch.sparse_coo_tensor if kit.layout == "coo" else constructor(kit.layout)
    x, y = grid(8, 5), grid(8, 5, 1)

    def step(values: Any) -> Any:
        return ((torch.sparse.mm(make(*index, values, (8, 8)), kit.move(x)) - kit.move(y)) ** 2).mean()

    def step_dense(full: Any) -> Any:
        return ((torch.where(weight != 0, full, torch.zeros_like(full)) @ x - y) ** 2).mean()

    actual = descend(step, [kit.move(parts[-1])])
    losses, trained = descend(step_dense, [weight])
    trained = torch.where(weight != 0, trained, torch.zeros_like(trained))
    return actual, (losses, trained[weight != 0])


@work("work.prune-module", "coo", result="strided", tol=4)
def prune_module(kit: Kit) -> Any:
    """torch.nn.utils.prune on a Linear, then the weight to sparse."""
    prune_tools = importlib.import_module("torch.nn.utils.prune")

    layer = torch.nn.Linear(8, 8, bias=False)
    layer.weight = torch.nn.Parameter(kit.move(grid(8, 8, 4)))
    prune_tools.l1_unstructured(layer, "weight", amount=0.5)
    prune_tools.remove(layer, "weight")
    weight = wide(layer.weight)
    if int((weight == 0).sum()) < 32:
        raise Broken("pruning left %d of 64 weights" % int((weight != 0).sum()))
    return torch.sparse.mm(layer.weight.detach().to_sparse(), kit.move(grid(8, 5))), weight @ grid(8, 5)


@work("work.attention-sampled", "csr", result="strided", tol=50)
def attention_sampled(kit: Kit) -> Any:
    """Masked attention: scores by sampled_addmm, softmax over stored elements, product with the values."""
    sampled = need("sparse", "sampled_addmm")
    _, truth = graph()
    pattern = (truth != 0).to(torch.float64)
    q, k, v = grid(NODES, 4), grid(NODES, 4, 2), grid(NODES, 3, 5)
    scores = sampled(stored_as(kit, 0 * pattern + pattern), kit.move(q), kit.move(k).t(), beta=0.0)
    weights = torch.sparse.softmax(convert(scores, "coo"), 1)
    dense = torch.softmax((q @ k.t()).masked_fill(pattern == 0, float("-inf")), 1)
    return torch.sparse.mm(weights, kit.move(v)), dense @ v


@work("work.attention-block", "bsr", more=("float64",) + HALVES, result="strided", tol=50)
def attention_block(kit: Kit) -> Any:
    """Block-sparse attention weights times values."""
    weights = kit.truth("A")
    return stored_as(kit, weights) @ kit.dense("x"), weights @ kit.truth("x")


@work("work.state-dict-{layout}", "coo csr", result="same")
def state_dict(kit: Kit) -> Any:
    """A module with a sparse buffer, saved, loaded into a new one."""

    def module(value: Any) -> Any:
        holder = torch.nn.Module()
        holder.register_buffer("adjacency", value)
        return holder

    stream = io.BytesIO()
    torch.save(module(kit.sparse("A")).state_dict(), stream)
    stream.seek(0)
    fresh = module(kit.sparse("B"))
    fresh.load_state_dict(torch.load(stream, map_location=kit.device))
    return fresh.adjacency, kit.truth("A")


@work("work.module-to-{layout}", "coo csr", dtypes=("float32",), result="same", out="float64")
def module_to(kit: Kit) -> Any:
    """module.to(dtype) with a sparse buffer."""
    holder = torch.nn.Module()
    holder.register_buffer("adjacency", kit.sparse("A"))
    return holder.to(torch.float64).adjacency, kit.truth("A")


@work("work.parameter-sgd-{layout}", "coo csr", result="same", tol=50)
def parameter_sgd(kit: Kit) -> Any:
    """A sparse tensor as a parameter, one step of SGD."""
    weight = torch.nn.Parameter(kit.sparse("A"))
    learn = torch.optim.SGD([weight], lr=0.5)
    torch.sparse.mm(weight, kit.dense("x")).sum().backward()
    learn.step()
    full = torch.ones(6, 5, dtype=torch.float64) @ kit.truth("x").t()
    there = kit.truth("A") != 0
    return weight.detach(), torch.where(there, kit.truth("A") - 0.5 * full, torch.zeros_like(full))


@work("work.autocast-{layout}", "coo csr", dtypes=("float32",), result="strided", out="any", since="1.10")
def autocast(kit: Kit) -> Any:
    """A sparse product under autocast to bfloat16."""
    where = need("autocast")
    with where(kit.device.type, dtype=torch.bfloat16):
        return torch.sparse.mm(kit.sparse("A"), kit.dense("x")), kit.truth("A") @ kit.truth("x")


# --------------------------------------------------------------------------- cases: the rest of the ecosystem (tier full)


class GraphSet:
    """A data set of small sparse matrices, as torch.utils.data wants it."""

    def __init__(self, matrices: "list[Any]") -> None:
        self.matrices = matrices

    def __len__(self) -> int:
        return len(self.matrices)

    def __getitem__(self, index: int) -> Any:
        return self.matrices[index]


def first_of(batch: "list[Any]") -> Any:
    return batch[0]


@work("work.dataloader-worker-{layout}", "coo csr", devices=("cpu",), dtypes=("float32",), tier="full", result="same", since="2.2",
      source="pytorch#20248")  # fmt: skip
def dataloader(kit: Kit) -> Any:
    """Sparse matrices out of a DataLoader worker process: a hang before 2.2."""
    data = importlib.import_module("torch.utils.data")

    loader = data.DataLoader(GraphSet([kit.sparse("A")]), batch_size=1, num_workers=1, collate_fn=first_of)
    return next(iter(loader)), kit.truth("A")


@work("work.dataloader-{layout}", "coo csr", devices=("cpu",), dtypes=("float32",), result="same", tier="full")
def dataloader_same(kit: Kit) -> Any:
    data = importlib.import_module("torch.utils.data")

    return next(iter(data.DataLoader(GraphSet([kit.sparse("A")]), batch_size=1, collate_fn=first_of))), kit.truth("A")


@work("work.default-collate-{layout}", "coo csr", devices=("cpu",), dtypes=("float32",), tier="full")
def default_collate(kit: Kit) -> Any:
    data = importlib.import_module("torch.utils.data")

    return next(iter(data.DataLoader(GraphSet([kit.sparse("A"), kit.sparse("B")]), batch_size=2))), torch.stack(
        [kit.truth("A"), kit.truth("B")])  # fmt: skip


def answer(queue: Any, back: Any) -> None:
    back.put((queue.get() * 2).to_dense().tolist())


@work(
    "work.multiprocessing-{layout}",
    "coo csr",
    devices=("cpu",),
    dtypes=("float32",),
    tier="full",
    result="strided",
    since="2.2",
)
def multiprocess(kit: Kit) -> Any:
    """A sparse tensor through a queue to another process; what it saw comes back."""
    processes = importlib.import_module("torch.multiprocessing")

    context = processes.get_context("fork")
    queue, back = context.Queue(), context.SimpleQueue()
    child = context.Process(target=answer, args=(queue, back))
    child.start()
    queue.put(kit.sparse("A"))
    seen = torch.tensor(back.get(), dtype=kit.torch_dtype)
    child.join()
    return seen, 2 * kit.truth("A")


def product(a: Any, x: Any) -> Any:
    return torch.relu(torch.sparse.mm(a, x))


@work("work.compile-{layout}", "coo csr", dtypes=("float32",), tier="full", result="strided", since="2.0")
@work("work.compile-fullgraph-{layout}", "coo csr", dtypes=("float32",), tier="full", result="strided", since="2.0")
def compiled(kit: Kit) -> Any:
    """torch.compile with the eager back end: does dynamo take sparse inputs? fullgraph allows no way around."""
    fn = need("compile")(product, backend="eager", fullgraph="fullgraph" in kit.case.op)
    return fn(kit.sparse("A"), kit.dense("x")), torch.relu(kit.truth("A") @ kit.truth("x"))


@work("work.compile-inductor-{layout}", "coo csr", dtypes=("float32",), tier="full", result="strided", since="2.0")
def compiled_inductor(kit: Kit) -> Any:
    return need("compile")(product)(kit.sparse("A"), kit.dense("x")), torch.relu(kit.truth("A") @ kit.truth("x"))


@work("work.jit-trace-{layout}", "coo csr", dtypes=("float32",), tier="full", result="strided")
def traced(kit: Kit) -> Any:
    fn = torch.jit.trace(product, (kit.sparse("A"), kit.dense("x")), check_trace=False)
    return fn(kit.sparse("A"), kit.dense("x")), torch.relu(kit.truth("A") @ kit.truth("x"))


@work("work.export-{layout}", "coo csr", dtypes=("float32",), tier="full", result="strided", since="2.1")
def exported(kit: Kit) -> Any:
    class Product(torch.nn.Module):  # type: ignore[name-defined,misc]
        def forward(self, a: Any, x: Any) -> Any:
            return product(a, x)

    program = importlib.import_module("torch.export").export(Product(), (kit.sparse("A"), kit.dense("x")))
    return program.module()(kit.sparse("A"), kit.dense("x")), torch.relu(kit.truth("A") @ kit.truth("x"))


@work("work.flex-attention", "strided", dtypes=("float32",), tier="full", result="strided", tol=50, since="2.5")
def flex_attention(kit: Kit) -> Any:
    """FlexAttention with a block mask against plain attention with the same mask."""
    try:
        flex = importlib.import_module("torch.nn.attention.flex_attention")
    except ImportError as error:
        raise Absent("torch.nn.attention.flex_attention") from error
    q, k, v = [grid(128, 16, salt).reshape(1, 1, 128, 16) for salt in (0, 2, 5)]

    def near(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (i - j).abs() < 16

    mask = flex.create_block_mask(near, None, None, 128, 128, device=kit.device)
    seen = flex.flex_attention(kit.move(q), kit.move(k), kit.move(v), block_mask=mask)
    place = torch.arange(128)
    scores = (q @ k.transpose(-1, -2)) / 4.0
    return seen, torch.softmax(scores.masked_fill((place[:, None] - place[None]).abs() >= 16, float("-inf")), -1) @ v


@work("work.nested-jagged", "strided", dtypes=("float32",), tier="full", result="strided", since="2.2")
def nested(kit: Kit) -> Any:
    """Sequences of unlike length through a Linear weight."""
    make = need("nested", "nested_tensor")
    parts = [grid(2, 4), grid(5, 4, 1)]
    jagged = make([kit.move(part) for part in parts], layout=torch.jagged)
    out = torch.nn.functional.linear(jagged, kit.move(grid(3, 4, 2)))
    return out.values(), torch.cat(parts) @ grid(3, 4, 2).t()


@work("work.allreduce-gloo", "coo", devices=("cpu",), dtypes=("float32",), tier="full", result="coo")
def allreduce(kit: Kit) -> Any:
    """Sparse gradients as data parallel training adds them up, in a group of one."""
    group = importlib.import_module("torch.distributed")

    if not group.is_available():
        raise Absent("torch.distributed")
    if not group.is_initialized():
        store = group.HashStore()
        group.init_process_group("gloo", store=store, rank=0, world_size=1)
    made = kit.sparse("A").coalesce()
    group.all_reduce(made)
    return made, kit.truth("A")


@work("work.ddp-sparse-grad", "coo", devices=("cpu",), dtypes=("float32",), tier="full", result="strided")
def ddp(kit: Kit) -> Any:
    """DistributedDataParallel over gloo with a sparse embedding, in a group of one."""
    group = importlib.import_module("torch.distributed")

    if not group.is_available():
        raise Absent("torch.distributed")
    if not group.is_initialized():
        group.init_process_group("gloo", store=group.HashStore(), rank=0, world_size=1)
    layer = torch.nn.Embedding(10, 4, sparse=True, _weight=kit.move(grid(10, 4)))
    wrapped = torch.nn.parallel.DistributedDataParallel(layer)
    wrapped(torch.tensor([1, 3, 3])).sum().backward()
    truth = torch.zeros(10, 4, dtype=torch.float64)
    truth[1], truth[3] = 1.0, 2.0
    return layer.weight.grad.coalesce().to_dense(), truth


# --------------------------------------------------------------------------- profiles

# Each a short list that a user of that kind recognises: ids without their device. What exists on one device only is
# needed on that one alone.
PROFILES = {
    "core": (
        "coo.create.float32", "coo.coalesce.float32.dup", "coo.to-device.float32", "coo.to-cpu.float32", "coo.to-dense.float32",
        "coo.mm.float32", "coo.mm.float32.backward", "coo.mm.float32.dup", "coo.mm.float64", "coo-coo.add.float32",
        "coo.mul-scalar.float32", "csr.create.float32", "csr.mm.float32", "csr.mm.float32.backward", "coo.to-csr.float32",
        "csr.to-coo.float32", "coo.transpose.float32",
    ),
    "gnn": (
        "coo.coalesce.float32.dup", "coo.to-csr.float32", "coo.mm.float32", "coo.mm.float32.backward", "csr.mm.float32",
        "csr.mm.float32.backward", "coo.transpose-mm.float32", "coo.index-select-dim0.float32", "coo.sparse-sum-dim1.float32",
        "coo.sparse-softmax-dim1.float32", "coo.sparse-softmax-dim1.float32.backward", "coo.edge-weights.float32",
        "coo-coo.mm.float32", "work.gcn-coo.float32", "work.gcn-csr.float32", "work.gcn-edge-list.float32",
        "work.sage-mean-csr.float32", "work.gat.float32",
    ),
    "recsys": (
        "coo.coalesce.float32.dup", "coo-coo.add.float32", "work.embedding-sgd.float32", "work.embedding-sparse-adam.float32",
        "work.embedding-adagrad.float32", "work.embedding-bag-sum.float32", "work.embedding-bag-mean.float32",
        "work.recommender.float32", "work.factorisation.float32",
    ),
    "attention": (
        "csr.sampled-addmm.float32", "csr.sampled-addmm.float32.backward", "coo.sparse-softmax-dim1.float32",
        "coo.sparse-softmax-dim1.float32.backward", "csr.to-coo.float32", "bsr.mm.float32", "bsr.mm.float16",
        "work.attention-sampled.float32", "work.attention-block.float32",
    ),
    "pruning": (
        "strided.to-csr.float32", "strided.to-bsr.float32", "module.linear-csr-weight.float32", "module.linear-bsr-weight.float32",
        "module.linear-nobias-coo-weight.float32", "work.prune-csr.float32", "work.prune-finetune-csr.float32",
        "work.prune-module.float32", "semi-cutlass.linear.float16", "semi-cusparselt.linear.float16",
    ),
    "training": (
        "coo.mm.float32.backward", "csr.mm.float32.backward", "coo-coo.add.float32.backward", "coo.sparse-sum.float32.backward",
        "coo.edge-weights.float32", "coo.pickle.float32", "work.state-dict-coo.float32", "work.parameter-sgd-coo.float32",
        "work.clip-grad-norm.float32", "work.autocast-coo.float32", "work.gcn-coo.float32", "work.recommender.float32",
    ),
    "solvers": (
        "csr.mv.float64", "csr.matmul.float64", "csr.mm.float32.i32", "coo.mv.float64", "csr-csr.mm.float64", "csr-csr.add.float64",
        "csr.transpose-mm.float64", "csr.triangular-solve.float64", "work.conjugate-gradient-csr.float64", "work.jacobi.float64",
        "work.pagerank-csr.float64",
    ),
}  # fmt: skip


def assign_profiles() -> None:
    """Writes the profiles into the catalogue and makes `core` the quick tier. Raises KeyError for an id that is no case."""
    for name, wanted in PROFILES.items():
        for stem in wanted:
            ids = [with_device(stem, device) for device in DEVICES]
            if not any(one in CASES for one in ids):
                raise KeyError("profile %s: there is no case %s" % (name, stem))
            for one in ids:
                if one in CASES:
                    case = CASES[one]
                    CASES[one] = case._replace(
                        profiles=case.profiles + (name,), tier="quick" if name == "core" else "standard" if case.tier == "full" else case.tier
                    )  # fmt: skip


def with_device(stem: str, device: str) -> str:
    """`coo.mm.float32.backward` -> `coo.mm.float32.cuda.backward`."""
    if stem.endswith(".backward"):
        return "%s.%s.backward" % (stem[: -len(".backward")], device)
    return "%s.%s" % (stem, device)


assign_profiles()

# --------------------------------------------------------------------------- controls


class Control(NamedTuple):
    """A case that must come out as `expected`; otherwise the probe, or this machine, cannot be trusted."""

    expected: str
    device: str
    case: Case


CONTROLS = {}  # type: dict[str, Control]


def control(name: str, expected: str, devices: "tuple[str, ...]", operands: str = "") -> "Callable[[Callable[..., Any]], None]":
    """Declares a control; with operands its function gets them, and is compared with their product."""

    def register(fn: "Callable[..., Any]") -> None:
        for device in devices:
            recipe = Recipe(fn, DENSE_MM, tuple(operands.split()), "coo", "", "", 1.0)
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


@control("detour", "fallback", ("cuda",), "A x")
def control_detour(a: Any, x: Any) -> Any:
    return torch.sparse.mm(a.to("cpu"), x.to("cpu")).to(a.device)  # the result is where it should be, the work was not


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
    rtol, atol = tolerance(case)
    gap = (seen - expected).abs()
    fine = (gap <= case.recipe.tol * (atol + rtol * expected.abs())) | (seen == expected)
    fine = fine | ((seen != seen) & (expected != expected))
    if bool(fine.all()):
        return ""
    where = (~fine).nonzero()[0].tolist()
    bad, good = seen[tuple(where)].item(), expected[tuple(where)].item()
    return "%d of %d elements differ; at %s: %s, expected %s" % (int((~fine).sum()), fine.numel(), where, bad, good)


def tolerance(case: Case) -> "tuple[float, float]":
    """rtol and atol of a case, before its factor."""
    return TOLERANCE.get(case.dtype, TOLERANCE["float32"] if case.recipe.out == "any" else (0.0, 0.0))


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
        if problem and (name[0].isupper() or case.recipe.layout == "strided"):
            # Torch may give elements that the operand does not store, or leave them out; those it gives must be right.
            masked = torch.where((stored(name, case) == 0) & (seen == 0), torch.zeros_like(seen), wide(twin.grad))
            problem, layout = unlike(seen, masked, case), layout + " masked"
        if problem:
            return "wrong", "gradient", "gradient of %s: %s" % (name, problem), kinds
        kinds[name] = layout
    return "pass", "", "", kinds


def stored(name: str, case: Case) -> Any:
    """1 where an operand stores an element (in a block: anywhere in it), else 0."""
    dense = master(name.partition(":")[0], case.dtype, case.shape)
    layout = name.partition(":")[2] or case.recipe.layout
    there = (dense != 0).to(torch.float64)
    if layout == "hybrid":
        return there.amax(-1, keepdim=True).expand_as(there)
    if layout in ("bsr", "bsc"):
        rows, columns = there.shape
        blocks = there.reshape(rows // BLOCK[0], BLOCK[0], columns // BLOCK[1], BLOCK[1]).amax(3, True).amax(1, True)
        return blocks.expand(rows // BLOCK[0], BLOCK[0], columns // BLOCK[1], BLOCK[1]).reshape(rows, columns)
    return there


def operands_of(case: Case, device: Any) -> "tuple[list[Any], list[Any]]":
    """New operands of a case and their dense twins, all leaves that want a gradient when the case goes backward."""
    operands, twins = [], []
    for name in case.recipe.operands:
        key, _, fixed = name.partition(":")
        if key.isupper():
            operand = make_sparse(key, fixed or case.recipe.layout, case.dtype, device, case.shape, case.index)
        else:
            operand = make_dense(key, case.dtype, device, case.shape)
        twin = master(key, case.dtype, case.shape).clone()
        operands.append(operand.requires_grad_() if case.backward else operand)
        twins.append(twin.requires_grad_() if case.backward else twin)
    return operands, twins


def gradcheck(case: Case, device: Any) -> "tuple[str, str, str]":
    """torch's own comparison of analytical and numerical gradients, over the stored elements of sparse operands."""
    check = torch.autograd.gradcheck
    if "masked" not in inspect.signature(check).parameters:
        raise Absent("torch.autograd.gradcheck(masked=)")  # older ones take whole gradients of sparse operands for wrong
    # A sparse operand's gradient may be cut to its pattern (masked) or whole: torch has both, and both are right.
    ways = [{"masked": True}, {"masked": False}]

    def strided(*operands: Any) -> Any:
        result = case.recipe.fn(*operands)
        return result if layout_of(result) == "strided" else result.to_dense()

    first = None  # type: RuntimeError | None
    for way in ways:
        try:
            check(strided, tuple(operands_of(case, device)[0]), **way)
            return "pass", "", ""
        except RuntimeError as error:
            first = first or error
    if first is not None and "Jacobian mismatch" not in str(first):
        raise first
    return "wrong", "gradient", "gradcheck: " + " ".join(str(first).split())[:300]


def run_case(case: Case, device: Any, see_kernels: bool = False) -> "dict[str, Any]":
    """Runs one case here and now; never raises. device: where it really runs (differs from the id when injected).

    see_kernels: run what passed a second time under the profiler, to see that the GPU did the work.
    """
    started = time.perf_counter()
    data = {}  # type: dict[str, Any]
    stage = "operands: "
    try:
        if case.shape == GRADCHECK:
            stage = ""
            outcome, kind, detail = gradcheck(case, device)
            return outcome_of(case, started, outcome, kind, detail, data)
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
        if outcome == "pass" and see_kernels:
            stage = "under the profiler: "
            problem, data["gpu"] = watched(case, device)
            if problem:
                outcome, kind, detail = "fallback", "cpu-detour", problem
    except Broken as error:
        outcome, kind, detail = "wrong", "structure", str(error)
    except Exception as error:
        outcome, kind = classify(error)
        detail = stage + first_line(error)
    return outcome_of(case, started, outcome, kind, detail, data)


def outcome_of(case: Case, started: float, outcome: str, kind: str, detail: str, data: "dict[str, Any]") -> "dict[str, Any]":
    """A case's result as it is sent, without what is empty."""
    result = {"id": case.id, "outcome": outcome, "duration_ms": round((time.perf_counter() - started) * 1e3, 3)}
    result.update({key: value for key, value in (("kind", kind), ("detail", detail), ("data", data)) if value})
    return result


# --------------------------------------------------------------------------- evidence: did the GPU do the work?

# A read-back of a count is normal (cuSPARSE asks for the number of elements); a whole operand is not.
DETOUR_BYTES = 32


def gpu_events(trace: "dict[str, Any]") -> "list[tuple[str, int]]":
    """(name, bytes copied or 0) of what ran on the GPU, in order of time, from a trace in Chrome's format as torch's
    profiler exports it; memory sets are left out."""
    found = []
    for event in trace.get("traceEvents", []):
        kind = str(event.get("cat", "")).lower()
        if event.get("ph") == "X" and kind in ("kernel", "gpu_memcpy", "memcpy"):
            size = event.get("args", {}).get("bytes", 0) if "memcpy" in kind else 0
            found.append((event.get("ts", 0), str(event.get("name", "")), int(size)))
    return [(name, size) for _, name, size in sorted(found)]


def judge_events(events: "list[tuple[str, int]]", works: bool) -> "tuple[str, dict[str, Any]]":
    """(`fallback` reason or "", evidence) from what the GPU did for a case. works: whether it must compute anything."""
    kernels = [name for name, size in events if not name.startswith("Memcpy")]
    evidence = {"kernels": len(kernels), "names": list(dict.fromkeys(kernels))[:3]}  # type: dict[str, Any]
    left = 0
    for name, size in events:
        if name.startswith("Memcpy DtoH") and size >= DETOUR_BYTES:
            left = size
        elif name.startswith("Memcpy HtoD") and size >= DETOUR_BYTES and left:
            return "%d bytes went to the CPU and %d came back: the work was done there" % (left, size), evidence
    if works and not kernels:
        return "no kernel ran on the GPU", evidence
    return "", evidence


def profiled(run: "Callable[[], None]") -> "list[tuple[str, int]]":
    """What the GPU did while `run` ran. Empty where the profiler cannot see the GPU (no CUPTI in this container)."""
    activities = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activities.CPU, activities.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profile.export_chrome_trace(path)
        with open(path) as stream:
            return gpu_events(json.load(stream))


# Operations that only change what describes a tensor: nothing has to run for them.
NO_KERNEL = re.compile(
    r"(create|to-|copy|clone|detach|transpose|permute|unsqueeze|indices|values|counts|requires-grad|contiguous|view|select|element|pin|zeros|resize|sparse-resize)"
)


def watched(case: Case, device: Any) -> "tuple[str, dict[str, Any]]":
    """Runs a case that passed once more under the profiler: (`fallback` reason or "", evidence)."""
    if not case.recipe.operands:
        events = profiled(lambda: case.recipe.fn(Kit(case, device)))
        return "", judge_events([event for event in events if not event[0].startswith("Memcpy")], False)[1]
    operands = operands_of(case, device)[0]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()

    def run() -> None:
        result = case.recipe.fn(*operands)
        if case.backward:
            loss_of(result if layout_of(result) == "strided" else result.to_dense(), "strided").backward()

    problem, evidence = judge_events(profiled(run), not NO_KERNEL.match(case.op) or case.backward)
    evidence["peak_bytes"] = torch.cuda.max_memory_allocated() - before
    return problem, evidence


# --------------------------------------------------------------------------- declared: which kernels a case needs

# Dispatch keys under which torch registers kernels for the layouts, without their device.
KEYS = {"coo": "Sparse", "csr": "SparseCsr", "csc": "SparseCsr", "bsr": "SparseCsr", "bsc": "SparseCsr"}


def tensors_in(value: Any) -> "list[Any]":
    """Every tensor in arguments or results, also within lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [one for item in value for one in tensors_in(item)] if isinstance(value, (list, tuple)) else []


def tracer(seen: "list[tuple[str, str]]") -> Any:
    """A TorchDispatchMode that notes (operator, `Sparse` or `SparseCsr`) of calls with a sparse tensor. Raises Absent."""
    try:
        base = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
    except (ImportError, AttributeError) as error:
        raise Absent("TorchDispatchMode") from error

    class Tracer(base):  # type: ignore[misc,valid-type]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            name = func._schema.name + ("." + func._schema.overload_name if func._schema.overload_name else "")
            layouts = {layout_of(one) for one in tensors_in([args, kwargs])}
            layouts |= {str(kwargs["layout"]).replace("torch.sparse_", "")} if kwargs.get("layout") else set()
            for key in sorted({KEYS[one] for one in layouts if one in KEYS}):
                seen.append((name, key))
            return func(*args, **kwargs)

    return Tracer()


def names_called(run: "Callable[[], None]") -> "list[tuple[str, str]]":
    """For torch that has no dispatch mode: operators from the profiler that have a sparse CPU kernel in this build."""
    with torch.autograd.profiler.profile() as profile:
        attempt(run)
    found = []
    for name in dict.fromkeys(event.name for event in profile.function_events if event.name.startswith("aten::")):
        for schema in attempt(lambda name=name: torch._C._jit_get_schemas_for_operator(name), []):
            full = name + ("." + schema.overload_name if schema.overload_name else "")
            found += [(full, key) for key in ("Sparse", "SparseCsr") if has_kernel(full, key + "CPU")]
    return found


def has_kernel(operator: str, key: str) -> bool:
    """Whether this build has a kernel for the dispatch key, its own or a composite one. Nothing is run, no GPU is needed."""
    if (operator, key) not in REGISTERED:
        computed = getattr(torch._C, "_dispatch_has_computed_kernel_for_dispatch_key", None)
        direct = getattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", None)
        if computed or direct:
            REGISTERED[operator, key] = any(
                attempt(lambda ask=ask: ask(operator, key), False) for ask in (direct, computed) if ask
            )
        else:
            text = attempt(lambda: torch._C._dispatch_dump(operator), "") or ""
            REGISTERED[operator, key] = bool(re.search(r"^%s: " % key, text, re.M))
    return REGISTERED[operator, key]


REGISTERED = {}  # type: dict[tuple[str, str], bool]


def run_for_trace(case: Case) -> None:
    """The case's own calls on the CPU, forward and backward, without comparing anything."""
    device = torch.device("cpu")
    if not case.recipe.operands:
        case.recipe.fn(Kit(case, device))
        return
    result = case.recipe.fn(*operands_of(case, device)[0])
    if case.backward:
        loss_of(result if layout_of(result) == "strided" else result.to_dense(), "strided").backward()


def needs_of(case: Case) -> "tuple[list[tuple[str, str]], str]":
    """(operators with their sparse keys that the case calls on the CPU, why the trace is not whole or "")."""
    seen = []  # type: list[tuple[str, str]]
    try:
        mode = tracer(seen)
    except Absent:
        return names_called(lambda: run_for_trace(case)), attempt(
            lambda: run_for_trace(case) or "", "the CPU trace was cut short"
        )
    try:
        with mode:
            run_for_trace(case)
    except Exception as error:
        return seen, first_line(error)
    return seen, ""


def declare(case: Case, device: str) -> "tuple[str, str]":
    """(`yes`, `no` or `unknown`, the operator without kernel or why it is not known) for a case on a device."""
    needs, cut = needs_of(case)
    for operator, key in dict.fromkeys(needs):
        if not has_kernel(operator, key + device.upper()):
            return "no", "%s (%s)" % (operator, key + device.upper())
    if cut or not needs:
        return "unknown", cut or "no operator with a sparse argument was seen"
    return "yes", ""


def trust_in_declared(cases: "list[Case]") -> "list[dict[str, Any]]":
    """How far `declared` can be trusted: it is made for the CPU, exactly as for CUDA without a GPU, and set beside what the
    same cases really give. One row per case."""
    session = Session(dict(DEFAULTS, device_map={}), lambda value: None)
    told = {}  # type: dict[str, tuple[str, str]]
    session.declare(cases, lambda case, known, missing: told.update({case.id: (known, missing)}))
    rows = []  # type: list[dict[str, Any]]

    def keep(result: "dict[str, Any]") -> None:
        known, missing = told[result["id"]]
        rows.append({"id": result["id"], "declared": known, "missing": missing, "outcome": result["outcome"]})

    session.run(cases, DEFAULTS["case_timeout"], keep)
    return rows


# --------------------------------------------------------------------------- coverage: which kernels of torch no case reaches

SPARSE_KEYS = ("SparseCPU", "SparseCUDA", "SparseCsrCPU", "SparseCsrCUDA")
# Kernels of torch 2.13 without a case, and why; a test in an image compares this with what is registered there.
UNCOVERED = {
    "aten::_dimI": "an older private name of sparse_dim, which {layout}.counts calls",
    "aten::_dimV": "an older private name of dense_dim, which {layout}.counts calls",
    "aten::_pin_memory": "needs a GPU: the cases {layout}.pin-memory.float32.cuda",
    "aten::_sparse_coo_tensor_with_dims": "called inside torch.sparse_coo_tensor(size), as coo.create-empty does",
    "aten::copy_sparse_to_sparse_": "called inside copy_, as coo.copy-into does",
    "aten::baddbmm.out": "CUDA only, reached through aten::baddbmm by csr.baddbmm.float32.cuda",
    "aten::mul_.Scalar": "Python's mul_(number) arrives as mul_.Tensor, in {layout}.mul-scalar-inplace",
    "aten::threshold_backward.grad_input": "the out= form of a gradient formula; {layout}.relu backward calls the plain form",
}  # type: dict[str, str]


def registered() -> "dict[str, list[str]]":
    """operator -> dispatch keys of SPARSE_KEYS under which this build registers a kernel of its own. Raises Absent."""
    ask = getattr(torch._C, "_dispatch_get_registrations_for_dispatch_key", None)
    if ask is None:
        raise Absent("torch._C._dispatch_get_registrations_for_dispatch_key")
    found = {}  # type: dict[str, list[str]]
    for key in SPARSE_KEYS:
        for operator in ask(key):
            found.setdefault(operator, []).append(key)
    return found


def coverage() -> "list[dict[str, Any]]":
    """Every registered sparse kernel with the cases that call it, found by tracing all CPU cases; in a process of its own."""
    cases = [case for case in CASES.values() if case.device == "cpu" and case.shape != GRADCHECK and "malformed" not in case.op]
    reached = {}  # type: dict[str, list[str]]

    def body(send: "Callable[[Any], None]") -> None:
        warnings.simplefilter("ignore")
        for case in cases:
            send([case.id, sorted({operator for operator, _ in needs_of(case)[0]})])

    left = list(cases)
    while left:
        child = Child(lambda send: body(send))
        while left:
            what, value = child.receive(time.monotonic() + 60.0)
            if what != "value":
                break
            left.pop(0)
            for operator in value[1]:
                reached.setdefault(operator, []).append(value[0])
        child.kill()
        cases = left = left[1:]
    return [
        {"operator": operator, "keys": keys, "cases": len(reached.get(operator, [])), "first": reached.get(operator, [""])[0],
         "reason": UNCOVERED.get(operator, "")}
        for operator, keys in sorted(registered().items())
    ]  # fmt: skip


# --------------------------------------------------------------------------- oracle: torch's own list of what is supported

FLAGS = {
    "coo": "supports_sparse", "csr": "supports_sparse_csr", "csc": "supports_sparse_csc", "bsr": "supports_sparse_bsr",
    "bsc": "supports_sparse_bsc",
}  # fmt: skip


def opinfos() -> "list[Any]":
    """torch's OpInfo database. It wants numpy, and expecttest, of which only a class is used. Raises Absent."""
    try:
        importlib.import_module("expecttest")
    except ImportError:
        stub = type(sys)("expecttest")
        stub.TestCase = importlib.import_module("unittest").TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stub
    try:
        return list(importlib.import_module("torch.testing._internal.common_methods_invocations").op_db)
    except ImportError as error:
        raise Absent("the OpInfo database: %s" % error) from error


def sampled(info: Any, layout: str) -> str:
    """What torch's own dense samples give through this layout: pass | wrong | the kind of refusal | no-sample."""
    for sample in info.sample_inputs(torch.device("cpu"), torch.float32):
        dense = sample.input
        if not isinstance(dense, torch.Tensor) or dense.dim() != 2 or min(dense.shape) < 2:
            continue
        dense = dense.detach()[: dense.shape[0] // 2 * 2, : dense.shape[1] // 2 * 2].clone()
        dense[::2] = 0
        parts = components(dense, layout, "")
        make = torch.sparse_coo_tensor if layout == "coo" else constructor(layout)
        try:
            seen = info.op(make(*parts, tuple(dense.shape)), *sample.args, **sample.kwargs)
            same = torch.allclose(densify(seen), wide(info.op(dense, *sample.args, **sample.kwargs)), equal_nan=True, rtol=1e-4)
            return "pass" if same else "wrong"
        except Exception as error:
            return classify(error)[0]
    return "no-sample"


def oracle() -> "list[dict[str, Any]]":
    """Where our outcome, torch's flag and torch's samples do not say the same of an operation on a layout."""
    warnings.simplefilter("ignore")
    rows = []
    for info in opinfos():
        if info.variant_test_name:
            continue
        for layout, flag in FLAGS.items():
            case = CASES.get("%s.%s.float32.cpu" % (layout, info.name.replace("_", "-")))
            if case is None or not hasattr(info, flag):
                continue
            ours, theirs = run_case(case, torch.device("cpu"))["outcome"], sampled(info, layout)
            claimed = bool(getattr(info, flag))
            # No flag means that this database does not test it (it has other tests), not that torch lacks it.
            kind = (
                "flag" if claimed and ours != "pass" else
                "samples" if theirs != "no-sample" and theirs != ours else
                "no-flag" if ours == "pass" and not claimed else ""
            )  # fmt: skip
            rows.append({"op": info.name, "layout": layout, "ours": ours, "flag": claimed, "samples": theirs, "differs": kind})
    return rows


# --------------------------------------------------------------------------- speed: sparse against dense on one device

DENSITIES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.001)


def clock(run: "Callable[[], Any]", device: Any, seconds: float = 0.15, least: int = 5) -> "list[float]":
    """Seconds of single calls, after a warm-up, each with the device idle before and after."""
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    for _ in range(3):
        run()
    wait()
    times = []  # type: list[float]
    until = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < until:
        start = time.perf_counter()
        run()
        wait()
        times.append(time.perf_counter() - start)
    return times


def spread(times: "list[float]") -> "dict[str, Any]":
    """Median and quartiles in milliseconds, and how many runs they are of."""
    ordered = sorted(times)
    at = lambda share: round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1e3, 4)  # noqa: E731
    return {"median_ms": at(0.5), "low_ms": at(0.25), "high_ms": at(0.75), "runs": len(times)}


def stored_bytes(tensor: Any) -> int:
    places = [tensor] if layout_of(tensor) == "strided" else parts_of(tensor)
    return sum(part.numel() * part.element_size() for part in places)


def measured(run: "Callable[[], Any]", device: Any) -> "dict[str, Any]":
    """Times of `run`, and on CUDA the most memory it asked for beyond what was there."""
    result = spread(clock(run, device))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        result["peak_bytes"] = torch.cuda.max_memory_allocated() - before
    return result


def crossover(points: "list[tuple[float, float]]") -> "float | None":
    """The density at which sparse and dense take the same time, between two measured ones on a logarithmic scale; None when
    sparse never wins. points: (density, sparse time / dense time), densest first."""
    before = None  # type: tuple[float, float] | None
    for density, ratio in points:
        if ratio <= 1.0:
            if before is None:
                return density
            share = (before[1] - 1.0) / (before[1] - ratio)
            return float(before[0] * (density / before[0]) ** share)
        before = (density, ratio)
    return None


def bench(device_name: str, side: int = 1024, width: int = 64) -> "list[dict[str, Any]]":
    """A pruned weight (side x side) times a batch (side x width), per layout and dtype over densities; block layouts have
    16 x 16 blocks. Conversion is timed apart. Also one graph product against index_add, and 2:4 on CUDA."""
    device, rows = torch.device(device_name), []  # type: Any, list[dict[str, Any]]
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        kind = getattr(torch, dtype)
        x = torch.randn(side, width).to(device, kind)
        for layout in LAYOUTS:
            points = []  # type: list[tuple[float, float]]
            for density in DENSITIES:
                step = 16 if layout in ("bsr", "bsc") else 1
                keep = torch.rand(side // step, side // step) < density
                keep = keep.repeat_interleave(step, 0).repeat_interleave(step, 1)
                weight = (torch.randn(side, side) * keep).to(device, kind)
                row = {"what": "pruned weight %dx%d @ %dx%d" % (side, side, side, width), "device": device_name, "dtype": dtype,
                       "layout": layout, "density": density}  # type: dict[str, Any]  # fmt: skip
                rows.append(row)
                try:
                    change = (
                        (lambda w=weight, s=step: w.to_sparse())
                        if layout == "coo"
                        # type: ignore[misc]
                        else (lambda w=weight, s=step, n=layout: getattr(w, "to_sparse_" + n)(*([(s, s)] if s > 1 else [])))
                    )
                    sparse = change()
                    row["conversion"] = spread(clock(change, device, 0.02, 3))
                    row["sparse"] = measured(lambda s=sparse, x=x: s @ x, device)  # type: ignore[misc]
                    row["dense"] = measured(lambda w=weight, x=x: w @ x, device)  # type: ignore[misc]
                    row["ratio"] = round(row["sparse"]["median_ms"] / row["dense"]["median_ms"], 3)
                    row["bytes"] = {"sparse": stored_bytes(sparse), "dense": stored_bytes(weight)}
                    points.append((density, row["ratio"]))
                except Exception as error:
                    row["refused"] = first_line(error)
                    break
            if points:
                rows.append({"what": "crossover", "device": device_name, "dtype": dtype, "layout": layout,
                             "density": crossover(points)})  # fmt: skip
    rows += [bench_graph(device, layout) for layout in ("coo", "csr")]
    return rows + ([bench_semi(device, layout) for layout in SEMI.split()] if device.type == "cuda" else [])


def bench_graph(device: Any, layout: str, nodes: int = 20000, edges: int = 200000, width: int = 64) -> "dict[str, Any]":
    """Sum over neighbours: sparse product against index_add, which is what one writes without sparse tensors."""
    row = {"what": "graph %d nodes, %d edges, %d features" % (nodes, edges, width), "device": str(device), "dtype": "float32",
           "layout": layout, "density": edges / float(nodes) ** 2}  # type: dict[str, Any]  # fmt: skip
    index = torch.randint(nodes, (2, edges)).to(device)
    x = torch.randn(nodes, width).to(device)
    try:
        a = torch.sparse_coo_tensor(index, torch.ones(edges, device=device), (nodes, nodes)).coalesce()
        a = a if layout == "coo" else convert(a, layout)
        row["sparse"] = measured(lambda: a @ x, device)
        row["dense"] = measured(lambda: torch.zeros_like(x).index_add_(0, index[0], x[index[1]]), device)
        row["ratio"] = round(row["sparse"]["median_ms"] / row["dense"]["median_ms"], 3)
    except Exception as error:
        row["refused"] = first_line(error)
    return row


def bench_semi(device: Any, layout: str, side: int = 4096) -> "dict[str, Any]":
    row = {"what": "2:4 weight %dx%d @ %dx%d" % (side, side, side, side), "device": str(device), "dtype": "float16",
           "layout": layout, "density": 0.5}  # type: dict[str, Any]  # fmt: skip
    try:
        torch.sparse.SparseSemiStructuredTensor._FORCE_CUTLASS = layout == "semi-cutlass"
        weight = torch.randn(side, side, device=device, dtype=torch.float16)
        weight[:, 2::4] = 0
        weight[:, 3::4] = 0
        x = torch.randn(side, side, device=device, dtype=torch.float16)
        packed = torch.sparse.to_sparse_semi_structured(weight)
        row["sparse"] = measured(lambda: torch.mm(packed, x), device)
        row["dense"] = measured(lambda: torch.mm(weight, x), device)
        row["ratio"] = round(row["sparse"]["median_ms"] / row["dense"]["median_ms"], 3)
    except Exception as error:
        row["refused"] = first_line(error)
    return row


def bench_text(rows: "list[dict[str, Any]]") -> str:
    """For people: one line per measurement, then the densities below which sparse wins."""
    lines = []
    for row in rows:
        head = "%-40s %-5s %-8s %-14s" % (row["what"], row["device"], row["dtype"], row["layout"])
        if row["what"] == "crossover":
            lines.append("%s sparse wins below density %s" % (head, "%.3g" % row["density"] if row["density"] else "- (never)"))
        elif "refused" in row:
            lines.append("%s density %-8g refused: %s" % (head, row["density"], row["refused"][:90]))
        else:
            lines.append("%s density %-8.4g sparse %9.3f ms (%g-%g)  dense %9.3f ms (%g-%g)  ratio %g" % (
                head, row["density"], row["sparse"]["median_ms"], row["sparse"]["low_ms"], row["sparse"]["high_ms"],
                row["dense"]["median_ms"], row["dense"]["low_ms"], row["dense"]["high_ms"], row["ratio"]))  # fmt: skip
    return "\n".join(lines) + "\n"


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


# torch.optim imports torch._dynamo when it is first used (from 2.1 on), which takes as long as a thousand cases: one lane pays.
OPTIMIZERS = re.compile(r"embedding-(sgd|ada|sparse|bag)|recommender|parameter-sgd|func-grad|jvp|compile|export")


class Session:
    """The server's work after `import torch`: which cases, where, and what came of them."""

    def __init__(self, options: "dict[str, Any]", send: "Callable[[Any], None]") -> None:
        self.options, self.send = options, send
        self.profiler_sees_gpu = bool(options.get("profiler_sees_gpu"))
        self.device_map = options["device_map"]

    def report(self, what: str, **body: Any) -> None:
        self.send(dict(body, frame=what))

    def device(self, name: str) -> Any:
        return torch.device(self.device_map.get(name, name))

    def worker(self, cases: "list[Case]") -> Child:
        def body(send: "Callable[[Any], None]") -> None:
            warnings.simplefilter("ignore")
            torch.set_num_threads(self.options["threads"])
            see_kernels = cases[0].device == "cuda" and self.device("cuda").type == "cuda" and self.profiler_sees_gpu
            for case in cases:
                send(["start", case.id, time.monotonic()])
                result = run_case(case, self.device(case.device), see_kernels)
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

    def believable(self, device: str) -> "tuple[str, str]":
        """Runs the dense control: ("", "") when it passes, else the kind and the reason why no case runs."""
        if self.control("control.dense." + device) == "pass":
            return "", ""
        return "control-failed", "the dense control on %s did not pass, so no sparse result could be believed" % device

    def controls(self, device: str) -> None:
        """The negative controls of a device, after its cases."""
        for name, entry in CONTROLS.items():
            somewhere = entry.expected != "fallback" or self.device(device).type != "cpu"  # nothing falls from the CPU
            somewhere = somewhere and (self.profiler_sees_gpu or name != "control.detour.cuda")
            if entry.device == device and entry.expected not in ("pass", "timeout") and somewhere:
                self.control(name)

    def parts(self, device: str, cases: "list[Case]") -> "list[list[Case]]":
        """Cases for as many lanes as there are cores; on a GPU one lane. An operation's cases stay together."""
        lanes = self.options["lanes"] or min(4, attempt(lambda: len(os.sched_getaffinity(0)), 1))
        groups = {}  # type: dict[tuple[str, str], list[Case]]
        for case in cases:
            groups.setdefault(("", "optimizers") if OPTIMIZERS.match(case.op) else (case.layout, case.op), []).append(case)
        parts = [[] for _ in range(1 if device == "cuda" else lanes)]  # type: list[list[Case]]
        loads = [0] * len(parts)
        for key, group in sorted(groups.items()):  # the optimizers come first, and alone for as long as their import takes
            place = loads.index(min(loads))
            parts[place].extend(group)
            loads[place] += len(group) + (1200 if key[1] == "optimizers" else 0)
        return [part for part in parts if part]

    def lane(self, work: "Callable[[Session], None]") -> Child:
        """A process that does its share beside other lanes, with workers of its own; it sends frames."""
        return Child(lambda send: work(Session(self.options, send)))

    def lanes(self, device: str, cases: "list[Case]", kind: str, reason: str) -> "list[Child]":
        """Starts the lanes that bring an outcome for each case of a device."""
        if kind:
            return [self.lane(lambda session: session.not_run(cases, kind, reason))]
        return [self.lane(lambda session, part=part: session.run_all(part)) for part in self.parts(device, cases)]  # type: ignore[misc]

    def run_all(self, cases: "list[Case]") -> None:
        self.run(cases, self.options["case_timeout"], lambda result: self.report("case", **result))

    def declare(self, cases: "list[Case]", tell: "Callable[[Case, str, str], None]") -> None:
        """Whether this build has the kernels that cases need; one trace serves all dtypes of an operation."""
        groups = {}  # type: dict[tuple[Any, ...], list[Case]]
        for case in cases:
            if case.layout in SEMI.split() or case.tier == "full":
                tell(case, "unknown", "not traced: " + ("it needs a GPU to start" if case.tier != "full" else "tier full"))
                continue
            key = (case.layout, case.op, case.index, case.shape, case.backward, case.dtype in COMPLEX, case.device)
            groups.setdefault(key, []).append(case)
        left = list(groups.values())

        def body(send: "Callable[[Any], None]") -> None:
            warnings.simplefilter("ignore")
            torch.set_num_threads(1)
            for group in left:
                send(declare(group[0], group[0].device))

        while left:
            child = Child(body)
            while left:
                what, value = child.receive(time.monotonic() + self.options["case_timeout"])
                ended = "the trace did not come to an end" if what == "late" else "the trace died: %s" % value
                known, missing = value if what == "value" else ("unknown", ended)
                for case in left.pop(0):
                    tell(case, known, missing)
                if what != "value":
                    break
            child.kill()

    def not_run(self, cases: "list[Case]", kind: str, reason: str) -> None:
        """Reports cases that cannot run here, with what this build declares for them where that can be asked."""

        def tell(case: Case, known: str = "", missing: str = "") -> None:
            said = {key: value for key, value in (("declared", known), ("missing", missing)) if value}
            self.report("case", id=case.id, outcome="not-run", kind=kind, detail=reason, **said)

        if kind in ("cpu-build", "control-failed"):
            for case in cases:
                tell(case)
        else:
            self.declare(cases, tell)

    def relay(self, lanes: "list[Child]") -> None:
        """Sends on what lanes send until all have ended. Every wait in a lane has a deadline, so this ends."""
        while lanes:
            ready = [one for one in lanes if b"\n" in one.buffer]
            if not ready:
                readable = select.select([one.fd for one in lanes], [], [])[0]
                ready = [one for one in lanes if one.fd in readable]
            for one in ready:
                what, value = one.receive(time.monotonic() + 60.0)
                if what == "value":
                    self.send(value)
                    continue
                lanes.remove(one)
                if what != "end" or value:
                    raise RuntimeError("a lane of cases was lost: %s" % (value or what))

    def all(self, cases: "list[Case]") -> None:
        """The whole run, in the order in which things are known."""
        asleep = self.worker([CONTROLS["control.timeout.cpu"].case])  # waits while others work
        if "torch" in self.options["facts"]:
            self.report("facts", data={"torch": dict(first_torch_facts(), **self.ask(torch_facts, 60.0))})
        there = {device: [case for case in cases if case.device == device] for device in self.options["devices"]}
        why = self.no_cuda() if "cuda" in there else ("", "")
        started = self.lanes("cuda", there["cuda"], *why) if "cuda" in there and why[0] else []  # only traces: no GPU
        trust = self.believable("cpu") if "cpu" in there else ("", "")
        self.relay(started + (self.lanes("cpu", there["cpu"], *trust) if "cpu" in there else []))
        if "cpu" in there and not trust[0]:
            self.controls("cpu")
            self.compiles("cpu")
        if "cuda" in there and not why[0]:
            if self.device("cuda").type == "cuda":
                self.look_for_profiler()
            trust = self.believable("cuda")
            self.relay(self.lanes("cuda", there["cuda"], *trust))
            if not trust[0]:
                self.controls("cuda")
                self.compiles("cuda")
        self.control("control.timeout.cpu", asleep)

    def compiles(self, device: str) -> None:
        """In the full tier: whether torch.compile works there, which takes compilers and many seconds."""
        if self.options["tier"] == "full" and "torch" in self.options["facts"]:
            found = self.ask(lambda: compile_facts(self.device(device).type), 120.0)
            self.report("facts", data={"compile_" + device: found})

    def look_for_profiler(self) -> None:
        """Whether torch's profiler sees kernels in this container; without it a detour over the CPU cannot be seen."""

        def look() -> "dict[str, Any]":
            x = torch.ones(64, 64, device=self.device("cuda"))
            return {"sees": bool(profiled(lambda: x @ x))}

        found = self.ask(look, 120.0)
        self.profiler_sees_gpu = self.options["profiler_sees_gpu"] = bool(found.get("sees"))
        if not self.profiler_sees_gpu:
            self.report(
                "note",
                code="no-kernel-evidence",
                message="torch's profiler sees no GPU work in this container (%s): "
                "whether a case made a detour over the CPU could not be seen" % found.get("detail", "no CUPTI?"),
            )

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
    # Workers are forks: a collection in one would walk everything that torch brought, and copy each page it lies on.
    gc.disable()
    attempt(lambda: gc.freeze())  # type: ignore[attr-defined,unused-ignore]
    Session(options, send).all(cases)


# --------------------------------------------------------------------------- supervisor

DEFAULTS = {
    "cases": ["*"], "devices": ["cpu", "cuda"], "tier": "standard", "case_timeout": 20.0, "import_timeout": 180.0,
    "threads": 1, "lanes": 0, "device_map": {}, "facts": ["torch"],
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


def own_text() -> bytes:
    """This very text, wherever it came from."""
    text = globals().get("SOURCE")
    if text is None:
        with open(__file__, "rb") as stream:
            text = stream.read()
    return text


def probe_version() -> str:
    """Short hash of this very text; the host computes the same from the file."""
    return hashlib.sha256(own_text()).hexdigest()[:12]


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
        health = attempt(lambda: library_health(os.path.dirname(importlib.util.find_spec("torch").origin)), {})  # type: ignore[union-attr,arg-type]
        output.emit("facts", data={"libraries": health})
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


# --------------------------------------------------------------------------- snippets: one case as a program of its own

SNIPPET_LINES = 20
CARRIED = "# This case needs the probe file"  # begins a snippet that does not stand alone


class Unfit(Exception):
    """This case cannot be said in a few lines without the probe."""


def snippet(case: Case) -> str:
    """At most 20 lines of Python that need torch alone, do what the case does and print what it gives.

    They print `pass`, `wrong` or `fallback` after `result:` and after `gradient of NAME:`; where torch refuses or fails, its
    own exception ends them.
    """
    try:
        if not case.recipe.operands:
            raise Unfit("a function of its own")
        return "\n".join(one_expression(case)) + "\n"
    except Unfit:
        command = "[sys.executable, 'probe.py', '--tier', 'full', '--devices', '%s', '--cases', '%s']" % (case.device, case.id)
        return "%s: image-matrix probe --emit > probe.py\nimport subprocess, sys\nsubprocess.check_call(%s)\n" % (
            CARRIED,
            command,
        )


def one_expression(case: Case) -> "list[str]":
    if sys.version_info < (3, 9):
        raise Unfit("ast.unparse is of Python 3.9")
    recipe = case.recipe
    keys = [(name.partition(":")[0], name.partition(":")[2] or recipe.layout) for name in recipe.operands]
    here = ["coo" if layout == "hybrid" else layout if key.isupper() else "strided" for key, layout in keys]
    folder = Folder()
    names, result = folder.expression(recipe.fn, here)
    if case.shape == GRADCHECK:
        return gradcheck_lines(case, names, keys, folder, result)
    _, expected = folder.expression(recipe.ref, ["strided"] * len(keys), [name + "_dense" for name in names])
    lines = ["import torch  # " + case.id] + ["import " + name for name in sorted(folder.modules)]
    lines.append("device, dtype = %r, torch.%s" % (case.device, case.dtype))
    dense = [name for name, (key, _) in zip(names, keys) if not key.isupper()]
    for name, (key, layout) in zip(names, keys):
        if name in dense or case.backward or re.search(r"\b%s_dense\b" % name, expected):
            lines.append("%s_dense = %s" % (name, twin_text(key, case)))
        if name not in dense:
            lines.append("%s = %s" % (name, sparse_text(key, layout, case)))
    if dense:
        turn = (".t().contiguous().t()" if case.shape == "noncontig" else "") + (".requires_grad_()" if case.backward else "")
        each = ["%s_dense.detach().to(device, dtype, copy=True)%s" % (name, turn) for name in dense]
        lines.append("%s = %s" % (", ".join(dense), ", ".join(each)))
    lines += folder.helpers + ["result = " + result, "expected = " + expected]
    for check, both in (
        (by_hand_check, True),
        (structure_check, True),
        (plain_check, True),
        (structure_check, False),
        (plain_check, False),
    ):
        whole = (
            lines
            + check(case)
            + (gradient_check(case, names, keys, (result, expected) if both else None) if case.backward else [])
        )
        if len(whole) <= SNIPPET_LINES:
            return whole
    raise Unfit("%d lines" % len(whole))


def gradcheck_lines(
    case: Case, names: "list[str]", keys: "list[tuple[str, str]]", folder: "Folder", result: str
) -> "list[str]":
    """The snippet of a case that compares with numerical gradients instead of a dense twin; see `gradcheck`."""
    lines = ["import inspect", "import torch  # " + case.id] + ["import " + name for name in sorted(folder.modules)]
    lines.append("device, dtype = %r, torch.%s" % (case.device, case.dtype))
    for name, (key, layout) in zip(names, keys):
        made = lists(*numbers(key, kind_of(case.dtype), case.shape))
        dense = "torch.tensor(%s, dtype=dtype, device=device, requires_grad=True)" % made
        lines.append("%s = %s" % (name, sparse_text(key, layout, case) if key.isupper() else dense))
    lines += folder.helpers + [
        "def strided(%s):" % ", ".join(names),
        "    result = " + result,
        "    return result if result.layout == torch.strided else result.to_dense()",
        "known, problems = inspect.signature(torch.autograd.gradcheck).parameters, []",
        "for way in [{'masked': True}, {'masked': False}] if 'masked' in known else [{'check_sparse_nnz': True}]:",
        "    try:",
        "        torch.autograd.gradcheck(strided, (%s,), **way)" % ", ".join(names),
        "        break",
        "    except RuntimeError as error:",
        "        problems.append(error)",
        "good = len(problems) < (2 if 'masked' in known else 1)",
        "if not good and 'Jacobian mismatch' not in str(problems[0]): raise problems[0]",
        "print('result:', 'pass' if good else 'wrong', problems)",
    ]
    if len(lines) > SNIPPET_LINES:
        raise Unfit("%d lines" % len(lines))
    return lines


def lists(sizes: "tuple[int, ...]", flat: "list[Any]") -> Any:
    """Elements as lists of lists; whole numbers without a point, since the dtype is said beside them."""
    if not sizes:
        return int(flat[0]) if isinstance(flat[0], float) and flat[0] == int(flat[0]) else flat[0]
    step = product_of(sizes[1:])
    return [lists(sizes[1:], flat[k * step : (k + 1) * step]) for k in range(sizes[0])]


def twin_text(key: str, case: Case) -> str:
    """The dense truth of an operand."""
    kind = kind_of(case.dtype)
    sizes, flat = numbers(key, kind, case.shape)
    grad = ", requires_grad=True" if case.backward else ""
    if not flat:
        return "torch.zeros(%s, dtype=torch.%s%s)" % (sizes, WIDE[kind], grad)
    return "torch.tensor(%s, dtype=torch.%s%s)" % (lists(sizes, flat), WIDE[kind], grad)


def sparse_text(key: str, layout: str, case: Case) -> str:
    """A sparse operand, from its parts as tensors, as the probe makes it: from lists would be another case."""
    sizes, flat = numbers(key, kind_of(case.dtype), case.shape)
    texts = []
    parts = stored_parts(sizes, flat, layout, case.shape)
    for place, (part_sizes, part) in enumerate(parts):
        index = "torch.int32" if case.index == "i32" else "torch.int64"
        dtype = "dtype" if place == len(parts) - 1 else index if index == "torch.int32" or not part else ""
        made = "tensor(%s" % lists(part_sizes, part) if part else "zeros(%s" % (part_sizes,)
        texts.append("torch.%s%s, device=device)" % (made, dtype and ", dtype=" + dtype))
    name = "coo" if layout == "hybrid" else layout
    return "torch.sparse_%s_tensor(%s, %s)%s" % (name, ", ".join(texts), sizes, ".requires_grad_()" * case.backward)


WRONG = "if %s: raise SystemExit(%s'result: wrong structure: %s')"


def by_hand_check(case: Case) -> "list[str]":
    """Compares a result of known layout without sparse code, which is what is tested."""
    layout, wide_name, batch = case.recipe.result, wide_of(case), any(one[0] in STACKED for one in case.recipe.operands)
    if layout == "strided":
        return verdict(case, "result")
    if not layout or (batch and layout != "coo"):
        return structure_check(case)
    lines = [
        "if str(result.layout) != 'torch.sparse_%s': raise SystemExit('result: wrong layout %%s' %% result.layout)" % layout
    ]
    if layout == "coo":
        return lines + [
            "places = list(zip(*result._indices().tolist()))",
            WRONG % ("result.is_coalesced() and places != sorted(set(places))", "", "it says that it is coalesced, and is not"),
            "seen = torch.zeros(result.shape, dtype=torch.%s)  # by hand: sparse code is what is tested" % wide_name,
            "for place, value in zip(places, result._values().detach().cpu().to(seen.dtype)):",
            "    seen[place] += value",
        ] + verdict(case, "seen")  # fmt: skip
    rows = layout in ("csr", "bsr")
    place = "2 * i : 2 * i + 2, 2 * j : 2 * j + 2" if layout in ("bsr", "bsc") else "i, j"
    return lines + [
        "compressed, plain = result.%s.tolist(), result.%s.tolist()" % (
            ("crow_indices()", "col_indices()") if rows else ("ccol_indices()", "row_indices()")),
        "places = [(k, minor) for k in range(len(compressed) - 1) for minor in plain[compressed[k] : compressed[k + 1]]]",
        WRONG % ("compressed[0] or compressed[-1] != len(plain) or places != sorted(set(places))", "f", "{compressed} {plain}"),
        "seen = torch.zeros(result.shape, dtype=torch.%s)  # by hand: sparse code is what is tested" % wide_name,
        "for (%s), value in zip(places, result.values().detach().cpu().to(seen.dtype)):" % ("i, j" if rows else "j, i"),
        "    seen[%s] = value" % place,
    ] + verdict(case, "seen")  # fmt: skip


def structure_check(case: Case) -> "list[str]":
    """Looks at the structure by hand and leaves the values to `to_dense`."""
    lines = []
    words = set((case.id + "." + case.recipe.layout).replace("-", ".").split("."))
    if words & {"coo", "hybrid"}:
        lines += [
            "places = list(zip(*result._indices().tolist())) if result.layout == torch.sparse_coo else []",
            WRONG % ("places != sorted(set(places)) and result.is_coalesced()", "", "it says that it is coalesced, and is not"),
        ]
    if words & {"csr", "csc", "bsr", "bsc"}:
        lines += [
            "end = str(result.layout)[-2:]  # sr: by rows, sc: by columns",
            "compressed, plain = (result.crow_indices(), result.col_indices()) if end == 'sr' else (result.ccol_indices(),"
            " result.row_indices()) if end == 'sc' else (torch.zeros(1), torch.zeros(0))",
            WRONG % ("compressed.reshape(-1)[0] or compressed.reshape(-1)[-1] != plain.shape[-1]", "f", "{compressed} {plain}"),
        ]
    return lines + plain_check(case)


def plain_check(case: Case) -> "list[str]":
    """Leaves everything to `to_dense`."""
    return ["seen = result if result.layout == torch.strided else result.to_dense()"] + verdict(case, "seen")


def verdict(case: Case, seen: str) -> "list[str]":
    """Two lines that compare `seen` with `expected` and say what came of it."""
    out = case.recipe.out
    same = ["result.shape == expected.shape"]
    same += ["result.dtype == %s" % ("torch." + out if out else "dtype")] if out != "any" else []
    same += ["result.layout == torch.strided"] if case.recipe.result == "strided" else []
    values = "(seen != 0)" if case.dtype == "bool" and seen == "seen" else seen
    values = "%s.detach().cpu().to(torch.%s)" % (values, wide_of(case))
    wanted = "expected.detach().to(torch.%s)" % wide_of(case)
    far = "'fallback' if result.device.type != device else " if case.device != "cpu" else ""
    return [
        "good = %s and %s" % (" and ".join(same), close_text(case, values, wanted)),
        "print('result:', %s'pass' if good else 'wrong', result)" % far,
    ]


def close_text(case: Case, seen: str, expected: str) -> str:
    """An expression: whether two tensors of the wide dtype agree as the probe wants it."""
    rtol, atol = (case.recipe.tol * one for one in tolerance(case))
    nan = "" if case.dtype in COMPLEX else ", equal_nan=True"  # which torch 1.9 does not know for complex numbers
    return "torch.allclose(%s, %s, %g, %g%s)" % (seen, expected, rtol, atol, nan)


def wide_of(case: Case) -> str:
    return "complex128" if case.dtype in COMPLEX else "float64"


def gradient_check(
    case: Case, names: "list[str]", keys: "list[tuple[str, str]]", both: "tuple[str, str] | None"
) -> "list[str]":
    """Differentiates result and expected through the same scalar and compares what each operand got.

    both: the two expressions, for a second try as the probe has it (see ROUTES); None when there is no room for one.
    """
    real = ".real" if case.dtype in COMPLEX else ""
    each = "(one * (torch.arange(one.numel(), device=one.device) % 5 - 2).reshape(one.shape).to(one.dtype)).sum()" + real
    route = ["for one in (result, expected):  # uneven weights, so that no errors cancel out", "    %s.backward()" % each]
    if case.recipe.result != "strided":
        summed = "(torch.sparse.sum(result) if result.layout == torch.sparse_coo else result.sum())%s.backward()" % real
        route = [summed, "expected.sum()%s.backward()" % real]
        if case.recipe.layout == "csr" and not both:  # which refuses the sum, or rather its gradient
            route = ["for one in (seen, expected):", "    %s.backward()" % each]
        if both:
            route = ["try:"] + ["    " + line for line in route] + [
                "except RuntimeError:  # torch refuses some sums for reasons of their own; to_dense is the other way",
                "    result, expected = %s, %s" % both,
                "    for one in (result if result.layout == torch.strided else result.to_dense(), expected):",
                "        %s.backward()" % each,
            ]  # fmt: skip
    grads = ["(%r, %s.grad, %s_dense.grad, %s)" % (name, name, name, stored_text(name, key, layout, case))
             for name, (key, layout) in zip(names, keys)]  # fmt: skip
    return route + [
        "for name, got, want, stored in (%s,):" % ", ".join(grads),
        "    got = (got if got.layout == torch.strided else got.to_dense()).cpu().to(want.dtype)",
        "    want = torch.where((got == 0) & ~stored, got, want)  # a gradient may be cut to what is stored",
        "    print('gradient of %%s:' %% name, 'pass' if %s else 'wrong', got)" % close_text(case, "got", "want"),
    ]


def stored_text(name: str, key: str, layout: str, case: Case) -> str:
    """An expression: where an operand stores an element, as `stored` has it."""
    if not key.isupper() and case.recipe.layout != "strided":
        return "torch.tensor(True)"  # the gradient of a dense operand must be whole
    there = "(%s_dense != 0)" % name
    if layout == "hybrid":
        return there + ".any(-1, True)"
    if layout in ("bsr", "bsc"):
        rows, columns = numbers(key, "real", case.shape)[0]
        return "%s.reshape(%d, 2, %d, 2).any(3, True).any(1, True).repeat(1, 2, 1, 2).reshape(%d, %d)" % (
            there, rows // 2, columns // 2, rows, columns)  # fmt: skip
    return there


# What the helpers of the recipes look up by name, said as a program says it.
def looked_up(name: str, args: "list[Any]") -> Any:
    """The expression that `need`, `method`, `public` or `convert` stands for, or None when its arguments are not constant."""
    words = [one.value if isinstance(one, ast.Constant) else None for one in args]
    if name == "need" and None not in words:
        return ast.parse(".".join(["torch"] + words), mode="eval").body
    if name == "public" and words[0]:
        return ast.parse("torch.sparse_%s_tensor" % words[0], mode="eval").body
    if name in ("method", "getattr") and len(words) == 2 and words[1]:
        return ast.Attribute(value=args[0], attr=words[1], ctx=ast.Load())
    if name == "convert" and words[1]:
        target = "to_sparse" if words[1] == "coo" else "to_sparse_" + words[1]
        block = [ast.parse(str(BLOCK), mode="eval").body] if words[1] in ("bsr", "bsc") else []
        return ast.Call(func=ast.Attribute(value=args[0], attr=target, ctx=ast.Load()), args=block, keywords=[])
    return None


PLAIN = (str, int, float, bool, type(None), tuple, list, set, dict)


class Folder(ast.NodeTransformer):
    """Says a recipe's expression without the probe: constants are put in, helpers worked out or taken along as they stand."""

    def __init__(
        self, known: "dict[str, Any] | None" = None, local: "set[str] | None" = None, above: "Folder | None" = None
    ) -> None:
        self.known, self.local = known or {}, local or set()
        self.modules = above.modules if above else set()  # type: set[str]
        self.helpers = above.helpers if above else []  # type: list[str]
        self.taken = above.taken if above else set()  # type: set[str]
        self.layouts = above.layouts if above else {}  # type: dict[str, str]

    def expression(self, fn: Any, layouts: "list[str]", names: "list[str] | None" = None) -> "tuple[list[str], str]":
        """(names of the operands, text of the expression over them). layouts: of each operand; names: other names for them."""
        node = definition(fn)
        params = [one.arg for one in node.args.args]
        names = names or params[: len(layouts)]
        self.layouts.update(zip(names, layouts))
        if isinstance(node, ast.FunctionDef):
            self.take(node)
            return names, "%s(%s)" % (node.name, ", ".join(names))
        known = dict(zip(params, [ast.Name(id=name, ctx=ast.Load()) for name in names]))
        known.update(defaults(fn, params))
        return names, ast.unparse(Folder(known, stores(node.body), self).visit(copy.deepcopy(node.body)))

    def take(self, node: Any) -> None:
        """A helper that cannot be worked out comes along, without its docstring and annotations."""
        if node.name in self.taken:
            return
        self.taken.add(node.name)
        node = copy.deepcopy(node)
        for one in node.args.args:
            one.annotation = None
        node.returns, node.decorator_list = None, []
        if isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant):
            node.body = node.body[1:]
        node.body = [Folder({}, stores(node), self).visit(one) for one in node.body]
        self.helpers += ast.unparse(node).splitlines()

    def inline(self, fn: Any, args: "list[Any]") -> Any:
        """What a call gives when the helper comes down to one expression here, else None."""
        node = definition(fn)
        params = [one.arg for one in node.args.args]
        if node.args.vararg or len(args) > len(params):
            return None
        uses = [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]
        if any(uses.count(p) > 1 and not isinstance(one, (ast.Name, ast.Constant)) for p, one in zip(params, args)):
            return None
        known = dict(defaults(fn, params), **dict(zip(params, args)))
        inner = Folder(known, set(), self)
        statements = [ast.Return(value=node.body)] if isinstance(node, ast.Lambda) else list(node.body)
        while statements:
            first = statements.pop(0)
            if isinstance(first, ast.Return):
                return inner.visit(copy.deepcopy(first.value))
            if isinstance(first, ast.If):
                test = inner.visit(copy.deepcopy(first.test))
                if not isinstance(test, ast.Constant):
                    return None
                statements = list(first.body if test.value else first.orelse) + statements
            elif isinstance(first, ast.Assign) and isinstance(first.targets[0], ast.Name) and len(first.targets) == 1:
                name, value = first.targets[0].id, inner.visit(copy.deepcopy(first.value))
                if uses.count(name) > 2 and not isinstance(value, (ast.Name, ast.Constant)):
                    return None
                inner.known[name] = value
            elif not (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)):
                return None
        return None

    def constant(self, node: Any) -> Any:
        """`node` as a constant when it is made of constants and plain data of the probe alone, else None."""
        for one in ast.walk(node):
            if isinstance(one, (ast.Call, ast.Attribute, ast.Subscript)):
                return None
            if isinstance(one, ast.Name) and (one.id in self.local or not isinstance(globals().get(one.id, self), PLAIN)):
                return None
        return ast.Constant(value=eval(compile(ast.Expression(body=ast.fix_missing_locations(node)), "", "eval"), globals()))

    def visit_Name(self, node: Any) -> Any:
        if node.id in self.known:
            return copy.deepcopy(self.known[node.id])
        value = globals().get(node.id, self)
        if node.id in self.local or node.id == "torch" or value is self:
            return node
        if isinstance(value, type(sys)):
            self.modules.add(value.__name__)
            return node
        if isinstance(value, (str, int, float, tuple)):
            return ast.parse(repr(value), mode="eval").body
        raise Unfit(node.id)

    def visit_Call(self, node: Any) -> Any:
        name = node.func.id if isinstance(node.func, ast.Name) and node.func.id not in self.local else ""
        args = [self.visit(one) for one in node.args]
        node.keywords = [ast.keyword(arg=one.arg, value=self.visit(one.value)) for one in node.keywords]
        if name == "layout_of" and isinstance(args[0], ast.Name) and args[0].id in self.layouts:
            return ast.Constant(value=self.layouts[args[0].id])
        said = looked_up(name, args)
        if said is not None:
            return said
        fn = globals().get(name)
        if callable(fn) and hasattr(fn, "__code__"):
            said = None if node.keywords else self.inline(fn, args)
            if said is not None:
                return said
            self.take(definition(fn))
        else:
            node.func = self.visit(node.func)
        node.args = args
        return node

    def visit_Compare(self, node: Any) -> Any:
        for one in ast.walk(node):
            if isinstance(one, ast.Name) and one.id in self.known and isinstance(self.known[one.id], ast.Constant):
                node = Put(self.known).visit(node)
                break
        found = self.constant(node)
        if found is not None:
            return found
        node = self.generic_visit(node)
        text = ast.unparse(node)
        for name, layout in self.layouts.items():
            if text == name + ".layout == torch.strided":
                return ast.Constant(value=layout == "strided")
        return self.constant(node) or node

    def visit_BoolOp(self, node: Any) -> Any:
        decides = isinstance(node.op, ast.Or)
        left = []
        for one in (self.visit(value) for value in node.values):
            if isinstance(one, ast.Constant) and bool(one.value) == decides:
                left.append(one)
                break
            if not isinstance(one, ast.Constant):
                left.append(one)
        node.values = left
        return node if len(left) > 1 else left[0] if left else ast.Constant(value=not decides)

    def visit_IfExp(self, node: Any) -> Any:
        test = self.visit(node.test)
        if isinstance(test, ast.Constant):
            return self.visit(node.body if test.value else node.orelse)
        node.test, node.body, node.orelse = test, self.visit(node.body), self.visit(node.orelse)
        return node

    def visit_UnaryOp(self, node: Any) -> Any:
        node = self.generic_visit(node)
        return (
            ast.Constant(value=not node.operand.value)
            if isinstance(node.op, ast.Not) and isinstance(node.operand, ast.Constant)
            else node
        )

    def visit_BinOp(self, node: Any) -> Any:
        node = self.generic_visit(node)
        words = [one.value if isinstance(one, ast.Constant) else None for one in (node.left, node.right)]
        return ast.Constant(value=words[0] + words[1]) if all(isinstance(one, str) for one in words) else node


class Put(ast.NodeTransformer):
    """Puts in what is known of names, and nothing else."""

    def __init__(self, known: "dict[str, Any]") -> None:
        self.known = known

    def visit_Name(self, node: Any) -> Any:
        return copy.deepcopy(self.known.get(node.id, node))


def stores(node: Any) -> "set[str]":
    """Names that are set within `node`: its own variables."""
    own = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)}
    return own | {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}


def defaults(fn: Any, params: "list[str]") -> "dict[str, Any]":
    """The last parameters' defaults, as expressions. Raises Unfit for one that is no plain data."""
    values = fn.__defaults__ or ()
    if not all(isinstance(value, (str, int, float, tuple, type(None))) for value in values):
        raise Unfit("a default that is no plain data")
    return {name: ast.parse(repr(value), mode="eval").body for name, value in zip(params[len(params) - len(values) :], values)}


DEFINITIONS = {}  # type: dict[int, list[Any]]


def definition(fn: Any) -> Any:
    """The lambda or def that `fn` was made from, out of this very text. Raises Unfit when that cannot be told."""
    if not DEFINITIONS:
        for node in ast.walk(ast.parse(own_text())):
            if isinstance(node, (ast.Lambda, ast.FunctionDef)):
                first = min([node.lineno] + [one.lineno for one in getattr(node, "decorator_list", [])])
                DEFINITIONS.setdefault(first, []).append(node)
    code = fn.__code__
    found = [
        node for node in DEFINITIONS.get(code.co_firstlineno, [])
        if (getattr(node, "name", "<lambda>") == code.co_name)
        and [one.arg for one in node.args.args] == list(code.co_varnames[: code.co_argcount])
    ]  # fmt: skip
    if len(found) > 1 and code.co_name == "<lambda>":
        found = [node for node in found if same_code(node, code)]
    if len({ast.dump(node) for node in found}) != 1:
        raise Unfit("%s of line %d cannot be told from another" % (code.co_name, code.co_firstlineno))
    return found[0]


def same_code(node: Any, code: Any) -> bool:
    """Whether a lambda of the text compiles to this code."""
    made = next(
        one for one in compile(ast.Expression(body=copy.deepcopy(node)), "", "eval").co_consts if hasattr(one, "co_code")
    )
    return all(getattr(made, name) == getattr(code, name) for name in ("co_code", "co_names", "co_varnames")) and [
        one for one in made.co_consts if not hasattr(one, "co_code")] == [one for one in code.co_consts if not hasattr(one, "co_code")]  # fmt: skip


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
    parser.add_argument("--snippet", metavar="CASE", help="print a program for one case and stop (needs no torch)")
    parser.add_argument("--coverage", action="store_true", help="print which sparse kernels of this torch the cases reach")
    parser.add_argument("--declared", action="store_true", help="set what is declared for CPU cases beside what they give")
    parser.add_argument("--oracle", action="store_true", help="compare with torch's own OpInfo database (needs numpy)")
    parser.add_argument("--bench", action="store_true", help="time sparse against dense (--devices cuda: on the GPU)")
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


def beside(what: str, arguments: argparse.Namespace) -> int:
    """What is asked for by hand beside a report: coverage, oracle or bench."""
    global torch
    torch = importlib.import_module("torch")
    try:
        if what == "coverage":
            rows = coverage()
        elif what == "oracle":
            rows = oracle()
        elif what == "declared":
            rows = trust_in_declared(selected(dict(DEFAULTS, devices=["cpu"])))
        else:
            torch.set_num_threads(arguments.threads)
            rows = bench("cuda" if "cpu" not in arguments.devices else "cpu")
    except Absent as error:
        sys.stderr.write("this torch (%s) cannot answer: it has no %s\n" % (torch.__version__, error))
        return 1
    if what == "bench" and not arguments.json:
        sys.stdout.write(bench_text(rows))
    else:
        sys.stdout.write("[\n%s\n]\n" % ",\n".join(json.dumps(row) for row in rows))
    return 0


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
        if arguments.snippet and arguments.snippet not in CASES:
            sys.exit("there is no case %s" % arguments.snippet)
        if arguments.list or arguments.snippet:
            sys.stdout.write(catalogue() if arguments.list else snippet(CASES[arguments.snippet]))
            return 0
        aside = [name for name in ("coverage", "declared", "oracle", "bench") if getattr(arguments, name)]
        if aside:
            return beside(aside[0], arguments)
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
