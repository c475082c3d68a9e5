import copy
import dataclasses

import pytest

from implementations.config import Settings, counts, describe, select
from implementations.errors import UserError
from implementations.point import Point
from tests.config.stubs import BASE_EXPERIMENT, BASE_TIER, load_stub, write


def experiment(**sweep):
    """The base experiment with changes of its only sweep."""
    content = copy.deepcopy(BASE_EXPERIMENT)
    content["sweeps"][0] |= sweep
    return content


def test_defaults_of_a_bare_tier(tmp_path):
    settings = load_stub(write(tmp_path))
    assert isinstance(settings, Settings)
    assert (settings.tier, settings.master_seed, settings.device) == ("default", 0, "cpu")
    assert settings.launcher == {"command": "auto", "args": []}
    assert settings.clusters == ("this-host",)
    assert settings.threads_per_worker == 1
    assert settings.experiments[0].name == "one"


def test_a_point_carries_every_value(tmp_path):
    point = load_stub(write(tmp_path)).points[0]
    assert point == Point(
        paper="averaging",
        method="averaging",
        dataset="fashion_mnist",
        model={"name": "fc", "hidden": [64, 64]},
        workers=1,
        evidence="simulated",
        seed=0,
        method_params={"sync_period": 5, "algorithm": "library", "lr_scaling": "none"},
        minibatch=16,
        lr=0.05,
        recipe={"reduction": "mean", "momentum": 0.0},
        experiments=("one/grid",),
    )


def test_order_is_that_of_the_file_seeds_last(tmp_path):
    points = load_stub(write(tmp_path)).points
    assert [(p.workers, p.method_params["sync_period"], p.seed) for p in points] == [
        (workers, period, seed) for workers in (1, 4) for period in (5, 10) for seed in (0, 1)
    ]


def test_measured_points_have_one_process_per_worker_and_simulated_ones_one(tmp_path):
    measured = experiment(evidence="measured", repeats=3)
    settings = load_stub(write(tmp_path, one=BASE_EXPERIMENT, two=measured))
    assert {(p.evidence, p.workers, p.processes) for p in settings.points} == {
        ("simulated", 1, 1),
        ("simulated", 4, 1),
        ("measured", 1, 1),
        ("measured", 4, 4),
    }
    assert {p.repeat for p in settings.points if p.evidence == "measured"} == {0, 1, 2}


def test_the_master_seed_is_added_to_the_seeds(tmp_path):
    path = write(tmp_path, BASE_TIER | {"master_seed": 40}, one=experiment(seeds=[1, 7]))
    assert {p.seed for p in load_stub(path).points} == {41, 47}


def test_a_grid_over_methods_gives_each_only_its_own_parameters(tmp_path):
    grid = {"method": ["data_parallel", "averaging"], "sync_period": [5, 10]}
    points = load_stub(write(tmp_path, one=experiment(set={"workers": 2}, grid=grid, seeds=1))).points
    assert [(p.method, p.method_params.get("sync_period")) for p in points] == [
        ("data_parallel", None),
        ("averaging", 5),
        ("averaging", 10),
    ]


def test_cases_vary_keys_together(tmp_path):
    cases = [{"model": "fc-8", "lr": 0.1}, {"model": "fc-16", "lr": 0.2}]
    points = load_stub(
        write(tmp_path, one=experiment(grid={"workers": [1, 2], "cases": cases}, seeds=1))
    ).points
    assert [(p.workers, p.model_label, p.lr) for p in points] == [
        (1, "fc-8", 0.1),
        (1, "fc-16", 0.2),
        (2, "fc-8", 0.1),
        (2, "fc-16", 0.2),
    ]


def test_a_point_of_two_sweeps_is_one_point_with_both_names(tmp_path):
    other = experiment(name="other", grid={"workers": [4, 8], "sync_period": [10]})
    points = load_stub(write(tmp_path, one=BASE_EXPERIMENT, two=other)).points
    by_names = {}
    for point in points:
        by_names.setdefault(point.experiments, []).append(point.workers)
    assert by_names == {
        ("one/grid",): [1, 1, 1, 1, 4, 4],
        ("one/grid", "two/other"): [4, 4],
        ("two/other",): [8, 8],
    }
    assert len({point.run_id for point in points}) == len(points)


def test_a_default_written_out_is_the_same_point(tmp_path):
    plain = experiment(grid={"workers": [2]}, seeds=1)
    written = experiment(grid={"workers": [2]}, seeds=1, name="written")
    written["sweeps"][0]["set"] = {"method": "averaging", "sync_period": 10, "lr_scaling": "none", "lr": 5e-2}
    written["defaults"]["model"] = {"name": "fc", "hidden": [64, 64]}
    assert len(load_stub(write(tmp_path, one=plain, two=written)).points) == 1


