"""The `--gpus` grammar, after docker/cli opts/gpus_test.go."""

from __future__ import annotations

import pytest

from validator.gpus import GpuRequest, parse_gpus


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", GpuRequest(count=-1)),
        ("2", GpuRequest(count=2)),
        ("count=3", GpuRequest(count=3)),
        ("device=0", GpuRequest(device_ids=("0",))),
        ('"device=0,1"', GpuRequest(device_ids=("0", "1"))),
        ("driver=nvidia", GpuRequest(count=1, driver="nvidia")),
        ("all,capabilities=utility", GpuRequest(count=-1, capabilities=("utility", "gpu"))),
        ('all,"capabilities=gpu,compute"', GpuRequest(count=-1, capabilities=("gpu", "compute"))),
        ("all,options=a=b", GpuRequest(count=-1, options=(("a", "b"),))),
        ("", None),
        ("none", None),
    ],
)
def test_requests(text: str, expected: GpuRequest | None) -> None:
    assert parse_gpus(text) == expected


@pytest.mark.parametrize("text", ["two", "-1", "count=all,device=0", "all,2", "gpu=1", 'device="0', "device=0,1"])
def test_what_docker_refuses_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_gpus(text)
