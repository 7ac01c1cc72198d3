"""The table never says more than was seen."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.unit.records import CPU_HOST, GPU_HOST, UNREACHABLE, case, control, latest, record, run, untested
from validator import probe
from validator.cells import GROUPS, LOUD, MEANINGS, SYMBOLS, Cell, device_of, group_of
from validator.model import CaseResult, Declared, Evidence, Finding, Outcome, Record, Severity, Verdict, VerdictClass
from validator.table import build, case_view

UNTRUSTED = Verdict(cls=VerdictClass.INFRA, code="probe-untrusted", cause="the probe cannot be trusted here: x")


def only_cell(made: Record) -> Cell:
    table = build(latest(made))
    (cell,) = table.rows[0].cells
    return cell


@pytest.mark.parametrize(("ident", "group", "device"), [
    ("coo.mm.float32.cuda.backward", "COO", "cuda"),
    ("csr-csr.mm.float64.odd.cpu", "CSR", "cpu"),
    ("hybrid.create.float32.cpu", "COO", "cpu"),
    ("module.linear-csr-weight.float32.cpu", "nn", "cpu"),
    ("work.gcn.float32.cpu", "work", "cpu"),
    ("semi-cutlass.mm.float16.cuda", "2:4", "cuda"),
    ("module.linear-2to4-cusparselt-weight.float16.cuda", "2:4", "cuda"),
    ("lib.torch_geometric.gcnconv.cpu", "work", "cpu"),
])  # fmt: skip
def test_a_case_has_its_column(ident: str, group: str, device: str) -> None:
    assert (group_of(ident), device_of(ident)) == (group, device)


def test_every_case_of_the_probe_has_a_column() -> None:
    heads = {c["id"].partition(".")[0].partition("-")[0]: group_of(c["id"]) for c in probe.cases()}
    assert set(heads.values()) <= set(GROUPS)
    assert {head for head, group in heads.items() if group == "nn"} == {"module"}, "nn is also where an unknown layout falls"


def test_every_outcome_has_its_own_sign_and_meaning() -> None:
    assert set(SYMBOLS) == set(MEANINGS) == set(Outcome)
    assert len(set(SYMBOLS.values())) == len(Outcome)


def test_a_complete_pass_is_good() -> None:
    cell = only_cell(record("a", case("coo.a.cpu"), case("coo.b.cpu")))
    assert cell.complete and cell.evidence is Evidence.EXECUTED


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.PASS])
def test_one_other_outcome_and_it_is_not(outcome: Outcome) -> None:
    cell = only_cell(record("a", case("coo.a.cpu"), case("coo.b.cpu", outcome)))
    assert not cell.complete
    assert (cell.counts[Outcome.PASS], cell.total) == (1, 2)
    assert cell.loud == (((outcome, 1),) if outcome in LOUD else ())


@pytest.mark.parametrize("over", [
    {"complete": False},
    {"controls": (control(Outcome.PASS),)},
    {"controls": ()},
])  # fmt: skip
def test_passes_of_a_cut_report_or_an_untrusted_probe_are_not_good(over: dict[str, object]) -> None:
    assert not only_cell(record("a", case("coo.a.cpu"), **over)).complete


def test_a_pass_seen_in_a_sibling_is_not_a_pass_here() -> None:
    cell = only_cell(record("a", case("coo.a.cpu", evidence=Evidence.SIBLING)))
    assert not cell.complete and cell.evidence is Evidence.SIBLING


def test_not_run_has_its_reason_and_no_evidence() -> None:
    table = build(latest(record("a", case("coo.a.cpu"), case("coo.a.cuda", Outcome.NOT_RUN, "no GPU runtime"))))
    assert [column.label for column in table.columns] == ["COO cpu", "CUDA"]
    cell = table.rows[0].cells[1]
    assert (cell.ran, cell.evidence, cell.reasons) == (0, Evidence.NONE, ("no GPU runtime",))


def declared(ident: str, said: Declared) -> CaseResult:
    return case(ident, Outcome.NOT_RUN, "no GPU runtime").model_copy(update={"declared": said})


def test_what_is_declared_is_counted_and_is_no_outcome() -> None:
    cases = [
        declared("coo.a.cuda", Declared.YES),
        declared("coo.b.cuda", Declared.NO),
        declared("coo.c.cuda", Declared.UNKNOWN),
    ]
    table = build(latest(record("a", *cases, declared("csr.a.cuda", Declared.UNKNOWN))))
    assert [column.label for column in table.columns] == ["COO cuda"], "what is not known of CSR makes no column"
    (cell,) = table.rows[0].cells
    assert (cell.ran, cell.evidence, cell.complete, cell.total) == (0, Evidence.NONE, False, 3)
    assert cell.declared == {Declared.YES: 1, Declared.NO: 1, Declared.UNKNOWN: 1}
    assert table.data()["rows"][0]["cells"]["COO cuda"]["declared"] == {"no": 1, "unknown": 1, "yes": 1}
    everything = build(latest(record("a", declared("coo.a.cuda", Declared.YES)))).rows[0].cells[0]
    assert not everything.complete and not everything.counts.get(Outcome.PASS)


def test_an_image_without_a_columns_cases_has_an_empty_cell() -> None:
    table = build(latest(record("a", case("coo.a.cpu")), record("b", case("csr.a.cpu"))))
    assert [[cell.total for cell in row.cells] for row in table.rows] == [[1, 0], [0, 1]]


def test_rows_follow_the_matrix_then_the_id_and_hosts_stay_apart() -> None:
    made = latest(record("c"), record("a"), record("b", host=GPU_HOST), record("b"))
    table = build(made, order=("b",))
    assert [row.image for row in table.rows] == ["b", "b", "a", "c"]
    assert len({row.host for row in table.rows[:2]}) == 2
    assert [row.image for row in build(made, only=frozenset({"a"})).rows] == ["a"]


def test_ages_count_from_the_newest_record_or_the_moment_given() -> None:
    made = latest(record("a"), record("b", started="2026-12-04T12:00:00Z"))
    assert [row.age_days for row in build(made).rows] == [3, 0]
    assert [row.age_days for row in build(made, as_of=datetime(2026, 12, 10, tzinfo=UTC)).rows] == [9, 5]


def test_untested_images_of_the_newest_run_share_a_line_and_have_no_row() -> None:
    old = run(untested("gone"), ident="r1", started="2026-11-01T00:00:00Z")
    new = run(untested("x"), untested("y"), untested("z", UNTRUSTED), ident="r2")
    table = build({}, (old, new))
    assert table.rows == ()
    assert [(group.images, group.cause) for group in table.untested] == [
        (("x", "y"), UNREACHABLE.cause),
        (("z",), UNTRUSTED.cause),
    ]


def test_an_older_record_stands_with_a_note_that_the_newest_run_could_not_test_it() -> None:
    table = build(latest(record("a")), (run(untested("a"), started="2026-12-05T00:00:00Z"),))
    assert table.untested == () and len(table.rows) == 1
    (number,) = table.rows[0].notes
    assert "could not test it" in table.notes[number - 1] and "nvcr.io" in table.notes[number - 1]


def test_a_record_made_after_the_newest_run_is_not_called_an_earlier_one() -> None:
    made = latest(record("a", started="2026-12-09T00:00:00Z"))
    assert build(made, (run(untested("a"), started="2026-12-05T00:00:00Z"),)).notes == ()


def test_an_untrusted_probe_is_said_first() -> None:
    table = build(latest(record("a", case("coo.a.cpu", Outcome.WRONG), verdict=UNTRUSTED, controls=(control(Outcome.PASS),))))
    assert table.rows[0].verdict is VerdictClass.INFRA
    assert "cannot be trusted" in table.notes[table.rows[0].notes[0] - 1]


def test_a_narrowed_record_says_so() -> None:
    options = {"cases": ["coo.mm.*"], "tier": "quick"}
    notes = build(latest(record("a", options=options))).notes
    assert any("coo.mm.*" in note for note in notes) and any("tier quick" in note for note in notes)
    assert build(latest(record("a", options={"cases": [], "tier": "standard"}))).notes == ()


def test_what_is_loud_is_noted_loudest_first_and_equal_notes_share_a_number() -> None:
    cases = (case("coo.a.float32.cpu", Outcome.ERROR, "boom"), case("csr.b.float32.cpu", Outcome.WRONG, "off by 1"))
    table = build(latest(record("a", *cases), record("b", *cases)))
    assert table.rows[0].notes == table.rows[1].notes == (1, 2)
    assert len(table.notes) == 2
    assert table.notes[0].startswith("NEW wrong: csr.b.cpu (1 case): off by 1")
    assert table.notes[1] == "error: failed in an unforeseen way, neither refused nor wrong: coo.a"
    quiet = (case("coo.a.cpu", Outcome.UNSUPPORTED, "refused"), case("coo.b.cpu", Outcome.ABSENT))
    assert build(latest(record("a", *quiet))).notes == ()


def test_a_known_fault_is_told_by_its_title_once_and_only_where_it_is_known() -> None:
    cases = [case(f"csc-csc.mm.float{size}.cpu", Outcome.WRONG, f"detail {size}") for size in (32, 64)]
    (note,) = build(latest(record("a", *cases, torch="2.6.0+cu124"))).notes
    assert note.startswith("known fault, wrong: torch.sparse.mm of two CSC matrices")
    (other,) = build(latest(record("a", *cases, torch="1.9.1"))).notes
    assert other.startswith("NEW wrong: csc-csc.mm.cpu (2 cases)")


def test_findings_are_noted() -> None:
    finding = Finding(code="declared-torch", severity=Severity.WARNING, message="tag or row say 1, inside is 2")
    assert build(latest(record("a", findings=(finding,)))).notes == (finding.message,)


def test_data_is_plain_and_keeps_denominator_and_evidence() -> None:
    made = record("a", case("coo.a.cpu"), case("coo.b.cpu", Outcome.ABSENT))
    data = build(latest(made), (run(untested("x")),)).data()
    assert data["rows"][0]["cells"]["COO cpu"] == {
        "evidence": "executed", "complete": False, "outcomes": {"absent": 1, "pass": 1}, "reasons": [],
    }  # fmt: skip
    assert data["rows"][0]["age_days"] == 0
    assert data["untested"] == [{"class": "infra", "cause": UNREACHABLE.cause, "images": ["x"]}]


def test_facts_of_a_wrong_shape_and_a_moment_that_is_none_are_no_traceback() -> None:
    made = record("a", facts={"torch": "x", "system": [], "python": None}, started="yesterday", host=CPU_HOST)
    assert build(latest(made)).rows[0].torch == ""


def test_cases_as_rows_images_as_columns() -> None:
    view = case_view((record("a", case("coo.a.cpu"), case("csr.a.cpu")), record("b", case("coo.b.cpu"))), "coo.*")
    assert view.images == ("a", "b")
    assert [(ident, [r is not None for r in results]) for ident, results in view.cases] == [
        ("coo.a.cpu", [True, False]),
        ("coo.b.cpu", [False, True]),
    ]