def test_whole_numbers_given_for_fractions_are_the_same_point(tmp_path):
    one = experiment(set={"method": "splitting", "dropout": 0, "lr": 1}, grid={"workers": [2]}, seeds=1)
    two = experiment(set={"method": "splitting", "dropout": 0.0, "lr": 1.0}, grid={"workers": [2]}, seeds=1)
    point = load_stub(write(tmp_path, one=one, two=two)).points[0]
    assert point.experiments == ("one/grid", "two/grid")
    assert type(point.lr) is float and type(point.method_params["dropout"]) is float


def test_a_point_without_a_variant_has_the_first_of_its_method(tmp_path):
    plain = experiment(set={}, grid={"method": ["averaging", "shuffling"], "workers": [2]}, seeds=1)
    written = {"method": "shuffling", "workers": 2, "sync_period": 10}
    named = experiment(set=written, grid={"variant": ["mended", "faithful"]}, seeds=1)
    points = load_stub(write(tmp_path, one=plain, two=named)).points
    assert [(point.method, point.variant, point.experiments) for point in points] == [
        ("averaging", "default", ("one/grid",)),
        ("shuffling", "mended", ("one/grid", "two/grid")),
        ("shuffling", "faithful", ("two/grid",)),
    ]


def test_shardings_vary_with_their_skew(tmp_path):
    cases = [{"sharding": "skewed", "skew": 1}, {"sharding": "skewed", "skew": 0.1}]
    cases.append({"sharding": "independent", "skew": None})
    points = load_stub(write(tmp_path, one=experiment(grid={"workers": [4], "cases": cases}, seeds=1))).points
    assert [(point.sharding, point.skew) for point in points] == [
        ("skewed", 1.0),
        ("skewed", 0.1),
        ("independent", None),
    ]
    assert type(points[0].skew) is float
    assert len({point.run_id for point in points}) == 3


def test_a_limit_of_memory(tmp_path):
    grid = {"workers": [2], "memory_limit_bytes": [None, 10**6]}
    points = load_stub(write(tmp_path, one=experiment(grid=grid, seeds=1))).points
    assert [point.memory_limit_bytes for point in points] == [None, 10**6]


@pytest.mark.parametrize(("tier", "workers"), [("smoke", {1}), ("default", {1, 2}), ("full", {2})])
def test_a_sweep_runs_in_its_tiers_only(tmp_path, tier, workers):
    small = experiment(name="small", tiers=["smoke", "default"], grid={"workers": [1]})
    large = experiment(name="large", tiers=["default", "full"], grid={"workers": [2]})
    small["sweeps"].append(large["sweeps"][0])
    settings = load_stub(write(tmp_path, {"tier": tier, "experiments": ["one"]}, one=small))
    assert {p.workers for p in settings.points} == workers


def test_overrides_change_an_experiment_or_one_sweep(tmp_path):
    content = experiment()
    content["sweeps"].append(copy.deepcopy(content["sweeps"][0]) | {"name": "second"})
    tier = BASE_TIER | {
        "overrides": {
            "one": {"set": {"epochs": 7}, "seeds": 1},
            "one/second": {"grid": {"workers": [8]}, "seeds": [5]},
        }
    }
    points = load_stub(write(tmp_path, tier, one=content)).points
    assert {p.epochs for p in points} == {7}
    assert {(p.experiments, p.workers, p.seed) for p in points} == {
        (("one/grid",), 1, 0),
        (("one/grid",), 4, 0),
        (("one/second",), 8, 5),
    }


def test_a_single_value_of_an_override_replaces_a_grid(tmp_path):
    tier = BASE_TIER | {"overrides": {"one/grid": {"set": {"workers": 2}}}}
    points = load_stub(write(tmp_path, tier)).points
    assert [(p.workers, p.method_params["sync_period"]) for p in points] == [(2, 5), (2, 5), (2, 10), (2, 10)]


def test_tier_values_reach_the_points_unless_a_sweep_sets_them(tmp_path):
    tier = BASE_TIER | {"device": "cpu", "threads_per_worker": 3, "time_limit_s": 12}
    content = experiment()
    content["sweeps"].append(copy.deepcopy(content["sweeps"][0]) | {"name": "own"})
    content["sweeps"][1]["set"] = {"method": "averaging", "threads_per_worker": 2, "time_limit_s": 99}
    points = load_stub(write(tmp_path, tier, one=content)).points
    assert {(p.experiments, p.device, p.threads_per_worker, p.time_limit_s) for p in points} == {
        (("one/grid",), "cpu", 3, 12.0),
        (("one/own",), "cpu", 2, 99.0),
    }


