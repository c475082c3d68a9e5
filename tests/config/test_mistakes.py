import copy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from implementations.config import point_from_arguments
from implementations.errors import UserError
from tests.config.stubs import BASE_EXPERIMENT, BASE_TIER, CATALOG, load_stub, problems_of, write


def changed(path, value):
    """The base experiment with one value replaced (or added)."""
    content = copy.deepcopy(BASE_EXPERIMENT)
    at = content
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return content


SWEEP = ("sweeps", 0)
CASES = [
    # what is changed, to what, the key path in the message, a piece of what is allowed
    (("colour",), 1, "colour", "paper, title"),
    (("paper",), "nobody", "paper", "averaging | ist"),
    (("defaults", "lr"), 0, "defaults.lr", "number > 0"),
    (("defaults", "lr"), "fast", "defaults.lr", "number > 0"),
    (("defaults", "lr"), float("inf"), "defaults.lr", "number > 0"),
    (("defaults", "minibatch"), 16.0, "defaults.minibatch", "integer >= 1"),
    (("defaults", "minibatch"), True, "defaults.minibatch", "integer >= 1"),
    (("defaults", "model"), "fc-0", "defaults.model", "fc-512-512"),
    (("defaults", "model"), "vgg99-4", "defaults.model", "a model: fc"),
    (("defaults", "model"), {"name": "fc", "hidden": [8, 0]}, "defaults.model.hidden[1]", "integer >= 1"),
    (
        ("defaults", "model"),
        {"name": "fc", "hidden": [8], "colour": 1},
        "defaults.model.colour",
        "activation",
    ),
    (("defaults", "model"), {"name": "fc"}, "defaults.model.hidden", "array of integer"),
    (("defaults", "dataset"), "imagenet", "defaults.dataset", "digits, fashion_mnist"),
    (("defaults", "wrokers"), 4, "defaults.wrokers", "did you mean workers?"),
    ((*SWEEP, "evidence"), "guessed", "sweeps[0].evidence", "measured | simulated"),
    ((*SWEEP, "seeds"), 0, "sweeps[0].seeds", "integer >= 1"),
    ((*SWEEP, "seeds"), [1, 1], "sweeps[0].seeds", "integer >= 1 or array"),
    ((*SWEEP, "repeats"), 0, "sweeps[0].repeats", "integer >= 1"),
    ((*SWEEP, "tiers"), ["huge"], "sweeps[0].tiers[0]", "smoke | default"),
    ((*SWEEP, "set", "method"), "magic", "sweeps[0].set.method", "averaging, data_parallel"),
    ((*SWEEP, "set", "sharding"), "sometimes", "sweeps[0].set.sharding", "static | reshuffled"),
    ((*SWEEP, "set", "sharding"), "skewed", "sweeps[0].set.sharding", "skewed with skew, a number > 0"),
    ((*SWEEP, "set", "sharding"), "balanced", "sweeps[0].set.sharding", "has no utterances"),
    ((*SWEEP, "set", "skew"), 0.5, "sweeps[0].set.skew", "null, or sharding skewed"),
    ((*SWEEP, "set", "skew"), 0, "sweeps[0].set.skew", "number or null > 0"),
    ((*SWEEP, "set", "memory_limit_bytes"), 0, "sweeps[0].set.memory_limit_bytes", "integer or null >= 1"),
    ((*SWEEP, "set", "memory_limit_bytes"), 1e6, "sweeps[0].set.memory_limit_bytes", "integer or null >= 1"),
    ((*SWEEP, "set", "nodes"), 64, "sweeps[0].set.nodes", "a projected point whose time a trace tells"),
    ((*SWEEP, "set", "nodes"), 0, "sweeps[0].set.nodes", "integer or null >= 1"),
    ((*SWEEP, "set", "data_size"), 60000, "sweeps[0].set.data_size", "at most 54000"),
    ((*SWEEP, "set", "data_size"), 32, "defaults.minibatch", "at most 8"),
    ((*SWEEP, "set", "algorithm"), "carrier pigeon", "sweeps[0].set.algorithm", "library | ring"),
    ((*SWEEP, "set", "blocks"), 2, "sweeps[0].set.blocks", "sync_period, algorithm"),
    ((*SWEEP, "set", "variant"), "odd", "sweeps[0].set.variant", "default"),
    ((*SWEEP, "set", "processes"), 8, "sweeps[0].set.processes", "at most 1"),
    ((*SWEEP, "grid", "workers"), [1, 0], "sweeps[0].grid.workers[1]", "integer >= 1"),
    ((*SWEEP, "grid", "workers"), [], "sweeps[0].grid.workers", "not empty"),
    ((*SWEEP, "grid", "workers"), 4, "sweeps[0].grid.workers", "array"),
    ((*SWEEP, "grid", "sync_period"), [10, 0], "sweeps[0].grid.sync_period[1]", "int >= 1"),
    ((*SWEEP, "grid", "sync_period"), [2.5], "sweeps[0].grid.sync_period[0]", "int >= 1"),
    ((*SWEEP, "grid", "lr_scaling"), ["log"], "sweeps[0].grid.lr_scaling[0]", "none | linear"),
    ((*SWEEP, "grid", "cases"), [{"lr": -1}], "sweeps[0].grid.cases[0].lr", "number > 0"),
]


