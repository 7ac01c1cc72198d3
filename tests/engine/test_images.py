"""Images with something wrong, each a real one: the right verdict, and the probe's way in, whatever the image does."""

from __future__ import annotations

import pytest

from tests.engine.conftest import Probe, codes
from validator.engine import DockerEngine, LocalImage
from validator.model import Outcome, VerdictClass

TORCH = "/usr/lib/python3/dist-packages/torch/__init__.py"


def test_no_python(probe: Probe, base: LocalImage) -> None:
    record = probe(on=base)
    assert (record.verdict.cls, record.verdict.code) == (VerdictClass.IMAGE, "no-python")


def test_no_torch(probe: Probe) -> None:
    record = probe()
    assert (record.verdict.cls, record.verdict.code) == (VerdictClass.IMAGE, "no-torch")
    assert record.complete
    assert {case.outcome for case in record.cases} == {Outcome.NOT_RUN}
    assert record.facts["python"]["version"].startswith("3.")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (
            "raise ImportError('libcusparse.so.12: cannot open shared object file: No such file or directory')",
            "missing-library",
        ),
        ("raise RuntimeError('something else')", "import-failed"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "import-crashes"),
    ],
)
def test_a_torch_that_cannot_be_imported(probe: Probe, text: str, code: str) -> None:
    record = probe(files={TORCH: text})
    assert (record.verdict.cls, record.verdict.code) == (VerdictClass.IMAGE, code)
    assert record.complete


def test_an_import_that_hangs_is_ended_and_named(probe: Probe) -> None:
    record = probe(files={TORCH: "import time; time.sleep(600)"})
    assert (record.verdict.cls, record.verdict.code) == (VerdictClass.INFRA, "import-timeout"), (
        "our limit, not the image's fault"
    )
    assert record.complete
    assert {case.kind for case in record.cases} == {"import-timeout"}


def test_a_library_that_is_no_library_is_named(probe: Probe) -> None:
    files = {TORCH: "import ctypes; ctypes.CDLL('/opt/libtorch_cpu.so')", "/opt/libtorch_cpu.so": "cut short"}
    record = probe(files=files)
    assert record.verdict.cls is VerdictClass.IMAGE
    assert "libtorch_cpu.so" in record.verdict.cause


def test_an_import_that_prints_a_lot_loses_nothing(probe: Probe) -> None:
    noise = "import sys\nfor n in range(20000): print('@image-matrix', 'x' * 80)\nraise RuntimeError('after all that')"
    record = probe(files={TORCH: noise})
    assert record.verdict.code == "import-failed"
    assert "after all that" in record.verdict.cause
    assert record.complete


def test_a_python_too_new_for_its_torch_is_named(probe: Probe) -> None:
    """Debian's Python finds a torch that was installed for an older one."""
    compiled = TORCH.replace("__init__.py", "_C.cpython-38-x86_64-linux-gnu.so")
    record = probe(files={TORCH: "from torch._C import *", compiled: ""})
    assert (record.verdict.cls, record.verdict.code) == (VerdictClass.IMAGE, "other-python")
    assert record.facts["python"]["version"].startswith("3.11")


def test_python_2_is_named_as_too_old(probe: Probe, engine: DockerEngine) -> None:
    """A stand-in that answers as Python 2 does to our first lines; a real Python 2 takes the same path."""
    script = '#!/bin/sh\nexec /usr/bin/python3 -c "import sys; sys.version_info=(2,7,18); sys.version=\'2.7.18 (default)\'; exec(sys.argv[1])" "$2"\n'
    remove = "RUN mv /usr/bin/python3 /usr/bin/real && cp /two /usr/bin/python3 && sed -i s,/usr/bin/python3,/usr/bin/real, /usr/bin/python3"
    record = probe(remove, {"/two": script})
    assert (record.verdict.cls, record.verdict.code) == (VerdictClass.IMAGE, "old-python")
    assert "older than 3.6" in record.verdict.cause