def places(path):
    return {(point.evidence, point.device, point.transport) for point in load_stub(path).points}


def measured(**values):
    sweep = BASE_EXPERIMENT["sweeps"][0]
    return sweep | {"name": "real", "evidence": "measured", "set": {"method": "averaging", **values}}


def test_a_tiers_gpus_are_for_ranks_and_joined_by_torch(tmp_path):
    sweeps = [*BASE_EXPERIMENT["sweeps"], measured()]
    path = write(tmp_path, BASE_TIER | {"device": "cuda"}, one=BASE_EXPERIMENT | {"sweeps": sweeps})
    assert places(path) == {("simulated", "cpu", "mpi"), ("measured", "cuda", "torch")}


def test_the_transport_is_a_points_own_and_counts_in_its_id_when_it_is_not_mpi(tmp_path):
    path = write(tmp_path, one=BASE_EXPERIMENT | {"sweeps": [measured(transport="torch")]})
    assert places(path) == {("measured", "cpu", "torch")}
    over_torch = {point.run_id for point in load_stub(path).points}
    over_mpi = {
        p.run_id for p in load_stub(write(tmp_path, one=BASE_EXPERIMENT | {"sweeps": [measured()]})).points
    }
    named = write(tmp_path, one=BASE_EXPERIMENT | {"sweeps": [measured(transport="mpi")]})
    assert not over_torch & over_mpi
    assert {point.run_id for point in load_stub(named).points} == over_mpi


@pytest.mark.parametrize(
    ("evidence", "values", "told"),
    [
        ("simulated", {"device": "cuda"}, "device: got cuda; allowed: cpu with evidence simulated"),
        ("simulated", {"transport": "torch"}, "transport: got torch; allowed: mpi with evidence simulated"),
        ("measured", {"device": "cuda", "transport": "mpi"}, "transport: got mpi with device cuda"),
    ],
)
def test_what_has_no_ranks_has_neither_gpus_nor_transport(tmp_path, evidence, values, told):
    sweep = measured(**values) | {"evidence": evidence}
    with pytest.raises(UserError, match=told):
        load_stub(write(tmp_path, one=BASE_EXPERIMENT | {"sweeps": [sweep]}))


def test_numbers_in_scientific_notation_are_numbers(tmp_path):
    text = """
paper: averaging
title: t
sweeps:
  - {name: a, evidence: simulated, set: {method: sequential, dataset: digits, model: fc-8, workers: 1, lr: 1e-3}}
"""
    assert load_stub(write(tmp_path, one=text)).points[0].lr == 0.001


def test_points_survive_json(tmp_path):
    for point in load_stub(write(tmp_path)).points:
        again = Point.from_json(point.to_json())
        assert again == point and again.run_id == point.run_id


def test_select_keeps_one_papers_points_and_whole_batches(tmp_path):
    other = experiment() | {"paper": "ist"}
    other["sweeps"][0]["grid"] = {"workers": [4, 8], "sync_period": [10]}
    settings = load_stub(write(tmp_path, one=BASE_EXPERIMENT, two=other))
    only = select(settings, "ist")
    assert [e.name for e in only.experiments] == ["two"]
    wanted = {p.run_id for p in settings.points if any(name.startswith("two/") for name in p.experiments)}
    assert wanted <= {p.run_id for p in only.points}
    assert set(only.batches) <= set(settings.batches)
    assert {run_id for batch in only.batches for run_id in batch.run_ids} == {p.run_id for p in only.points}
    assert select(settings, "spark").points == ()


def test_counts_and_their_description(tmp_path):
    measured = experiment(evidence="measured", set={"method": "data_parallel"}, grid={"workers": [2]})
    settings = load_stub(write(tmp_path, one=BASE_EXPERIMENT, two=measured))
    assert counts(settings) == {"averaging": {"simulated": 8}, "data_parallel": {"measured": 2}}
    last = describe(settings).splitlines()[-1].split()
    assert last == ["all", "2", "8", "10"]


def test_nothing_beside_the_identity_changes_a_run_id(tmp_path):
    point = load_stub(write(tmp_path)).points[0]
    assert dataclasses.replace(point, experiments=("x/y",), time_limit_s=1.0).run_id == point.run_id
    assert dataclasses.replace(point, workers=2).run_id != point.run_id
