"""The verb ``layerwise`` with a user's own module, from the command line: what it tells, and what it refuses."""

import itertools
import re
import sys

import pytest
import yaml

from implementations.__main__ import main
from implementations.cluster import machine
from implementations.layerwise import advice, costs, planner, strategies
from implementations.layerwise.roofline import Roofline
from tests.cluster.toys import described, figure

MODULE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, hidden=40):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(8 * 16, hidden), nn.Linear(hidden, 10)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


class Branching(Net):
    def forward(self, x):
        return super().forward(x if x.sum() > 0 else -x)


class Spectral(Net):
    def forward(self, x):
        return super().forward(torch.fft.fft(x).real)


class Failing(nn.Module):
    def __init__(self):
        raise ValueError("the weights are not there\\nlook for them")


class Sized(Net):
    def __init__(self, hidden):
        super().__init__(hidden)


def wide():
    return Net(400)


def vectors():
    return nn.Sequential(nn.Linear(20, 12), nn.ReLU(), nn.Linear(12, 4))


made = Net()
number = 3


def nothing():
    return None
"""
NAMES = (f"networks_of_mine_{k}" for k in itertools.count())  # a module is imported but once
# 3 x 8 x 3 x 3 + 8, 128 x 40 + 40 and 40 x 10 + 10
PARAMS = 224 + 5160 + 410


@pytest.fixture
def ask(tmp_path, monkeypatch, capsys):
    """Run the verb where a user's module lies; gives exit code, output and messages."""
    name = next(NAMES)
    (tmp_path / f"{name}.py").write_text(MODULE)
    values = described(nodes=1, devices_per_node=4)
    del values["links"]["between_nodes"]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(values))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(network="Net", sizes="8,3,8,8", *options, cluster="mine.yaml"):
        named = network if network in ("lenet5", "nonet") else f"{name}:{network}"
        code = main(["layerwise", "--model", named, "--input", sizes, "--cluster", cluster, *options])
        captured = capsys.readouterr()
        return code, captured.out.replace(name, "mymodule"), captured.err.replace(name, "mymodule")

    run.module = name
    yield run
    sys.modules.pop(name, None)


def tables(output):
    """The plan's lines and the comparison's, as words."""
    return [
        [re.split(r"\s{2,}", line.strip()) for line in part.splitlines()[2:]]
        for part in output.split("\n\n")
        if "---" in part
    ]


def table_rows(output):
    """The comparison's lines, by strategy."""
    return {line[0].split()[0]: line for line in tables(output)[1]}


def test_a_module_of_the_users_gets_a_plan_and_a_comparison(ask):
    code, output, errors = ask()
    assert code == 0 and errors == ""
    head = output.splitlines()
    assert head[0].startswith("mymodule:Net: ") and f"{PARAMS:,} parameters" in head[0]
    assert head[1] == "4 devices of toy, 8 samples each"
    plan, compared = tables(output)
    assert (plan[0][0], plan[0][2], plan[-1][1]) == ("input", "n=4", "loss") and len(plan) > 2
    assert sum(int(line[4].replace(",", "")) for line in plan if line[4] != "-") == PARAMS
    assert [line[0] for line in compared] == list(strategies.STRATEGIES)
    assert "times of blocks: the device's rates" in output


def test_the_bytes_are_those_of_a_count_by_hand(ask):
    """Two devices, four samples each, of a network of 20 features, 12 hidden units and 4 classes."""
    settings = {"objective": "additive", "plan_sync": "server", "degrees": "powers"}
    graph = advice.graph_of(f"{ask.module}:vectors", (20,), 10)
    rows, _, _ = advice.answer(advice.Question(graph, 4, 2, machine.load("mine.yaml"), settings))
    rows = {row["strategy"]: row for row in rows}
    params = 20 * 12 + 12 + 12 * 4 + 4
    # a ring of two sends the gradients twice; one device gets the four samples and labels of the other
    assert rows["data"]["network_bytes"] == 2 * 4 * params
    assert rows["single"]["network_bytes"] == 4 * (4 * 20 + 8)
    # split by channels: samples both ways, the hidden units' halves and their gradients, scores to one device and back
    gathered = 2 * 4 * 20 + 2 * (2 * 8 * 6) + 2 * (8 * 2)
    assert rows["model"]["network_bytes"] == 4 * gathered + 4 * 8
    # the paper's way: a gradient sent and a parameter got by each device
    assert rows["data"]["paper_bytes"] == 2 * 8 * params
    # parameters, their gradients and momentum; own samples, both layers, the relu, scores' loss; samples got
    assert rows["data"]["state_bytes_max"] == 4 * (3 * params + 4 * (20 + 12 + 12 + 4 + 1))
    assert rows["single"]["state_bytes_max"] == 4 * (3 * params + 8 * (20 + 12 + 12 + 4 + 1))
    for row in rows.values():
        assert row["samples_per_s"] == pytest.approx(8 / row["step_s"])


