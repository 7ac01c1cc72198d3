"""The verb `forecast`: what is to be expected of the matrix on a GPU. Needs neither engine nor network nor GPU."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from validator.cli.given import chosen_images, records_by_image
from validator.cli.options import Json, Keyword, Selection
from validator.cli.output import put, put_json, talk, width
from validator.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from validator.facts import Facts
    from validator.facts.names import Target

HOST = "host"
DRIVER = re.compile(r"\d{3}(\.\d+){0,2}")


def forecast(
    select: Selection = None,
    keyword: Keyword = "",
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", help="'RTX 4090', H100, sm_89, 8.9, or host; may be repeated", show_default=False),
    ] = None,
    driver: Annotated[
        str, typer.Option(help="the driver, as nvidia-smi says it; without one: which is needed", show_default=False)
    ] = "",
    as_json: Json = False,
) -> None:
    """Say what is to be expected of each image on a GPU, without running anything."""
    from validator.builds import known
    from validator.facts import load
    from validator.forecast import forecast as foresee
    from validator.publish.forecast import Line, data, render

    if driver and not DRIVER.fullmatch(driver):
        raise UsageError(f"{driver!r} is no driver version", "nvidia-smi shows it at the top: --driver 535.104.05")
    facts = load()
    asked = [pair for text in gpu or [] for pair in targets(text, driver, facts)]
    if not asked:
        raise UsageError("no GPU to forecast for", "name one or more: --gpu 'RTX 4090' --gpu H100, or --gpu host")
    _, images = chosen_images(select, keyword)
    records, _ = records_by_image(())
    lines = []
    for image in images:
        found = known(image, records.get(image.id, ()), facts)
        lines.append(Line(known=found, forecasts=tuple(foresee(found, target, version, facts) for target, version in asked)))
    for number, (target, _) in enumerate(asked):
        counted = Counter(line.forecasts[number].prospect.value for line in lines)
        talk(f"{target.name}: " + ", ".join(f"{count} {word}" for word, count in counted.most_common()))
    if as_json:
        put_json(data(lines, asked, facts.cuda.as_of))
    else:
        put(render(lines, asked, width=width()))


def targets(text: str, driver: str, facts: Facts) -> list[tuple[Target, str]]:
    """A GPU by name with the driver given, or those of this machine with its own driver where none is given."""
    from validator.facts.names import UnknownGpuError, target

    if text.strip().lower() == HOST:
        return _of_this_machine(driver, facts)
    try:
        return [(target(text, facts), driver)]
    except UnknownGpuError as error:
        near = f"did you mean {', '.join(error.near)}? " if error.near else ""
        raise UsageError(str(error), f"{near}A compute capability will do, too: --gpu 8.9") from error


def _of_this_machine(driver: str, facts: Facts) -> list[tuple[Target, str]]:
    from validator.facts.names import UnknownGpuError, seen
    from validator.machine import nvidia_smi

    installed, gpus = nvidia_smi()
    if not gpus:
        raise EnvironmentProblem(
            "this machine shows no NVIDIA GPU (nvidia-smi is not there, fails, or lists none)",
            "install the driver, or name the GPU that you mean: --gpu 'RTX 4090' --driver 535.104.05",
        )
    try:
        found = {one.name: seen(one.name, one.compute_capability, facts) for one in gpus}
    except UnknownGpuError as error:
        raise UsageError(f"{error}, and its driver does not say its compute capability", "name that: --gpu 8.9") from error
    return [(one, driver or installed) for one in found.values()]
