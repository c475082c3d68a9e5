"""A tier's file and everything that it names, read, checked and expanded into points."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from implementations.config.batches import make_batches
from implementations.config.catalog import Catalog
from implementations.config.check import drop_wrong_values, parameters_of_no_method, to_point
from implementations.config.documents import UNREADABLE, check, known_names, read, read_checked, schema
from implementations.config.expand import Layer, Sweep, drafts
from implementations.config.problems import Place, Problems, show
from implementations.config.settings import Experiment, Settings
from implementations.point import Point

CONFIG = Path(__file__).parents[2] / "config"
LOCAL_CLUSTER = "this-host"  # calibrated here; its file is a result
_DEFAULTS: dict[str, Any] = {
    "tier": None,  # only when it is wrong: then every sweep is checked
    "experiments": [],
    "master_seed": 0,
    "clusters": [LOCAL_CLUSTER],
    "launcher": {},
    "spark": {},
    "device": "cpu",
    "threads_per_worker": 1,
    "time_limit_s": 600.0,
    "grace_s": 10.0,
    "overrides": {},
}


def load(configfile: str | Path, catalog: Catalog | None = None) -> Settings:
    """The settings of a tier's file, whose experiments/ and clusters/ lie beside it, or else in the suite's config/.

    UserError with every mistake of every file, one a line: ``file: key.path: got X; allowed: Y``.
    """
    configfile = Path(configfile)
    catalog = catalog or Catalog.installed()
    problems = Problems()
    tier = _DEFAULTS | (read_checked(configfile, "tier", problems) or {})
    top = Place(str(configfile))

    experiments: list[Experiment] = []
    points: list[Point] = []
    all_sweeps: dict[str, list[str]] = {}
    for index, name in enumerate(tier["experiments"]):
        place = top.at("experiments", index)
        path = _beside(configfile, f"experiments/{name}.yaml")
        if not path.is_file():
            known = known_names(name, sorted(file.stem for file in path.parent.glob("*.yaml")))
            problems.add(place, show(name), f"a file of {path.parent}: {known}")
            continue
        content = read_checked(path, "experiment", problems) or {}
        all_sweeps[name] = [sweep.get("name", "") for sweep in content.get("sweeps", [])]
        _check_sweep_names(Place(str(path)), all_sweeps[name], problems)
        sweeps = list(_sweeps(name, path, content, tier, top, catalog, problems))
        if not sweeps and not problems.lines:
            what = f"{name}, none of whose sweeps is for tier {tier['tier']}"
            problems.add(place, what, "an experiment with a sweep for this tier")
        for sweep in sweeps:
            points += _points(sweep, tier, catalog, problems)
        texts = (content.get(key, "") for key in ("paper", "title", "mirrors", "note"))
        experiments.append(Experiment(name, *texts, tuple(sweep.name for sweep in sweeps)))
    _check_overrides(tier["overrides"], all_sweeps, top, problems)
    _check_clusters(tier["clusters"], configfile, top, problems)
    problems.raise_if_any()

    merged = _merge(points)
    points = tuple(point for point in merged if point.evidence != "projected")
    return Settings(
        configfile=configfile,
        tier=tier["tier"],
        master_seed=tier["master_seed"],
        launcher={"command": "auto", "args": []} | tier["launcher"],
        spark=tier["spark"],
        device=tier["device"],
        threads_per_worker=tier["threads_per_worker"],
        time_limit_s=float(tier["time_limit_s"]),
        grace_s=float(tier["grace_s"]),
        clusters=tuple(tier["clusters"]),
        experiments=tuple(experiments),
        points=points,
        projected=tuple(point for point in merged if point.evidence == "projected"),
        batches=make_batches(points, catalog.methods),
        expected=tier.get("expected", {}),
    )


def _beside(configfile: Path, name: str) -> Path:
    """A file of the folder that the tier's file lies in, if that has such a folder; else of the suite's config/."""
    beside = configfile.parent / name
    return beside if beside.parent.is_dir() else CONFIG / name


def _sweeps(
    name: str,
    path: Path,
    content: dict[str, Any],
    tier: dict[str, Any],
    top: Place,
    catalog: Catalog,
    problems: Problems,
) -> Iterable[Sweep]:
    """The experiment's sweeps that the tier runs, with the tier's changes; values of the wrong type are left out."""
    file = Place(str(path))
    defaults = drop_wrong_values(
        Layer(file, content.get("defaults", {}), values_key="defaults"), catalog, problems
    )
    for index, entry in enumerate(content.get("sweeps", [])):
        place = file.at("sweeps", index)
        layer = drop_wrong_values(
            Layer(place, entry.get("set", {}), entry.get("grid", {})), catalog, problems
        )
        if tier["tier"] and tier["tier"] not in entry.get("tiers", [tier["tier"]]):
            continue
        layers = [defaults, layer]
        seeds, repeats = entry.get("seeds", 1), entry.get("repeats", 1)
        for title in (name, f"{name}/{entry.get('name')}"):
            if change := tier["overrides"].get(title):
                where = top.at("overrides", title)
                layers.append(
                    drop_wrong_values(
                        Layer(where, change.get("set", {}), change.get("grid", {})), catalog, problems
                    )
                )
                seeds, repeats = change.get("seeds", seeds), change.get("repeats", repeats)
        numbers = list(range(seeds)) if isinstance(seeds, int) else seeds
        yield Sweep(
            experiment=name,
            name=entry.get("name", ""),
            paper=content.get("paper", ""),
            evidence=entry.get("evidence", "simulated"),
            place=place,
            layers=layers,
            seeds=[tier["master_seed"] + number for number in numbers],
            repeats=repeats,
        )


def _points(sweep: Sweep, tier: dict[str, Any], catalog: Catalog, problems: Problems) -> list[Point]:
    expanded = list(drafts(sweep, problems))
    parameters_of_no_method(expanded, catalog, problems)
    return [point for draft in expanded if (point := to_point(draft, tier, catalog, problems))]


def _merge(points: Iterable[Point]) -> tuple[Point, ...]:
    """Each point once, in the order of its first mention, with the names of all sweeps that ask for it."""
    merged: dict[str, Point] = {}
    for point in points:
        seen = merged.get(point.run_id)
        names = point.experiments if seen is None else (*seen.experiments, *point.experiments)
        merged[point.run_id] = dataclasses.replace(seen or point, experiments=tuple(dict.fromkeys(names)))
    return tuple(merged.values())


def _check_sweep_names(file: Place, names: list[str], problems: Problems) -> None:
    for index, name in enumerate(names):
        if name and name in names[:index]:
            problems.add(file.at("sweeps", index, "name"), f"{show(name)} again", "each name once")


def _check_overrides(
    overrides: dict[str, Any], all_sweeps: dict[str, list[str]], top: Place, problems: Problems
) -> None:
    titles = [
        title for name, sweeps in all_sweeps.items() for title in (name, *(f"{name}/{one}" for one in sweeps))
    ]
    for title in overrides:
        if title not in titles and all_sweeps.get(title.split("/")[0]) != []:
            problems.add(
                top.at("overrides", title),
                show(title),
                f"an experiment or sweep: {known_names(title, titles)}",
            )


def _check_clusters(names: list[str], configfile: Path, top: Place, problems: Problems) -> None:
    """The files of the clusters named. One that is `like` another gives only what differs, so may lack any key."""
    folder = _beside(configfile, "clusters/x.yaml").parent
    known = [LOCAL_CLUSTER, *sorted(file.stem for file in folder.glob("*.yaml"))]
    for index, name in enumerate(names):
        if name not in known:
            problems.add(
                top.at("clusters", index), show(name), f"a file of {folder}: {known_names(name, known)}"
            )
        elif name != LOCAL_CLUSTER:
            path = folder / f"{name}.yaml"
            content = read(path, problems)
            like = content.get("like") if isinstance(content, dict) else None
            own_name = content.get("name", name) if isinstance(content, dict) else name
            if (
                own_name != name
            ):  # tables and projected points find a cluster by the name that it gives itself
                problems.add(Place(str(path)).at("name"), show(own_name), f"{name}, as the file is called")
            if content is not UNREADABLE:
                rules = schema("cluster") if like is None else _nothing_required(schema("cluster"))
                check(content, rules, Place(str(path)), problems)
            if like is not None and like not in known:
                problems.add(
                    Place(str(path)).at("like"), show(like), f"a cluster: {known_names(str(like), known)}"
                )


def _nothing_required(rules: Any) -> Any:
    """A schema without the keys that must be there."""
    if isinstance(rules, list):
        return [_nothing_required(one) for one in rules]
    if not isinstance(rules, dict):
        return rules
    kept = {key: _nothing_required(value) for key, value in rules.items() if key != "required"}
    return {key: value for key, value in kept.items() if not (key == "anyOf" and value == [{}] * len(value))}
