"""images.yaml -> Matrix: families of images with axes, include and exclude, expanded; every mistake with line, column and fix."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from validator.gpus import parse_gpus
from validator.model import (
    IMAGE_ID,
    Base,
    BaseSource,
    Excluded,
    Expectation,
    GpuWish,
    Image,
    Matrix,
    Outcome,
    Pull,
    RunOptions,
    Slim,
)  # fmt: skip
from validator.yaml_nodes import Document, Node, line_of

TEXT = {"type": "string"}
FACTS = ("torch", "cuda", "cudnn", "python", "os")
ROW_LIMIT = 10_000

# Keys and their JSON Schema, level by level: what may stand in the file is said here and nowhere else.
OPTIONS: dict[str, dict[str, Any]] = {
    "gpu": {"enum": [wish.value for wish in GpuWish], "description": "whether a GPU must be there"},
    "gpus": TEXT | {"description": 'the value of docker\'s --gpus: all, 2, "device=0,1"'},
    "shm_size": TEXT | {"pattern": r"^\d+[bkmg]?$", "description": "size of /dev/shm: 1g"},
    "memory": TEXT | {"pattern": r"^\d+[bkmg]?$", "description": "memory limit of the container: 8g"},
    "timeout": {"type": "integer", "minimum": 1, "description": "seconds for the whole probe"},
    "environment": {"type": "object", "additionalProperties": TEXT},
    "platform": TEXT | {"pattern": r"^linux/[a-z0-9]+(/v\d)?$"},
    "user": TEXT,
    "entrypoint": {"anyOf": [TEXT, {"type": "array", "items": TEXT}]},
}
EXPECT: dict[str, dict[str, Any]] = {
    "case": TEXT | {"description": "glob over case ids"},
    "outcome": {"enum": [outcome.value for outcome in Outcome]},
    "issue": TEXT | {"pattern": "^https?://", "description": "where the fault is reported"},
    "torch": TEXT | {"description": "versions it applies to: >=2.0,<2.4"},
}
SOURCE: dict[str, dict[str, Any]] = {"registry": TEXT, "mmdebstrap": TEXT}
BASE: dict[str, dict[str, Any]] = {
    "python": TEXT | {"description": 'the Python that this distribution ships: "3.11"'},
    "sources": {
        "type": "array",
        "minItems": 1,
        "items": {"type": "object", "properties": SOURCE, "additionalProperties": False},
    },
}
AXES = {"type": "object", "additionalProperties": {"type": "array", "items": TEXT}}
FAMILY: dict[str, dict[str, Any]] = {
    "name": TEXT,
    "id": TEXT | {"description": "template of the image ids: pytorch-{torch}-cuda{cuda}"},
    "pull": TEXT | {"description": "template of a reference: repository:{tag}"},
    "build": {"enum": ["slim"], "description": "rows need base, torch and, unless it is the default, index"},
    "axes": {"anyOf": [AXES, {"type": "array", "items": AXES}], "description": "one block of axes or several"},
    "include": {"type": "array", "items": {"type": "object"}, "description": "single rows: axis values, facts, options"},
    "exclude": {"type": "array", "items": {"type": "object", "required": ["reason"]}},
    "packages": {"type": "array", "items": TEXT, "description": "added to each image; torch itself is never replaced"},
    "expect": {"type": "array", "items": {"type": "object", "properties": EXPECT, "additionalProperties": False}},
    **OPTIONS,
}
TOP: dict[str, dict[str, Any]] = {
    "defaults": {"type": "object", "properties": OPTIONS, "additionalProperties": False},
    "mirrors": {"type": "object", "additionalProperties": {"type": "array", "items": TEXT}},
    "bases": {"type": "object", "additionalProperties": {"type": "object", "properties": BASE, "additionalProperties": False}},
    "families": {
        "type": "array",
        "items": {"type": "object", "properties": FAMILY, "required": ["name", "id"], "additionalProperties": False},
    },
}
ROW_EXTRAS = ("inferred", "packages", "expect", *OPTIONS)


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of images.yaml, for editors; `load` checks more than a schema can say."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "image-matrix: images.yaml",
        "type": "object",
        "properties": TOP,
        "required": ["families"],
        "additionalProperties": False,
    }


def load(path: Path) -> Matrix:
    """Read and expand a matrix file. Raises MatrixError that lists every mistake as file:line:column with its fix."""
    document = Document(path)
    loader = _Loader(document)
    matrix = loader.matrix()
    document.finish()
    return matrix


_FIELD = re.compile(r"\{(\w+)\}")


def _fill(template: str, values: Mapping[str, str]) -> str:
    """Put values into `{name}`; nothing else of Python's format language is known, since a file may hold anything."""
    return _FIELD.sub(lambda found: values.get(found[1], found[0]), template)


