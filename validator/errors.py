"""Exceptions for "cannot go on". Each class is one exit code and carries a hint: what failed, why, what to do."""

from __future__ import annotations

from typing import ClassVar


class ImageMatrixError(Exception):
    """Base of every error that ends the program on purpose.

    message: what failed and why, in one sentence. hint: what the user can do about it (may span lines).
    """

    exit_code: ClassVar[int] = 70

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class FindingsFound(ImageMatrixError):
    """What `--fail-on`, `--check` or `diff` looks for was found."""

    exit_code = 1


class UsageError(ImageMatrixError):
    """The command line, a template or a file given by the user is wrong."""

    exit_code = 2


class MatrixError(UsageError):
    """images.yaml is wrong; the message lists every problem as file:line:column."""


class NothingSelected(ImageMatrixError):
    """The selection matches no image."""

    exit_code = 3


class EnvironmentProblem(ImageMatrixError):
    """This machine cannot do the job: no engine, no GPU runtime where one is required, no disk."""

    exit_code = 4


class EngineUnavailable(EnvironmentProblem):
    """No Docker engine answers."""


class Interrupted(ImageMatrixError):
    """Ctrl-C or TERM; results so far are kept."""

    exit_code = 130


class InternalError(ImageMatrixError):
    """A bug of ours."""

    exit_code = 70
