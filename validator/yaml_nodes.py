"""YAML with positions: every value knows its line and column, every mistake is collected, and text stays the text that was written.

The only importer of yaml. A plain scalar that YAML would turn into a number (2.10 -> 2.1) is refused where text is wanted.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

import yaml

from validator.errors import MatrixError

Node = yaml.Node
_PREFIX = "tag:yaml.org,2002:"


class Document:
    """One YAML file: its root node and the problems found in it so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._problems: list[tuple[int, int, str, str]] = []
        try:
            self.text = path.read_bytes().decode("utf-8")
        except FileNotFoundError as error:
            raise MatrixError(f"{path}: the file is not there", "name another with --config, or restore images.yaml") from error
        except UnicodeDecodeError as error:
            raise MatrixError(f"{path}: not UTF-8 (byte {error.start})", "save the file as UTF-8") from error
        except OSError as error:
            raise MatrixError(f"{path}: cannot be read: {error.strerror}", "check the path and its permissions") from error
        self.lines = self.text.splitlines()
        try:
            self.root: Node | None = yaml.compose(self.text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = (mark.line, mark.column) if mark else (0, 0)
            self._problems.append(
                (*place, f"not YAML: {error.problem or error.context}", "correct the syntax here or just above")
            )
            self.finish()
        except (yaml.YAMLError, ValueError) as error:  # unprintable characters, broken escapes
            raise MatrixError(f"{path}: not YAML: {str(error).splitlines()[0]}", "remove or escape the character") from error
        except RecursionError as error:
            raise MatrixError(f"{path}: nested too deeply", "a matrix file needs no more than a few levels") from error

    # ------------------------------------------------------------------ problems

    def problem(self, node: Node, message: str, fix: str) -> None:
        """Note a mistake at `node`; reading goes on, so that one pass finds them all."""
        entry = (node.start_mark.line, node.start_mark.column, message, fix)
        if entry not in self._problems:
            self._problems.append(entry)

    def finish(self) -> None:
        """Raise MatrixError with every problem, in the order of the file; nothing when there is none."""
        if not self._problems:
            return
        blocks = []
        for line, column, message, fix in sorted(self._problems)[:50]:
            source = self.lines[line].expandtabs(1) if line < len(self.lines) else ""
            start = max(0, column - 100)
            caret = f"\n    {source[start : start + 120]}\n    {' ' * (column - start)}^" if source.strip() else ""
            blocks.append(f"{self.path}:{line + 1}:{column + 1}: {message}{caret}\n    fix: {fix}")
        more = len(self._problems) - len(blocks)
        count = f"{len(self._problems)} problem(s) in {self.path}" + (f" (the first {len(blocks)} are shown)" if more else "")
        raise MatrixError("\n".join((*blocks, count)))

    # ------------------------------------------------------------------ values

    def mapping(
        self, node: Node | None, what: str, known: Iterable[str] | None = None, required: Iterable[str] = ()
    ) -> dict[str, Node]:
        """The members of a mapping. known: the keys it may have, None for any; a wrong, doubled or missing key is a problem."""
        if not isinstance(node, yaml.MappingNode):
            if node is not None:
                self.problem(node, f"{what} must be a mapping (key: value)", "write `key: value` lines, indented")
            return {}
        names = None if known is None else sorted(known)
        found: dict[str, Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _PREFIX + "null":
                self.problem(key, f"a key of {what} must be a word", "write a plain word before the colon")
                continue
            name = str(key.value)
            if name in found:
                self.problem(
                    key, f"{name!r} stands twice in {what}", "remove one of the two; YAML would silently take the last"
                )
            elif names is not None and name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                self.problem(
                    key,
                    f"unknown key {name!r} in {what}",
                    f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(names)}",
                )
            else:
                found[name] = value
        for name in required:
            if name not in found:
                self.problem(node, f"{what} lacks {name!r}", f"add `{name}: ...`")
        return found

    def items(self, node: Node | None, what: str) -> list[Node]:
        """The members of a list."""
        if node is None:
            return []
        if not isinstance(node, yaml.SequenceNode):
            self.problem(node, f"{what} must be a list", "write `[a, b]`, or one `- item` a line")
            return []
        return list(node.value)

    def string(self, node: Node | None, what: str) -> str:
        """A text; a bare number, date or truth value is a problem, because YAML does not keep how it was written."""
        if node is None:
            return ""
        if not isinstance(node, yaml.ScalarNode):
            self.problem(node, f"{what} must be a text", 'write "..."')
            return ""
        raw = str(node.value)
        if node.tag == _PREFIX + "null":
            self.problem(node, f"{what} is empty", 'write a value, or "" if it is meant to be empty')
        elif node.tag != _PREFIX + "str":
            kind = node.tag.removeprefix(_PREFIX)
            seen = {"float": "a number, 2.10 becoming 2.1", "int": "a number"}.get(kind, f"a value of type {kind}")
            self.problem(node, f"{what} must be a text; YAML reads {raw} as {seen}", f'quote it: "{raw}"')
        return raw

    def integer(self, node: Node | None, what: str, default: int) -> int:
        """A whole number above zero."""
        if node is None:
            return default
        if (
            isinstance(node, yaml.ScalarNode)
            and node.tag == _PREFIX + "int"
            and str(node.value).isdigit()
            and 0 < int(node.value) < 10**9
        ):
            return int(node.value)
        self.problem(node, f"{what} must be a whole number above 0", "write it without quotes, for example 900")
        return default

    def truth(self, node: Node | None, what: str) -> bool:
        """true or false."""
        if node is None:
            return False
        if isinstance(node, yaml.ScalarNode) and node.value in ("true", "false") and node.tag == _PREFIX + "bool":
            return str(node.value) == "true"
        self.problem(node, f"{what} must be true or false", "write true or false, without quotes")
        return False

    def is_scalar(self, node: Node) -> bool:
        return isinstance(node, yaml.ScalarNode)


def line_of(node: Node) -> int:
    """The node's line, counted from 1."""
    return int(node.start_mark.line) + 1
