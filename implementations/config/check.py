"""Drafts to points: each value against its schema, then against what the method, model and data set allow."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from implementations import models, recipe
from implementations.cluster.hosts.plan import is_emulated, rate_of
from implementations.config.catalog import Catalog
from implementations.config.documents import allowed, check, known_names, schema
from implementations.config.expand import Draft, Layer
from implementations.config.problems import Place, Problems, listing, show
from implementations.errors import UserError
from implementations.point import Point
from implementations.registry import Method, Param

_NEEDED = ("method", "dataset", "model", "workers")
_FLOATS = ("lr", "skew", "target_value", "time_limit_s", "checkpoint_s")


def split_model(model: str | dict[str, Any]) -> dict[str, Any]:
    """``fc-512-512`` as ``{"name": "fc", "hidden": [512, 512]}``; a mapping as it is."""
    if isinstance(model, dict):
        return model
    name, *sizes = model.split("-")
    return {"name": name, "hidden": [int(size) for size in sizes]} if sizes else {"name": name}


def drop_wrong_values(layer: Layer, catalog: Catalog, problems: Problems) -> Layer:
    """The layer without the values that their schema refuses, which are reported.

    Keys that no schema knows are kept if some method has such a parameter; which method it is shows later.
    """
    refused: set[str] = set()

    def fits(place: Place, key: str, value: Any) -> bool:
        good = is_good(place, key, value)
        if not good:
            refused.add(key)
        return good

    def is_good(place: Place, key: str, value: Any) -> bool:
        rules = schema("point")["properties"]
        if key in rules:
            return check(value, rules[key], place, problems)
        parameters = dict.fromkeys(name for method in catalog.methods.values() for name in method.params)
        if key in parameters or key in recipe.ALL_PARAMS:
            return True
        problems.add(
            place, "an unknown key", known_names(str(key), [*rules, *parameters, *recipe.ALL_PARAMS])
        )
        return False

    values_place, grid_place = layer.values_place, layer.place.at("grid")
    grid: dict[str, Any] = {}
    for key, items in layer.grid.items():
        if key == "cases":
            grid[key] = [
                {name: v for name, v in case.items() if fits(grid_place.at(key, index, name), name, v)}
                for index, case in enumerate(items)
            ]
        elif key not in schema("point")["properties"] and not fits(grid_place.at(key), key, items[0]):
            continue
        else:
            kept = [value for index, value in enumerate(items) if fits(grid_place.at(key, index), key, value)]
            if kept:
                grid[key] = kept
    values = {key: value for key, value in layer.values.items() if fits(values_place.at(key), key, value)}
    return Layer(layer.place, values, grid, layer.values_key, frozenset(refused))


def parameters_of_no_method(sweep_drafts: Iterable[Draft], catalog: Catalog, problems: Problems) -> None:
    """Report parameters that no method and recipe of the sweep has. The experiment's defaults may serve others."""
    sweep_drafts = list(sweep_drafts)
    methods = dict.fromkeys(draft.values["method"] for draft in sweep_drafts if "method" in draft.values)
    known = [catalog.methods[name] for name in methods if name in catalog.methods]
    if len(known) < len(methods) or not known:
        return  # the unknown method is reported, and might have had the parameter
    of_recipes = {name for draft in sweep_drafts for name in recipe.parameters(draft.values)}
    parameters = list(dict.fromkeys(name for method in known for name in method.params))
    for draft in sweep_drafts:
        for key, place in draft.places.items():
            shared = place.path[:1] == ("defaults",)
            if shared or key in schema("point")["properties"] or key in parameters or key in of_recipes:
                continue
            if key in recipe.ALL_PARAMS:
                words = f"not a parameter of {recipe.chosen(draft.values)}"
                problems.add(place, words, listing(sorted(of_recipes)))
            else:
                names = listing([method.name for method in known])
                problems.add(place, f"a parameter that {names} does not have", listing(parameters))


