"""The papers' numbers: complete rows, and derived ones that follow from the others."""

import itertools
from pathlib import Path

import pandas as pd
import pytest

CONFIG = Path(__file__).parents[2] / "config"
COLUMNS = [
    "id", "paper", "version", "table_or_figure", "metric", "workers", "sync_period", "minibatch", "method", "optimizer",
    "init", "schedule", "reduce", "test_set", "value", "unit", "read_as", "role", "source", "note",
]  # fmt: skip


def numbers(paper):
    return pd.read_csv(CONFIG / "published" / f"{paper}.csv").set_index("id", drop=False)


@pytest.fixture(scope="module")
def table():
    return numbers("averaging")


@pytest.fixture(scope="module")
def subnets():
    return numbers("ist")


@pytest.fixture(scope="module")
def layerwise():
    return numbers("layerwise")


# bars of several networks and strategies need both to be told apart
FURTHER = {"layerwise": ["model", "strategy"], "spark": ["model", "data_size", "params"]}


@pytest.mark.parametrize("paper", ["averaging", "ist", "layerwise", "spark"])
def test_every_row_is_complete(paper):
    table = numbers(paper)
    assert list(table.columns) == COLUMNS + FURTHER.get(paper, [])
    assert table["id"].is_unique
    assert set(table["paper"]) == {paper}
    assert set(table["read_as"]) <= {"text", "table", "digitised", "review", "memory", "derived"}
    # of Spark nothing is taken out of the paper, as there is nothing to take
    assert set(table["role"]) == {"target", "context"} | ({"input"} if paper != "spark" else set())
    for column in ("metric", "value", "read_as", "role", "source"):
        assert table[column].notna().all(), column
    assert set(table.loc[table["unit"].isna(), "metric"]) <= {"learning_rate"}


def test_drafts_and_other_work_are_no_targets(table):
    assert set(table.loc[table["version"] != "v2", "role"]) == {"context"}


def test_the_one_gpu_time_is_an_input_and_the_speedups_are_targets(table):
    one = table.loc["avg-epoch-min-w1"]
    assert (one["value"], one["role"]) == (254.5, "input")
    printed = {"avg-speedup-w16-k10": 9.32, "avg-speedup-w16-k20": 10.07, "avg-speedup-w32-derived": 16.70}
    for name, value in printed.items():
        assert (table.loc[name, "value"], table.loc[name, "role"]) == (value, "target")
    assert table.loc["avg-speedup-w16-derived", "value"] == table.loc["avg-speedup-w16-k10", "value"]


@pytest.mark.parametrize("workers", [2, 4, 8, 16, 32])
def test_derived_rows_follow_from_the_minutes(table, workers):
    one = table.loc["avg-epoch-min-w1", "value"]
    epoch = table.loc[f"avg-epoch-min-w{workers}", "value"]
    mpi = table.loc[f"avg-mpi-min-w{workers}", "value"]
    assert table.loc[f"avg-speedup-w{workers}-derived", "value"] == round(one / epoch, 2)
    assert table.loc[f"avg-mpi-share-w{workers}", "value"] == round(100 * mpi / epoch, 1)
    assert table.loc[f"avg-efficiency-w{workers}", "value"] == round(100 * one / epoch / workers)


def test_shares_and_efficiencies_as_the_paper_has_them(table):
    by_workers = [2, 4, 8, 16, 32]
    assert [table.loc[f"avg-mpi-share-w{w}", "value"] for w in by_workers] == [10.9, 13.4, 14.9, 15.8, 15.2]
    assert [table.loc[f"avg-efficiency-w{w}", "value"] for w in by_workers] == [69, 66, 62, 58, 52]


