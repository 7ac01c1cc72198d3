"""The command line: arguments in, core called, text out. The only part that prints or exits."""

from validator.cli.app import app, main

__all__ = ["app", "main"]