@pytest.mark.parametrize(("path", "value", "where", "allowed"), CASES)
def test_each_mistake_names_file_path_and_what_is_allowed(tmp_path, path, value, where, allowed):
    lines = problems_of(write(tmp_path, one=changed(path, value)))
    file = tmp_path / "experiments" / "one.yaml"
    hits = [line for line in lines if line.startswith(f"{file}: {where}: got ") and allowed in line]
    assert hits, lines
    assert "; allowed: " in hits[0]


TIER_CASES = [
    ({"tier": "huge"}, "tier", "smoke | default"),
    ({"experiments": []}, "experiments", "not empty"),
    ({"experiments": ["one", "onee"]}, "experiments[1]", "did you mean one?"),
    ({"threads_per_worker": 0}, "threads_per_worker", "integer >= 1"),
    ({"time_limit_s": 0}, "time_limit_s", "number > 0"),
    ({"launcher": {"comand": "srun"}}, "launcher.comand", "did you mean command?"),
    ({"launcher": {"args": "-n 2"}}, "launcher.args", "array of string"),
    ({"clusters": ["moon"]}, "clusters[0]", "this-host"),
    ({"device": "abacus"}, "device", "cpu"),
    ({"workers": 3}, "workers", "master_seed"),
    ({"overrides": {"one/gird": {"seeds": 1}}}, "overrides.one/gird", "one/grid"),
    ({"overrides": {"one": {"seeds": 0}}}, "overrides.one.seeds", "integer >= 1"),
    ({"overrides": {"one": {"set": {"workers": 0}}}}, "overrides.one.set.workers", "integer >= 1"),
    ({"overrides": {"one": {"grid": {"method": ["magic"]}}}}, "overrides.one.grid.method[0]", "averaging"),
]


@pytest.mark.parametrize(("values", "where", "allowed"), TIER_CASES)
def test_mistakes_in_the_tier(tmp_path, values, where, allowed):
    path = write(tmp_path, BASE_TIER | values, one=BASE_EXPERIMENT)
    lines = problems_of(path)
    assert any(line.startswith(f"{path}: {where}: got ") and allowed in line for line in lines), lines


def one_sweep(**values):
    content = copy.deepcopy(BASE_EXPERIMENT)
    content["sweeps"][0] = {"name": "grid", "evidence": "simulated"} | values
    return content


