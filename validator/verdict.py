"""What a report, an exit state or an engine's message means: ordered rules as data; the first that applies decides.

A rule that does not know says nothing; what no rule knows is `unclassified` and keeps its evidence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from validator.model import CaseResult, Control, Finding, Severity, Verdict, VerdictClass

OLD_PYTHON_EXIT = 79
_COLOUR = re.compile(r"\x1b\[[\d;]*m")  # the classic builder paints standard error
# The command that a build was running, which says nothing of why it failed, but holds words that rules look for.
_COMMAND = re.compile(r"^Step \d+/\d+ : .*|^The command '[^\n]*' returned a non-zero code: \d+", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class ExitState:
    """How the probe's container ended, as the verdict needs it."""

    exit_code: int | None = None
    oom_killed: bool = False
    timed_out: bool = False
    started: bool = False
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """pattern is looked for (case-insensitive) in a text; its groups stand in cause and remedy as {0}, {1} ("?" when unmatched)."""

    code: str
    cls: VerdictClass
    pattern: str
    cause: str
    remedy: str


IMAGE, BUILD, INFRA, HOST, PAIRING = (
    VerdictClass.IMAGE,
    VerdictClass.BUILD,
    VerdictClass.INFRA,
    VerdictClass.HOST,
    VerdictClass.PAIRING,
)

# What a registry or the engine says when a pull does not work.
PULL_RULES = (
    Rule(code="rate-limit", cls=INFRA, pattern=r"toomanyrequests|too many requests|rate limit|status:? 429\b",
         cause="the registry's rate limit is reached", remedy="log in (`docker login`), use a mirror (`mirrors:` in images.yaml), or wait and run again"),
    Rule(code="pull-stalled", cls=INFRA, pattern=r"the pull stalled: nothing arrived for (\d+) s",
         cause="the pull stalled: nothing arrived for {0} s", remedy="check the network to the registry, or name a mirror under `mirrors:`; what has arrived is kept, run again"),
    Rule(code="registry-certificate", cls=INFRA, pattern=r"x509|certificate signed by unknown|certificate verify|tls: failed to verify",
         cause="the registry's TLS certificate is not trusted by the engine",
         remedy="give the engine the CA (/etc/docker/certs.d/<registry>/ca.crt, or the system's store) and run again"),
    Rule(code="no-space", cls=INFRA, pattern=r"no space left on device|disk quota exceeded",
         cause="the disk is full", remedy="free some space on the engine's data root (`docker system df`), then run again"),
    Rule(code="platform-mismatch", cls=IMAGE, pattern=r"no matching manifest for (\S+)|no match for platform in manifest|does not match the (?:specified|detected) platform",
         cause="the image does not exist for this platform", remedy="set `platform:` for the row, or take a tag that has this platform"),
    Rule(code="not-found", cls=IMAGE, pattern=r"manifest unknown|manifest for \S+ not found|name unknown|not found: manifest|failed to resolve reference [^\n]*: not found|status:? 404\b",
         cause="the registry has no such tag", remedy="correct the tag in images.yaml; `image-matrix list` shows the neighbours"),
    Rule(code="authentication", cls=INFRA, pattern=r"unauthorized|authentication required|no basic auth|incorrect username or password|status:? 401\b",
         cause="the registry wants a login", remedy="`docker login <registry>` (nvcr.io: user name $oauthtoken, an NGC API key as the password)"),
    Rule(code="access-denied", cls=INFRA, pattern=r"access (?:to the resource is )?denied|requested access|forbidden|status:? 403\b",
         cause="the registry refuses access to this repository", remedy="check the name, and that your login may read it"),
    Rule(code="registry-unreachable", cls=INFRA,
         pattern=r"(?:(?:https?://|\blookup )([\w.-]+(?::\d+)?)[^\n]*?)?(no such host|connection refused|i/o timeout|network is unreachable|no route to host"
                 r"|temporary failure in name resolution|timeout exceeded|deadline exceeded|did not answer in time|server misbehaving|proxyconnect"
                 r"|connection reset|TLS handshake timeout|\bEOF\b|status:? 50[0234]\b)",
         cause="registry unreachable: {0} ({1})", remedy="check network, DNS and proxy of the engine, or name a mirror under `mirrors:` in images.yaml; run again"),
)  # fmt: skip

