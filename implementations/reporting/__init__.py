"""From results to tables, figures and one report page. Reads records, tables and config; imports no method.

The steps, each called by one verb of ``python -m implementations``:

* ``collect.collect``: records -> ``results/runs.parquet``, test utterances -> ``results/utterances.parquet``
* ``verdicts.make_claims``: claims over runs and timings -> ``reports/tables/claims.csv``
* ``tables.make_tables``: speedup, quality, word errors, volume, cost of a target, validation, ... -> ``reports/tables``
* ``figures.make_figures``: SVG, PNG and CSV of each figure -> ``reports/figures``
* ``report.make_report``: ``reports/report.html``
* ``status.summarise``: the last lines of a run, and its exit code

All but ``collect`` are attributes of this package too, imported when first asked for: drawing takes time to load.
"""

from importlib import import_module
from typing import Any

_STEPS = {
    "make_claims": "verdicts",
    "make_tables": "tables",
    "make_figures": "figures",
    "make_headline": "figures",
    "make_report": "report",
    "summarise": "status",
}


def __getattr__(name: str) -> Any:
    if name in _STEPS:
        return getattr(import_module(f"{__name__}.{_STEPS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
