"""How often a fit reads a whole table."""

import numpy as np
import pytest
from test_doors import made, of_polars

from condokit import BatchAdapter, ConDoAdapter
from condokit.data import blocks, reader, tables

ROLES = {"domain": "device", "features": ["left"]}


@pytest.fixture
def scans(monkeypatch):
    """Count full scans: of tables in memory, and of blocks."""
    counted = {"memory": 0, "blocks": 0}

    def counting(kind, original):
        def wrapped(self, *given):
            counted[kind] += 1
            return original(self, *given)

        return wrapped

    monkeypatch.setattr(tables.Table, "chunks", counting("memory", tables.Table.chunks))
    monkeypatch.setattr(blocks.Blocks, "__iter__", counting("blocks", blocks.Blocks.__iter__))
    return counted


@pytest.mark.parametrize(("confounder", "most"), [("sex", 1), ("age", 2)])
def test_rows_in_memory_are_scanned_once_and_once_more_given_numbers(scans, confounder, most):
    frame = made(15_000).drop(columns=["right"])
    ConDoAdapter(reference="v1").fit(frame, confounders=confounder, **ROLES)
    assert scans == {"memory": most, "blocks": 0}


@pytest.mark.parametrize(("confounder", "most"), [("sex", 1), ("age", 2)])
def test_blocks_are_scanned_once_and_once_more_given_numbers(scans, confounder, most, monkeypatch):
    lazy = of_polars(made(400)).lazy()
    ConDoAdapter(reference="v1").fit(lazy, confounders=confounder, **ROLES)
    assert scans["blocks"] == 1  # all rows are in the sample
    monkeypatch.setattr(reader, "_SAMPLED", 100)
    scans["blocks"] = 0
    ConDoAdapter(reference="v1").fit(lazy, confounders=confounder, **ROLES)
    assert scans["blocks"] == most


def test_many_batches_are_summed_in_one_scan(scans, monkeypatch):
    frame = made(400)
    frame["site"] = np.array(["A", "B", "C"])[np.arange(len(frame)) % 3]
    monkeypatch.setattr(reader, "_SAMPLED", 100)
    how = {"batch": "site", "confounders": "sex", "features": ["left"]}
    BatchAdapter(reference="A").fit(of_polars(frame).lazy(), **how)
    assert scans["blocks"] == 1