def test_every_row_is_what_is_predicted_of_its_strategy(ask):
    """The text against ``answer``, and this against the cost model."""
    ask()
    cluster = machine.load("mine.yaml")
    graph = advice.graph_of("lenet5", (1, 28, 28), 10)
    settings = {"objective": "additive", "plan_sync": "allreduce", "degrees": "powers"}
    question = advice.Question(graph, 8, 4, cluster, settings)
    assert question.batch == 32
    rows, found, _ = advice.answer(question)
    times = Roofline(cluster.device)
    best = planner.find(graph, 32, 4, cluster, times, sync="allreduce").strategy
    for row in rows:
        name = row["strategy"]
        strategy = best if name == "layerwise" else strategies.fixed(name, graph, 32, 4)
        assert found[name] == strategy
        predicted = costs.predict(graph, strategy, 32, 4, cluster, times, sync="allreduce")
        assert row["step_s"] == predicted.step_s and row["samples_per_s"] == 32 / predicted.step_s
        assert row["network_bytes"] == predicted.network_bytes
        assert row["state_bytes_max"] == predicted.state_bytes_max
        assert row["reason"] is None
    code, output, _ = ask("lenet5", "8,1,28,28", "--classes", "10")
    assert code == 0 and "61,706 parameters" in output
    for row in rows:
        shown = table_rows(output)[row["strategy"]]
        assert shown[1:] == [
            f"{row['step_s'] * 1e3:,.2f}",
            f"{row['samples_per_s']:,.1f}",
            f"{row['network_bytes'] / 1e6:,.2f}",
            f"{row['state_bytes_max'] / 1e6:,.1f}",
        ]


@pytest.mark.parametrize("network", ["made", "wide", "Net"])
def test_a_class_a_function_and_a_module_will_do(ask, network):
    code, output, _ = ask(network)
    assert code == 0
    hidden = 400 if network == "wide" else 40
    assert f"{224 + 129 * hidden + 11 * hidden - hidden + 10:,} parameters" in output


def test_a_module_is_found_again_after_it_was_asked_for(ask):
    assert ask()[1].splitlines()[-1].split()[0] == ask()[1].splitlines()[-1].split()[0] == "layerwise"


def test_fewer_and_more_devices_than_there_are(ask):
    assert "2 devices of toy, 8 samples each\n" in ask("Net", "8,3,8,8", "--devices", "2")[1]
    assert (
        "6 devices of toy, 8 samples each (it has 4: oversubscribed)"
        in ask("Net", "8,3,8,8", "--devices", "6")[1]
    )
    code, output, _ = ask("Net", "1,3,8,8", "--devices", "1")
    assert code == 0 and "1 devices" in output
    steps = {line[1] for line in table_rows(output).values()}
    assert len(steps) == 1  # on one device all strategies are the same


def test_tables_in_markdown(ask):
    output = ask("Net", "8,3,8,8", "--markdown")[1]
    assert sum(line.startswith("| ") for line in output.splitlines()) >= 2 + 3 + 2 + len(
        strategies.STRATEGIES
    )
    assert re.search(r"\| -+:? \|", output)


@pytest.mark.parametrize("option", [("--objective", "hidden"), ("--sync", "server"), ("--degrees", "all")])
def test_options_of_the_search(ask, option):
    code, output, _ = ask("Net", "8,3,8,8", *option)
    assert code == 0 and tuple(table_rows(output)) == strategies.STRATEGIES


def test_strategies_over_the_memory_limit_are_marked(ask):
    """Split networks fit where a replica does not."""
    graph_params = 224 + 129 * 400 + 4010
    _, output, _ = ask("wide", "2,3,8,8", "--memory-limit-mb", f"{12 * graph_params / 1e6:.3f}")
    marked = [name for name, line in table_rows(output).items() if "over the memory limit" in line[0]]
    assert {"single", "data"} <= set(marked) and not {"layerwise", "model"} & set(marked)


def refused(answer):
    """The message, which is one line."""
    code, output, errors = answer
    assert (code, output) == (2, "")
    assert errors.startswith("paratrain: error: ") and errors.count("\n") == 1 and errors.endswith("\n")
    return errors.removeprefix("paratrain: error: ")


@pytest.mark.parametrize(
    ("network", "told"),
    [
        ("Missing", "--model mymodule:Missing: AttributeError"),
        ("Failing", "--model mymodule:Failing: ValueError: the weights are not there"),
        ("Sized", "--model mymodule:Sized: TypeError"),
        ("number", "--model mymodule:number: TypeError"),
        ("nothing", "--model mymodule:nothing: gives a NoneType, not a torch.nn.Module"),
        ("Branching", "torch.fx cannot trace mymodule:Branching"),
        ("Spectral", "layer fft_fft is a fft_fft; supported: Conv2d, "),
        ("nonet", "--model nonet: write MODULE:CLASS, or one of lenet5, "),
    ],
)
def test_networks_that_cannot_be_planned(ask, network, told):
    assert told in refused(ask(network))


