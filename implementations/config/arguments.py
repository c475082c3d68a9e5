"""One point from the command line, checked as those of config files are."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from implementations.config.catalog import Catalog, notices
from implementations.config.check import drop_wrong_values, parameters_of_no_method, to_point
from implementations.config.documents import check
from implementations.config.expand import Layer, Sweep, drafts
from implementations.config.problems import Place, Problems
from implementations.config.settings import Settings
from implementations.point import Point

_OWN = {
    "paper": {"type": "string"},
    "evidence": {"enum": ["measured", "simulated"]},
    "seed": {"type": "integer", "minimum": 0},
    "repeat": {"type": "integer", "minimum": 0},
}


def point_from_arguments(
    settings: Settings, values: Mapping[str, Any], catalog: Catalog | None = None
) -> Point:
    """The point with these values: keys of a sweep, and ``evidence``, ``seed``, ``repeat`` and ``paper``.

    What is not given comes from the tier; evidence is measured. A seed is the point's own, as its record has it, to
    which no master seed is added. UserError with every mistake.
    """
    catalog = catalog or Catalog.installed()
    problems = Problems()
    place = Place("arguments")
    # a method is called as its paper is; the baselines go with the one that they were there for first
    paper = values["method"] if values.get("method") in ("spark", "ist", "layerwise") else "averaging"
    own = {"paper": paper, "evidence": "measured", "seed": settings.master_seed, "repeat": 0}
    own |= {key: value for key, value in values.items() if key in _OWN}
    for key, rules in _OWN.items():
        check(own[key], rules, place.at(key), problems)
    problems.raise_if_any()
    rest = {key: value for key, value in values.items() if key not in _OWN}
    for line in notices(
        {name: catalog.stand_ins[name] for name in catalog.stand_ins if name == rest.get("dataset")}
    ):
        print(line, file=sys.stderr)
    layer = drop_wrong_values(Layer(place, rest, values_key=""), catalog, problems)
    sweep = Sweep("arguments", "one", own["paper"], own["evidence"], place, [layer], [own["seed"]], 1)
    (draft,) = drafts(sweep, problems)
    draft.repeat = own["repeat"]
    parameters_of_no_method([draft], catalog, problems)
    tier = {
        "device": settings.device,
        "threads_per_worker": settings.threads_per_worker,
        "time_limit_s": settings.time_limit_s,
    }
    point = to_point(draft, tier, catalog, problems)
    problems.raise_if_any()
    assert point is not None  # or there was a problem
    return Point.from_json(point.to_json() | {"experiments": []})
