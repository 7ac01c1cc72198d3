"""Pulls from a real registry: by tag and digest, moved and missing tags, logins, platforms, outages, certificates, limits."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

from tests.engine.conftest import LABELS, build
from tests.engine.registry import LocalRegistry, certificate, local_registry, proxy
from validator.acquire import Acquired, Acquirer, Untested
from validator.context import HostSettings
from validator.engine import DockerEngine, LocalImage
from validator.model import Image, Pull, RunOptions, Verdict, VerdictClass
from validator.registry import Registries

REPOSITORY = "team/pytorch"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    with local_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


def docker(*arguments: str, **environment: str) -> None:
    subprocess.run(["docker", *arguments], check=True, capture_output=True, env={**os.environ, **environment})


@pytest.fixture(scope="module")
def images(engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalImage, LocalImage]]:
    """Two small images, from scratch, with a layer that does not compress to nothing."""
    made = []
    for name in ("one", "two"):
        noise = base64.b64encode(os.urandom(300_000)).decode()
        made.append(
            build(
                engine,
                'FROM scratch\nCOPY noise /noise\nCMD ["/none"]\n',
                {"noise": noise + name},
                tag=f"image-matrix/tests:pull-{name}",
            )
        )
    yield made[0], made[1]
    for image in made:
        engine.remove_image(image.id)


def push(image: LocalImage, host: str, tag: str, **environment: str) -> None:
    """Push under a tag, and leave no trace of the tag on the engine."""
    docker("tag", image.id, f"{host}/{REPOSITORY}:{tag}")
    docker("push", f"{host}/{REPOSITORY}:{tag}", **environment)
    docker("rmi", f"{host}/{REPOSITORY}:{tag}")


class Puller:
    """Acquires one row and forgets what it brought, so that the next test pulls again."""

    def __init__(self, engine: DockerEngine) -> None:
        self.engine, self.brought, self.steps = engine, [], []  # type: ignore[var-annotated]

    def acquirer(self, mirrors: dict[str, tuple[str, ...]] | None = None) -> Acquirer:
        return Acquirer(
            engine=self.engine, registries=Registries(self.engine, mirrors), settings=HostSettings(), environ=os.environ,
            labels=LABELS, stall=3.0,
        )  # fmt: skip

    def __call__(self, reference: str, *, platform: str = "linux/amd64", acquirer: Acquirer | None = None) -> Acquired:
        row = Image(id="row", family="tests", source=Pull(reference=reference), run=RunOptions(platform=platform))
        got = (acquirer or self.acquirer()).acquire(row, self.steps.append, lambda _: None)
        self.brought.append(got.identity.reference)
        return got

    def refusal(self, reference: str, **options: str) -> Verdict:
        with pytest.raises(Untested) as caught:
            self(reference, **options)
        return caught.value.verdict


@pytest.fixture
def pull(engine: DockerEngine) -> Iterator[Puller]:
    puller = Puller(engine)
    yield puller
    for reference in puller.brought:
        subprocess.run(["docker", "rmi", reference], capture_output=True, check=False)


@pytest.fixture
def without(images: tuple[LocalImage, LocalImage], engine: DockerEngine, tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Takes the images off the engine, so that their layers must come from the registry; they come back afterwards."""
    archive = tmp_path / "images.tar"
    docker("save", "-o", str(archive), *(image.tags[0] for image in images))

    def remove() -> None:
        for image in images:
            subprocess.run(["docker", "rmi", "-f", image.id], capture_output=True, check=False)

    yield remove
    docker("load", "-i", str(archive))


def test_a_tag_and_a_digest_give_the_image_that_was_pushed(
    registry: LocalRegistry, images: tuple[LocalImage, LocalImage], pull: Puller
) -> None:
    push(images[0], registry.host, "2.6.0-cuda12.4")
    by_tag = pull(f"{registry.host}/{REPOSITORY}:2.6.0-cuda12.4")
    assert by_tag.image.id == images[0].id
    assert by_tag.identity.digest.startswith("sha256:")
    by_digest = pull(f"{registry.host}/{REPOSITORY}@{by_tag.identity.digest}")
    assert by_digest.image.id == images[0].id
    assert not by_digest.brought, "it is here already, and nothing is pulled twice"


