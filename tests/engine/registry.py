"""A real registry of the tests' own: Debian's docker-registry on loopback, with its own data, and a proxy that disturbs it."""

from __future__ import annotations

import http.client
import http.server
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PROGRAM = shutil.which("docker-registry") or str(Path(__file__).parents[2] / ".venv/registry/usr/bin/docker-registry")


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class LocalRegistry:
    """One docker-registry process. `host` is how references begin; stop() and start() keep data and port."""

    directory: Path
    name: str = "127.0.0.1"
    address: str = "127.0.0.1"
    port: int = field(default_factory=free_port)
    users: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    _process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        return f"{self.name}:{self.port}"

    def start(self) -> None:
        tls = f"  tls: {{certificate: {self.certificate}, key: {self.key}}}\n" if self.certificate else ""
        auth = f"auth: {{htpasswd: {{realm: tests, path: {self.users}}}}}\n" if self.users else ""
        config = self.directory / "config.yml"
        config.write_text(
            f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {self.directory / 'data'}}},"
            f" delete: {{enabled: true}}}}\n{auth}http:\n  addr: '{self._address()}'\n{tls}"
        )
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen([PROGRAM, "serve", str(config)], stdout=log, stderr=log)
        for _ in range(100):
            with closing(socket.socket(socket.AF_INET6 if ":" in self.address else socket.AF_INET)) as probe:
                if probe.connect_ex((self.address, self.port)) == 0:
                    return
            time.sleep(0.1)
        raise RuntimeError(f"the registry did not start:\n{(self.directory / 'log').read_text()[-2000:]}")

    def _address(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)
            self._process = None


@contextmanager
def local_registry(directory: Path, **options: Path | str) -> Iterator[LocalRegistry]:
    directory.mkdir(parents=True, exist_ok=True)
    registry = LocalRegistry(directory, **options)  # type: ignore[arg-type]
    registry.start()
    try:
        yield registry
    finally:
        registry.stop()


@contextmanager
def proxy(
    target: int, *, refuse: int = 0, answer: int = 429, cut_after: int = 0, stall: float = 0.0
) -> Iterator[tuple[str, list[str]]]:
    """A loopback proxy before a registry: (its host, the paths asked for).

    refuse: so many requests for blobs and manifests get `answer`; cut_after: the first blob ends after so many bytes;
    stall: seconds of silence in the middle of every blob.
    """
    asked: list[str] = []
    state = {"refuse": refuse, "cut": cut_after}

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: object) -> None: ...

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            asked.append(self.path)
            if state["refuse"] and ("/blobs/" in self.path or "/manifests/" in self.path):
                state["refuse"] -= 1
                body = b'{"errors":[{"code":"TOOMANYREQUESTS","message":"slow down"}]}'
                self.send_response(answer)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return
            upstream = http.client.HTTPConnection("127.0.0.1", target)
            names = {name for name in self.headers if name.lower() != "connection"}
            headers = {name: ", ".join(self.headers.get_all(name, ())) for name in names}  # docker sends several Accept
            with closing(upstream):
                upstream.request(self.command, self.path, headers=headers)
                reply = upstream.getresponse()
                data = reply.read()
            self.send_response(reply.status)
            for key, value in reply.getheaders():
                if key.lower() not in ("transfer-encoding", "connection", "content-length"):
                    self.send_header(key, value)
            self.send_header("Content-Length", reply.getheader("Content-Length") or str(len(data)))
            self.end_headers()
            if self.command == "HEAD":
                return
            blob = "/blobs/" in self.path and len(data) > 100_000
            if blob and state["cut"]:
                self.wfile.write(data[: state["cut"]])
                state["cut"] = 0
                self.close_connection = True
                return
            if blob and stall:
                self.wfile.write(data[:50_000])
                self.wfile.flush()
                time.sleep(stall)
                data = data[50_000:]
            self.wfile.write(data)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """A certificate that signs itself, as a company's private CA would look to an engine that does not know it."""
    directory.mkdir(parents=True, exist_ok=True)
    pem, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(pem), "-days", "2",
         "-subj", "/CN=registry of the tests", "-addext", f"subjectAltName=DNS:{name}"],
        check=True, capture_output=True,
    )  # fmt: skip
    assert ssl.create_default_context().load_verify_locations(str(pem)) is None
    return pem, key
