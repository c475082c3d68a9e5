"""The page's part on layer-wise parallelism."""

import re

import pyarrow.parquet as pq
import pytest

from implementations.reporting import figures, make_report, make_tables
from implementations.reporting.columns import to_table
from tests.reporting import synthetic
from tests.reporting import synthetic_layerwise as made_up
from tests.reporting.test_report import Page


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    rows = made_up.records()
    made_up.curves(rows, folder / "results")
    pq.write_table(to_table(rows), folder / "results/runs.parquet")
    planned = {}
    for name, frame in (("plans", made_up.plans()), ("search", made_up.searches())):
        frame.to_parquet(folder / f"results/{name}.parquet")
        planned["plans" if name == "plans" else "searches"] = folder / f"results/{name}.parquet"
    runs = synthetic.runs(rows)
    make_tables(runs, None, None, folder / "reports/tables", results_dir=folder / "results", **planned)
    figures.make_figures(runs, None, None, folder / "results", folder / "reports/figures", **planned)
    return make_report(folder / "results", folder / "reports").read_text(encoding="utf-8")


def text_of(source):
    section = source[source.index('id="paper-layerwise"') : source.index('id="time-model"')]
    return re.sub(r"\s+", " ", re.sub("<svg.*?</svg>", "", section, flags=re.DOTALL))


def test_the_page_is_well_formed(page):
    parsed = Page(page)
    assert len(parsed.ids) == len(set(parsed.ids))
    assert all(
        after - before <= 1 for before, after in zip(parsed.headings, parsed.headings[1:], strict=False)
    )


def test_findings_come_first(page):
    section = text_of(page)
    first = section.index("<p>Projected on 16 devices of p100-nvlink")
    assert first < section.index("<p>Search: eliminations leave 2 nodes") < section.index("<figure ")


def test_each_table_is_there_by_its_evidence(page):
    section = text_of(page)
    for title in (
        "Strategies: throughput, bytes and memory, projected", "Search for the best plan, measured",
        "The plan that was found, layer by layer, projected", "Step time, predicted and measured, measured",
        "Best number of devices for one layer, projected", "Best number of devices for one layer, fitted",
        "The same training under every strategy, simulated", "Bytes, simulated",
    ):  # fmt: skip
        assert title in section, title
    assert "h=2 w=2" in section and "images/s, published" in section


def test_real_ranks_have_a_part_of_their_own(page):
    section = page[page.index('id="time-layerwise"') : page.index('id="time-model"')]
    assert 'id="layerwise-time_split"' in section
