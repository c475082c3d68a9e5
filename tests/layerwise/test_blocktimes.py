"""Measuring blocks: what is measured, kept and found again; seconds against torch's own loop only in order of size."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch

from implementations.errors import UserError
from implementations.layerwise import algebra, blockbench, blocktimes, kernels
from implementations.layerwise.blocktimes import MeasuredBlocks, described
from implementations.layerwise.costmodel import choices, specs
from implementations.layerwise.graph import CONV, FLATTEN, INPUT, POOL
from tests.layerwise.networks import branched, chain, conv, image, vgg16


def wanted(graph, batch, devices):
    return specs(graph, choices(graph, batch, devices), batch)


MOVED = {"forward_s": 2e-5, "backward_s": 6e-5, "repeats": 3}


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """The file of a small net on two devices, its blocks timed in this process."""
    counted = []

    def here(parts, busy, settings):
        counted.append((busy, sum(map(len, parts))))
        alone = blockbench.Alone()  # who exchanges nothing
        return [
            MOVED if block["kind"] == "moving" else blockbench.measure([block], alone)[0]
            for part in parts
            for block in part
        ]

    monkeypatch.setattr(blocktimes, "_measured", here)
    monkeypatch.setattr(blocktimes, "UPDATE_PARAMS", 1000)
    monkeypatch.setattr(blockbench, "SPENT_S", 0.0)
    path = tmp_path / "calibration" / "blocks.parquet"
    times = MeasuredBlocks(path, 2)
    times.measure(wanted(branched(), 4, 2), report=lambda line: None)
    return path, times, counted


def test_every_block_of_a_net_is_measured_once_and_found_again(measured):
    path, _, counted = measured
    graph = branched()
    distinct = sum(count for _, count in counted)
    assert {busy for busy, _ in counted} == {1, 2}
    rows = pd.read_parquet(path)
    assert len(rows) == distinct
    assert (rows.repeats >= 2).all() and (rows.forward_s > 0).all() and (rows.threads == 1).all()
    assert set(rows.kind) == {
        "conv",
        "norm",
        "pointwise",
        "add",
        "pool",
        "concat",
        "linear",
        "loss",
        "update",
        "handling",
        "moving",
    }
    again = MeasuredBlocks(path, 2)
    assert again.missing(wanted(graph, 4, 2)) == []
    assert again.measure(wanted(graph, 4, 2), report=lambda line: None) == 0
    for spec in wanted(graph, 4, 2):
        shapes = (spec.layer, spec.source_shapes, spec.block_shape)
        forward, backward = again.seconds(
            *shapes, active=spec.active, input_gradient=spec.input_gradient, shared=spec.shared
        )
        if spec.layer.kind == FLATTEN:  # a view: handling alone, which may be too little to be seen
            assert forward == backward >= 0
        else:
            assert forward > 0 and backward > 0
    assert again.update_s(1000) > 0
    assert again.update_s(2000) == pytest.approx(2 * again.update_s(1000))
    # what one value takes, and what more of them do by the byte: as many go out as come in
    assert again.moving == pytest.approx((2e-5, 4e-5 / (2 * 4 * blocktimes.MOVED)))
    assert MeasuredBlocks(path, 1).moving == (0.0, 0.0)


def test_networks_are_measured_in_the_same_processes(tmp_path, monkeypatch):
    """Each among its own blocks; what two of them have is measured with the first."""
    asked = []

    def measured(parts, busy, settings):
        asked.append((busy, parts))
        return [{"forward_s": 1.0, "backward_s": 2.0, "repeats": 3} for part in parts for _ in part]

    monkeypatch.setattr(blocktimes, "_measured", measured)
    path = tmp_path / "blocks.parquet"
    both = [(MeasuredBlocks(path, 2), wanted(graph, 4, 2)) for graph in (branched(), chain())]
    alone = [len(times.missing(specs)) for times, specs in both]
    found = blocktimes.measure_all(both, report=lambda line: None)
    assert [busy for busy, _ in asked] == [1, 2] and [len(parts) for _, parts in asked] == [2, 2]
    common = sum(alone) - found
    assert common >= 4  # update, exchanges, and what is handled around layers by one and by two
    assert len(pd.read_parquet(path)) == found == sum(len(part) for _, parts in asked for part in parts)
    for times, blocks in both:
        assert times.missing(blocks) == MeasuredBlocks(path, 2).missing(blocks) == []


def test_other_machines_and_versions_are_not_this_one(measured, monkeypatch):
    path, _, counted = measured
    blocks = sum(count for _, count in counted)
    monkeypatch.setattr(
        blocktimes, "_here", lambda: {"threads": 1, "host": "another", "torch": "9.9", "code": "x"}
    )
    assert len(MeasuredBlocks(path, 2).missing(wanted(branched(), 4, 2))) == blocks
    MeasuredBlocks(path, 2).measure(wanted(branched(), 4, 2), report=lambda line: None)
    assert len(pd.read_parquet(path)) == 2 * blocks


def test_a_block_that_was_not_measured_is_named(measured):
    path, times, _ = measured
    layer = conv("other", image(3, 9, 9), 5)
    with pytest.raises(
        UserError, match=r"block conv 2x3x9x9 -> 2x5x9x9 with 2 processes: .* measure the blocks"
    ):
        times.seconds(layer, [(2, 3, 9, 9)], (2, 5, 9, 9))
    with pytest.raises(UserError, match="remove it"):
        path.write_text("no table")
        MeasuredBlocks(path, 2)


def test_blocks_of_equal_layers_are_one():
    times = MeasuredBlocks("nowhere.parquet", 2)
    graph = vgg16()
    found = times.missing(wanted(graph, 64, 2))
    assert len(found) < len(wanted(graph, 64, 2))
    convolutions = [block for block in found if block["kind"] == "conv"]
    assert len(convolutions) == 9 * 5  # of 13, nine sizes
    assert len({json.dumps(block, sort_keys=True) for block in found}) == len(found)


def test_processes_that_compute_at_once_are_counted_up_to_those_there_are(monkeypatch):
    monkeypatch.setattr(blocktimes.host, "cores", lambda: 8)
    times = MeasuredBlocks("nowhere.parquet", 2)
    assert {block["busy"] for block in times.missing(wanted(chain(), 8, 4))} == {1, 2}
    assert {
        block["busy"] for block in MeasuredBlocks("nowhere.parquet", 4).missing(wanted(chain(), 8, 4))
    } == {1, 2, 4}


def test_processes_that_share_cores_take_turns(tmp_path, monkeypatch):
    """Four processes on two cores: timed two at once, and twice as long."""
    monkeypatch.setattr(blocktimes.host, "cores", lambda: 2)
    seconds = {"handling": (0.0, 0.0)}
    monkeypatch.setattr(
        blocktimes,
        "_measured",
        lambda parts, busy, settings: [
            dict(zip(("forward_s", "backward_s"), seconds.get(block["kind"], (1e-3 * busy, 3e-3 * busy))))
            for part in parts
            for block in part
        ],
    )
    times, specs = MeasuredBlocks(tmp_path / "blocks.parquet", 4), wanted(chain(), 8, 4)
    assert {block["busy"] for block in times.missing(specs)} == {1, 2}
    times.measure(specs, report=lambda line: None)
    for spec in specs:
        if spec.layer.kind != FLATTEN:
            found = times.seconds(
                spec.layer,
                spec.source_shapes,
                spec.block_shape,
                active=spec.active,
                input_gradient=spec.input_gradient,
                shared=spec.shared,
            )
            # a block of so many processes at once takes as many milliseconds, by the stand-in above
            assert found == pytest.approx((1e-3 * spec.active, 3e-3 * spec.active))
    assert times.update_s(blocktimes.UPDATE_PARAMS) == pytest.approx(4e-3)


def test_what_is_timed_has_the_shapes_of_the_block():
    """Every block of every configuration: the executor's functions give outputs of its size from what it reads."""
    graph = branched()
    for spec in wanted(graph, 4, 4):
        if spec.layer.kind not in (CONV, POOL):
            continue
        block = described(spec.layer, spec.source_shapes, spec.block_shape, 1)
        layer = blockbench.as_layer(json.loads(json.dumps(block)))
        pads = blockbench.local_pads(layer, spec.source_shapes[0], spec.block_shape)
        weights = {name: torch.zeros(shape) for name, shape in layer.weights.items()}
        found = kernels.forward(layer, [torch.zeros(spec.source_shapes[0])], weights, pads)
        assert tuple(found.shape) == spec.block_shape


