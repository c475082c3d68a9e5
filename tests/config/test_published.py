"""The averaging paper's numbers: complete rows, and derived ones that follow from the others."""

import itertools
from pathlib import Path

import pandas as pd
import pytest

CONFIG = Path(__file__).parents[2] / "config"
COLUMNS = [
    "id", "paper", "version", "table_or_figure", "metric", "workers", "sync_period", "minibatch", "method", "optimizer",
    "init", "schedule", "reduce", "test_set", "value", "unit", "read_as", "role", "source", "note",
]  # fmt: skip


@pytest.fixture(scope="module")
def table():
    return pd.read_csv(CONFIG / "published" / "averaging.csv").set_index("id", drop=False)


def test_every_row_is_complete(table):
    assert list(table.columns) == COLUMNS
    assert table["id"].is_unique
    assert set(table["paper"]) == {"averaging"}
    assert set(table["read_as"]) <= {"text", "table", "digitised", "review", "memory", "derived"}
    assert set(table["role"]) == {"target", "input", "context"}
    for column in ("metric", "value", "read_as", "role", "source"):
        assert table[column].notna().all(), column
    assert table.loc[table["unit"].isna(), "metric"].tolist() == ["learning_rate"]


def test_drafts_and_other_work_are_no_targets(table):
    assert set(table.loc[table["version"] != "v2", "role"]) == {"context"}


def test_the_one_gpu_time_is_an_input_and_the_speedups_are_targets(table):
    one = table.loc["avg-epoch-min-w1"]
    assert (one["value"], one["role"]) == (254.5, "input")
    printed = {"avg-speedup-w16-k10": 9.32, "avg-speedup-w16-k20": 10.07, "avg-speedup-w32-derived": 16.70}
    for name, value in printed.items():
        assert (table.loc[name, "value"], table.loc[name, "role"]) == (value, "target")
    assert table.loc["avg-speedup-w16-derived", "value"] == table.loc["avg-speedup-w16-k10", "value"]


@pytest.mark.parametrize("workers", [2, 4, 8, 16, 32])
def test_derived_rows_follow_from_the_minutes(table, workers):
    one = table.loc["avg-epoch-min-w1", "value"]
    epoch = table.loc[f"avg-epoch-min-w{workers}", "value"]
    mpi = table.loc[f"avg-mpi-min-w{workers}", "value"]
    assert table.loc[f"avg-speedup-w{workers}-derived", "value"] == round(one / epoch, 2)
    assert table.loc[f"avg-mpi-share-w{workers}", "value"] == round(100 * mpi / epoch, 1)
    assert table.loc[f"avg-efficiency-w{workers}", "value"] == round(100 * one / epoch / workers)


def test_shares_and_efficiencies_as_the_paper_has_them(table):
    by_workers = [2, 4, 8, 16, 32]
    assert [table.loc[f"avg-mpi-share-w{w}", "value"] for w in by_workers] == [10.9, 13.4, 14.9, 15.8, 15.2]
    assert [table.loc[f"avg-efficiency-w{w}", "value"] for w in by_workers] == [69, 66, 62, 58, 52]


def test_parameters_and_bytes_follow_from_the_network(table):
    widths = [440, *[2048] * 6, 8806]
    parameters = sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(widths))
    assert table.loc["avg-model-params", "value"] == parameters == 39_928_422
    assert table.loc["avg-model-bytes", "value"] == round(4 * parameters / 1e6, 1)
    for m in (2, 4, 8, 16, 32):
        per_rank = 2 * (m - 1) / m * 4 * parameters / 1e6
        assert table.loc[f"avg-bytes-per-reduce-w{m}", "value"] == pytest.approx(per_rank, abs=0.05)
    assert table.loc["avg-bytes-per-reduce-total-w16", "value"] == pytest.approx(
        30 * 4 * parameters / 1e9, abs=0.005
    )


def test_word_error_rates_of_one_run_are_the_same_in_every_table(table):
    rates = table[(table["metric"] == "wer") & (table["version"] == "v2")]
    condition = ["workers", "sync_period", "minibatch", "optimizer", "init", "schedule", "reduce", "test_set"]
    assert (rates.groupby(condition, dropna=False)["value"].nunique() == 1).all()
    assert len(rates) == 56


def test_differences_in_the_initialisation_table(table):
    def loss(test_set, init):
        return (
            table.loc[f"avg-wer-{test_set}-w32-{init}", "value"]
            - table.loc[f"avg-wer-{test_set}-w1-{init}", "value"]
        )

    for test_set, value in (("swb", 0.3), ("ch", 1.1)):
        assert table.loc[f"avg-init-further-loss-table-{test_set}", "value"] == value
        assert loss(test_set, "random") - loss(test_set, "rbm") == pytest.approx(value)
