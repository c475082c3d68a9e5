"""Emulated hosts in the report: counters against the ledger, and methods against data parallelism."""

from pathlib import Path

import pandas as pd
import pytest

from implementations.reporting.columns import as_runs, to_frame, to_table
from implementations.reporting.figures import suite_hosts
from implementations.reporting.pagetables import ON_PAGE
from implementations.reporting.suite import hosts
from implementations.reporting.suite.context import Context
from tests.reporting import synthetic

NET = "emulated-100mbit"
PUBLISHED = pd.DataFrame({"id": ["ist-speedup-speech2-dp"], "value": [10.6]}).set_index("id")


def run(method, sent, data, speed, repeat=0, resent=0, **values):
    """A run of 1000 samples; ``data`` bytes arrived, in packets of 66 more, and ``resent`` were lost on their way."""
    return synthetic.record(
        **{
            "paper": "suite", "method": method, "workers": 2, "evidence": "measured", "network": NET,
            "experiments": ["emulated/replicas"], "sent_bytes_total": sent, "interface_data_bytes_total": data + resent,
            "interface_arrived_bytes_total": data,
            "interface_sent_bytes_total": data + 6600, "interface_sent_packets_total": 100, "samples": 1000,
            "samples_per_s": speed, "repeat": repeat, "oversubscribed": False, "sync_period": None,
        }
        | values
    )  # fmt: skip


RUNS = [
    *(run("data_parallel", 1_000_000, 1_000_000 + extra, speed, n) for n, (extra, speed) in enumerate(
        [(1000, 90.0), (5000, 100.0), (-3000, 130.0)]
    )),
    run("averaging", 250_000, 256_250, 350.0, resent=25_000, sync_period=4, mixing="allreduce"),
    run("ist", 100_000, 100_500, 400.0, sync_period=4),
    run("spark", 2_000_000, 2_000_000, 50.0, execution="barrier", variant="data"),
    run("spark", 500_000, 500_000, 150.0, execution="barrier", variant="model"),
    run("spark", 500_000, 600_000, 5.0, execution="job_per_exchange", variant="model"),
    run("averaging", 9, 9, 9.0, network="loopback", interface_arrived_bytes_total=None, sync_period=4),
    run("averaging", 9, 9, 9.0, status="skipped", sync_period=9),
]  # fmt: skip


@pytest.fixture
def context():
    none = pd.DataFrame()
    return Context(
        to_frame(to_table(RUNS)), none, none, none, none, PUBLISHED, Path("results"), Path("config"), None
    )


def row(table, method, **values):
    for name, value in {"method": method, **values}.items():
        table = table[table[name] == value]
    (found,) = table.to_dict("records")
    return found


def test_counters_beside_the_ledger(context):
    table = hosts.tables(context)["counters"]
    assert len(table) == 6
    own = row(table, "data_parallel")
    assert own["n"] == 3
    assert own["ledger_bytes"] == 1_000_000 and own["arrived_bytes"] == 1_001_000  # of the median repeat
    assert own["counter_bytes"] == 1_007_600 and own["packets"] == 100
    assert own["difference"] == pytest.approx(0.001) and own["largest"] == pytest.approx(0.005)
    assert own["within"]
    averaging = row(table, "averaging")
    assert averaging["difference"] == pytest.approx(0.025) and not averaging["within"]
    assert averaging["resent"] == pytest.approx(0.1) and own["resent"] == 0


def test_methods_against_data_parallelism_of_the_same_setting(context):
    table = hosts.tables(context)["emulated"]
    averaging = row(table, "averaging")
    assert averaging["mbit_s"] == 100 and averaging["base"] == "data parallelism"
    assert averaging["speed_over_base"] == pytest.approx(3.5)  # over the median of 90, 100 and 130
    assert averaging["bytes_of_base"] == pytest.approx(0.25)
    assert row(table, "data_parallel")["speed_over_base"] == 1
    barrier = row(table, "spark", execution="barrier", variant="model")
    assert barrier["speed_over_base"] == pytest.approx(3) and barrier["bytes_of_base"] == pytest.approx(0.25)
    alone = row(table, "spark", execution="job_per_exchange")
    assert pd.isna(alone["base"]) and pd.isna(alone["speed_over_base"])


def test_a_papers_claim_stands_beside_its_method(context):
    table = hosts.tables(context)["emulated"]
    assert row(table, "ist")["claim"].startswith("10.6 x faster")
    assert pd.isna(row(table, "averaging")["claim"])  # whose number is not among those given


def test_another_rate_is_compared_with_its_own(context):
    slow = [run("data_parallel", 10**6, 10**6, 10.0, network="emulated-10mbit"),
            run("ist", 10**5, 10**5, 70.0, network="emulated-10mbit", sync_period=4)]  # fmt: skip
    table = hosts.emulated_table(to_frame(to_table(RUNS + slow)), PUBLISHED)
    assert row(table, "ist", network="emulated-10mbit")["speed_over_base"] == pytest.approx(7)
    assert row(table, "ist", network=NET)["speed_over_base"] == pytest.approx(4)


def test_what_the_tables_say(context):
    said = hosts.sentences(hosts.tables(context))
    assert "-0.30 to +2.50 %" not in said[0]  # the largest difference of each setting, not each repeat's
    assert (
        "by +0.00 to +2.50 % over 5 settings (methods: averaging, data_parallel, ist, spark); 4 of them stay within 2 %"
        in said[0]
    )
    assert "+20.0" in said[1]
    assert any(
        "100 Mbit/s on 2 hosts model averaging trains 3.50 times" in line and "25.0 % of its bytes" in line
        for line in said
    )


def test_without_hosts_there_is_nothing_to_say():
    none = pd.DataFrame()
    empty = Context(as_runs(None), none, none, none, none, PUBLISHED, Path("results"), Path("config"), None)
    tables = hosts.tables(empty)
    assert [list(table.columns) for table in tables.values()] == list(hosts.COLUMNS.values())
    assert hosts.sentences(tables) == [] and suite_hosts.emulated_figure(empty) is None


def test_the_figure_has_what_was_compared(context):
    drawn = suite_hosts.emulated_figure(context)
    assert sorted(drawn.data["speed_over_base"]) == pytest.approx([3, 3.5, 4])
    assert "model averaging" in drawn.alt and "100 Mbit/s" in drawn.alt


def test_on_the_page(context):
    tables = hosts.tables(context)
    counted = row(ON_PAGE["counters"](tables["counters"]), "model averaging")
    assert counted["difference (%)"] == "+2.50" and counted["resent (%)"] == "10.00"
    gained = row(ON_PAGE["emulated"](tables["emulated"]), "independent subnet training")
    assert gained["speed over it (x)"] == "4.00" and gained["bytes of it (%)"] == "10.0"
    assert (
        row(ON_PAGE["emulated"](tables["emulated"]), "data parallelism")["samples/s"] == "100 (95.0 to 115)"
    )