def test_sequential_takes_one_worker(tmp_path):
    content = one_sweep(set={"method": "sequential"}, grid={"workers": [1, 2]})
    (line,) = problems_of(write(tmp_path, one=content))
    assert "sweeps[0].grid.workers[1]: got 2; allowed: 1" in line


def test_butterfly_needs_a_power_of_two(tmp_path):
    content = one_sweep(set={"method": "averaging", "algorithm": "butterfly"}, grid={"workers": [4, 6]})
    (line,) = problems_of(write(tmp_path, one=content))
    assert "sweeps[0].grid.workers[1]: got 6; allowed: a power of two" in line


def test_a_methods_own_check_is_reported_where_the_value_stands(tmp_path):
    content = one_sweep(set={"method": "splitting", "workers": 2, "model": "fc-8-4"}, grid={"blocks": [2, 5]})
    (line,) = problems_of(write(tmp_path, one=content))
    assert "sweeps[0].grid.blocks[1]: got 5 blocks; allowed: at most 4" in line


def test_measured_points_cannot_choose_their_processes(tmp_path):
    content = one_sweep(set={"method": "averaging", "workers": 4, "processes": 2}) | {}
    content["sweeps"][0]["evidence"] = "measured"
    (line,) = problems_of(write(tmp_path, one=content))
    assert "sweeps[0].set.processes: got 2; allowed: 4" in line


@pytest.mark.parametrize("evidence", ["measured", "simulated", "projected"])
def test_licensed_data_can_only_be_projected(tmp_path, evidence):
    content = changed(("defaults", "dataset"), "sold")
    content["sweeps"][0]["evidence"] = evidence
    content["defaults"]["network"] = "this-host"
    path = write(tmp_path, one=content)
    if evidence == "projected":
        assert {point.dataset for point in load_stub(path).projected} == {"sold"}
        return
    (line,) = problems_of(path)
    assert (
        f"one.yaml: defaults.dataset: got sold; allowed: for evidence {evidence}, a data set that is there"
        in line
    )


def test_a_licensed_data_set_is_no_argument_of_train(tmp_path):
    values = {"method": "sequential", "dataset": "sold", "model": "fc-8", "workers": 1}
    with pytest.raises(UserError, match="arguments: dataset: got sold; allowed: for evidence measured"):
        point_from_arguments(load_stub(write(tmp_path)), values, CATALOG)


@pytest.mark.parametrize("evidence", ["measured", "simulated"])
def test_measured_points_on_emulated_hosts_name_a_rate(tmp_path, evidence):
    content = one_sweep(set={"method": "averaging", "workers": 2, "network": "emulated-1gbit"})
    content["sweeps"][0]["evidence"] = evidence
    path = write(tmp_path, one=content)
    if evidence == "simulated":  # there the name says nothing
        assert load_stub(path).points
        return
    (line,) = problems_of(path)
    assert "sweeps[0].set.network" in line and "emulated-NUMBERmbit" in line


def test_spark_on_emulated_hosts_is_a_standalone_cluster(tmp_path):
    """Executors of one Java process, or of a driver's choosing, cannot each be on a host."""
    values = {
        "method": "spark",
        "dataset": "digits",
        "model": "fc-8",
        "workers": 2,
        "minibatch": 8,
        "data_size": 64,
    }
    own = values | {"network": "emulated-100mbit", "cluster": "standalone"}
    settings = load_stub(write(tmp_path))
    assert point_from_arguments(settings, own).network == "emulated-100mbit"
    with pytest.raises(
        UserError, match=r"cluster: got local with network emulated-100mbit; allowed: standalone"
    ):
        point_from_arguments(settings, own | {"cluster": "local"})


