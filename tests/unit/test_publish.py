"""Terminal and Markdown: what fits, what is said of the rest, and nothing from an image acts."""

from __future__ import annotations

import re

import pytest

from tests.unit.records import case, control, latest, record, run, untested
from validator.cells import SYMBOLS
from validator.errors import UsageError
from validator.model import Declared, Evidence, Finding, Outcome, Record, Severity
from validator.publish import markdown, terminal
from validator.table import Table, build, case_view

GROUPS = ("coo", "csr", "csc", "bsr", "bsc", "module", "work")
EVIL = "\x1b[31mred\x1b[0m\r\n| x | <script>alert(1)</script> [a](http://evil.example) `b` @all www.evil.example \u202eabc"


def wide_table() -> Table:
    cases = [case(f"{group}.op{n}.{device}") for group in GROUPS for n in range(12) for device in ("cpu", "cuda")]
    return build(latest(record("pytorch-2.6.0-cuda12.4-cudnn9-runtime", *cases), record("slim-a", *cases)))


def evil_record() -> Record:
    finding = Finding(code="x", severity=Severity.WARNING, message=EVIL)
    return record("a", case("coo.a.cpu", Outcome.WRONG, EVIL), torch=EVIL, probe=EVIL, findings=(finding,))


@pytest.mark.parametrize("width", [60, 80, 120, 160, 200])
def test_the_table_fits_and_says_what_it_left_out(width: int) -> None:
    text = terminal.render(wide_table(), width=width)
    table = text.split("\n(left out")[0].split("\npasses/cases")[0]
    assert max(map(terminal.width_of, table.splitlines())) <= width
    for label in ("COO cpu", "CSR cuda", "work cuda", "size", "tested"):
        assert label in table.splitlines()[0] or re.search(rf"left out .*\b{label}\b", text), label
    assert "slim-a" in table and "2.6.0+cpu" in table


def test_what_is_loud_is_left_out_last() -> None:
    cases = [case(f"{group}.op.cpu", {"csc": Outcome.WRONG, "bsr": Outcome.ERROR}.get(group, Outcome.PASS)) for group in GROUPS]
    text = terminal.render(build(latest(record("pytorch-2.6.0-cuda12.4-cudnn9-runtime", *cases))), width=80)
    assert "left out" in text and "✕1" in text.splitlines()[2]


def test_a_wide_terminal_leaves_nothing_out() -> None:
    assert "left out" not in terminal.render(wide_table(), width=400)


@pytest.mark.parametrize(("cases", "text"), [
    ((case("coo.a.cpu"), case("coo.b.cpu")), "✓ 2/2"),
    ((case("coo.a.cpu"), case("coo.b.cpu", Outcome.ABSENT)), "1/2"),
    ((case("coo.a.cpu"), case("coo.b.cpu", Outcome.WRONG), case("coo.c.cpu", Outcome.CRASH)), "1/3 ✕1 ☠1"),
    ((case("coo.a.cpu"), case("coo.b.cpu", Outcome.NOT_RUN, "why")), "1/2 –1"),
    ((case("coo.a.cpu", Outcome.NOT_RUN, "why"),), "– not-run"),
])  # fmt: skip
def test_cells(cases: tuple[object, ...], text: str) -> None:
    (cell,) = build(latest(record("a", *cases))).rows[0].cells  # type: ignore[arg-type]
    assert terminal.cell_text(cell) == text


def test_what_was_seen_in_a_sibling_does_not_look_executed() -> None:
    here, there = (case("coo.a.cpu"), case("coo.b.cpu", Outcome.WRONG)), case("coo.c.cpu", evidence=Evidence.SIBLING)
    texts = [
        terminal.cell_text(build(latest(record("a", *cases))).rows[0].cells[0]) for cases in ((there,), here, (*here, there))
    ]
    assert texts == ["1/1 sibling", "1/2 ✕1", "2/3 ✕1 sibling"]


def test_what_is_declared_cannot_be_taken_for_passes() -> None:
    said = (Declared.YES, Declared.YES, Declared.NO, Declared.UNKNOWN)
    cases = [
        case(f"coo.{n}.cuda", Outcome.NOT_RUN, "no GPU").model_copy(update={"declared": one}) for n, one in enumerate(said)
    ]
    made = build(latest(record("a", *cases), record("b", *cases[:2])))
    assert [terminal.cell_text(row.cells[0]) for row in made.rows] == ["decl. 2/4 ?1", "decl. 2/2"]
    text = terminal.render(made, width=200, colour=True)
    assert "\x1b[32m" not in text and SYMBOLS[Outcome.PASS] not in "".join(text.splitlines()[:4])
    for one in (text, markdown.render(made)):
        assert "nothing was executed" in one


def test_what_is_declared_beside_cases_that_ran_is_left_out() -> None:
    other = case("coo.b.cuda", Outcome.NOT_RUN, "why").model_copy(update={"declared": Declared.YES})
    made = build(latest(record("a", case("coo.a.cuda"), other)))
    assert terminal.cell_text(made.rows[0].cells[0]) == "1/2 –1" and "decl." not in terminal.render(made, width=200)


def test_an_untrusted_probe_shows_no_sign_of_good() -> None:
    made = record("a", case("coo.a.cpu"), controls=(control(Outcome.PASS),))
    row = terminal.render(build(latest(made)), width=200, colour=True).splitlines()[2]
    assert SYMBOLS[Outcome.PASS] not in row and "\x1b[32m" not in row


def test_colour_only_when_asked_for() -> None:
    assert "\x1b" not in terminal.render(wide_table(), width=200)
    assert "\x1b[32m✓ 12/12\x1b[0m" in terminal.render(wide_table(), width=400, colour=True)


