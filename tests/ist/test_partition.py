"""Draws: disjoint exact cover, sizes as equal as can be, the same on every rank."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from implementations.ist.partition import (
    Layout,
    block_shape,
    blocks_of,
    draw,
    group_sizes,
    storage_label,
    stored,
)

PARTITIONS = st.sampled_from(["uniform", "stratified"])


@given(
    widths=st.lists(st.integers(8, 70), min_size=1, max_size=3),
    workers=st.integers(1, 8),
    seed=st.integers(0, 99),
    round=st.integers(0, 9),
    partition=PARTITIONS,
)
def test_groups_cover_every_layer_once_and_are_equal_to_one(widths, workers, seed, round, partition):
    units = {f"h{layer}": width for layer, width in enumerate(widths)}
    groups = draw(units, workers, seed, round, partition=partition).units
    for label, width in units.items():
        parts = [group[label] for group in groups]
        assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(width))
        assert all(np.all(np.diff(part) > 0) for part in parts)
        sizes = [len(part) for part in parts]
        assert sizes == group_sizes(width, workers, partition=partition)
        assert min(sizes) >= 1 and max(sizes) - min(sizes) <= (1 if partition == "uniform" else 2)


@given(
    width=st.integers(4, 40),
    workers=st.integers(1, 4),
    overlap=st.floats(0, 4),
    least=st.integers(0, 12),
    partition=PARTITIONS,
)
def test_overlapping_groups_still_cover_and_hold_no_unit_twice(width, workers, overlap, least, partition):
    groups = draw(
        {"h1": width}, workers, 1, 2, partition=partition, overlap=overlap, min_units={"h1": least}
    ).units
    wanted = group_sizes(width, workers, partition=partition, overlap=overlap, least=least)
    assert [len(group["h1"]) for group in groups] == wanted
    assert set().union(*(group["h1"] for group in groups)) == set(range(width))
    assert all(len(set(group["h1"])) == len(group["h1"]) for group in groups)
    assert all(min(width, least) <= size <= width for size in wanted)


def test_one_worker_holds_everything_in_order():
    for partition in ("uniform", "stratified"):
        (only,) = draw({"h1": 9, "h2": 4}, 1, 5, 3, partition=partition).units
        assert np.array_equal(only["h1"], np.arange(9)) and np.array_equal(only["h2"], np.arange(4))


def test_rounds_seeds_and_layers_draw_apart_and_the_same_again():
    units = {"h1": 64, "h2": 64}

    def first(seed, round, **options):
        return draw(units, 4, seed, round, **options).units[0]

    assert np.array_equal(first(1, 0)["h1"], first(1, 0)["h1"])
    assert not np.array_equal(first(1, 0)["h1"], first(1, 1)["h1"])
    assert not np.array_equal(first(1, 0)["h1"], first(2, 0)["h1"])
    assert not np.array_equal(first(1, 0)["h1"], first(1, 0)["h2"])
    assert np.array_equal(first(1, 0, redraw=False)["h1"], first(1, 7, redraw=False)["h1"])


def test_every_group_is_drawn_equally_often():
    """Each unit is worker 0's in a quarter of the rounds: 4 standard errors of a binomial."""
    rounds, hits = 2000, np.zeros(12)
    for round in range(rounds):
        hits[draw({"h1": 12}, 4, 0, round).units[0]["h1"]] += 1
    assert np.abs(hits / rounds - 0.25).max() < 4 * np.sqrt(0.25 * 0.75 / rounds)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_stratified_groups_take_as_much_of_each_shard(workers):
    groups = draw({"h1": 64}, workers, 3, 1, partition="stratified").units
    for group, owner in itertools.product(groups, range(workers)):
        own = np.arange(*stored({"h1": 64}, workers, "partitioned")[owner]["h1"])
        assert len(np.intersect1d(group["h1"], own)) == 64 // workers**2