# What a build says in its last lines.
BUILD_RULES = (
    Rule(code="no-space", cls=INFRA, pattern=r"no space left on device|disk quota exceeded|os error 28",
         cause="the disk is full", remedy="free some space on the engine's data root (`docker system df`), then run again"),
    Rule(code="certificate", cls=INFRA, pattern=r"certificate verify failed|CERTIFICATE_VERIFY_FAILED|invalid peer certificate|UnknownIssuer|self.signed certificate",
         cause="the package index presents a certificate that the build does not trust",
         remedy="behind a proxy with its own CA: set SSL_CERT_FILE to the CA bundle of this machine; the build is given it"),
    Rule(code="index-unreachable", cls=INFRA,
         pattern=r"Failed to fetch: `([^`]+)`|dns error|failed to lookup address|Temporary failure in name resolution|Could not resolve|Name or service not known"
                 r"|Connection refused|Network is unreachable|timed out|error sending request|Failed to establish a new connection|Unable to connect|operation timed out",
         cause="a package index or mirror cannot be reached from the build",
         remedy="check network and proxies; PIP_INDEX_URL names another index, PIP_FIND_LINKS or --wheels local wheels; run again"),
    Rule(code="no-wheel", cls=BUILD,
         pattern=r"there is no version of (torch==\S+)|No solution found when resolving|has no wheels with a matching|no wheels? (?:are|is) (?:available|compatible)|No matching distribution found for (\S+)",
         cause="the index has no wheel of this torch for this Python and platform", remedy="correct torch, python or index of the row in images.yaml"),
    Rule(code="checksum", cls=INFRA, pattern=r"hash mismatch|Hash Sum mismatch|File has unexpected size|do not match the hashes|checksum (?:mismatch|failed|error)",
         cause="a download was damaged or changed on the way", remedy="run again; if it stays, a proxy or mirror serves wrong files"),
    Rule(code="apt-failed", cls=BUILD, pattern=r"(?m:^)((?-i:E): .+|dpkg: error.*)",
         cause="apt-get failed in the build: {0}", remedy="see the build log; set IMAGE_MATRIX_DEBIAN_MIRROR if a mirror is gone"),
    Rule(code="base-missing", cls=INFRA, pattern=r"pull access denied|manifest unknown|repository does not exist",
         cause="the base image of the build cannot be had", remedy="see `bases:` in images.yaml"),
)  # fmt: skip

# What the probe says when the process that imports torch dies.
CRASH_RULES = (
    Rule(code="illegal-instruction", cls=PAIRING, pattern=r"SIGILL|illegal instruction|signal 4\b",
         cause="import torch needs processor instructions that this host does not have", remedy="run on a newer CPU, or take a build for older ones"),
    Rule(code="import-crashes", cls=IMAGE, pattern=r"(.+)",
         cause="import torch crashes: {0}", remedy="see the log; the image's torch is broken, or does not suit this CPU"),
)  # fmt: skip

# What the engine says when the container does not start.
START_RULES = (
    # Before the rules on files and permissions: the toolkit's own trouble is reported in the same words.
    Rule(code="gpu-refused", cls=HOST,
         pattern=r"could not select device driver|unresolvable CDI devices|failed to discover GPU|bpf_prog_query|devices\.allow"
                 r"|nvidia-container-cli: (?:initialization|ldcache|device|container|detection) error",
         cause="the engine refuses or fails the GPU request", remedy="see `image-matrix doctor`; install or repair driver and NVIDIA Container Toolkit"),
    Rule(code="driver-requirement", cls=PAIRING, pattern=r"unsatisfied condition: ([^,\n]+)",
         cause="the image requires {0}, which this driver does not satisfy", remedy="update the driver, or take an image for an older CUDA"),
    Rule(code="wrong-platform", cls=IMAGE, pattern=r"exec format error|does not match the detected host platform",
         cause="the image is for another processor architecture", remedy="set `platform:` for the row, or install emulation (binfmt)"),
    Rule(code="no-such-user", cls=IMAGE, pattern=r"unable to find user ([^:\n]+)|no matching entries in passwd",
         cause="the user the container is to run as does not exist in the image", remedy="correct `user:` of the row"),
    Rule(code="no-python", cls=IMAGE, pattern=r"no Python interpreter",
         cause="the image has no Python interpreter on PATH or in the usual places",
         remedy="it cannot hold torch as it is; if it does, set `entrypoint:` of the row to its interpreter"),
    Rule(code="entrypoint-missing", cls=IMAGE, pattern=r"no such file or directory|permission denied|executable file not found",
         cause="the image's entrypoint cannot be executed", remedy="set `entrypoint:` of the row, or tell the image's owner"),
)  # fmt: skip

