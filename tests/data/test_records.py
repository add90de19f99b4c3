"""Tables and findings that print, and small cells that do not."""

import json

import numpy as np
import pytest

from condokit.data.disclosure import hidden_counts
from condokit.data.records import Finding, Sheet, plain, show


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