def test_a_tag_that_moves_after_the_plan_does_not_change_what_is_tested(
    registry: LocalRegistry, images: tuple[LocalImage, LocalImage], pull: Puller
) -> None:
    push(images[0], registry.host, "moving")
    row = Image(id="row", family="tests", source=Pull(reference=f"{registry.host}/{REPOSITORY}:moving"))
    planned = pull.acquirer()
    before = planned.identity_before(row)["digest"]
    push(images[1], registry.host, "moving")
    assert pull(row.source.reference, acquirer=planned).image.id == images[0].id  # type: ignore[union-attr]
    now = pull(row.source.reference)  # type: ignore[union-attr]
    assert now.image.id == images[1].id
    assert now.identity.digest != before


def test_a_missing_tag_names_its_neighbours(
    registry: LocalRegistry, images: tuple[LocalImage, LocalImage], pull: Puller
) -> None:
    push(images[0], registry.host, "2.6.0-cuda12.4")
    verdict = pull.refusal(f"{registry.host}/{REPOSITORY}:2.6.0-cuda12.5")
    assert (verdict.cls, verdict.code) == (VerdictClass.IMAGE, "not-found")
    assert "2.6.0-cuda12.5" in verdict.cause
    assert "2.6.0-cuda12.4" in verdict.remedy
    assert pull.refusal(f"{registry.host}/no/such:1").code in ("not-found", "access-denied")


def test_the_platform_is_known_before_anything_is_pulled(
    registry: LocalRegistry, images: tuple[LocalImage, LocalImage], pull: Puller
) -> None:
    push(images[0], registry.host, "amd64-only")
    base = f"http://{registry.host}/v2/{REPOSITORY}/manifests"
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    manifest = requests.get(f"{base}/amd64-only", headers={"Accept": kind}, timeout=10)
    entry = {"mediaType": kind, "size": len(manifest.content), "digest": manifest.headers["Docker-Content-Digest"]}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.list.v2+json", "manifests": [
        entry | {"platform": {"os": "linux", "architecture": "arm64"}}, entry | {"platform": {"os": "linux", "architecture": "ppc64le"}},
    ]}  # fmt: skip
    put = requests.put(f"{base}/many", data=json.dumps(index), headers={"Content-Type": index["mediaType"]}, timeout=10)  # type: ignore[arg-type]
    assert put.ok, put.text
    verdict = pull.refusal(f"{registry.host}/{REPOSITORY}:many")
    assert (verdict.cls, verdict.code) == (VerdictClass.IMAGE, "platform-mismatch")
    assert "linux/arm64" in verdict.cause and "linux/ppc64le" in verdict.cause
    assert not [step for step in pull.steps if step.startswith("pulling")]


