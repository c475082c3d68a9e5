"""One whole report over made-up results, made once for all tests."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from implementations.reporting import figures, make_claims, make_report, make_tables
from implementations.reporting.columns import to_table
from tests.reporting import synthetic

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Made:
    """The folder with results and reports, the index of the figures and the page."""

    folder: Path
    index: list
    source: str


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    speech = synthetic.speech_records()
    records = synthetic.records() + speech + synthetic.broken(folder / "results/logs")
    runs, utterances = synthetic.runs(records), synthetic.utterances(speech)
    timings, validation = synthetic.timings(runs), synthetic.validation()
    synthetic.curves(runs, folder / "results")
    pq.write_table(to_table(records), folder / "results/runs.parquet")
    make_claims(runs, timings, folder / "reports/tables/claims.csv", ROOT / "config", utterances)
    make_tables(runs, timings, validation, folder / "reports/tables", utterances=utterances)
    index = figures.make_figures(
        runs,
        timings,
        validation,
        folder / "results",
        folder / "reports/figures",
        published=synthetic.published(),
        utterances=utterances,
    )
    path = make_report(folder / "results", folder / "reports", ROOT / "config/config.yaml")
    return Made(folder, index, path.read_text(encoding="utf-8"))