def test_a_projected_point_names_a_cluster_of_the_tier(tmp_path):
    content = changed((*SWEEP, "evidence"), "projected")
    (line,) = problems_of(write(tmp_path, one=content))  # the default of network is no cluster
    assert line.endswith(
        "one.yaml: sweeps[0].network: got loopback; allowed: one of the tier's clusters: this-host"
    )
    content["defaults"]["network"] = "this-hots"
    (line,) = problems_of(write(tmp_path, one=content))
    assert "one.yaml: defaults.network: got this-hots" in line and "did you mean this-host?" in line
    content["defaults"]["network"] = "this-host"
    settings = load_stub(write(tmp_path, one=content))
    assert len(settings.projected) == 8 and not settings.points
    tier = BASE_TIER | {"clusters": ["gigabit-cpu"]}
    assert "clusters: gigabit-cpu" in problems_of(write(tmp_path, tier, one=content))[0]


def test_other_points_may_name_any_network(tmp_path):
    assert load_stub(write(tmp_path, one=changed(("defaults", "network"), "carrier-pigeon"))).points


def test_weak_scaling_needs_data_for_every_worker(tmp_path):
    content = one_sweep(
        set={"method": "averaging", "scaling": "weak", "data_size": 20000}, grid={"workers": [2, 4]}
    )
    (line,) = problems_of(write(tmp_path, one=content))
    assert "got 4 x 20000 samples; allowed: at most 54000" in line


@pytest.mark.parametrize("sharding", ["static", "reshuffled", "independent", "skewed"])
def test_every_sharding_needs_a_step_an_epoch(tmp_path, sharding):
    """28 samples are one minibatch of 7 for each of 4 workers, 27 are not."""
    values = {"method": "averaging", "workers": 4, "minibatch": 7, "sharding": sharding}
    values |= {"skew": 0.5} if sharding == "skewed" else {}
    content = one_sweep(set=values, grid={"data_size": [28, 27]})
    (line,) = problems_of(write(tmp_path, one=content))
    assert (
        "sweeps[0].set.minibatch: got 7 samples a step with 4 workers on 27 samples; allowed: at most 6"
        in line
    )


def test_utterances_can_be_dealt_out_where_there_are_some(tmp_path):
    values = {"method": "averaging", "workers": 2, "sharding": "balanced", "dataset": "spoken"}
    assert load_stub(write(tmp_path, one=one_sweep(set=values))).points[0].sharding == "balanced"


def test_a_wrong_skew_is_told_once(tmp_path):
    values = {"method": "averaging", "workers": 2, "sharding": "skewed", "skew": -1}
    (line,) = problems_of(write(tmp_path, one=one_sweep(set=values)))
    assert "sweeps[0].set.skew: got -1; allowed: number or null > 0" in line


@pytest.mark.parametrize(
    ("dataset", "model", "wanted"),
    [
        ("tags", "fc-8", "got fc; allowed: a model for the sparse samples of tags: words"),
        ("digits", "words-8", "got words; allowed: a model for the dense samples of digits: fc, fc_dropout"),
    ],
)
def test_a_model_takes_sparse_samples_or_dense_ones(tmp_path, dataset, model, wanted):
    values = {"method": "averaging", "workers": 2, "dataset": dataset, "model": model}
    (line,) = problems_of(write(tmp_path, one=one_sweep(set=values)))
    assert line.endswith(f"one.yaml: sweeps[0].set.model: {wanted}")
    fitting = one_sweep(set=values | {"model": "words-8" if dataset == "tags" else "fc-8"})
    assert load_stub(write(tmp_path, one=fitting)).points


def test_dropout_is_for_one_sequential_worker(tmp_path):
    models = [{"name": "fc_dropout", "hidden": [8], "dropout": share} for share in (0, 0.5)]
    cases = [
        {"method": "sequential", "workers": 1},
        {"method": "averaging", "workers": 1},
        {"method": "data_parallel", "workers": 4},
    ]
    content = one_sweep(set={}, grid={"model": models, "cases": cases})
    first, second = problems_of(write(tmp_path, one=content))
    allowed = "allowed: dropout 0, or method sequential on one worker"
    assert f"grid.model[1]: got dropout 0.5 with method averaging on 1 worker; {allowed}" in first
    assert f"grid.model[1]: got dropout 0.5 with method data_parallel on 4 workers; {allowed}" in second