class _Loader:
    """Walks one document. Every method notes problems and gives something harmless, so that the walk goes on to the end."""

    def __init__(self, document: Document) -> None:
        self.doc = document
        self.bases: dict[str, Base] = {}
        self.images: dict[str, Image] = {}
        self.excluded: list[Excluded] = []

    def matrix(self) -> Matrix:
        if self.doc.root is None:
            self.doc.problem(_Nowhere(), "the file is empty", "add `families:`")  # type: ignore[arg-type]
            self.doc.finish()
        top = self.doc.mapping(self.doc.root, "the file", TOP, ("families",))
        defaults = self.options(self.doc.mapping(top.get("defaults"), "defaults", OPTIONS), RunOptions())
        mirrors = {
            host: tuple(self.doc.string(item, f"a mirror of {host}") for item in self.doc.items(node, f"the mirrors of {host}"))
            for host, node in self.doc.mapping(top.get("mirrors"), "mirrors").items()
        }
        for name, node in self.doc.mapping(top.get("bases"), "bases").items():
            self.bases[name] = self.base(name, node)
        names: set[str] = set()
        for node in self.doc.items(top.get("families"), "families"):
            self.family(node, defaults, names)
        return Matrix(
            path=str(self.doc.path),
            sha256=hashlib.sha256(self.doc.text.encode()).hexdigest(),
            images=tuple(self.images.values()),
            excluded=tuple(self.excluded),
            mirrors=tuple(mirrors.items()),
        )

    # ------------------------------------------------------------------ parts

    def base(self, name: str, node: Node) -> Base:
        parts = self.doc.mapping(node, f"the base {name}", BASE, BASE)
        sources = []
        for item in self.doc.items(parts.get("sources"), f"the sources of {name}"):
            source = self.doc.mapping(item, f"a source of {name}", SOURCE)
            if len(source) != 1:
                self.doc.problem(
                    item, f"a source of {name} is one of: {', '.join(SOURCE)}", "write `- registry: debian:bookworm-slim`"
                )
            for kind, value in source.items():
                text = self.doc.string(value, kind)
                sources.append(
                    BaseSource(
                        kind=kind, reference=text if kind == "registry" else "", suite=text if kind == "mmdebstrap" else ""
                    )
                )
        return Base(name=name, python=self.doc.string(parts.get("python"), f"the Python of {name}"), sources=tuple(sources))

    def options(self, parts: Mapping[str, Node], old: RunOptions) -> RunOptions:
        """`old` with what `parts` says put over it."""
        new: dict[str, Any] = {}
        for name in OPTIONS.keys() & parts.keys():
            node = parts[name]
            if name == "timeout":
                new[name] = self.doc.integer(node, name, old.timeout)
            elif name == "environment":
                pairs = self.doc.mapping(node, name)
                new[name] = tuple((key, self.doc.string(value, f"the variable {key}")) for key, value in pairs.items())
            elif name == "entrypoint":
                single = self.doc.is_scalar(node)
                new[name] = tuple(self.doc.string(n, name) for n in ([node] if single else self.doc.items(node, name)))
            else:
                new[name] = self.option(name, node)
        return replace(old, **new)

    def option(self, name: str, node: Node) -> Any:
        text = self.doc.string(node, name)
        if name == "gpu":
            if text not in list(GpuWish):
                self.doc.problem(node, f"gpu is preferred or required, not {text!r}", "write one of the two")
                return GpuWish.PREFERRED
            return GpuWish(text)
        if name == "gpus":
            try:
                parse_gpus(text)
            except ValueError as error:
                self.doc.problem(node, str(error), "write it as for docker run --gpus: all, 2, or '\"device=0,1\"'")
        pattern = OPTIONS[name].get("pattern")
        if pattern and not re.search(pattern, text):
            example = "linux/amd64" if name == "platform" else "1g"
            self.doc.problem(node, f"{name} cannot be {text!r}", f"write it like {example}")
        return text

    def expectations(self, node: Node | None) -> tuple[Expectation, ...]:
        found = []
        for item in self.doc.items(node, "expect"):
            parts = self.doc.mapping(item, "an expectation", EXPECT, ("case", "outcome", "issue"))
            texts = {name: self.doc.string(parts.get(name), name) for name in EXPECT}
            if "outcome" in parts and texts["outcome"] not in list(Outcome):
                self.doc.problem(parts["outcome"], f"no such outcome: {texts['outcome']!r}", f"one of {', '.join(Outcome)}")
                continue
            if "issue" in parts and not texts["issue"].startswith(("https://", "http://")):
                self.doc.problem(parts["issue"], "issue must be a link", "give the address of the bug report")
            try:
                SpecifierSet(texts["torch"])
            except InvalidSpecifier:
                self.doc.problem(parts["torch"], f"not a version range: {texts['torch']!r}", "write it like >=2.0,<2.4")
            if "outcome" in parts:
                found.append(
                    Expectation(
                        case=texts["case"], outcome=Outcome(texts["outcome"]), issue=texts["issue"], torch=texts["torch"]
                    )
                )
        return tuple(found)

    # ------------------------------------------------------------------ families

    def family(self, node: Node, defaults: RunOptions, names: set[str]) -> None:
        parts = self.doc.mapping(node, "a family", FAMILY, ("name", "id"))
        name = self.doc.string(parts.get("name"), "the name of a family")
        if name in names:
            self.doc.problem(node, f"there are two families named {name!r}", "rename one of them")
        names.add(name)
        if ("pull" in parts) == ("build" in parts):
            self.doc.problem(node, f"the family {name} needs either pull or build", "pull: a reference template; build: slim")
            return
        if "build" in parts and self.doc.string(parts["build"], "build") != "slim":
            self.doc.problem(parts["build"], "build knows only: slim", "write `build: slim`")
        templates: dict[str, tuple[Node, str]] = {
            key: (parts[key], self.doc.string(parts[key], key)) for key in ("id", "pull") if key in parts
        }
        used = {field for node_, text in templates.values() for field in self.fields(node_, text)}
        if "id" not in templates:
            return
        rows = self.rows(parts, used, name)
        rows = self.exclude(parts.get("exclude"), rows, used, templates["id"][1], name)
        family = replace(self.blank(name), run=self.options(parts, defaults), expect=self.expectations(parts.get("expect")))
        packages = self.packages(parts.get("packages"))
        for place, values, extras in rows:
            self.image(place, values, extras, templates, family, packages)

    @staticmethod
    def blank(name: str) -> Image:
        return Image(id="", family=name, source=Pull(reference=""))

    def fields(self, node: Node, template: str) -> set[str]:
        if set(_FIELD.sub("", template)) & set("{}"):
            self.doc.problem(node, "the template cannot be read: a brace without its partner", "write {name} for an axis")
            return set()
        return set(_FIELD.findall(template))

    def rows(
        self, parts: Mapping[str, Node], used: set[str], family: str
    ) -> list[tuple[Node, dict[str, str], dict[str, Node]]]:
        """(where, values, extras) of every row: the products of the axes, then the included ones."""
        found: list[tuple[Node, dict[str, str], dict[str, Node]]] = []
        known = {*used, *FACTS, "base", "index"} if "build" in parts else {*used, *FACTS}
        axes = parts.get("axes")
        blocks = [] if axes is None else [axes] if not self.is_list(axes) else self.doc.items(axes, "axes")
        for block in blocks:
            values = {
                axis: [self.doc.string(item, f"a value of {axis}") for item in self.doc.items(node, f"the axis {axis}")]
                for axis, node in self.doc.mapping(block, f"the axes of {family}", known).items()
            }
            total = 1
            for axis, column in values.items():
                total *= len(column)
                if not column:
                    self.doc.problem(
                        block, f"the axis {axis} of {family} has no value", "give at least one, or remove the axis"
                    )
                if axis not in used and len(column) > 1:
                    self.doc.problem(block, f"the axis {axis} is used in no template of {family}", f"add {{{axis}}} to id")
            if total > ROW_LIMIT:
                self.doc.problem(block, f"the axes of {family} make {total} rows", f"at most {ROW_LIMIT} are allowed")
                continue
            found += [(block, dict(zip(values, row, strict=True)), {}) for row in itertools.product(*values.values())]
        for item in self.doc.items(parts.get("include"), f"include of {family}"):
            row = self.doc.mapping(item, f"a row of {family}", {*known, *ROW_EXTRAS})
            texts = {key: self.doc.string(node, key) for key, node in row.items() if key not in ROW_EXTRAS}
            found.append((item, texts, {key: node for key, node in row.items() if key in ROW_EXTRAS}))
        if not found and axes is None and "include" not in parts:
            found = [(parts["id"], {}, {})]
        return found

    def is_list(self, node: Node) -> bool:
        return (
            hasattr(node, "value") and isinstance(node.value, list) and not any(isinstance(item, tuple) for item in node.value)
        )

    def exclude(
        self,
        node: Node | None,
        rows: list[tuple[Node, dict[str, str], dict[str, Node]]],
        used: set[str],
        template: str,
        family: str,
    ) -> list[tuple[Node, dict[str, str], dict[str, Node]]]:
        for item in self.doc.items(node, f"exclude of {family}"):
            parts = self.doc.mapping(item, f"an exclude of {family}", {*used, *FACTS, "base", "index", "reason"}, ("reason",))
            wanted = {key: self.doc.string(value, key) for key, value in parts.items()}
            reason = wanted.pop("reason", "")
            hit = [row for row in rows if wanted and all(row[1].get(key) == value for key, value in wanted.items())]
            if not hit:
                self.doc.problem(item, "this exclude matches nothing", "correct its values, or remove it")
            for _, values, _ in hit:
                if used <= values.keys():
                    self.excluded.append(Excluded(id=_fill(template, values), family=family, reason=reason))
            rows = [row for row in rows if row not in hit]
        return rows

    def packages(self, node: Node | None) -> tuple[str, ...]:
        found = []
        for item in self.doc.items(node, "packages"):
            text = self.doc.string(item, "a package")
            if not re.fullmatch(r"[A-Za-z0-9][\w.,<>=!~\[\]+ -]*", text):
                self.doc.problem(item, f"not a package requirement: {text!r}", 'write it like "numpy<2"')
            found.append(text)
        return tuple(found)

    def image(
        self, place: Node, values: dict[str, str], extras: dict[str, Node], templates: Mapping[str, tuple[Node, str]],
        family: Image, packages: tuple[str, ...],
    ) -> None:  # fmt: skip
        base = self.bases.get(values.get("base", ""))
        if "pull" not in templates:
            if not self.slim_row(place, values, base):
                return
            assert base is not None
            values.setdefault("python", base.python)
        missing = sorted({f for node, text in templates.values() for f in self.fields(node, text)} - values.keys())
        if missing:
            self.doc.problem(place, f"this row of {family.family} lacks {', '.join(missing)}", "add it here or as an axis")
            return
        ident = _fill(templates["id"][1], values)
        if not IMAGE_ID.fullmatch(ident):
            self.doc.problem(place, f"{ident!r} cannot be an id", "use small letters, digits, dots and dashes, at most 120")
            return
        if ident in self.images:
            self.doc.problem(
                place, f"the id {ident!r} stands twice, also in line {self.images[ident].line}", "make the ids differ"
            )
            return
        extra = self.packages(extras.get("packages"))
        source: Pull | Slim
        if "pull" in templates:
            reference = _fill(templates["pull"][1], values)
            if not re.fullmatch(r"[\w.\-/:]+[:@][\w.\-:]+", reference) or "/" in reference.rpartition(":")[2]:
                self.doc.problem(
                    place, f"the reference {reference!r} has no tag", "end it with :tag; a reference without one means `latest`"
                )
            source = Pull(reference=reference, packages=(*packages, *extra))
        else:
            assert base is not None
            index = values.get("index", "pypi")
            source = Slim(base=base, python=base.python, torch=values["torch"], index=index, packages=(*packages, *extra))
        self.images[ident] = replace(
            family,
            id=ident,
            source=source,
            run=self.options(extras, family.run),
            declared=tuple((key, values[key]) for key in FACTS if key in values),
            expect=(*family.expect, *self.expectations(extras.get("expect"))),
            inferred=self.doc.truth(extras.get("inferred"), "inferred"),
            line=line_of(place),
        )

    def slim_row(self, place: Node, values: Mapping[str, str], base: Base | None) -> bool:
        if "torch" not in values or "base" not in values:
            self.doc.problem(place, "a slim row needs base and torch", "add both")
            return False
        if base is None:
            known = ", ".join(self.bases) or "none"
            self.doc.problem(place, f"there is no base {values['base']!r}", f"known: {known}; others are added under bases:")
            return False
        if values.get("python", base.python) != base.python:
            self.doc.problem(
                place, f"{base.name} has Python {base.python}, not {values['python']}", "take another base, or leave python out"
            )
            return False
        if not re.fullmatch(r"pypi|cpu|cu\d{2,3}|https?://\S+", values.get("index", "pypi")):
            self.doc.problem(place, f"no such index: {values['index']!r}", "pypi, cpu, cu126 and the like, or a URL")
            return False
        return True


class _Nowhere:
    """Stands for the start of an empty file."""

    class start_mark:
        line = column = 0