# What `import torch` says when it fails.
IMPORT_RULES = (
    Rule(code="missing-library", cls=IMAGE, pattern=r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file",
         cause="import torch fails: the shared library {0} is missing", remedy="install the package that holds {0}, or remove what shadows it (LD_LIBRARY_PATH)"),
    Rule(code="glibc-too-old", cls=IMAGE, pattern=r"version `((?:GLIBC|GLIBCXX|CXXABI)_[\d.]+)' not found",
         cause="import torch fails: {0} is needed and the image's C or C++ library is older", remedy="take a newer distribution, or an older torch"),
    Rule(code="undefined-symbol", cls=IMAGE, pattern=r"undefined symbol: (\S+)",
         cause="import torch fails: undefined symbol {0}; two libraries of different versions meet", remedy="reinstall torch and its nvidia-* packages together"),
    Rule(code="numpy-mismatch", cls=IMAGE, pattern=r"compiled using NumPy 1\.x|numpy\.dtype size changed|_ARRAY_API not found|numpy\._?core\.multiarray failed to import",
         cause="import torch fails: the image's numpy is not the one its torch was built for", remedy="pin `numpy<2` beside this torch, or take a newer torch"),
    Rule(code="other-python", cls=IMAGE, pattern=r"No module named 'torch\._C'|cannot import name '_C' from 'torch'|Python version mismatch",
         cause="import torch fails: its compiled part is not for this Python; torch was installed for another version",
         remedy="use the Python that torch was installed for, or install torch with this one's pip"),
    Rule(code="import-failed", cls=IMAGE, pattern=r"(.+)",
         cause="import torch fails: {0}", remedy="see the log; the image's torch is broken"),
)  # fmt: skip


def _apply(rules: Sequence[Rule], text: str, fallback: VerdictClass) -> Verdict:
    for rule in rules:
        found = re.search(rule.pattern, text, re.IGNORECASE)
        if found:
            words = [(group or "?").strip()[:200] for group in found.groups()]
            return Verdict(cls=rule.cls, code=rule.code, cause=rule.cause.format(*words), remedy=rule.remedy.format(*words))
    evidence = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")
    return Verdict(
        cls=fallback,
        code="unclassified",
        cause=f"not a failure we know: {evidence[:300]}",
        remedy="see the log; please report it",
    )


def pull_verdict(text: str) -> Verdict:
    """What a failed pull or manifest request means; text: the engine's message."""
    return _apply(PULL_RULES, text, INFRA)


def same_platform(wanted: str, offered: str) -> bool:
    """`linux/amd64` and `linux/amd64/v1` are one; without a variant any is good."""
    return offered == wanted or offered.startswith(f"{wanted}/") or wanted.startswith(f"{offered}/")


def platform_verdict(reference: str, wanted: str, offered: Sequence[str]) -> Verdict:
    """The registry has the tag, for other platforms: known before anything is pulled."""
    return Verdict(
        cls=IMAGE,
        code="platform-mismatch",
        cause=f"{reference} does not exist for {wanted}: only for {', '.join(offered)}",
        remedy="set `platform:` for the row, or take a tag that has this platform",
    )


def build_verdict(text: str) -> Verdict:
    """What a failed build means; text: its last lines and the engine's message."""
    text = _COLOUR.sub("", text)
    said = _COMMAND.sub("", text)
    return _apply(BUILD_RULES, said if said.strip() else text, BUILD)


def judge(
    facts: Mapping[str, object],
    cases: Sequence[CaseResult],
    controls: Sequence[Control],
    complete: bool,
    state: ExitState,
    texts: Sequence[str],
    *,
    declared: Mapping[str, str],
) -> tuple[Verdict, tuple[Finding, ...]]:
    """The verdict on one image from its report, and findings on what tag or row say against what was measured.

    texts: standard error and the noise around the report, for messages that say why it ended.
    """
    return _verdict(facts, cases, controls, complete, state, "\n".join(texts)), tuple(_contradictions(facts, declared))