def test_parameters_and_bytes_follow_from_the_network(table):
    widths = [440, *[2048] * 6, 8806]
    parameters = sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(widths))
    assert table.loc["avg-model-params", "value"] == parameters == 39_928_422
    assert table.loc["avg-model-bytes", "value"] == round(4 * parameters / 1e6, 1)
    for m in (2, 4, 8, 16, 32):
        per_rank = 2 * (m - 1) / m * 4 * parameters / 1e6
        assert table.loc[f"avg-bytes-per-reduce-w{m}", "value"] == pytest.approx(per_rank, abs=0.05)
    assert table.loc["avg-bytes-per-reduce-total-w16", "value"] == pytest.approx(
        30 * 4 * parameters / 1e9, abs=0.005
    )


def test_word_error_rates_of_one_run_are_the_same_in_every_table(table):
    rates = table[(table["metric"] == "wer") & (table["version"] == "v2")]
    condition = ["workers", "sync_period", "minibatch", "optimizer", "init", "schedule", "reduce", "test_set"]
    assert (rates.groupby(condition, dropna=False)["value"].nunique() == 1).all()
    assert len(rates) == 56


def test_differences_in_the_initialisation_table(table):
    def loss(test_set, init):
        return (
            table.loc[f"avg-wer-{test_set}-w32-{init}", "value"]
            - table.loc[f"avg-wer-{test_set}-w1-{init}", "value"]
        )

    for test_set, value in (("swb", 0.3), ("ch", 1.1)):
        assert table.loc[f"avg-init-further-loss-table-{test_set}", "value"] == value
        assert loss(test_set, "random") - loss(test_set, "rbm") == pytest.approx(value)


# -- independent subnet training ---------------------------------------------------------------------------------------


def test_what_was_read_off_a_figure_and_what_the_follow_up_printed_are_no_targets(subnets):
    assert set(subnets.loc[subnets["read_as"] == "digitised", "role"]) == {"context"}
    assert set(subnets.loc[subnets["version"] == "ResIST", "role"]) == {"context"}
    seconds = subnets["metric"].str.startswith("time_to_")
    assert set(subnets.loc[seconds, "read_as"]) == {"digitised"}
    assert subnets.loc[seconds, "note"].str.contains("Read off within 10 %").all()


def test_published_methods_are_called_as_the_suite_calls_them(subnets):
    assert set(subnets["method"].dropna()) == {"ist", "averaging", "data_parallel"}


@pytest.mark.parametrize(
    "net, over, method, printed",
    [("speech2", "lsgd", "lsgd-j60", 4.2), ("speech2", "dp", "dp", 10.6), ("speech3", "lsgd", "lsgd-j60", 6.1),
     ("speech3", "dp", "dp", 16.6)],
)  # fmt: skip
def test_the_figure_gives_the_printed_speedups_within_its_error(subnets, net, over, method, printed):
    assert subnets.loc[f"ist-speedup-{net}-{over}", "value"] == printed
    seconds = [subnets.loc[f"ist-seconds-{net}-77-{name}", "value"] for name in (method, "ist-j60")]
    derived = subnets.loc[f"ist-speedup-{net}-{over}-derived", "value"]
    assert derived == pytest.approx(seconds[0] / seconds[1], abs=0.05)
    assert derived == pytest.approx(printed, rel=0.1)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_the_shares_of_one_machine(subnets, workers):
    assert subnets.loc[f"ist-share-low-w{workers}", "value"] == workers**-2
    assert subnets.loc[f"ist-share-high-w{workers}", "value"] == workers**-1


def test_the_best_of_each_row_of_the_accuracies(subnets):
    for task, best in (("speech2", "ist"), ("speech3", "ist"), ("cifar10", "dp"), ("imagenet", "ist")):
        values = {name: subnets.loc[f"ist-accuracy-{task}-{name}", "value"] for name in ("dp", "lsgd", "ist")}
        assert max(values, key=values.get) == best


