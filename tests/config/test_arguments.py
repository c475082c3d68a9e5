import pytest

from implementations.config import point_from_arguments
from implementations.errors import UserError
from tests.config.stubs import BASE_TIER, CATALOG, load_stub, write


@pytest.fixture
def settings(tmp_path):
    return load_stub(
        write(tmp_path, BASE_TIER | {"master_seed": 3, "threads_per_worker": 2, "time_limit_s": 50})
    )


VALUES = {"method": "averaging", "dataset": "digits", "model": "fc-8", "workers": 4, "minibatch": 16}


def test_a_point_with_the_tiers_values(settings):
    point = point_from_arguments(settings, VALUES | {"sync_period": 5}, CATALOG)
    assert (point.evidence, point.processes, point.seed, point.repeat) == ("measured", 4, 3, 0)
    assert (point.threads_per_worker, point.time_limit_s) == (2, 50.0)
    assert point.method_params == {"sync_period": 5, "algorithm": "library", "lr_scaling": "none"}
    assert point.experiments == ()


def test_what_is_given_wins(settings):
    given = {"evidence": "simulated", "seed": 9, "repeat": 2, "threads_per_worker": 1}
    point = point_from_arguments(settings, VALUES | given, CATALOG)
    assert (point.evidence, point.seed, point.repeat, point.threads_per_worker) == ("simulated", 9, 2, 1)


def test_the_variant_is_the_methods_first(settings):
    for method, variant in (("averaging", "default"), ("shuffling", "mended")):
        assert point_from_arguments(settings, VALUES | {"method": method}, CATALOG).variant == variant
    given = VALUES | {"method": "shuffling", "variant": "faithful"}
    assert point_from_arguments(settings, given, CATALOG).variant == "faithful"


def test_every_mistake_is_told(settings):
    wrong = VALUES | {"workers": 0, "lr": "fast", "colour": 1, "sync_period": 0}
    with pytest.raises(UserError) as caught:
        point_from_arguments(settings, wrong, CATALOG)
    text = str(caught.value)
    for key in ("workers: got 0", 'lr: got "fast"', "colour: got an unknown key"):
        assert f"arguments: {key}" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sync_period": 0}, "arguments: sync_period: got 0; allowed: int >= 1"),
        ({"method": "sequential"}, "arguments: workers: got 4; allowed: 1"),
        (
            {"method": "data_parallel", "sync_period": 5},
            "arguments: sync_period: got a parameter that data_parallel",
        ),
        ({"evidence": "guessed"}, 'arguments: evidence: got "guessed"; allowed: measured | simulated'),
        ({"seed": -1}, "arguments: seed: got -1; allowed: integer >= 0"),
    ],
)
def test_mistakes_that_depend_on_the_method(settings, change, message):
    with pytest.raises(UserError) as caught:
        point_from_arguments(settings, VALUES | change, CATALOG)
    assert message in str(caught.value)
