"""The page's part on training on Spark."""

import pyarrow.parquet as pq
import pytest

from implementations.reporting import figures, make_report, make_tables
from implementations.reporting.columns import to_table
from tests.reporting import synthetic
from tests.reporting import synthetic_spark as made_up
from tests.reporting.test_report import Page


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    rows = made_up.records()
    runs = synthetic.runs(rows)
    made_up.curves(runs, folder / "results")
    pq.write_table(to_table(rows), folder / "results/runs.parquet")
    timings, projections = made_up.timings(runs), folder / "results/spark.parquet"
    made_up.projections().to_parquet(projections)
    make_tables(
        runs, timings, None, folder / "reports/tables", results_dir=folder / "results", exactness=made_up.exactness(),
        projections=projections,
    )  # fmt: skip
    figures.make_figures(
        runs, timings, None, folder / "results", folder / "reports/figures", published=made_up.published(),
        projections=projections,
    )  # fmt: skip
    return make_report(folder / "results", folder / "reports").read_text(encoding="utf-8")


def test_the_page_is_well_formed(page):
    parsed = Page(page)
    assert len(parsed.ids) == len(set(parsed.ids))


def test_the_paper_has_its_part(page):
    section = page[page.index('id="paper-spark"') : page.index('id="time-model"')]
    for name in ("workers", "data_size", "model_size", "map", "split", "accuracy", "training", "late"):
        assert f'id="spark-spark_{name}"' in section
    first = section.index("<p>Exactness: after 20 steps")
    assert first < section.index("<p>Measured speedups on 2 workers") < section.index("<figure ")
    for title in (
        "Cut networks against one device, simulated", "Speedup on Spark, measured", "Speedup on Spark, simulated",
        "Speedup on Spark, projected", "A job an exchange against a barrier stage, measured",
        "Memory by size of network, projected", "Late updates, simulated", "Quality, simulated", "Bytes, measured",
    ):  # fmt: skip
        assert title in section, title


def test_generic_speedups_leave_the_paper_to_its_own(page):
    section = page[page.index('id="paper-spark"') :]
    assert "Speedup, measured" not in section and "Where the time went, measured" not in section