def to_point(draft: Draft, tier: dict[str, Any], catalog: Catalog, problems: Problems) -> Point | None:
    """The draft as a point, or None after reporting why not.

    ``tier`` gives device, threads, time limit, and the clusters that a projected point may name.
    """
    rules = schema("point")["properties"]
    missing = [key for key in _NEEDED if key not in draft.values]
    for key in missing:
        if key not in draft.sweep.refused:
            wanted = f"{allowed(rules[key], rules)} (in set, grid or defaults)"
            problems.add(draft.sweep.place.at(key), "nothing", wanted)
    named = [
        _check_name(draft, "method", catalog.methods, "a registered method", problems),
        _check_name(draft, "dataset", catalog.datasets, "a folder of datasets/ with a card.yaml", problems),
        _check_licence(draft, catalog, problems),
    ]
    values = dict(draft.values)
    _put_stand_in(values, catalog)
    if "model" in values:
        values["model"] = split_model(values["model"])
        fits = _check_model(values["model"], draft.place("model"), catalog, problems)
        named.append(fits)
        if fits and values["model"]["name"] in models.BUILDERS:
            values["model"] = models.without_defaults(values["model"])
    if missing or not all(named):
        return None

    method = catalog.methods[values["method"]]
    params = {key: values.pop(key) for key in list(values) if key not in rules}
    of_recipe = _known(params, recipe.parameters(values))
    params = _known(params, method.params)
    for key in _FLOATS:
        if values.get(key) is not None:
            values[key] = float(values[key])
    values = {
        **_places(draft, method, tier["device"]),
        "threads_per_worker": tier["threads_per_worker"],
        "time_limit_s": float(tier["time_limit_s"]),
        "variant": method.variants[0],
        "processes": values["workers"] if draft.sweep.evidence == "measured" else 1,
        **values,
    }
    point = Point(
        paper=draft.sweep.paper,
        evidence=draft.sweep.evidence,
        seed=draft.seed,
        repeat=draft.repeat,
        experiments=(draft.sweep.title,),
        method_params=params,
        recipe=of_recipe,
        **values,
    )
    filled = {
        key: value for key, value in method.settings(point).items() if key in params or value is not None
    }
    # a default written out is the same point
    point = dataclasses.replace(point, method_params=filled, recipe=recipe.settings(point))
    of_model = models.check(point.model) if point.model["name"] in models.BUILDERS else []
    complaints = method.check(point) + recipe.check(point) + of_model
    for line in complaints:
        _relay(line, draft, problems)
    _check_inputs(point, draft, catalog, problems)
    _check_dropout(point, draft, problems)
    _check_sharding(point, draft, catalog, problems)
    _check_sizes(point, draft, catalog, problems)
    _check_network(point, draft, tier.get("clusters", ()), problems)
    _check_places(point, draft, method, problems)
    _check_nodes(point, draft, method, problems)
    return None if complaints else point


def _put_stand_in(values: dict[str, Any], catalog: Catalog) -> None:
    """Another data set in place of one that cannot be had; all of it where more samples are asked for than it has."""
    stand_in = catalog.stand_ins.get(values.get("dataset", ""))
    if stand_in:
        values["dataset"] = stand_in
        available = catalog.datasets[stand_in]
        if available and (values.get("data_size") or 0) > available:
            values["data_size"] = None


def _check_name(draft: Draft, key: str, known: Mapping[str, Any], what: str, problems: Problems) -> bool:
    name = draft.values.get(key)
    if name is None or name in known:
        return True
    problems.add(draft.place(key), show(name), f"{what}: {known_names(str(name), sorted(known))}")
    return False


def _check_licence(draft: Draft, catalog: Catalog, problems: Problems) -> bool:
    """Training needs data that can be had; a projection only its sizes."""
    name, evidence = draft.values.get("dataset"), draft.sweep.evidence
    if evidence == "projected" or name not in catalog.licensed:
        return True
    wanted = f"for evidence {evidence}, a data set that is there ({name} is licensed: its card says how to prepare it)"
    problems.add(draft.place("dataset"), name, wanted)
    return False


def _check_nodes(point: Point, draft: Draft, method: Method, problems: Problems) -> None:
    """A cluster may have other nodes than its file says where it is the time model of traces that is asked."""
    by_trace = not method.own_cost_model and method.runs_on != "spark"
    if point.nodes is not None and not (point.evidence == "projected" and by_trace):
        problems.add(draft.place("nodes"), point.nodes, "a projected point whose time a trace tells, or null")


def _check_network(point: Point, draft: Draft, clusters: Sequence[str], problems: Problems) -> None:
    """A projected point is placed on the cluster that its network names, and on no other."""
    if point.evidence == "projected" and point.network not in clusters:
        wanted = f"one of the tier's clusters: {known_names(point.network, list(clusters))}"
        where = draft.places.get("network", draft.sweep.place.at("network"))
        problems.add(where, point.network, wanted)
    if point.evidence == "measured" and is_emulated(point.network):
        try:
            rate_of(point.network)
        except UserError as error:
            problems.say(draft.place("network"), str(error))
        cluster = point.method_params.get("cluster", "standalone")
        if cluster != "standalone":
            got = f"{cluster} with network {point.network}"
            problems.add(draft.place("cluster"), got, "standalone, whose processes can be on emulated hosts")


def _places(draft: Draft, method: Method, device: str) -> dict[str, str]:
    """Device and transport of a point that names none: ranks compute on the tier's, and GPUs are joined by torch."""
    ranks = draft.sweep.evidence == "measured" and method.runs_on == "mpi"
    device = draft.values.get("device", device if ranks else "cpu")
    return {"device": device, "transport": "torch" if device == "cuda" else "mpi"}