def test_precision_rises_with_the_width_and_falls_with_the_rank(subnets):
    widths = [512, 1024, 1536, 2048, 2560]
    table = [[subnets.loc[f"ist-p{k}-{width}-ist", "value"] for k in (1, 3, 5)] for width in widths]
    frame = pd.DataFrame(table)
    assert (frame.diff().iloc[1:] > 0).all(axis=None)
    assert (frame.diff(axis=1).iloc[:, 1:] < 0).all(axis=None)
    failed = subnets["note"].str.contains("Data parallelism: Fail") & subnets["id"].str.startswith("ist-p1-")
    assert list(subnets.index[failed]) == [f"ist-p1-{width}-ist" for width in widths[1:]]


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_the_follow_up_counts_twice_the_model_for_each_machine(subnets, workers):
    gigabytes = 2 * workers * 4 * 42.5e6 / 1e9
    assert subnets.loc[f"ist-resist-bytes-w{workers}-lsgd", "value"] == pytest.approx(gigabytes, rel=0.03)


@pytest.mark.parametrize("workers, data", [(4, "cifar10"), (4, "cifar100"), (8, "cifar10"), (8, "cifar100")])
def test_the_follow_ups_speedups_follow_from_its_seconds(subnets, workers, data):
    local, own = (
        subnets.loc[f"ist-resist-seconds-{data}-w{workers}-{name}", "value"] for name in ("lsgd", "ist")
    )
    # one is printed 0.02 too high
    assert subnets.loc[f"ist-resist-speedup-{data}-w{workers}", "value"] == pytest.approx(
        local / own, abs=0.021
    )