@pytest.mark.parametrize("missing", ["method", "workers"])
def test_a_point_needs_its_main_values(tmp_path, missing):
    values = {"method": "averaging", "workers": 2}
    del values[missing]
    (line,) = problems_of(write(tmp_path, one=one_sweep(set=values)))
    assert f"sweeps[0].{missing}: got nothing; allowed: " in line


def test_a_key_in_set_and_grid_is_ambiguous(tmp_path):
    content = one_sweep(set={"method": "averaging", "workers": 2}, grid={"workers": [1, 2]})
    (line,) = problems_of(write(tmp_path, one=content))
    assert "sweeps[0].grid.workers: stands in set too" in line


def test_cases_name_the_same_keys(tmp_path):
    cases = [{"workers": 2, "lr": 0.1}, {"workers": 4}]
    (line,) = problems_of(write(tmp_path, one=one_sweep(set={"method": "averaging"}, grid={"cases": cases})))
    assert "sweeps[0].grid.cases[1]: lacks lr" in line


def test_a_grid_beyond_reason_is_refused_at_once(tmp_path):
    grid = {"workers": list(range(1, 101)), "epochs": list(range(1, 101)), "sync_period": list(range(1, 101))}
    (line,) = problems_of(write(tmp_path, one=one_sweep(set={"method": "averaging"}, grid=grid)))
    assert "got a grid of 1000000 points; allowed: at most" in line


def test_two_sweeps_of_one_name(tmp_path):
    content = copy.deepcopy(BASE_EXPERIMENT)
    content["sweeps"].append(content["sweeps"][0])
    (line,) = problems_of(write(tmp_path, one=content))
    assert 'sweeps[1].name: got "grid" again' in line


def test_an_experiment_without_a_sweep_for_the_tier(tmp_path):
    content = one_sweep(tiers=["full"], set={"method": "averaging", "workers": 2})
    (line,) = problems_of(write(tmp_path, one=content))
    assert "experiments[0]: got one, none of whose sweeps is for tier default" in line


@pytest.mark.parametrize(
    ("text", "line_number"),
    [
        ("paper: averaging\ntitle: [unclosed\nsweeps: 3\n", 3),
        ("paper: a\n\tb: c\n", 2),
        ("paper: a\npaper: b\n", 2),
    ],
)
def test_yaml_that_cannot_be_read_names_the_line(tmp_path, text, line_number):
    (line,) = problems_of(write(tmp_path, one=text))
    assert line.startswith(f"{tmp_path / 'experiments/one.yaml'}: the file: line {line_number}, column ")


def test_a_repeated_key_is_refused(tmp_path):
    (line,) = problems_of(
        write(tmp_path, "tier: default\nexperiments: [one]\ntier: full\n", one=BASE_EXPERIMENT)
    )
    assert "line 3" in line and "'tier' stands twice" in line


@pytest.mark.parametrize(
    "text", ["", "- a\n- b\n", "just words\n", "!!python/object/apply:os.system ['true']\n"]
)
def test_a_tier_that_is_no_mapping(tmp_path, text):
    assert problems_of(write(tmp_path, text, one=BASE_EXPERIMENT))[0].startswith(
        f"{tmp_path / 'tier.yaml'}: "
    )


def test_a_missing_tier_file(tmp_path):
    assert problems_of(tmp_path / "nowhere.yaml") == [f"{tmp_path / 'nowhere.yaml'}: the file: no such file"]


