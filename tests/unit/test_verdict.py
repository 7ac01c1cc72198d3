"""Every rule has one real-looking message that reaches it; what no rule knows keeps its evidence."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.records import case, control
from validator import verdict
from validator.model import Outcome, Verdict, VerdictClass
from validator.verdict import ExitState, Rule, build_verdict, judge, pull_verdict

PULL = {
    "rate-limit": "toomanyrequests: You have reached your pull rate limit.",
    "pull-stalled": "the pull stalled: nothing arrived for 120 s",
    "registry-certificate": 'Get "https://nvcr.io/v2/": x509: certificate signed by unknown authority',
    "no-space": "failed to register layer: write /usr/lib/libtorch.so: no space left on device",
    "platform-mismatch": "no matching manifest for linux/arm64/v8 in the manifest list entries",
    "not-found": "manifest for nvcr.io/nvidia/pytorch:99.99-py3 not found: manifest unknown: manifest unknown",
    "authentication": 'Head "https://nvcr.io/v2/x/manifests/1": unauthorized: authentication required',
    "access-denied": "denied: requested access to the resource is denied",
    "registry-unreachable": 'Get "https://nvcr.io/v2/": dial tcp: lookup nvcr.io on 10.0.0.53:53: no such host',
}
BUILD = {
    "no-space": "error: failed to write: No space left on device (os error 28)",
    "certificate": "invalid peer certificate: UnknownIssuer",
    "index-unreachable": "E: Unable to connect to mirror:http:",
    "no-wheel": "Because there is no version of torch==9.9.9 and you require torch==9.9.9, we conclude ...",
    "checksum": "E: File has unexpected size (1 != 2). Mirror sync in progress?",
    "apt-failed": "E: Unable to locate package libfoo",
    "base-missing": "pull access denied for base, repository does not exist",
}
START = {
    "gpu-refused": 'could not select device driver "" with capabilities: [[gpu]]',
    "driver-requirement": "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver",
    "wrong-platform": "exec /usr/bin/python3: exec format error",
    "no-such-user": "unable to find user nobody2: no matching entries in passwd file",
    "no-python": "no Python interpreter on PATH or in the usual places",
    "entrypoint-missing": 'exec: "/entry.sh": stat /entry.sh: no such file or directory: unknown',
}
IMPORT = {
    "missing-library": "ImportError: libcudnn.so.8: cannot open shared object file: No such file or directory",
    "glibc-too-old": "ImportError: /lib64/libc.so.6: version `GLIBC_2.28' not found (required by libtorch.so)",
    "undefined-symbol": "ImportError: libcusparse.so.12: undefined symbol: __nvJitLinkAddData_12_1",
    "numpy-mismatch": "A module that was compiled using NumPy 1.x cannot be run in NumPy 2.0.1",
    "other-python": "ModuleNotFoundError: No module named 'torch._C'",
    "import-failed": "SyntaxError: invalid syntax (typing.py, line 3)",
}
CRASH = {
    "illegal-instruction": "the process died: SIGILL",
    "import-crashes": "the process died: SIGSEGV",
}
TABLES: list[tuple[tuple[Rule, ...], dict[str, str]]] = [
    (verdict.PULL_RULES, PULL),
    (verdict.BUILD_RULES, BUILD),
    (verdict.START_RULES, START),
    (verdict.IMPORT_RULES, IMPORT),
    (verdict.CRASH_RULES, CRASH),
]
STARTED = ExitState(exit_code=0, started=True)
FACTS: dict[str, Any] = {
    "torch": {"version": "2.6.0+cu126", "cuda": "12.6"},
    "python": {"version": "3.11.7"},
    "torch_import": {"state": "ok"},
}


def verdict_of(
    facts: Any = None, *, state: ExitState = STARTED, complete: bool = True, texts: tuple[str, ...] = (), **over: Any
) -> Verdict:
    cases, controls = over.get("cases", (case("coo.mm.float32.cpu"),)), over.get("controls", (control(),))
    return judge(FACTS | (facts or {}), cases, controls, complete, state, texts, declared={})[0]


def imported(state: str, detail: str = "") -> dict[str, Any]:
    return {"torch_import": {"state": state, "detail": detail}, "torch": {}}


@pytest.mark.parametrize(("rules", "texts"), TABLES)
def test_each_rule_is_reached_and_none_shadows_another(rules: tuple[Rule, ...], texts: dict[str, str]) -> None:
    assert [rule.code for rule in rules] == list(texts), "one message for each rule, in the rules' order"
    for code, text in texts.items():
        assert verdict._apply(rules, text, VerdictClass.INFRA).code == code, text


@pytest.mark.parametrize("rules", [rules for rules, _ in TABLES])
def test_each_rule_says_what_to_do(rules: tuple[Rule, ...]) -> None:
    assert all(rule.cause and rule.remedy for rule in rules)


@pytest.mark.parametrize("error", [
    'Get "https://nvcr.io/v2/": dial tcp 1.2.3.4:443: connect: connection refused',
    'Get "https://nvcr.io/v2/": dial tcp 1.2.3.4:443: i/o timeout',
    'Get "https://nvcr.io/v2/": dial tcp 1.2.3.4:443: connect: network is unreachable',
    'Get "https://nvcr.io/v2/": net/http: request canceled (Client.Timeout exceeded while awaiting headers)',
    'Get "https://nvcr.io/v2/": context deadline exceeded',
    'Get "https://nvcr.io/v2/": EOF',
])  # fmt: skip
def test_an_unreachable_registry_is_named_and_is_infra(error: str) -> None:
    found = pull_verdict(error)
    assert (found.cls, found.code) == (VerdictClass.INFRA, "registry-unreachable")
    assert "nvcr.io" in found.cause and "1.2.3.4" not in found.cause, "one cause for all tags of a registry"


def test_a_number_in_a_name_is_not_a_status() -> None:
    assert pull_verdict("layer typeof:404 of build 429 went away").code == "unclassified"
    assert pull_verdict("received unexpected HTTP status: 503 Service Unavailable").code == "registry-unreachable"


def test_numpy_2_names_its_core_otherwise() -> None:
    found = verdict_of(imported("error", "ImportError: numpy._core.multiarray failed to import"))
    assert found.code == "numpy-mismatch"


def test_an_unknown_failure_keeps_its_last_line() -> None:
    found = build_verdict("Step 1/2\nthe moon is full\n\n")
    assert (found.cls, found.code) == (VerdictClass.BUILD, "unclassified")
    assert "the moon is full" in found.cause
    assert pull_verdict("").cls is VerdictClass.INFRA


def test_braces_in_a_message_are_text() -> None:
    assert "{0} {x}" in verdict_of(imported("error", "boom {0} {x}")).cause


NOT_ZERO = "The command '/bin/sh -c set -eu; pip install x' returned a non-zero code: 1"


def test_the_engines_own_last_line_is_no_cause() -> None:
    found = build_verdict(f"Step 3/9 : RUN echo E: timed out\nthe moon is full\n{NOT_ZERO}")
    assert (found.code, found.cause) == ("unclassified", "not a failure we know: the moon is full")
    assert "returned a non-zero code: 1" in build_verdict(NOT_ZERO).cause, "better than nothing"


def test_a_painted_apt_error_keeps_its_words() -> None:
    found = build_verdict(f"\x1b[91mE: Unable to locate package libfoo\x1b[0m\n{NOT_ZERO}")
    assert (found.code, found.cause) == ("apt-failed", "apt-get failed in the build: E: Unable to locate package libfoo")


@pytest.mark.parametrize("text", ["see message: hello", "type E: fine", "e: fine", "checksum: 3 files fine"])
def test_a_word_inside_a_line_is_no_failure(text: str) -> None:
    assert build_verdict(text).code == "unclassified"


@pytest.mark.parametrize(("text", "code"), [
    ('failed to resolve reference "docker.io/a/b:9": docker.io/a/b:9: not found', "not-found"),
    ("docker.io/a/b:9: no match for platform in manifest sha256:0: not found", "platform-mismatch"),
])  # fmt: skip
def test_an_engine_with_the_containerd_store_says_it_in_other_words(text: str, code: str) -> None:
    assert pull_verdict(text).code == code


@pytest.mark.parametrize("text", [
    "nvidia-container-cli: ldcache error: open failed: /sbin/ldconfig.real: no such file or directory: unknown",
    "nvidia-container-cli: mount error: failed to add device rules: write devices.allow: permission denied: unknown",
    "nvidia-container-cli: mount error: bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted: unknown",
    "nvidia-container-cli: device error: 7: unknown device: unknown",
])  # fmt: skip
def test_trouble_of_the_gpu_toolkit_is_never_charged_to_the_image(text: str) -> None:
    found = verdict_of(state=ExitState(error=f"runc create failed: error running prestart hook #0: {text}"))
    assert (found.cls, found.code) == (VerdictClass.HOST, "gpu-refused")


@pytest.mark.parametrize("table", ["START", "IMPORT", "CRASH"])
def test_judge_uses_each_table(table: str) -> None:
    for code, text in {"START": START, "IMPORT": IMPORT, "CRASH": CRASH}[table].items():
        if table == "START":
            found = verdict_of(state=ExitState(error=text))
        else:
            found = verdict_of(imported("error" if table == "IMPORT" else "crash", text))
        assert found.code == code


def test_a_tested_image_is_ok() -> None:
    assert (verdict_of().cls, verdict_of().code) == (VerdictClass.OK, "tested")


@pytest.mark.parametrize(("found", "cls", "code"), [
    (lambda: verdict_of(state=ExitState(started=True, exit_code=79)), VerdictClass.IMAGE, "old-python"),
    (lambda: verdict_of(imported("absent")), VerdictClass.IMAGE, "no-torch"),
    (lambda: verdict_of(imported("timeout")), VerdictClass.INFRA, "import-timeout"),
    (lambda: verdict_of(complete=False, state=ExitState(started=True, oom_killed=True, exit_code=137)), VerdictClass.INFRA, "out-of-memory"),
    (lambda: verdict_of(imported("crash", "SIGKILL"), state=ExitState(started=True, oom_killed=True)), VerdictClass.INFRA, "out-of-memory"),
    (lambda: verdict_of(complete=False, state=ExitState(started=True, timed_out=True)), VerdictClass.INFRA, "probe-timeout"),
    (lambda: verdict_of(complete=False), VerdictClass.INFRA, "report-cut"),
    (lambda: verdict_of(controls=(control(Outcome.PASS),)), VerdictClass.INFRA, "probe-untrusted"),
    (lambda: verdict_of(controls=()), VerdictClass.INFRA, "probe-untrusted"),
    (lambda: verdict_of(cases=()), VerdictClass.INFRA, "probe-untrusted"),
])  # fmt: skip
def test_how_it_ended_decides(found: Any, cls: VerdictClass, code: str) -> None:
    assert (found().cls, found().code) == (cls, code)


def test_memory_or_time_after_a_whole_report_costs_nothing() -> None:
    for state in (ExitState(started=True, oom_killed=True), ExitState(started=True, timed_out=True)):
        assert verdict_of(state=state).cls is VerdictClass.OK


def test_a_cut_report_shows_the_last_words() -> None:
    assert "Bus error" in verdict_of(complete=False, texts=("hello\nBus error\n",)).cause


@pytest.mark.parametrize("facts", [{"torch_import": "x"}, {"torch": None, "python": [1]}])
def test_facts_of_a_wrong_shape_are_no_traceback(facts: dict[str, Any]) -> None:
    judge(FACTS | facts, (), (), True, STARTED, (), declared={"torch": "2.6.0", "cuda": "12.6", "python": "3.11"})


@pytest.mark.parametrize(("declared", "codes"), [
    ({"torch": "2.6.0", "cuda": "12.6", "python": "3.11"}, []),
    ({"torch": "2.6.0+cu126", "python": "3.11.7"}, []),
    ({"torch": "2.6.0+cu124"}, ["declared-torch"]),
    ({"torch": "2.6.1"}, ["declared-torch"]),
    ({"cuda": "12.4"}, ["declared-cuda"]),
    ({"cuda": "12"}, []),
    ({"cuda": "cpu"}, ["declared-cuda"]),
    ({"python": "3.1"}, ["declared-python"]),
    ({"python": "3.12"}, ["declared-python"]),
    ({}, []),
])  # fmt: skip
def test_what_a_tag_says_is_held_against_what_is_inside(declared: dict[str, str], codes: list[str]) -> None:
    findings = judge(FACTS, (case("a.b.cpu"),), (control(),), True, STARTED, (), declared=declared)[1]
    assert [finding.code for finding in findings] == codes


def test_a_cpu_build_under_a_cuda_tag_is_said() -> None:
    facts = FACTS | {"torch": {"version": "2.6.0", "cuda": None}}
    findings = judge(facts, (), (), True, STARTED, (), declared={"cuda": "12.4"})[1]
    assert "CUDA 12.4" in findings[0].message and "a CPU build" in findings[0].message


def test_a_vendor_build_is_its_release() -> None:
    facts = FACTS | {"torch": {"version": "2.5.0a0+872d972e41.nv24.08", "cuda": "12.6"}}
    assert not judge(facts, (), (), True, STARTED, (), declared={"torch": "2.5.0"})[1]