def test_shapes_and_storage():
    assert block_shape((7, 5, 3), ("h2", None, "h1"), {"h1": 1, "h2": 2}) == (2, 5, 1)
    assert storage_label(("h2", "h1")) == "h1"  # by input, as the authors' second layer
    assert storage_label((None, "h1")) == "h1"
    assert storage_label(("h1", None)) == "h1"
    assert storage_label((None,)) is None


def net_of(*widths):
    """A fully connected net without biases, with scale and shift of each hidden unit."""
    labels = [None, *(f"h{layer}" for layer in range(1, len(widths) - 1)), None]
    shapes = {f"w{layer}": (widths[layer + 1], widths[layer]) for layer in range(len(widths) - 1)}
    axes = {f"w{layer}": (labels[layer + 1], labels[layer]) for layer in range(len(widths) - 1)}
    for layer in range(1, len(widths) - 1):
        for kind in "gs":
            shapes[f"{kind}{layer}"], axes[f"{kind}{layer}"] = (widths[layer],), (labels[layer],)
    return Layout(shapes, axes, dict(zip(labels[1:-1], widths[1:-1])), {})


def block_counts(layout, groups, stores):
    """[storing worker][subnet], from the pairs that meet."""
    found = blocks_of(layout, groups, stores)
    counts = np.zeros((len(groups), len(groups)), dtype=np.int64)
    counts[found.source, found.worker] = found.values
    assert (found.values > 0).all() and len({*zip(found.source, found.worker)}) == len(found.values)
    assert found.of_sources().tolist() == counts.sum(1).tolist()
    assert found.of_workers().tolist() == counts.sum(0).tolist()
    assert found.sent == counts.sum() - counts.trace()
    return counts


@pytest.mark.parametrize("server", ["central", "partitioned"])
@pytest.mark.parametrize("partition", ["uniform", "stratified"])
@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_counts_equal_the_papers_formula(workers, partition, server):
    """P_sub = (P_in + P_out + P_bn) / n + P_hid / n^2 (one subnet), where n divides the widths."""
    inputs, wide, narrow, classes = 48, 128, 64, 10
    layout = net_of(inputs, wide, narrow, classes)
    groups = draw(layout.units, workers, 0, 4, partition=partition).units
    counts = block_counts(layout, groups, stored(layout.units, workers, server))
    ends = inputs * wide + narrow * classes + 2 * (wide + narrow)
    subnet = ends // workers + wide * narrow // workers**2
    assert counts.sum(axis=0).tolist() == [subnet] * workers
    if server == "central":
        assert counts[1:].sum() == 0
    elif partition == "stratified":  # everybody gets as much from everybody
        assert np.unique(counts).tolist() == [subnet // workers]


def test_counts_equal_the_elements_of_the_blocks():
    layout = net_of(5, 11, 7, 3)
    layout.shapes["shared"], layout.axes["shared"] = (3,), (None,)
    groups = draw(layout.units, 3, 1, 2, overlap=0.5).units
    stores = stored(layout.units, 3, "partitioned")
    counts = block_counts(layout, groups, stores)
    for (source, store), (worker, group) in itertools.product(enumerate(stores), enumerate(groups)):
        total = 3 if source == 0 else 0
        for name, shape in layout.shapes.items():
            if name == "shared":
                continue
            mask = np.ones(shape, dtype=bool)
            for axis, label in enumerate(layout.axes[name]):
                if label is None:
                    continue
                held = np.isin(np.arange(shape[axis]), group[label])
                if label == storage_label(layout.axes[name]):
                    low, high = store[label]
                    held &= (np.arange(shape[axis]) >= low) & (np.arange(shape[axis]) < high)
                mask &= np.moveaxis(
                    np.broadcast_to(held, shape[:axis] + shape[axis + 1 :] + held.shape), -1, axis
                )
            total += np.count_nonzero(mask)
        assert counts[source, worker] == total