def test_all_mistakes_of_all_files_come_at_once(tmp_path):
    tier = BASE_TIER | {"experiments": ["one", "two", "three", "four"], "clusters": ["moon"], "grace": 3}
    two = changed(("sweeps", 0, "grid", "workers"), [0, 2])
    two["sweeps"][0]["grid"]["sync_period"] = [0]
    path = write(tmp_path, tier, one=changed(("defaults", "model"), "cnn-3"), two=two, three="a: [")
    lines = problems_of(path)
    wanted = ["grace: got an unknown key", "clusters[0]", "experiments[3]", "one.yaml: defaults.model",
              "two.yaml: sweeps[0].grid.workers[0]",
              "sync_period[0]", "three.yaml: the file: line"]  # fmt: skip
    for piece in wanted:
        assert any(piece in line for line in lines), (piece, lines)


def test_one_mistake_does_not_hide_the_others_of_its_file(tmp_path):
    content = changed(("sweeps", 0, "colour"), 1)
    content["paper"] = "nobody"
    content["sweeps"][0]["evidence"] = "guessed"
    content["sweeps"][0]["set"]["method"] = "magic"
    content["sweeps"].append(
        {"name": "second", "evidence": "simulated", "set": {"method": "sequential", "workers": 2}}
    )
    path = write(tmp_path, BASE_TIER | {"tier": "huge", "grace_s": -1}, one=content)
    lines = problems_of(path)
    pieces = ["tier: got", "grace_s: got", "paper: got", "sweeps[0].colour", "sweeps[0].evidence",
              "sweeps[0].set.method",
              "sweeps[1].set.workers: got 2; allowed: 1"]  # fmt: skip
    for piece in pieces:
        assert any(piece in line for line in lines), (piece, lines)
    assert len(lines) == len(pieces)


LEAVES = [
    ("title",), ("paper",), ("defaults", "dataset"), ("defaults", "model"), ("defaults", "minibatch"),
    ("defaults", "lr"), ("sweeps", 0, "name"),
    ("sweeps", 0, "evidence"), ("sweeps", 0, "set", "method"), ("sweeps", 0, "seeds"),
    ("sweeps", 0, "grid", "workers"), ("sweeps", 0, "grid", "sync_period"),
]  # fmt: skip
MAPPINGS = [(), ("defaults",), ("sweeps", 0), ("sweeps", 0, "set"), ("sweeps", 0, "grid")]
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(st.sampled_from(LEAVES), st.sampled_from([{"a": 1}, [], -3, -0.5, False, [None], "??"]))
def test_a_value_of_the_wrong_kind_is_always_found(tmp_path, path, value):
    if path == ("title",) and isinstance(value, str):
        return  # a title may be any text
    lines = problems_of(write(tmp_path, one=changed(path, value)))
    file = str(tmp_path / "experiments" / "one.yaml")
    assert any(line.startswith(f"{file}: ") and str(path[-1]) in line for line in lines), lines


@quick
@given(st.sampled_from(MAPPINGS), st.from_regex(r"[a-z]{3,12}_x", fullmatch=True))
def test_an_unknown_key_is_always_found(tmp_path, path, key):
    lines = problems_of(write(tmp_path, one=changed((*path, key), [1])))
    assert any(
        f".{key}: got an unknown key" in line or f": {key}: got an unknown key" in line for line in lines
    ), lines


@quick
@given(
    st.lists(
        st.sampled_from([case for case in CASES if len(case[0]) > 1]),
        min_size=2,
        max_size=5,
        unique_by=lambda c: c[0],
    )
)
def test_each_of_several_mistakes_in_values_is_reported(tmp_path, cases):
    """Each in an experiment of its own, since one mistake can hide what depends on it."""
    experiments = {f"e{index}": changed(path, value) for index, (path, value, _, _) in enumerate(cases)}
    lines = problems_of(write(tmp_path, **experiments))
    for index, (_, _, where, allowed) in enumerate(cases):
        file = tmp_path / "experiments" / f"e{index}.yaml"
        assert any(line.startswith(f"{file}: {where}: got ") and allowed in line for line in lines), lines


def test_a_sound_config_has_no_mistakes(tmp_path):
    assert len(load_stub(write(tmp_path)).points) == 8
