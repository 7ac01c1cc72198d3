"""The program: its verbs in the order of the help, the options before them, and how every ending becomes an exit code."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from validator import __version__
from validator.cli import choose, forecast, host, matrix, probe, results, run, show
from validator.cli.options import settings
from validator.cli.output import put, talk
from validator.errors import ImageMatrixError, InternalError, Interrupted, UsageError

app = typer.Typer(
    name="image-matrix",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Which PyTorch-CUDA image really runs sparse tensors on your GPU: answered by test.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _version(asked: bool) -> None:
    if asked:
        put(f"image-matrix {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", readable=False, help="the matrix file [default: images.yaml]", show_default=False),
    ] = None,
    results: Annotated[
        Path | None, typer.Option(readable=False, help="where records are kept [default: results/]", show_default=False)
    ] = None,
    docker_host: Annotated[str, typer.Option(help="the engine to use: unix://, tcp:// or ssh://", show_default=False)] = "",
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")] = False,
) -> None:
    settings.config, settings.results, settings.docker_host = config, results, docker_host


app.command("list")(matrix.list_)
app.command("lint")(matrix.lint)
app.command("schema")(matrix.schema)
app.command("render")(matrix.render_)
app.command("doctor")(host.doctor)
app.command("matrix")(run.matrix)
app.command("run")(run.run)
app.command("probe")(probe.probe)
app.command("table")(results.table)
app.command("show")(show.show)
app.command("choose")(choose.choose)
app.command("forecast")(forecast.forecast)
app.command("clean")(host.clean)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with a code of the table in the README; never a traceback for a user's mistake."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a sign shows "?" instead
    sys.exit(_guarded(lambda: app(args=arguments, prog_name="image-matrix", standalone_mode=False)))


def _guarded(call: Callable[[], Any]) -> int:
    try:
        code = call()
    except ImageMatrixError as error:
        talk(f"image-matrix: {error}")
        return error.exit_code
    except typer.Abort:
        return Interrupted.exit_code
    except typer.TyperException as error:
        show = getattr(error, "show", None)
        show(sys.stderr) if show else talk(f"image-matrix: {error}")
        return UsageError.exit_code
    except KeyboardInterrupt:
        talk("image-matrix: stopped")
        return Interrupted.exit_code
    except OSError as error:
        if error.filename is None:
            return _bug(error)
        talk(
            f"image-matrix: cannot use {error.filename}: {error.strerror}\n  hint: check the path, its permissions and the disk"
        )
        return UsageError.exit_code
    except Exception as error:
        return _bug(error)
    return code if isinstance(code, int) else 0


def _bug(error: Exception) -> int:
    """Say that it is ours, with what a report needs."""
    import traceback

    talk("".join(traceback.format_exception(error)))
    talk(f"image-matrix: this is a bug in image-matrix ({type(error).__name__}); please report it with the lines above")
    return InternalError.exit_code
