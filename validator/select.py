"""Which images are meant: ids, globs, negations and `-k` expressions."""

from __future__ import annotations

import ast
import difflib
import fnmatch
import re
from collections.abc import Sequence

from validator.errors import NothingSelected, UsageError
from validator.model import Image, Matrix


def select(matrix: Matrix, patterns: Sequence[str] = (), keyword: str = "") -> tuple[Image, ...]:
    """The images that match any of `patterns` (all when there is none), none of the `!patterns`, and the `-k` expression.

    patterns: ids or globs with `*`, `?`, `[...]` and `{a,b}`; one text may hold several, separated by commas or spaces.
    Raises NothingSelected with the nearest ids, UsageError for an expression that cannot be read.
    """
    globs = [part for pattern in patterns for part in _split(pattern)]
    wanted = [glob for text in globs if not text.startswith("!") for glob in _braces(text)]
    unwanted = [glob for text in globs if text.startswith("!") for glob in _braces(text[1:])]
    for glob in wanted:
        if not any(fnmatch.fnmatchcase(image.id, glob) for image in matrix.images):
            raise NothingSelected(f"no image matches {glob!r}", _nearest(matrix, glob))
    matches = _expression(keyword)
    chosen = tuple(
        image
        for image in matrix.images
        if (not wanted or any(fnmatch.fnmatchcase(image.id, glob) for glob in wanted))
        and not any(fnmatch.fnmatchcase(image.id, glob) for glob in unwanted)
        and matches(image)
    )
    if not chosen:
        what = " ".join((*patterns, *([f"-k {keyword!r}"] if keyword else [])))
        raise NothingSelected(
            f"nothing is left of {len(matrix.images)} images after {what or 'the selection'}", "`image-matrix list` shows all"
        )
    return chosen


def _split(text: str) -> list[str]:
    """Split at commas and spaces that are not inside braces or brackets."""
    return [part for part in re.split(r"[,\s]+(?![^{\[]*[}\]])", text.strip()) if part]


def _braces(text: str) -> list[str]:
    found = re.search(r"\{([^{}]*)\}", text)
    if not found:
        return [text]
    head, tail = text[: found.start()], text[found.end() :]
    return [glob for option in found.group(1).split(",") for glob in _braces(head + option + tail)]


def _nearest(matrix: Matrix, glob: str) -> str:
    ids = [image.id for image in matrix.images]
    plain = re.sub(r"[*?\[\]{}]", "", glob)
    near = difflib.get_close_matches(plain, ids, n=3, cutoff=0.5) or [i for i in ids if plain and plain in i][:3]
    return f"did you mean {', '.join(near)}?" if near else "`image-matrix list` shows every id"


class _Keyword:
    """A `-k` expression: words joined by and, or, not and parentheses; a word matches a part of id or family."""

    def __init__(self, text: str) -> None:
        self._text = text
        # Words may hold dots, dashes and digits, which Python's grammar does not allow in names: number them.
        self._words: list[str] = []

        def number(match: re.Match[str]) -> str:
            word = match.group(0)
            if word in ("and", "or", "not"):
                return word
            self._words.append(word)
            return f"_{len(self._words) - 1}"

        rewritten = re.sub(r"[\w.+:-]+", number, text)
        try:
            self._tree = ast.parse(rewritten, mode="eval").body
            self._check(self._tree)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise UsageError(
                f"cannot read the expression -k {text!r}", "use words with and, or, not and parentheses: 'slim and not cpu'"
            ) from error

    def _check(self, node: ast.expr) -> None:
        if isinstance(node, ast.BoolOp):
            for value in node.values:
                self._check(value)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self._check(node.operand)
        elif not isinstance(node, ast.Name):
            raise ValueError(ast.dump(node))

    def __call__(self, image: Image) -> bool:
        return self._value(self._tree, f"{image.id} {image.family}")

    def _value(self, node: ast.expr, text: str) -> bool:
        if isinstance(node, ast.BoolOp):
            values = (self._value(value, text) for value in node.values)
            return all(values) if isinstance(node.op, ast.And) else any(values)
        if isinstance(node, ast.UnaryOp):
            return not self._value(node.operand, text)
        assert isinstance(node, ast.Name)
        return self._words[int(node.id[1:])] in text


def _expression(text: str) -> _Keyword | _Everything:
    return _Keyword(text) if text.strip() else _Everything()


class _Everything:
    def __call__(self, image: Image) -> bool:
        return True