def test_a_torch_for_another_cpu_is_a_pairing_not_an_images_fault(probe: Probe) -> None:
    record = probe(files={TORCH: "import os, signal; os.kill(os.getpid(), signal.SIGILL)"})
    assert (record.verdict.cls, record.verdict.code) == (VerdictClass.PAIRING, "illegal-instruction")


def test_a_torch_that_prints_and_is_none_gives_errors_not_a_lost_report(probe: Probe) -> None:
    record = probe(
        files={TORCH: "print('@image-matrix hello'); import sys; sys.stdout.write('no newline'); __version__ = '9.9'"}
    )
    assert record.verdict.cls is not VerdictClass.OK
    assert not [case for case in record.cases if case.outcome is Outcome.PASS]


def test_an_entrypoint_that_prints_a_banner_is_kept(probe: Probe) -> None:
    record = probe(
        'ENTRYPOINT ["/entry"]', {"/entry": '#!/bin/sh\necho "=== banner ==="; echo "@image-matrix fake"; exec "$@"\n'}
    )
    assert record.verdict.code == "no-torch"
    assert "entrypoint-swallows" not in codes(record)


def test_an_entrypoint_that_swallows_the_command_is_overridden_and_that_is_a_finding(probe: Probe) -> None:
    record = probe('ENTRYPOINT ["/bin/true"]')
    assert record.verdict.code == "no-torch"
    assert "entrypoint-swallows" in codes(record)


def test_an_entrypoint_that_needs_a_capability_gets_dockers_defaults_and_that_is_a_finding(probe: Probe) -> None:
    record = probe('ENTRYPOINT ["/entry"]', {"/entry": '#!/bin/sh\nchown 12:12 /etc/hostname /root || exit 9\nexec "$@"\n'})
    assert record.verdict.code == "no-torch"
    # Without its entrypoint it runs hardened, so that is what was needed.
    assert codes(record) == {"entrypoint-swallows"}


def test_the_interpreter_that_holds_torch_is_found(probe: Probe) -> None:
    script = (
        "RUN mkdir -p /opt/conda/bin /opt/conda/lib/site/torch && printf '%s\\n' '#!/bin/sh' "
        "'PYTHONPATH=/opt/conda/lib/site exec /usr/bin/python3 \"$@\"' > /opt/conda/bin/python && chmod +x /opt/conda/bin/python "
        "&& echo 'raise RuntimeError(\"found me\")' > /opt/conda/lib/site/torch/__init__.py"
    )
    record = probe(script)
    assert record.verdict.code == "import-failed"
    assert "found me" in record.verdict.cause


def test_without_a_shell_and_without_path(probe: Probe) -> None:
    record = probe("ENV PATH=/nowhere\n", {"/marker": ""})
    assert record.verdict.code == "no-torch"


def test_a_user_without_home_and_a_root_that_is_not_ours(probe: Probe) -> None:
    record = probe("USER 4242:4242")
    assert record.verdict.code == "no-torch"
    assert record.facts["user"]["uid"] == 4242


def test_a_user_that_does_not_exist(probe: Probe) -> None:
    record = probe(user="nosuchuser")
    assert (record.verdict.cls, record.verdict.code) == (VerdictClass.IMAGE, "no-such-user")


def test_a_probe_that_never_ends_is_not_the_images_failure(probe: Probe) -> None:
    record = probe('ENTRYPOINT ["/entry"]', {"/entry": "#!/bin/sh\nsleep 100\n"}, timeout=2)
    assert (record.verdict.cls, record.verdict.code) == (VerdictClass.INFRA, "probe-timeout")
    assert not record.complete


def test_killed_for_memory(probe: Probe) -> None:
    hog = "x = bytearray(300 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nimport os, signal; os.kill(os.getppid(), signal.SIGKILL)"
    record = probe(files={TORCH: hog}, memory="64m")
    assert not record.complete or record.verdict.code in ("import-crashes", "out-of-memory")
    assert record.verdict.cls is not VerdictClass.OK