def test_a_module_that_is_not_there(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("no_such_module:Net", "no.such.package:Net", ":Net"):
        code = main(["layerwise", "--model", name, "--input", "8,3,8,8", "--cluster", "p100-nvlink"])
        captured = capsys.readouterr()
        assert refused((code, captured.out, captured.err)).startswith(f"--model {name}: ")


@pytest.mark.parametrize(
    "sizes", ["", "8", "8,3,8", "8,3,8,8,8", "8,three,8,8", "0,3,8,8", "8,-3,8,8", "8.5,3,8,8"]
)
def test_sizes_that_are_none(ask, sizes):
    assert refused(ask("Net", sizes)).startswith(f"--input {sizes}: write samples,channels,height,width or ")


def test_sizes_that_the_network_does_not_take(ask):
    assert "layer fc1" in refused(ask("Net", "8,3,16,16"))
    assert "layer conv" in refused(ask("Net", "8,3"))
    assert "layer conv" in refused(ask("Net", "8,1,8,8"))
    assert "--model lenet5: --input needs samples,channels,height,width" in refused(ask("lenet5", "8,20"))
    assert "too small" in refused(ask("lenet5", "8,1,8,8"))


def test_clusters_that_cannot_be_used(ask, tmp_path):
    pairs = described(nodes=1, devices_per_node=3)
    link = pairs["links"].pop("inside_node")
    del pairs["links"]["between_nodes"]
    pairs["links"]["pairs"] = [{"devices": list(pair), **link} for pair in ((0, 1), (1, 2))]
    (tmp_path / "pairs.yaml").write_text(yaml.safe_dump(pairs))
    told = refused(ask(cluster="pairs.yaml"))
    assert told.startswith("pairs.yaml: links.pairs: no link between devices 0 and 2; add it")
    nodes = described(nodes=2)
    del nodes["links"]["between_nodes"]
    (tmp_path / "nodes.yaml").write_text(yaml.safe_dump(nodes))
    assert "nodes.yaml: links.between_nodes: missing" in refused(ask(cluster="nodes.yaml"))
    nodes["device"].pop("peak_flops")
    nodes["links"]["between_nodes"] = {"latency_s": figure(1e-6), "bandwidth_bytes_per_s": figure(1e9)}
    (tmp_path / "nodes.yaml").write_text(yaml.safe_dump(nodes))
    assert "nodes.yaml: device: 'peak_flops' is a required property" in refused(ask(cluster="nodes.yaml"))
    assert "cluster 'no-such': " in refused(ask(cluster="no-such"))
    assert "nowhere.yaml: cannot be read" in refused(ask(cluster="nowhere.yaml"))
    assert "calibrate" in refused(ask(cluster="this-host"))


def test_a_memory_limit_that_no_plan_keeps(ask):
    told = refused(ask("Net", "8,3,8,8", "--memory-limit-mb", "0.001"))
    assert told.startswith("memory limit of 1,000 bytes a device: the smallest plan needs ")
    assert "raise the limit" in told


@pytest.mark.parametrize("limit", ["0", "-1", "nan"])
def test_a_memory_limit_that_is_none(ask, limit):
    refused(ask("Net", "8,3,8,8", "--memory-limit-mb", limit))


@pytest.mark.parametrize("devices", ["0", "-1"])
def test_devices_that_are_none(ask, devices):
    assert "--devices" in refused(ask("Net", "8,3,8,8", "--devices", devices))


def test_blocks_are_measured_for_this_machine_only(ask):
    told = refused(ask("Net", "8,3,8,8", "--measure"))
    assert told == "--measure: times blocks on this machine, for --cluster this-host, not toy\n"


def test_measured_blocks_are_used_where_they_are(ask, tmp_path, monkeypatch):
    """Blocks of a millisecond each, of which one device needs all in turn."""
    from implementations.layerwise import blocktimes

    counted = []

    def measured(parts, busy, settings):
        blocks = [block for part in parts for block in part]
        counted.append((busy, len(blocks)))
        taken = [1e-3 * (block["kind"] not in ("handling", "moving")) for block in blocks]
        return [{"forward_s": seconds, "backward_s": 0.0, "repeats": 3} for seconds in taken]

    monkeypatch.setattr(blocktimes, "_measured", measured)
    monkeypatch.setattr(blocktimes, "UPDATE_PARAMS", 10**12)  # an update takes nothing
    (tmp_path / "results" / "calibration").mkdir(parents=True)
    values = described(name="this-host", nodes=1, devices_per_node=2)
    (tmp_path / "results" / "calibration" / "this-host.yaml").write_text(yaml.safe_dump(values))
    assert "the device's rates" in ask(cluster="this-host")[1]
    assert counted == []  # unless asked for, nothing is measured
    code, output, _ = ask("Net", "8,3,8,8", "--measure", cluster="this-host")
    assert code == 0 and "times of blocks: blocks measured here" in output
    assert {busy for busy, _ in counted} == {1, 2}
    # conv, relu, pooling, fc1, relu, fc2 and the loss; and what the samples of the other device take on the way
    step_ms = float(table_rows(output)["single"][1])
    assert 7.0 <= step_ms < 7.2
    before = len(counted)
    assert "blocks measured here" in ask("Net", "8,3,8,8", "--measure", cluster="this-host")[1]
    assert len(counted) == before  # nor measured again
