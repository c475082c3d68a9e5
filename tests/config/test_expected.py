import pytest

from implementations.config import describe, load, select
from implementations.config.settings import duration, expectation
from implementations.errors import UserError
from tests.config.stubs import BASE_TIER, load_stub, write

EXPECTED = {"hours": {"averaging": 3.0, "spark": 1.0, "other": 0.5}, "how": "measured on a toaster"}


def test_what_a_tier_takes_is_told_before_it_starts(tmp_path):
    settings = load_stub(write(tmp_path, tier=BASE_TIER | {"expected": EXPECTED}))
    line = describe(settings).splitlines()[-1]
    # of the papers that it has points of, and what belongs to all of them
    assert line == "expected to take 3.5 h: averaging 3.0 h, other 30 min (measured on a toaster)"
    assert expectation(select(settings, "averaging")) == [line]


def test_a_paper_of_which_nothing_is_known_is_named(tmp_path):
    hours = EXPECTED | {"hours": {"spark": 1.0, "other": 0.25}}
    settings = load_stub(write(tmp_path, tier=BASE_TIER | {"expected": hours}))
    assert "15 min, without averaging, of which no time is known: other" in describe(settings)


def test_a_tier_that_says_nothing_tells_nothing(tmp_path):
    assert expectation(load_stub(write(tmp_path))) == []


@pytest.mark.parametrize("wrong", [{"hours": {}}, {"hours": {"averaging": -1.0}, "how": "x"}, {"how": "x"}])
def test_mistakes(tmp_path, wrong):
    with pytest.raises(UserError, match="expected"):
        load_stub(write(tmp_path, tier=BASE_TIER | {"expected": wrong}))


@pytest.mark.parametrize(
    ("hours", "told"), [(0.001, "< 1 min"), (0.1, "6 min"), (1.7, "1.7 h"), (310, "310 h")]
)
def test_durations(hours, told):
    assert duration(hours) == told


@pytest.mark.parametrize("tier", ["config", "smoke", "extended", "full"])
def test_every_tier_says_how_long_each_paper_takes(root, tier):
    settings = load(root / f"config/{tier}.yaml")
    papers = {one.paper for one in settings.experiments if one.paper != "suite"}
    assert papers <= set(settings.expected["hours"]), "add the paper's hours under `expected`"
