"""The grammar of `--gpus`, as the docker command line has it (docker/cli opts/gpus.go)."""

from __future__ import annotations

import csv
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class GpuRequest:
    """A device request: count -1 is all; device_ids exclude a count; capabilities are ANDed; options are the driver's."""

    count: int = 0
    device_ids: tuple[str, ...] = ()
    driver: str = ""
    capabilities: tuple[str, ...] = ("gpu",)
    options: tuple[tuple[str, str], ...] = ()


def _fields(text: str) -> list[str]:
    """Split one CSV line; a quoted field may hold commas. A quote inside a bare field is refused, as Go's reader does."""
    fields = next(csv.reader([text], strict=True), [])
    if any('"' in item for item in fields):
        raise csv.Error("a quote stands inside a field; quote the whole field: '\"device=0,1\"'")
    return fields


def _number(text: str) -> int:
    if text == "all":
        return -1
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"invalid count {text!r}: use a whole number or 'all'")
    return int(text)


def parse_gpus(text: str) -> GpuRequest | None:
    """Parse a `--gpus` value: "all", "2", "device=0", '"device=0,1"', "count=1,capabilities=utility"; "" or "none" asks for none.

    Raises ValueError with what is wrong.
    """
    if text.strip() in ("", "none", "0"):
        return None
    try:
        fields = _fields(text.strip())
    except csv.Error as error:
        raise ValueError(f"cannot read {text!r}: {error}") from error
    values: dict[str, str] = {}
    for item in fields:
        key, sign, value = item.partition("=")
        key, value = (key, value) if sign else ("count", key)
        if key not in ("count", "device", "driver", "capabilities", "options"):
            raise ValueError(f"unknown key {key!r} in --gpus: use count, device, driver, capabilities or options")
        if key in values:
            raise ValueError(f"gpu request key {key!r} can be given only once; quote a list: '\"device=0,1\"'")
        values[key] = value
    devices = tuple(d for d in values.get("device", "").split(",") if d)
    if devices and "count" in values:
        raise ValueError("count and device exclude each other in --gpus")
    capabilities = tuple(c for c in values.get("capabilities", "").split(",") if c)
    options = tuple((k, v) for k, _, v in (o.partition("=") for o in values.get("options", "").split(",") if o))
    count = _number(values["count"]) if "count" in values else (0 if devices else 1)
    return GpuRequest(
        count=count,
        device_ids=devices,
        driver=values.get("driver", ""),
        capabilities=capabilities if "gpu" in capabilities else (*capabilities, "gpu"),
        options=options,
    )
