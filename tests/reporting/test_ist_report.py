import re

import pandas as pd
import pyarrow.parquet as pq
import pytest

from implementations.reporting import figures, make_report, make_tables
from implementations.reporting.columns import to_table
from implementations.reporting.html import table_of
from implementations.reporting.pagetables import in_words
from tests.reporting import synthetic, synthetic_ist
from tests.reporting.test_report import Page


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of a report on some of the paper's experiments, the index of its figures, and the page."""
    folder = tmp_path_factory.mktemp("page")
    asked = ("ist/", "ist_width/", "ist_memory/", "ist_ranks/", "ist_faithful/")
    rows = [
        row for row in synthetic_ist.records(2, elsewhere=False) if row["experiments"][0].startswith(asked)
    ]
    synthetic_ist.curves(rows, folder / "results")
    pq.write_table(to_table(rows), folder / "results/runs.parquet")
    runs = synthetic.runs(rows)
    timings = synthetic_ist.timings(runs)
    make_tables(runs, timings, None, folder / "reports/tables", results_dir=folder / "results")
    index = figures.make_figures(runs, timings, None, folder / "results", folder / "reports/figures")
    source = make_report(folder / "results", folder / "reports").read_text(encoding="utf-8")
    return folder, index, source[source.index('id="paper-ist"') : source.index('id="time-model"')], source


def text_of(source):
    return re.sub(r"\s+", " ", re.sub("<svg.*?</svg>", "", source, flags=re.DOTALL))


def test_the_page_is_well_formed(made):
    page = Page(made[3])
    assert len(page.ids) == len(set(page.ids))
    assert all(after - before <= 1 for before, after in zip(page.headings, page.headings[1:], strict=False))
    assert {entry["paper"] for entry in made[1]} == {"ist"}


def test_the_paper_is_told_in_its_own_words(made):
    section = text_of(made[2])
    assert "local SGD" in section and "one worker" in section and ">J<" in section
    cells = re.findall("<td[^>]*>([^<]*)</td>", section)
    assert cells and not {"averaging", "data_parallel", "sequential"} & set(cells)
    assert ">K<" not in section


def test_findings_come_first(made):
    section = text_of(made[2])
    first = section.index("<p>Bytes to the target, data parallel : local SGD : IST")
    assert first < section.index("threshold, the smallest number of units") < section.index("<figure ")
    assert "changes of places" in section[: section.index("<figure ")]


def test_figures_beside_the_main_ones_have_parts_of_their_own(made):
    section = made[2]
    main, elsewhere, time = (
        section.index(mark) for mark in ("<figure ", 'id="elsewhere-ist"', 'id="time-ist"')
    )
    assert main < elsewhere < time
    assert 'id="ist-ist_faithful"' in section[elsewhere:time] and 'id="ist-time_split"' in section[time:]


def test_each_table_is_there_by_its_evidence(made):
    section = text_of(made[2])
    for title in (
        "What the target costs, simulated", "Time to the target by cluster, simulated",
        "Where methods change places, simulated", "How wide a subnet must be, simulated",
        "What fits in memory, simulated", "What fits in memory, published", "Bytes, measured",
    ):  # fmt: skip
        assert title in section, title
    assert "Fail" in section and "never reached" in section and "resident memory, growth (MB)" in section


def test_volume_says_what_a_worker_holds(made):
    volume = pd.read_parquet(made[0] / "reports/tables/volume.parquet")
    row = volume[
        (volume["method"] == "ist") & (volume["workers"] == 4) & (volume["model"] == "fc_bn-1024")
    ].iloc[0]
    assert row["worker_share"] == pytest.approx(1 / 4) and row["server_bytes"] == 4 * row["model_params"]
    assert row["matches_closed_form"] and row["state_bytes_per_worker"] == 8 * row["worker_params"]
    measured = volume[volume["evidence"] == "measured"]
    assert measured["resident_bytes"].notna().all()
    assert volume.loc[volume["evidence"] == "simulated", "resident_bytes"].isna().all()
    alone = volume[volume["method"] == "data_parallel"]
    assert (alone["worker_share"] == 1).all() and alone["server"].isna().all()


def test_two_servers_are_two_rows(made):
    speedup = pd.read_parquet(made[0] / "reports/tables/speedup.parquet")
    own = speedup[
        (speedup["method"] == "ist") & (speedup["evidence"] == "measured") & (speedup["workers"] == 2)
    ]
    same = own[own["base"] == "same code, one worker"]
    assert sorted(same["server"]) == ["central", "partitioned"] and same["speedup"].notna().all()
    split = pd.read_csv(made[0] / "reports/figures/ist/time_split.csv")
    assert {"IST, 2 workers, central server", "IST, 2 workers, partitioned server"} <= set(split["label"])


def test_what_goes_without_saying_is_not_said():
    rows = pd.DataFrame({"method": ["a", "b"], "variant": "default", "passes": 1, "n": [1, 2]})
    assert table_of(rows).headings == ["method", "n"] and table_of(rows).common == ""
    told = rows.assign(variant=["default", "faithful"], passes=3)
    assert table_of(told).headings == ["method", "variant", "n"] and "passes" in table_of(told).common


def test_another_papers_rows_keep_their_names():
    rows = pd.DataFrame({"method": ["averaging"], "sync_period": [10]})
    assert in_words(rows, "averaging").equals(rows)
    own = in_words(rows, "ist")
    assert list(own.columns) == ["method", "local_steps"] and own["method"].iloc[0] == "local SGD"
