"""Independent subnet training as a method: equal to SGD on one worker, its slips reproduced, its bytes foretold."""

import dataclasses
import itertools

import pytest
import torch
from training_runs import point_of, trained, whole_model

from implementations import registry
from implementations.cluster.simulated import SimulatedCommunicator
from implementations.errors import UserError
from implementations.harness import run_point
from implementations.point import Point
from implementations.projection import project

NET = {"name": "fc_bn", "hidden": [24, 17]}
BATCH = {**NET, "statistics": "batch"}


def ist(workers=1, model=NET, variant="corrected", **changes):
    params = {name: changes.pop(name) for name in list(changes) if name in registry.get("ist").params}
    return point_of("ist", workers, model=model, variant=variant, method_params=params, **changes)


@pytest.mark.parametrize("server", ["central", "partitioned"])
@pytest.mark.parametrize("partition", ["uniform", "stratified"])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_one_worker_is_sgd_bit_for_bit(server, partition, momentum, results):
    recipe = {"momentum": momentum}
    ours = trained(ist(server=server, partition=partition, sync_period=7, recipe=recipe), results)
    theirs = trained(point_of("sequential", model=NET, recipe=recipe), results)
    assert torch.equal(whole_model(ours), whole_model(theirs))
    assert [row["valid_loss"] for row in ours.curve] == [row["valid_loss"] for row in theirs.curve]
    assert ours.test() == theirs.test()


def by_hand(point, results, used):
    """SGD on the minibatches whose step in the epoch ``used`` accepts, by torch's own layers and optimiser."""
    run = trained(dataclasses.replace(point, epochs=1, lr=1e-12), results)  # for its data and first weights
    first = trained(dataclasses.replace(point, epochs=1, lr=1e-12), results)
    with first.holding.whole() as net:
        module = net.to_module()
    module.train()
    optimizer = torch.optim.SGD(module.parameters(), lr=point.lr)
    shards = run.training._shards
    for epoch in range(1, point.epochs + 1):
        for step, rows in enumerate(shards.epoch(epoch), start=1):
            if used(step):
                x_wbi, y_wb = shards.take(rows)
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(module(x_wbi[0]), y_wb[0]).backward()
                optimizer.step()
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize(
    ("server", "period", "lost"),
    [
        # 60 steps an epoch. The central server is given weights one step early, so that each whole window loses its
        # last step; but it is given them after an epoch's last step, too.
        ("central", 7, lambda step: step % 7 == 0),
        ("central", 10, lambda step: step % 10 == 0 and step < 60),
        # The partitioned one never gets the last window where it is cut short by the epoch's end.
        ("partitioned", 7, lambda step: step > 56),
        ("partitioned", 10, lambda step: False),
    ],
)
def test_the_published_slips_lose_just_these_steps(server, period, lost, results):
    point = ist(
        model=BATCH,
        variant="faithful",
        sharding="independent",
        server=server,
        sync_period=period,
        lost_steps=True,
    )
    ours = whole_model(trained(point, results))
    expected = by_hand(point, results, lambda step: not lost(step))
    torch.testing.assert_close(ours, expected, rtol=0, atol=2e-5)
    if any(lost(step) for step in range(1, 61)):
        everything = by_hand(point, results, lambda step: True)
        assert (ours - everything).abs().max() > 1e-3


def test_a_window_that_is_never_written_back_is_refused(results):
    point = ist(
        model=BATCH,
        variant="faithful",
        sharding="independent",
        server="partitioned",
        sync_period=61,
        lost_steps=True,
    )
    with pytest.raises(UserError, match="an epoch has 60 steps, so that nothing would ever be written back"):
        trained(point, results)


VARIED = list(
    itertools.product(
        [1, 2, 3],
        ["central", "partitioned"],
        ["uniform", "stratified"],
        [0.0, 0.4],
        [True, False],
        [False, True],
    )
)


@pytest.mark.parametrize(("workers", "server", "partition", "overlap", "redraw", "lost"), VARIED)
def test_bytes_are_counted_as_foretold(workers, server, partition, overlap, redraw, lost, results):
    options = {"variant": "faithful", "sharding": "independent", "model": BATCH} if lost else {}
    point = ist(
        workers,
        server=server,
        partition=partition,
        overlap=overlap,
        redraw=redraw,
        lost_steps=lost,
        sync_period=7,
        epochs=1,
        **options,
    )
    assert registry.get("ist").check(point) == []
    columns = trained(point, results).columns()
    assert columns["sent_bytes_total"] == columns["sent_bytes_predicted"]
    assert (columns["sent_bytes_total"] > 0) == (workers > 1)