@pytest.mark.parametrize("net, widths", [("speech2", [4096, 4096, 35]), ("speech3", [4096, 8192, 8192, 35])])
def test_parameters_and_bytes_of_subnets_follow_from_the_networks(subnets, net, widths):
    """No biases; a scale and a shift for each hidden unit, which go with their unit."""

    def weights(share):
        units = [widths[0], *(width // share for width in widths[1:-1]), widths[-1]]
        return sum(a * b for a, b in itertools.pairwise(units)) + 2 * sum(units[1:-1])

    assert subnets.loc[f"ist-model-params-{net}", "value"] == weights(1)
    for n in (2, 4, 8):
        ring, there_and_back = 2 * (n - 1) / n * 4 * weights(1) / 1e6, 8 * weights(n) / 1e6
        name = f"ist-bytes-per-exchange-{net}-w{n}"
        assert subnets.loc[f"{name}-dp", "value"] == pytest.approx(ring, abs=0.05)
        assert subnets.loc[f"{name}-ist", "value"] == pytest.approx(there_and_back, abs=0.05)


# -- layer-wise parallelism --------------------------------------------------------------------------------------------

NETS = {"alexnet": "alexnet_fc_input12544", "vgg16": "vgg16", "inception": "inception_v3"}
STRATEGIES = ("data", "model", "owt", "layerwise")
DEVICES = (2, 4, 8, 16)


def bars(layerwise, figure, net):
    """(strategies, devices) values of a figure, one device first."""
    one = layerwise.loc[f"lw-{figure}-{net}-w1", "value"]
    return {
        name: [one, *(layerwise.loc[f"lw-{figure}-{net}-{name}-w{count}", "value"] for count in DEVICES)]
        for name in STRATEGIES
    }


def test_the_speed_of_one_device_is_the_only_input(layerwise):
    assert sorted(layerwise.index[layerwise["role"] == "input"]) == sorted(
        f"lw-images-{net}-w1" for net in NETS
    )
    values = [layerwise.loc[f"lw-images-{net}-w1", "value"] for net in NETS]
    assert values == [745, 184, 157]


@pytest.mark.parametrize("net", NETS)
def test_the_bars_name_their_network_strategy_and_devices(layerwise, net):
    for figure in ("images", "bytes"):
        rows = layerwise[layerwise["id"].str.startswith(f"lw-{figure}-{net}-")]
        assert len(rows) == 1 + len(STRATEGIES) * len(DEVICES)
        assert set(rows["model"]) == {NETS[net]} and set(rows["strategy"]) == {"single", *STRATEGIES}
        assert set(rows["minibatch"]) == {32} and set(rows["workers"]) == {1, *DEVICES}
        for name, row in rows.iterrows():
            assert name.endswith(f"-w{int(row['workers'])}")


@pytest.mark.parametrize(
    "net, params", [("alexnet", 74.72e6), ("vgg16", 138_357_544), ("inception", 23_834_568)]
)
def test_the_bytes_of_data_parallelism_are_eight_times_the_weights_and_devices(layerwise, net, params):
    """The networks' published numbers of weights; those of AlexNet with 12,544 inputs of the first linear layer."""
    for count in DEVICES:
        value = layerwise.loc[f"lw-bytes-{net}-data-w{count}", "value"]
        assert value == pytest.approx(8 * params * count / 2**30, rel=0.004)


@pytest.mark.parametrize("net, side", [("alexnet", 224), ("vgg16", 224), ("inception", 299)])
def test_one_device_moves_its_images(layerwise, net, side):
    value = layerwise.loc[f"lw-bytes-{net}-w1", "value"]
    assert value == pytest.approx(32 * 3 * side**2 * 4 / 2**30, abs=0.001)


@pytest.mark.parametrize("net", NETS)
def test_the_shapes_of_the_figures(layerwise, net):
    moved, speed = bars(layerwise, "bytes", net), bars(layerwise, "images", net)
    for k in range(1, 5):
        assert moved["layerwise"][k] <= moved["owt"][k] <= min(moved["data"][k], moved["model"][k])
        assert (moved["model"][k] < moved["data"][k]) == (net == "alexnet")
        assert speed["layerwise"][k] >= speed["owt"][k] > speed["data"][k]
    # in proportion to the devices
    assert moved["model"][4] / moved["model"][1] == pytest.approx(8, rel=0.01)


@pytest.mark.parametrize("net", NETS)
def test_the_text_agrees_with_the_figure_of_speeds_within_a_tenth(layerwise, net):
    speed = bars(layerwise, "images", net)
    best = max(speed[name][4] for name in STRATEGIES[:3])
    for name, derived in (
        ("speedup", speed["layerwise"][4] / speed["layerwise"][0]),
        ("speedup-other", best / speed["layerwise"][0]),
        ("gain", speed["layerwise"][4] / best),
    ):
        assert layerwise.loc[f"lw-{name}-{net}-w16", "value"] == pytest.approx(derived, rel=0.1)


def test_the_laws_of_one_layer_have_the_printed_best_numbers_of_devices(layerwise):
    """Computation / N + communication x N, with constants read off the same bars."""
    for layer in ("conv3", "fc"):
        compute, comm = (layerwise.loc[f"lw-figure3-{layer}-{what}", "value"] for what in ("compute", "comm"))
        totals = {count: compute / count + comm * count for count in DEVICES}
        for count, total in totals.items():
            assert layerwise.loc[f"lw-figure3-{layer}-w{count}", "value"] == pytest.approx(total, abs=0.6)
        assert layerwise.loc[f"lw-best-degree-{layer}", "value"] == min(totals, key=totals.get)


# -- Spark: an abstract, and what a review says ------------------------------------------------------------------------


def test_only_the_abstract_was_read_and_what_a_review_says_is_marked():
    table = numbers("spark")
    assert list(table.index[table["read_as"] == "text"]) == ["spark-speedup-cnn"]
    assert set(table.loc[table["version"] != "arXiv v1", "read_as"]) == {"review", "derived"}
    said = table[table["read_as"] == "review"]
    assert said["source"].str.contains("not checked").all()
    assert said.loc[said["role"] == "target", "note"].str.contains("unverified").all()
    assert set(table.loc[table["read_as"] == "derived", "role"]) == {"context"}


def test_both_readings_of_the_parameters_are_there_and_neither_is_judged():
    table = numbers("spark")
    printed, probable = (table.loc[f"spark-params-fc-{name}"] for name in ("printed", "probable"))
    assert printed["value"] == table.loc["spark-speedup-fc-5-cpus", "params"] == 1000 * probable["value"]
    assert printed["role"] == probable["role"] == "context"
