import numpy as np
import pytest

from implementations.reporting import memory, status, tables
from implementations.reporting.claims import load_published
from implementations.reporting.pagetables import ON_PAGE
from tests.reporting import synthetic, synthetic_ist


@pytest.fixture(scope="module")
def runs():
    cases = [("data_parallel", 8), ("ist", 2), ("ist", 8)]
    return synthetic.runs(
        [
            synthetic_ist.memory_record(method, workers, width, seed)
            for method, workers in cases
            for width in (64, 128, 256, 512)
            for seed in range(3)
        ]
    )


@pytest.fixture(scope="module")
def table(runs):
    return memory.memory_table(runs, load_published())


def test_what_is_held_decides_what_fits(table):
    ours = table[table["evidence"] != "published"]
    held = ours["state_bytes_per_worker"] + ours["server_bytes"]
    assert np.array_equal(ours["held_bytes"], held)
    assert np.array_equal(ours["fits"].astype(bool), held <= synthetic_ist.LIMIT)
    largest = ours[ours["fits"]].groupby(["method", "workers"])["width"].max()
    assert dict(largest) == {("data_parallel", 8): 128, ("ist", 2): 128, ("ist", 8): 512}


def test_precision_is_a_mean_over_seeds_and_absent_where_nothing_fits(table):
    ours = table[table["evidence"] != "published"]
    row = ours[(ours["method"] == "ist") & (ours["workers"] == 8) & (ours["width"] == 512)].iloc[0]
    expected = 0.40 + 0.03 * 3 - 0.01 + 0.002
    assert row["p_at_1"] == pytest.approx(expected) and row["p_at_1_low"] == pytest.approx(expected - 0.002)
    assert (row["n"], row["spread"]) == (3, "range")
    assert ours.loc[~ours["fits"].astype(bool), "p_at_1"].isna().all()
    assert (ours.loc[~ours["fits"].astype(bool), "n"] == 3).all()


def test_the_papers_own_table_stands_beside(table):
    theirs = table[table["evidence"] == "published"].set_index(["method", "width"])
    # its Table 2, printed: data parallelism fits 512 units alone
    assert (
        theirs.loc[("ist", 2560), "p_at_1"] == 0.4384
        and theirs.loc[("data_parallel", 512), "p_at_5"] == 0.3164
    )
    assert theirs.loc["data_parallel"]["fits"].tolist() == [True] + 4 * [False]
    assert theirs.loc["ist"]["fits"].all() and len(theirs) == 10


def test_nothing_published_and_nothing_run(runs):
    assert len(memory.memory_table(runs, None)) == 12
    none = memory.memory_table(synthetic.runs([]), load_published())
    assert not len(none) and list(none.columns) == memory.COLUMNS


def test_the_page_says_what_fails(table):
    shown = ON_PAGE["memory"](table)
    assert set(shown.loc[~table["fits"].astype(bool), "precisions"]) == {"Fail"}
    assert shown.loc[table["fits"].astype(bool), "precisions"].str.count("/").eq(2).all()


def test_a_run_over_memory_is_no_failure(runs):
    lines, code = status.summary_lines(runs)
    assert code == 0 and "over_memory" in lines[0] and len(lines) == 1
    assert not len(tables.failures_table(runs))
    counts = tables.runs_table(runs).set_index(["method", "status"])["runs"]
    assert counts["data_parallel", "over_memory"] == 6


def test_quality_of_ranking_is_precision_at_one(runs):
    table = tables.accuracy_table(runs)
    assert set(table["metric"]) == {"p_at_1"} and table["mean"].notna().all()
    row = table[(table["method"] == "ist") & (table["workers"] == 8)].iloc[0]
    assert (row["p_at_3"], row["p_at_5"]) == pytest.approx((row["mean"] - 0.1, row["mean"] - 0.15))
    # what did not fit has no quality
    assert len(table) == 2 + 2 + 4