def _verdict(
    facts: Mapping[str, object],
    cases: Sequence[CaseResult],
    controls: Sequence[Control],
    complete: bool,
    state: ExitState,
    text: str,
) -> Verdict:
    if not state.started:
        return _apply(START_RULES, state.error, INFRA)
    if state.exit_code == OLD_PYTHON_EXIT:
        return Verdict(
            cls=IMAGE,
            code="old-python",
            cause="the image's Python is older than 3.6",
            remedy="it cannot hold a torch with sparse support worth testing",
        )
    imported = _part(facts, "torch_import")
    torch_state, torch_error = str(imported.get("state") or ""), str(imported.get("detail") or "no message")
    # The engine's memory flag also rises when one case's process was killed and the probe went on to its end.
    if state.oom_killed and (not complete or torch_state == "crash"):
        return Verdict(
            cls=INFRA,
            code="out-of-memory",
            cause="the container was killed for memory",
            remedy="raise `memory:` of the row, or run on a machine with more",
        )
    if state.timed_out and not complete:
        return Verdict(
            cls=INFRA,
            code="probe-timeout",
            cause="the probe did not end within the time allowed; outcomes so far are kept",
            remedy="raise `timeout:` of the row, then run again",
        )
    if torch_state == "absent":
        return Verdict(
            cls=IMAGE,
            code="no-torch",
            cause="no interpreter of the image holds torch",
            remedy="take an image with torch, or add it with `packages:`",
        )
    if torch_state == "timeout":
        # Our limit ended it: a slow disk looks the same as a hang, so it is no fault of the image.
        return Verdict(
            cls=INFRA,
            code="import-timeout",
            cause="import torch did not end within the time allowed",
            remedy="run again on an idle machine; if it stays, see the log: often a network or device access at import",
        )
    if torch_state == "crash":
        return _apply(CRASH_RULES, torch_error, IMAGE)
    if torch_state == "error":
        return _apply(IMPORT_RULES, torch_error, IMAGE)
    if not complete:
        code = f"exit code {state.exit_code}"
        last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
        return Verdict(
            cls=INFRA,
            code="report-cut",
            cause=f"the report was cut ({code}){': ' + last[:200] if last else ''}",
            remedy="outcomes so far are kept; run again, and see the log if it stays",
        )
    broken = [control for control in controls if not control.held]
    if broken or not controls or not cases:
        which = ", ".join(f"{c.id} came out {c.outcome.value}" for c in broken) or "no case or no negative control ran"
        return Verdict(
            cls=INFRA,
            code="probe-untrusted",
            cause=f"the probe cannot be trusted here: {which}",
            remedy="please report it with the record",
        )
    return Verdict(cls=VerdictClass.OK, code="tested", cause="the probe ran to its end; its controls held")


def _contradictions(facts: Mapping[str, object], declared: Mapping[str, str]) -> list[Finding]:
    found = []
    torch, cuda = (str(_part(facts, "torch").get(name) or "") for name in ("version", "cuda"))
    if torch and declared.get("torch") and not _same_version(torch, declared["torch"]):
        found.append(_contradiction("torch", declared["torch"], torch))
    if torch and declared.get("cuda"):
        said = "" if declared["cuda"] == "cpu" else declared["cuda"]
        if bool(said) != bool(cuda) or not _prefix(cuda, said):
            build = [f"CUDA {version}" if version else "a CPU build" for version in (said, cuda)]
            found.append(_contradiction("cuda", *build))
    python = str(_part(facts, "python").get("version") or "")
    if torch and python and declared.get("python") and not _prefix(python, declared["python"]):
        found.append(_contradiction("python", f"Python {declared['python']}", f"Python {python}"))
    return found


def _part(facts: Mapping[str, object], name: str) -> Mapping[str, object]:
    """One group of facts; an image may send anything, so what is not a mapping counts as nothing."""
    value = facts.get(name)
    return value if isinstance(value, Mapping) else {}


def _contradiction(what: str, said: str, seen: str) -> Finding:
    return Finding(
        code=f"declared-{what}",
        severity=Severity.WARNING,
        message=f"tag or row say {said}, inside is {seen}",
        remedy="correct the row in images.yaml, or tell the image's owner",
    )


def _same_version(seen: str, said: str) -> bool:
    """Equal without the local part (+cu126) unless the row names one; pre-releases like 2.5.0a0+872d972e41 by their release."""
    try:
        measured, wanted = Version(seen), Version(said)
    except InvalidVersion:
        return seen == said
    if wanted.local and wanted.local != measured.local:
        return False
    return measured.public == wanted.public or (measured.is_prerelease and measured.base_version == wanted.base_version)


def _prefix(seen: str, said: str) -> bool:
    """Whether versions agree as far as both go: 3.11.7 is 3.11, 12.4 is 12.4.1."""
    left, right = seen.split("."), said.split(".")
    shared = min(len(left), len(right))
    return left[:shared] == right[:shared]