@pytest.mark.parametrize("server", ["central", "partitioned"])
@pytest.mark.parametrize("workers", [2, 4])
def test_network_bytes_are_the_papers_less_what_is_local(workers, server, results):
    """2 b (P_in + P_out + P_bn + P_hid / n) a round, of which each part stays where it is one time in n."""
    wide, deep = 32, 16
    point = ist(
        workers,
        model={"name": "fc_bn", "hidden": [wide, deep]},
        server=server,
        partition="stratified",
        sync_period=10,
        epochs=1,
    )
    run = trained(point, results)
    ends = 64 * wide + deep * 10 + 2 * (wide + deep)
    rounds = -(-run.step // 10)
    bytes_a_round = 2 * 4 * (ends + wide * deep // workers)
    assert run.columns()["paper_bytes"] == rounds * bytes_a_round // workers  # what one worker gets and gives
    assert run.columns()["sent_bytes_total"] == rounds * bytes_a_round * (workers - 1) // workers


@pytest.mark.parametrize(
    ("hidden", "megabytes"),
    [
        # MB that a worker gets and gives back a round, on 2, 4 and 8 workers, by the paper's nets (fp32)
        ([4096], (67.7, 33.9, 16.9)),
        ([8192, 8192], (269.7, 101.3, 42.3)),
        ([4096, 4096], (101.3, 42.3, 19.0)),
    ],
)
def test_the_papers_nets_move_the_papers_bytes(hidden, megabytes):
    for workers, expected in zip((2, 4, 8), megabytes):
        point = Point(
            paper="ist",
            method="ist",
            variant="corrected",
            dataset="generated_keywords",  # 4096 inputs and 35 words, as the paper's task
            model={"name": "fc_bn", "hidden": hidden},
            workers=workers,
            evidence="projected",
            seed=0,
            method_params={"sync_period": 20},
            minibatch=128,
        )
        columns, trace = project(point)
        assert 2 * 4 * columns["worker_params"] / 1e6 == pytest.approx(expected, abs=0.06)
        sent = trace.loc[trace["kind"] == "comm", "sent_bytes_total"]
        assert set(sent) == {4 * columns["worker_params"] * (workers - 1)}
        if workers > 2:  # of two workers, one message either way is as much the one as the other
            assert set(trace.loc[trace["kind"] == "comm", "op"]) == {"scatter", "gather"}


def test_a_state_beyond_the_limit_is_a_result_with_its_sizes(results):
    point = ist(2, server="partitioned")
    fits = trained(point, results)
    with fits.holding.whole():
        needed = fits.training.state_bytes_per_worker + fits.holding.server_bytes

    def columns(limit):
        bounded = dataclasses.replace(point, memory_limit_bytes=limit)
        return run_point(bounded, lambda ledger: SimulatedCommunicator(2, ledger, None), results)

    assert columns(needed)["status"] == "ok"
    over = columns(needed - 1)
    assert over["status"] == "over_memory" and "limit" in over["reason"]
    assert over["state_bytes_per_worker"] + over["server_bytes"] == needed
    assert "accuracy" not in over


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"workers": 18}, "workers: got 18; allowed: at most 17"),
        ({"workers": 5, "partition": "stratified"}, "workers: got 5; allowed: at most 4"),
        ({"sync_period": 0}, "sync_period: got 0; allowed: int >= 1"),
        ({"optimizer": "ng_sgd"}, "optimizer: got 'ng_sgd'"),
        ({"lost_steps": True}, "lost_steps: got True"),
        ({"variant": "faithful"}, "sharding: got 'static'; allowed: independent"),
        ({"model": {"name": "fc", "hidden": [8], "activation": "sigmoid"}}, "activation 'sigmoid'"),
        ({"model": {"name": "fc", "hidden": []}}, "hidden layers to split"),
        ({"overlap": -1.0}, "overlap: got -1.0"),
    ],
)
def test_what_cannot_be_run_is_told_before(changes, named):
    assert any(named in line for line in registry.get("ist").check(ist(**changes)))


def test_a_target_that_is_missed_is_said(results):
    run = trained(ist(4, model={"name": "fc_bn", "hidden": [24]}, target_value=0.999, epochs=1), results)
    status, reason = run.outcome()
    assert status == "target_missed" and "the target is 0.999" in reason
    assert run.columns()["bytes_to_target"] is None


def test_data_stay_where_they_are(results):
    """With private shards a worker's minibatches are of its own samples, whatever is drawn."""
    run = trained(ist(3, sharding="skewed", skew=0.5, epochs=2), results)
    reference = run._reference.take(torch.arange(len(run._reference)))[0]
    own = run.dataset.samples("train", run._order.shard(0)).take(torch.arange(160))[0]
    assert torch.equal(reference, own)  # statistics too are of the evaluating worker's own samples
    order = run.training._shards.order
    shards = [set(order.shard(worker).tolist()) for worker in range(3)]
    assert not set.intersection(*shards) and len(set().union(*shards)) == 480
    for rows in run.training._shards.epoch(2):
        x_wbi, _ = run.training._shards.take(rows)
        for worker, x_bi in enumerate(x_wbi):
            theirs = run.dataset.tensors("train", order.shard(worker))[0]
            assert (x_bi.unsqueeze(1) == theirs).all(2).any(1).all()
    labels = run.dataset.labels("train")
    shares = [[(labels[list(shard)] == label).mean() for label in range(10)] for shard in shards]
    assert max(max(share) for share in shares) > 0.2  # 0.1 each without skew
