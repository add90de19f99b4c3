"""Spark: every partition reduces its rows to sums, which are merged."""

import os
import shutil
import sys

import numpy as np
import pytest
from test_doors import FEATURES, ROLES, made

from condokit import BatchAdapter, ConDoAdapter, evaluate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs a Java runtime"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def spark():
    sql = pytest.importorskip("pyspark.sql", reason="pyspark is absent: make test-all installs it")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = session.config("spark.driver.memory", "1g").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def both(spark):
    frame = made()
    return frame, spark.createDataFrame(frame)


@pytest.mark.parametrize("confounders", ["sex", "age", ["sex", "age"]], ids=str)
def test_partitions_give_the_map_of_rows_in_memory(both, confounders):
    maps = [
        ConDoAdapter(reference="v1").fit(X, **ROLES | {"confounders": confounders}).map_
        for X in both
    ]
    np.testing.assert_allclose(maps[1].scale, maps[0].scale, rtol=1e-9)
    np.testing.assert_allclose(maps[1].offset, maps[0].offset, rtol=1e-9)


@pytest.mark.parametrize("confounders", ["sex", "age"])
def test_more_rows_than_are_sampled_are_summed_where_they_are(both, confounders, monkeypatch):
    roles = ROLES | {"confounders": confounders, "features": ["left"]}
    rows = ConDoAdapter(reference="v1").fit(both[0], **roles)
    monkeypatch.setattr("condokit.data.reader._SAMPLED", 100)
    found = ConDoAdapter(reference="v1").fit(both[1], **roles)
    away = np.abs(found.map_.scale - rows.map_.scale)
    assert away < (1e-4 if confounders == "sex" else 0.5 * rows.map_se_["scale"])


def test_batches_subjects_and_judgements_work_on_spark(both):
    frame, lazy = both
    how = {"batch": "device", "confounders": "sex", "features": FEATURES}
    one, other = (BatchAdapter(reference="v1").fit(X, **how).maps_["v2"] for X in both)
    np.testing.assert_allclose(other.scale, one.scale, rtol=1e-9)
    adapter = ConDoAdapter(reference="v1").fit(lazy, **ROLES)
    by_rows, by_spark = (evaluate(adapter, X, **ROLES) for X in both)
    assert by_spark.sentence == by_rows.sentence
    mapped = adapter.transform(lazy, domain="device").toPandas()
    expected = adapter.transform(frame, domain="device")
    np.testing.assert_allclose(mapped[FEATURES].to_numpy(float), expected, rtol=1e-9)


def test_workers_without_condokit_are_named(both, monkeypatch):
    lazy = both[1]

    def fails(*_):
        raise RuntimeError("worker:\nModuleNotFoundError: No module named 'condokit'")

    monkeypatch.setattr(type(lazy), "mapInArrow", fails)
    with pytest.raises(ValueError, match="workers of Spark have no condokit.*PYSPARK_PYTHON"):
        ConDoAdapter(reference="v1").fit(lazy, **ROLES)