def test_a_login_is_needed_and_docker_s_own_is_used(
    images: tuple[LocalImage, LocalImage], engine: DockerEngine, pull: Puller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = tmp_path / "htpasswd"
    users.write_text("me:$2y$05$A.7nsIoBWzziHKNXRr5UR.UHM5p1yvgIgS7hFLRGPvhCEo5r0VyMO\n")  # htpasswd -Bbn me secret
    config = tmp_path / "docker"
    config.mkdir()
    with local_registry(tmp_path / "private", users=users) as private:

        def login(password: str) -> None:
            token = base64.b64encode(f"me:{password}".encode()).decode()
            (config / "config.json").write_text(json.dumps({"auths": {private.host: {"auth": token}}}))

        login("secret")
        push(images[0], private.host, "kept", DOCKER_CONFIG=str(config))
        reference = f"{private.host}/{REPOSITORY}:kept"
        assert pull.refusal(reference).code == "authentication"
        monkeypatch.setenv("DOCKER_CONFIG", str(config))
        login("wrong")
        with_login = Puller(_fresh(engine))
        assert with_login.refusal(reference).code == "authentication"
        login("secret")
        right = Puller(_fresh(engine))
        assert right(reference).image.id == images[0].id
        assert "kept" in right.refusal(f"{private.host}/{REPOSITORY}:kepd").remedy, (
            "the neighbours are asked for with the login"
        )
        pull.brought += right.brought


def _fresh(engine: DockerEngine) -> DockerEngine:
    """Another client of the same engine: the SDK reads Docker's configuration when it starts."""
    from validator.engine import connect

    return connect((("test", engine.endpoint),), exclusive=True)


def test_a_registry_that_stops_half_way_and_comes_back_is_waited_for(
    registry: LocalRegistry, images: tuple[LocalImage, LocalImage], pull: Puller, without: Callable[[], None]
) -> None:
    push(images[0], registry.host, "outage")
    without()
    with proxy(registry.port, cut_after=60_000) as (host, asked):
        acquirer = pull.acquirer()
        row = Image(id="row", family="tests", source=Pull(reference=f"{host}/{REPOSITORY}:outage"))
        acquirer.identity_before(row)
        registry.stop()
        threading.Timer(2.0, registry.start).start()
        got = pull(f"{host}/{REPOSITORY}:outage", acquirer=acquirer)
    assert got.image.id == images[0].id
    assert len([path for path in asked if "/blobs/" in path]) >= 2


def test_a_stalled_pull_is_given_up_and_said_so(
    registry: LocalRegistry, images: tuple[LocalImage, LocalImage], pull: Puller, without: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    push(images[1], registry.host, "slow")
    without()
    monkeypatch.setattr("validator.acquire.ATTEMPTS", 1)
    with proxy(registry.port, stall=20.0) as (host, _):
        before = time.monotonic()
        verdict = pull.refusal(f"{host}/{REPOSITORY}:slow")
    assert (verdict.cls, verdict.code) == (VerdictClass.INFRA, "pull-stalled")
    assert "3 s" in verdict.cause
    assert time.monotonic() - before < 15


def test_a_rate_limit_is_waited_for_or_named(
    registry: LocalRegistry, images: tuple[LocalImage, LocalImage], pull: Puller, without: Callable[[], None]
) -> None:
    push(images[0], registry.host, "limited")
    without()
    with proxy(registry.port, refuse=10_000) as (host, _):
        verdict = pull.refusal(f"{host}/{REPOSITORY}:limited")
    assert (verdict.cls, verdict.code) == (VerdictClass.INFRA, "rate-limit")


@pytest.fixture
def name_of_ipv6_loopback() -> Iterator[str]:
    """A host name for ::1, as long as the test lasts: one line at the end of /etc/hosts."""
    hosts, name = Path("/etc/hosts"), "registry.image-matrix.test"
    line = f"::1 {name} # tests of image-matrix\n"
    before = hosts.read_text()
    hosts.write_text(before + ("" if before.endswith("\n") else "\n") + line)
    yield name
    hosts.write_text(hosts.read_text().replace(line, ""))


def test_an_unknown_certificate_is_named_as_that_and_a_known_one_serves(
    images: tuple[LocalImage, LocalImage], pull: Puller, tmp_path: Path, name_of_ipv6_loopback: str
) -> None:
    """Docker lets the loopback addresses of IPv4 be insecure, those of IPv6 not: there a certificate counts."""
    name = name_of_ipv6_loopback
    pem, key = certificate(tmp_path / "tls", name)
    with local_registry(tmp_path / "secure", name=name, address="::1", certificate=pem, key=key) as secure:
        reference = f"{secure.host}/{REPOSITORY}:signed"
        verdict = pull.refusal(reference)
        assert (verdict.cls, verdict.code) == (VerdictClass.INFRA, "registry-certificate")
        assert "/etc/docker/certs.d/" in verdict.remedy
        trusted = Path("/etc/docker/certs.d") / secure.host
        trusted.mkdir(parents=True)
        try:
            shutil.copy(pem, trusted / "ca.crt")
            push(images[0], secure.host, "signed")
            assert pull(reference).image.id == images[0].id
        finally:
            shutil.rmtree(trusted)


def test_a_mirror_is_asked_first_and_the_registry_when_it_has_nothing(
    registry: LocalRegistry, images: tuple[LocalImage, LocalImage], pull: Puller, tmp_path: Path
) -> None:
    push(images[0], registry.host, "mirrored")
    with local_registry(tmp_path / "mirror") as mirror:
        push(images[1], mirror.host, "only-there")
        mirrors = {registry.host: (mirror.host,)}
        there = pull(f"{registry.host}/{REPOSITORY}:only-there", acquirer=pull.acquirer(mirrors))
        assert there.image.id == images[1].id
        assert there.identity.reference.startswith(mirror.host)
        assert pull(f"{registry.host}/{REPOSITORY}:mirrored", acquirer=pull.acquirer(mirrors)).image.id == images[0].id