def test_padding_is_that_of_the_upper_left_block():
    graph = branched()
    for layer in (graph["a"], graph["c"], graph["p"]):
        source = graph.inputs(layer)[0]
        for config in [(1, 1, 1, 1), (1, 1, 3, 2)]:
            first = algebra.blocks(layer, config, 2)[0]
            read = algebra.input_box(graph, layer, 0, first)
            found = blockbench.local_pads(layer, algebra.shape(read), algebra.shape(first))
            assert list(found) == algebra.padding(layer, source.out, first)


def test_longer_blocks_take_longer():
    """Hundred times the arithmetic; a crude bound that holds on a busy machine."""

    def seconds(channels):
        source = image(channels, 16, 16)
        layer = conv("c", source, channels)
        block = described(layer, [(4, channels, 16, 16)], (4, channels, 16, 16), 1)
        (found,) = blockbench.measure([block], blockbench.Alone())
        return found["forward_s"], found["backward_s"]

    assert all(np.array(seconds(160)) > 3 * np.array(seconds(16)))


def test_processes_measure_together(tmp_path):
    """Two real processes; skipped where MPI is missing."""
    from implementations.cluster import launcher

    try:
        launcher.find_launcher()
    except UserError as error:
        pytest.skip(str(error))
    times = MeasuredBlocks(tmp_path / "blocks.parquet", 2)
    few = [spec for spec in wanted(chain(), 4, 2) if spec.layer.name == "w"]
    assert times.measure(few, report=lambda line: None) == len(few) + 4
    rows = pd.read_parquet(tmp_path / "blocks.parquet")
    assert sorted(rows.busy) == [1, 1, 2, 2, 2, 2, 2]
    layers = rows[rows.kind != "moving"]
    assert all(math.isfinite(value) and value > 0 for value in layers.forward_s)
    assert all(math.isfinite(value) and value >= 0 for value in times.moving)
    assert INPUT not in set(rows.kind)
