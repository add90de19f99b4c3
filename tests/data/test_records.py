"""Tables and findings that print, and small cells that do not."""

import json

import numpy as np
import pytest

from condokit.checks import naming, said
from condokit.data import disclosure
from condokit.data.disclosure import hidden_counts
from condokit.data.records import Finding, Record, Sheet, gravest_first, plain, show


def test_a_sheet_prints_aligned_and_escapes_html():
    sheet = Sheet({"name": ["a", "<b>"], "x": [1.23456, None]})
    assert repr(sheet).splitlines() == ["name     x", "   a  1.23", " <b>     -"]
    assert "&lt;b&gt;" in sheet._repr_html_()


def test_long_sheets_are_cut_when_printed_but_not_when_converted():
    sheet = Sheet({"x": list(range(50))})
    assert "30 more rows" in repr(sheet)
    assert "30 more rows" in sheet._repr_html_()
    assert len(sheet.to_dict()["x"]) == 50


@pytest.mark.parametrize("backend", ["pandas", "polars", "pyarrow"])
def test_a_sheet_becomes_a_data_frame(backend):
    sheet = Sheet({"n": [1, "<5"], "x": [0.5, None]})
    frame = sheet.to_frame(backend)
    assert frame.shape == (2, 2)


@pytest.mark.parametrize(
    ("counts", "shown"),
    [
        ([10, 20], [10, 20]),
        ([0, 20], [0, 20]),
        ([3, 2, 100], ["<5", "<5", "~100"]),
        ([3, 101, 52], ["<5", 101, "~50"]),  # otherwise the total would tell
        ([2.5, 7.5], ["<5", "~10"]),
    ],
)
def test_small_cells_are_hidden(counts, shown):
    assert hidden_counts(np.array(counts)) == shown


def test_figures_of_few_rows_are_not_told():
    values = np.array([1.0, 2.0, np.nan, 3.0])
    assert disclosure.mean_of(values, 3) == 2.0
    assert disclosure.mean_of(values, 4) is None
    assert disclosure.shares_of_few({"a": 0.0, "b": 0.04, "c": 0.05}, 100) == {"b"}
    assert [disclosure.rounded_beside(n, 90) for n in (87, 90, 85)] == ["~85", 90, 85]
    assert [disclosure.share_of(n, 10) for n in (4, 5)] == ["a few", "50%"]
    assert [disclosure.number_of(n) for n in (4, 5)] == ["a few", "5"]
    assert [disclosure.size_of(shown) for shown in ("<5", "~15", 20)] == [
        (5.0, True),
        (15.0, False),
        (20.0, False),
    ]


def test_findings_speak_to_the_reader_and_are_saved_for_python():
    class Found(Record):
        def parts(self):
            return [("", said("{@map='shift'}")), ("None", []), ("Reasons", [finding])]

    finding = Finding("care", "odd.", said("Leave it out with {@`features`}."))
    assert str(finding) == "care: odd. Leave it out with `features`."
    with naming(lambda argument: "--" + argument.strip("`")):
        assert (
            repr(Found()) == "--map='shift'\n\nReasons\n- care: odd. Leave it out with --features."
        )
        assert plain(finding)["advice"] == "Leave it out with `features`."
    assert type(plain(finding)["advice"]) is str


def test_findings_are_told_the_gravest_first():
    levels = ["note", "care", "stop", "care"]
    told = gravest_first(Finding(level, str(k)) for k, level in enumerate(levels))
    assert [finding.text for finding in told] == ["2", "1", "3", "0"]


def test_a_sheet_is_made_of_rows_or_arrays():
    assert Sheet.of_rows([{"a": 1, "b": 2}, {"a": 3, "b": 4}]).columns == {"a": [1, 3], "b": [2, 4]}
    assert Sheet.of_rows([], ["a"]).columns == {"a": []}
    assert Sheet({"a": np.arange(2)})["a"] == [0, 1]


def test_everything_becomes_plain():
    value = {"a": np.array([1.0, np.nan]), "b": (np.int64(3), Finding("note", "x")), 3: {1, 2}.pop}
    assert json.dumps(plain(value), allow_nan=False)


def test_numbers_are_shown_short():
    assert [show(x) for x in (1e-17, 0.123456, 1234.0, np.inf, True, None)] == [
        "0",
        "0.123",
        "1234",
        "-",
        "True",
        "-",
    ]


def test_a_name_of_several_lines_is_shown_on_one():
    assert repr(Sheet({"a\nb": ["c\r\nd"]})) == "a b\nc d"