def test_versions_stay_text() -> None:
    made = record("a", torch="2.10", cuda="12.0")
    for text in (terminal.render(build(latest(made)), width=200), markdown.render(build(latest(made)))):
        assert re.search(r"\b2\.10\b", text) and re.search(r"\b12\.0\b", text)


def test_the_age_of_an_old_record_is_shown() -> None:
    text = terminal.render(build(latest(record("a"), record("b", started="2026-12-04T00:00:00Z"))), width=200)
    assert "2026-12-01 (3 d)" in text and "2026-12-04 " in text and "(0 d)" not in text


def test_untested_images_share_one_line() -> None:
    entries = [untested(f"ngc-{n}") for n in range(120)]
    lines = terminal.render(build({}, (run(*entries),)), width=100).splitlines()
    assert lines == ["untested: ngc-0 and 119 more: infra: registry unreachable: nvcr.io (no such host)"]
    assert "120 images" in markdown.render(build({}, (run(*entries),)))


def test_the_reason_of_not_run_is_said_once() -> None:
    made = [record(name, case("coo.a.cpu"), case("coo.a.cuda", Outcome.NOT_RUN, "no GPU runtime")) for name in "ab"]
    text = terminal.render(build(latest(*made)), width=200)
    assert text.count("no GPU runtime") == 1 and "(2 images)" in text


def test_many_notes_are_cut_and_counted() -> None:
    cases = [case(f"coo.op{n}.float32.cpu", Outcome.WRONG, "x" * 500) for n in range(20)]
    text = terminal.render(build(latest(record("a", *cases))), width=80)
    assert "[12] NEW wrong" in text and "[13] NEW wrong" not in text and "8 more notes" in text


def test_nothing_yet_is_a_sentence() -> None:
    assert "no records yet" in terminal.render(build({}), width=80)
    assert "No records yet." in markdown.render(build({}))


def test_hostile_text_does_nothing_on_a_terminal() -> None:
    text = terminal.render(build(latest(evil_record())), width=300)
    assert not any(c != "\n" and not c.isprintable() for c in text)
    view = case_view((evil_record(),), "*")
    assert not any(c != "\n" and not c.isprintable() for c in terminal.render_cases(view, width=80))


def test_hostile_text_does_nothing_in_markdown() -> None:
    text = markdown.render(build(latest(evil_record())))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1, "the columns of every row are the same"
    assert len(rows) == 3
    assert "<script" not in text and "http://evil" not in text and "@all" not in text and "www.evil" not in text
    assert "](" not in text.replace(r"\](", "")
    assert not any(c != "\n" and not c.isprintable() for c in text)


@pytest.mark.parametrize("text", ["- item", "+ item", "1. item", "# head", "> quote", "=== x", "* item"])
def test_no_text_begins_a_block(text: str) -> None:
    assert not re.match(r"[-+*#>=]|\d+[.)]", markdown.escape(text))


def test_an_id_that_is_none_is_escaped() -> None:
    assert r"a\`\|b" in markdown.render(build(latest(record("a`|b"))))


@pytest.mark.parametrize("limit", [3, 5, 8, 13])
@pytest.mark.parametrize("text", ["pytorch-2.6.0-cuda12.4", "日本語のとても長い名前です", "e\u0301" * 20, "ab"])
def test_shortened_text_keeps_both_ends_and_its_width(text: str, limit: int) -> None:
    short = terminal.shorten(text, limit)
    assert terminal.width_of(short) <= limit
    assert short == text or "…" in short
    assert limit < 5 or short[0] == text[0]


def test_the_legend_names_what_is_there_and_nothing_else() -> None:
    made = build(latest(record("a", case("coo.a.cpu"), case("coo.b.cpu", Outcome.WRONG))))
    for text in (terminal.render(made, width=200), markdown.render(made)):
        assert "wrong" in text and SYMBOLS[Outcome.CRASH] not in text and SYMBOLS[Outcome.FALLBACK] not in text


def test_the_same_records_give_the_same_text_in_any_order() -> None:
    made = [record(name, case("coo.a.cpu", Outcome.WRONG, name)) for name in "abc"]
    one, two = build(latest(*made)), build(latest(*reversed(made)))
    assert terminal.render(one, width=100) == terminal.render(two, width=100)
    assert markdown.render(one) == markdown.render(two)


START, END = "<!-- image-matrix:table -->", "<!-- /image-matrix:table -->"


def test_only_what_stands_between_the_markers_is_replaced() -> None:
    old = f"head\n{START}\nold\n{END}\ntail\n"
    new = markdown.replace_between_markers(old, "table", "new\n")
    assert new == f"head\n{START}\nnew\n{END}\ntail\n"
    assert markdown.replace_between_markers(new, "table", "new\n") == new


@pytest.mark.parametrize("text", ["", START, END, f"{END}{START}", f"{START}{START}{END}", f"{START}{END}{END}"])
def test_missing_double_or_turned_markers_are_an_error(text: str) -> None:
    with pytest.raises(UsageError, match="exactly once"):
        markdown.replace_between_markers(text, "table", "new")


def test_cases_as_rows() -> None:
    view = case_view([record(f"image-{n}", case("coo.a.cpu")) for n in range(30)], "*")
    text = terminal.render_cases(view, width=80)
    assert "✓ pass" in text and "(1) image-0" in text and "more images do not fit" in text
    assert max(len(line) for line in text.splitlines()[:3]) <= 80
    assert "no record" in terminal.render_cases(case_view((), "*"), width=80)
