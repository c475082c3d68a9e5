"""Properties of the expansion into points and batches, over random grids."""

import copy
import itertools
import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from implementations.config.batches import MEASURED_POINTS, SIMULATED_POINTS
from implementations.point import Point
from tests.config.stubs import BASE_EXPERIMENT, load_stub, write

VALUES = {
    "workers": st.integers(1, 64),
    "sync_period": st.integers(1, 100),
    "epochs": st.integers(1, 20),
    "minibatch": st.integers(1, 128),
    "lr": st.floats(1e-6, 10),
    "data_size": st.integers(54000 // 2, 54000),
    "model": st.lists(st.integers(1, 99), min_size=1, max_size=3).map(
        lambda h: "-".join(["fc", *map(str, h)])
    ),
    "lr_scaling": st.sampled_from(["none", "linear"]),
    "sharding": st.sampled_from(["static", "reshuffled", "independent"]),
}
GRIDS = st.lists(st.sampled_from(sorted(VALUES)), unique=True, max_size=4).flatmap(
    lambda keys: st.fixed_dictionaries(
        {k: st.lists(VALUES[k], min_size=1, max_size=3, unique=True) for k in keys}
    )
)
quick = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def experiment(grid, seeds=1, repeats=1, evidence="simulated", name="grid"):
    content = copy.deepcopy(BASE_EXPERIMENT)
    values = {"method": "averaging"} | ({} if "workers" in grid else {"workers": 2})
    sweep = {"name": name, "evidence": evidence, "set": values, "seeds": seeds, "repeats": repeats}
    content["sweeps"] = [sweep | ({"grid": grid} if grid else {})]
    return content


@quick
@given(GRIDS, st.integers(1, 3), st.integers(1, 3))
def test_a_grid_expands_to_the_product(tmp_path, grid, seeds, repeats):
    points = load_stub(write(tmp_path, one=experiment(grid, seeds, repeats))).points
    assert len(points) == math.prod(map(len, grid.values())) * seeds * repeats
    found = {(*(value_of(p, key) for key in grid), p.seed, p.repeat) for p in points}
    assert found == set(itertools.product(*grid.values(), range(seeds), range(repeats)))


def value_of(point, key):
    return point.model_label if key == "model" else point.method_params.get(key, getattr(point, key, None))


@quick
@given(GRIDS, st.integers(1, 2), st.integers(0, 10**6))
def test_loading_is_deterministic_and_points_survive_json(tmp_path, grid, seeds, master):
    path = write(
        tmp_path,
        {"tier": "default", "experiments": ["one"], "master_seed": master},
        one=experiment(grid, seeds),
    )
    first, second = load_stub(path), load_stub(path)
    assert first == second
    assert all(Point.from_json(point.to_json()) == point for point in first.points)
    assert {point.seed for point in first.points} == {master + number for number in range(seeds)}


@quick
@given(GRIDS, GRIDS, st.integers(1, 5), st.sampled_from(["measured", "simulated"]))
def test_batches_partition_the_points(tmp_path, one, two, repeats, evidence):
    two = experiment(two, seeds=2)
    settings_ = load_stub(write(tmp_path, one=experiment(one, 1, repeats, evidence), two=two))
    ids = [run_id for batch in settings_.batches for run_id in batch.run_ids]
    assert sorted(ids) == sorted(point.run_id for point in settings_.points)
    assert len(set(ids)) == len(ids)
    assert len({batch.id for batch in settings_.batches}) == len(settings_.batches)
    for batch in settings_.batches:
        points = settings_.points_of(batch)
        assert {p.evidence for p in points} == {batch.evidence}
        assert {p.dataset for p in points} == {batch.dataset}
        assert {p.processes for p in points} == {batch.processes}
        assert {p.threads_per_worker for p in points} == {batch.threads_per_worker}
        assert {p.method for p in points} == set(batch.methods)
        assert len(points) <= (MEASURED_POINTS if batch.machine_alone else SIMULATED_POINTS)
        if batch.machine_alone:
            assert len({p.workers for p in points}) == 1
            assert [p.repeat for p in points] == sorted(p.repeat for p in points)


@quick
@given(GRIDS, GRIDS, GRIDS)
def test_an_edit_of_one_sweep_leaves_the_other_batches(tmp_path, one, before, after):
    """The second sweep has a seed of its own, so that the two share no point."""
    untouched = experiment(one, seeds=[0])

    def batches(grid):
        edited = experiment(grid, seeds=[5], name="edited")
        loaded = load_stub(write(tmp_path, one=untouched, two=edited)).batches
        return [b for b in loaded if b.sweep == "one/grid"], [b for b in loaded if b.sweep == "two/edited"]

    kept, old = batches(before)
    still, new = batches(after)
    assert kept == still
    same_runs = [b.run_ids for b in old] == [b.run_ids for b in new]  # a default written out changes no run
    assert ([b.id for b in old] == [b.id for b in new]) == same_runs


def test_repeats_take_turns_in_a_measured_batch(tmp_path):
    content = experiment({"sync_period": [5, 10]}, repeats=3, evidence="measured")
    loaded = load_stub(write(tmp_path, one=content))
    (batch,) = loaded.batches
    order = [(p.repeat, p.method_params["sync_period"]) for p in loaded.points_of(batch)]
    assert order == [(0, 5), (0, 10), (1, 5), (1, 10), (2, 5), (2, 10)]


def test_a_batch_id_is_readable(tmp_path):
    (batch,) = load_stub(write(tmp_path, one=experiment({}, evidence="measured"))).batches
    assert batch.id.startswith("one_grid_fashion_mnist_measured_p2_")
