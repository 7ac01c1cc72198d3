"""NVIDIA_REQUIRE_*: what an image asks of GPU and driver, as the NVIDIA Container Toolkit reads it. Pure.

`cuda>=12.4 brand=tesla,driver>=470,driver<471`: spaces stand between alternatives, commas between conditions of one. Several
variables must all hold. Only the legacy runtime refuses to start an image for it (rule `require-enforced`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

PREFIX = "NVIDIA_REQUIRE_"
DISABLE = ("NVIDIA_DISABLE_REQUIRE", "NVIDIA_DISABLE_REQUIRES")
PROPERTIES = ("cuda", "driver", "arch", "brand")
_CONDITION = re.compile(r"(\w+)(!=|<=|>=|=|<|>)([^<>=!].*)")


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One comparison: `driver>=470`."""

    property: str
    operator: str
    value: str


Requirement = tuple[tuple[Condition, ...], ...]


def parse(text: str) -> Requirement:
    """The alternatives of a variable's value, each a tuple of conditions. Raises ValueError for what is no condition."""
    return tuple(tuple(_condition(part) for part in term.split(",") if part) for term in text.split())


def _condition(text: str) -> Condition:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no condition like driver>=470")
    return Condition(property=match[1].lower(), operator=match[2], value=match[3])


def required(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The NVIDIA_REQUIRE_* variables of an image's environment that count: (name, value); none where they are switched off."""
    if any(environment.get(name, "").lower() in ("true", "1") for name in DISABLE):
        return ()
    return tuple(
        (name, value) for name, value in sorted(environment.items()) if name.startswith(PREFIX) and "JETPACK" not in name
    )


def holds(requirement: Requirement, host: Mapping[str, str]) -> bool | None:
    """Whether it is fulfilled. host: property -> value; what it lacks is not known, and None means: that decides.

    Properties that NVIDIA's toolkit does not know are left out, as it does.
    """
    terms = []
    for alternative in requirement:
        known = [condition for condition in alternative if condition.property in PROPERTIES]
        if known:
            terms.append(_all([_condition_holds(condition, host) for condition in known]))
    if not terms or True in terms:
        return True
    return None if None in terms else False


def _all(values: list[bool | None]) -> bool | None:
    if False in values:
        return False
    return None if None in values else True


def _condition_holds(condition: Condition, host: Mapping[str, str]) -> bool | None:
    value = host.get(condition.property, "")
    if not value:
        return None
    if condition.property == "brand":
        same = value == condition.value.lower()
        return {"=": same, "!=": not same}.get(condition.operator)
    order = compare(value, condition.value)
    if order is None:
        return None
    return {
        "=": order == 0,
        "!=": order != 0,
        "<": order < 0,
        "<=": order <= 0,
        ">": order > 0,
        ">=": order >= 0,
    }[condition.operator]


def compare(left: str, right: str) -> int | None:
    """-1, 0 or 1 as versions; None where `left` is too short to tell ("535" against "535.104.05") or one is no version."""
    try:
        a, b = [[int(part) for part in text.split(".")] for text in (left, right)]
    except ValueError:
        return None
    if len(a) < len(b) and b[: len(a)] == a and any(b[len(a) :]):
        return None
    width = max(len(a), len(b))
    a, b = [parts + [0] * (width - len(parts)) for parts in (a, b)]
    return (a > b) - (a < b)
