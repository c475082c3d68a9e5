"""Many workers in the report: what simulating cost this host, and projected speedups, each in columns of its own."""

from pathlib import Path

import pandas as pd
import pytest

from implementations.reporting.columns import as_runs, to_frame, to_table
from implementations.reporting.figures import suite_scale
from implementations.reporting.suite import scale
from implementations.reporting.suite.context import Context
from tests.reporting import synthetic


def run(method, workers, simulation_s, grown, predicted, **values):
    """A simulated run of 20 steps."""
    return synthetic.record(
        **{
            "paper": "suite", "method": method, "workers": workers, "evidence": "simulated", "model": "fc-32-32",
            "experiments": ["scale/cost"], "steps": 20, "simulation_s": simulation_s, "simulation_bytes": grown,
            "simulation_bytes_predicted": predicted, "scaling": "weak", "sync_period": 4, "algorithm": "library",
            "mixing": None, "server": None, "variant": "default", "minibatch": 8, "train_s": None, "wall_s": None,
        }
        | values
    )  # fmt: skip


RUNS = [
    run("averaging", 1, 0.02, 20_000_000, 10_000_000, mixing="allreduce"),
    run("averaging", 1, 0.04, 24_000_000, 10_000_000, mixing="allreduce", seed=1),
    run("averaging", 1, 0.06, 22_000_000, 10_000_000, mixing="allreduce", seed=2),
    run("averaging", 1024, 2.048, 300_000_000, 250_000_000, mixing="allreduce"),
    run("data_parallel", 1024, 4.0, None, None, sync_period=None),
    run("averaging", 8, 9.0, 1, 1, experiments=["speedup/simulated"]),
    run("averaging", 8, None, None, None, evidence="measured", experiments=["scale/cost"]),
    run("averaging", 2048, None, None, 10**12, status="over_memory"),
]


def timing(method, workers, speedup, **values):
    return {
        "paper": "suite", "method": method, "variant": "default", "mixing": None, "algorithm": "auto", "server": None,
        "model": "fc-2048-2048-2048", "minibatch": 1024, "sync_period": None, "workers": workers, "steps": 100,
        "cluster": "stampede-k20", "nodes": workers, "step_s": 0.1, "speedup_same_code": speedup, "scaling": "weak",
        "collective": None if workers == 1 else "butterfly", "oversubscribed": False, "evidence": "projected",
    } | values  # fmt: skip


TIMINGS = [
    timing("data_parallel", 1, 1.0),
    timing("data_parallel", 65536, 32768.0),
    timing("ist", 4096, 45000.0, server="partitioned", collective=None),
    timing("data_parallel", 4, 3.9, scaling="strong"),  # of another part of the report
    timing("data_parallel", 4, 3.9, paper="ist"),
    timing("data_parallel", 4, 3.9, evidence="simulated"),
]


def context_of(runs, timings):
    none = pd.DataFrame()
    return Context(runs, timings, none, none, none, none, Path("results"), Path("config"), None)


@pytest.fixture
def context():
    return context_of(to_frame(to_table(RUNS)), pd.DataFrame(TIMINGS))


@pytest.fixture
def empty():
    return context_of(as_runs(None), pd.DataFrame())


def test_costs_are_medians_per_step_and_worker(context):
    table = scale.tables(context)["scale"]
    assert list(table.columns) == scale.COLUMNS
    simulated = table[table["evidence"] == "simulated"]
    found = {(row["method"], row["workers"]): row for row in simulated.to_dict("records")}
    assert set(found) == {("averaging", 1), ("averaging", 1024), ("data_parallel", 1024)}
    one, many = found["averaging", 1], found["averaging", 1024]
    assert (one["n"], one["simulation_step_s"], one["simulation_bytes"]) == (3, pytest.approx(0.002), 22e6)
    assert many["simulation_step_s"] == pytest.approx(0.1024)
    assert many["simulation_worker_step_s"] == pytest.approx(1e-4)
    assert many["simulation_bytes_ratio"] == pytest.approx(1.2)
    assert pd.isna(found["data_parallel", 1024]["simulation_bytes_ratio"])


def test_no_column_has_both_kinds_of_seconds(context):
    table = scale.tables(context)["scale"]
    for kind, absent in (("simulated", ["step_s", "speedup", "efficiency"]), ("projected", scale._COST)):
        assert table.loc[table["evidence"] == kind, absent].isna().all(axis=None)


def test_projected_rows_are_those_of_weak_scaling_here(context):
    table = scale.projected_table(context)
    assert table["workers"].tolist() == [1, 65536, 4096]
    assert table["efficiency"].tolist()[:2] == [1.0, 0.5]
    assert pd.isna(table["efficiency"].iloc[2])  # a subnet shrinks, so that nothing is a share of an ideal


def test_sentences_say_what_the_table_does(context):
    first, last = scale.sentences(scale.tables(context))
    assert (
        "Simulating 1,024 workers of averaging (fc-32-32) takes this host 102 ms a step, 100 \N{MICRO SIGN}s"
        in first
    )
    assert "against 2,000 with 1; its memory grew by 300 MB, 250 MB were predicted" in first
    assert "65,536 workers with as many samples each have, on stampede-k20" in last
    assert "32,768 times by data parallel (50 % efficient, all-reduces by recursive doubling)" in last


def test_figures_draw_what_there_is(context):
    cost, speedup = suite_scale.cost_figure(context), suite_scale.speedup_figure(context)
    assert (cost.paper, cost.section, speedup.section) == ("suite", "scale", "scale")
    assert "1,024 workers: 102 ms a step" in cost.alt and "Evidence: simulated" in cost.caption
    assert "65,536 workers: 32,800 x" in speedup.alt and "Evidence: projected" in speedup.caption
    assert not {"step_s", "speedup"} & set(cost.data) and "simulation_step_s" not in speedup.data


def test_nothing_is_said_of_nothing(empty):
    tables = scale.tables(empty)
    assert list(tables["scale"].columns) == scale.COLUMNS and not len(tables["scale"])
    assert scale.sentences(tables) == []
    assert suite_scale.cost_figure(empty) is None and suite_scale.speedup_figure(empty) is None