def _check_places(point: Point, draft: Draft, method: Method, problems: Problems) -> None:
    """Only ranks may compute on GPUs, or be joined by torch; MPI moves CPU memory here."""
    whose = f"evidence {point.evidence}" if point.evidence != "measured" else f"method {point.method}"
    for key, usual in (("device", "cpu"), ("transport", "mpi")):
        value = getattr(point, key)
        if value != usual and key in draft.places and not method.has_ranks(point):
            wanted = f"{usual} with {whose} (others are for ranks that a launcher starts)"
            problems.add(draft.place(key), value, wanted)
    if (point.device, point.transport) == ("cuda", "mpi"):
        problems.add(
            draft.place("transport"), "mpi with device cuda", "torch with device cuda, or leave it out"
        )


def _check_model(model: dict[str, Any], place: Place, catalog: Catalog, problems: Problems) -> bool:
    if model["name"] in catalog.models:
        return check(model, catalog.models[model["name"]], place, problems)
    problems.add(place, show(model["name"]), f"a model: {known_names(model['name'], sorted(catalog.models))}")
    return False


def _known(values: Mapping[str, Any], params: Mapping[str, Param]) -> dict[str, Any]:
    """The values of these parameters; what belongs to another method or recipe is left out."""
    return {key: _as_type(value, params[key].type) for key, value in values.items() if key in params}


def _as_type(value: Any, kind: type) -> Any:
    """An int given for a float as a float, so that 1 and 1.0 are one point."""
    return float(value) if kind is float and type(value) is int else value


def _relay(line: str, draft: Draft, problems: Problems) -> None:
    """A complaint of a method, ``key: got X; allowed: Y``, at the place where its key was written."""
    match = re.match(r"(\w+): (.*)", line, re.DOTALL)
    if match and match[1] in draft.places:
        problems.say(draft.places[match[1]], match[2])
    else:
        problems.say(draft.sweep.place, line)


def _check_inputs(point: Point, draft: Draft, catalog: Catalog, problems: Problems) -> None:
    """Sparse samples take another first layer than dense ones."""
    sparse = point.dataset in catalog.sparse
    if (point.model["name"] in catalog.sparse_models) == sparse:
        return
    fitting = sorted(name for name in catalog.models if (name in catalog.sparse_models) == sparse)
    kind = "sparse" if sparse else "dense"
    wanted = f"a model for the {kind} samples of {point.dataset}: {listing(fitting)}"
    problems.add(draft.place("model"), point.model["name"], wanted)


def _check_dropout(point: Point, draft: Draft, problems: Problems) -> None:
    """Dropout is there to be compared with: on one worker, which nothing else regularises.

    A layer-wise strategy draws the masks of one device.
    """
    dropout = point.model.get("dropout", 0)
    if dropout > 0 and point.method != "layerwise" and (point.method != "sequential" or point.workers > 1):
        workers = "1 worker" if point.workers == 1 else f"{point.workers} workers"
        got = f"dropout {dropout} with method {point.method} on {workers}"
        problems.add(draft.place("model"), got, "dropout 0, or method sequential on one worker")


def _check_sharding(point: Point, draft: Draft, catalog: Catalog, problems: Problems) -> None:
    """Whether the data set has what the shards are made by."""
    if point.sharding == "balanced" and point.dataset not in catalog.speech:
        wanted = f"static, reshuffled or independent, as {point.dataset} has no utterances to deal out"
        problems.add(draft.place("sharding"), point.sharding, wanted)
    if draft.sweep.refused & {"sharding", "skew"}:
        return
    if point.sharding == "skewed" and point.skew is None:
        problems.add(draft.place("sharding"), "skewed without skew", "skewed with skew, a number > 0")
    if point.sharding != "skewed" and point.skew is not None:
        got = f"{point.skew} with sharding {point.sharding}"
        problems.add(draft.place("skew"), got, "null, or sharding skewed")


def _check_sizes(point: Point, draft: Draft, catalog: Catalog, problems: Problems) -> None:
    """Workers, processes and samples must fit together."""
    if point.evidence == "measured" and point.processes != point.workers:
        wanted = f"{point.workers} (measured: one process per worker; leave it out)"
        problems.add(draft.place("processes"), str(point.processes), wanted)
    if point.processes > point.workers:
        problems.add(draft.place("processes"), str(point.processes), f"at most {point.workers}, the workers")
    available = catalog.datasets[point.dataset]
    wanted_size = point.data_size if point.data_size is not None else available
    if wanted_size is None or draft.sweep.refused & {"workers", "minibatch", "data_size", "scaling"}:
        return
    in_all = (
        wanted_size * point.workers
        if point.scaling == "weak" and point.data_size is not None
        else wanted_size
    )
    if available is not None and in_all > available:
        what = (
            f"{in_all} samples"
            if in_all == point.data_size
            else f"{point.workers} x {point.data_size} samples"
        )
        problems.add(
            draft.place("data_size"), what, f"at most {available}, the training samples of {point.dataset}"
        )
    per_worker = in_all // point.workers
    if point.minibatch > per_worker:
        got = f"{point.minibatch} samples a step with {point.workers} workers on {in_all} samples"
        problems.add(draft.place("minibatch"), got, f"at most {per_worker}, the samples of one worker")
