"""Options of a grid as they are typed, and what is said of those that are wrong."""

from __future__ import annotations

import pytest

from pointvit.training.grid import Arm
from pointvit.training.grid import options as given

ARMS = (Arm("pretrained", "full", (5, 10), 5), Arm("pretrained", "blocks=2", (10,), 10))
KNOWN = ("pretrained", "scratch", "aligned")


def test_sizes():
    assert given.sizes("10, 5,2.5%,all,5") == (10, 5, 0.025, None)


def test_arms():
    assert given.arms("pretrained,scratch", "full,norm", None, (5,), KNOWN) == (
        Arm("pretrained", "full", (5,), 5),
        Arm("scratch", "full", (5,), 5),
        Arm("pretrained", "norm", (5,), 5),
        Arm("scratch", "norm", (5,), 5),
    )
    text = "pretrained:full,aligned:head@10,scratch:blocks=2@10,scratch:blocks=2@5"
    assert given.arms(None, None, text, (10, 5), KNOWN) == (
        Arm("pretrained", "full", (5, 10), 5),
        Arm("aligned", "head", (10,), 10),
        Arm("scratch", "blocks=2", (5, 10), 5),
    )


def test_what_belongs_to_arms():
    assert given.given_rates(["pretrained:blocks=2=3e-4", "pretrained:full=1e-3,1e-2"], ARMS) == {
        "pretrained:blocks=2": (3e-4,),
        "pretrained:full": (1e-3, 1e-2),
    }
    assert given.given_rates(["scratch:full=1e-3,0.001"], [Arm("scratch", "full", (5,))]) == {
        "scratch:full": (1e-3,)
    }
    assert given.of_arms("--set", ["pretrained:blocks=2/model.lr=1"], ARMS, "/") == [
        ("pretrained:blocks=2", "model.lr=1")
    ]
    assert given.compared("pretrained:blocks=2/pretrained:full", ARMS) == [
        (("pretrained", "blocks=2"), ("pretrained", "full"))
    ]
    assert given.starts(["own=a=b"], "folder") == {"own": "a=b", "aligned": "folder"}


def test_shares_count_from_one():
    assert given.share(None) == (0, 1)
    assert given.share("1/10") == (0, 10)
    assert given.share("10/10") == (9, 10)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: given.sizes("5,0"), "--shapes-per-class: a size is a whole number of at least 1.*got '0'"),
        (lambda: given.sizes("2.5"), "got '2.5'"),
        (lambda: given.sizes("101%"), "got '101%'"),
        (lambda: given.sizes("5,,6"), "no empty part"),
        (lambda: given.seeds(0, False), "--seeds must be at least 1, got 0"),
        (lambda: given.seeds(1, True), "an interval needs at least 2 seeds, got --seeds 1"),
        (lambda: given.rates("1e-3,fast"), "--rates: a learning rate is a positive number, got 'fast'"),
        (lambda: given.rates("-1"), "got '-1'"),
        (lambda: given.share("3/2"), "--cells must be i/n with 1 <= i <= n, such as 3/10; got 3/2"),
        (lambda: given.share("0/2"), "got 0/2"),
        (lambda: given.share("2"), "got 2"),
        (lambda: given.starts(["own"], None), "--start must be NAME=FOLDER"),
        (lambda: given.starts(["scratch=x"], None), "scratch is an initial state already"),
        (lambda: given.starts(["aligned=x"], "y"), "aligned is an initial state already"),
        (lambda: given.arms("pretraind", None, None, (5,), KNOWN), "did you mean pretrained"),
        (
            lambda: given.arms(None, "norms", None, (5,), ["pretrained", "scratch", "shuffled"]),
            "did you mean norm",
        ),
        (lambda: given.arms("scratch", None, "scratch:full", (5,), KNOWN), "give one or the other"),
        (
            lambda: given.arms(None, None, "scratch", (5,), KNOWN),
            "an arm is INIT:MODE, such as pretrained:full",
        ),
        (
            lambda: given.arms(None, None, "scratch:full@7", (5,), KNOWN),
            "this size is not in --shapes-per-class",
        ),
        (
            lambda: given.given_rates(["pretrained:ful=1"], ARMS),
            "begins with no arm of this grid; did you mean",
        ),
        (
            lambda: given.given_rates(["pretrained:full=1e-4", "pretrained:full=1e-3"], ARMS),
            "--rate pretrained:full is given twice; give the rates to try with commas",
        ),
        (
            lambda: given.given_rates(["pretrained:full=1e-4,"], ARMS),
            "--rate must be a list with commas and no empty part",
        ),
        (
            lambda: given.given_rates(["pretrained:full=0"], ARMS),
            "--rate: a learning rate is a positive number",
        ),
        (lambda: given.compared("pretrained:full", ARMS), "--compare must be ARM/ARM"),
        (lambda: given.compared("pretrained:full/own:full", ARMS), "own:full: is no arm of this grid"),
        (lambda: given.compared("pretrained:full/pretrained:full2", ARMS), "pretrained:full2: is no arm"),
        (lambda: given.compared("pretrained:full/pretrained:full", ARMS), "is one arm twice"),
        (lambda: given.compared("", ARMS), "no empty part"),
        (lambda: given.rates(""), "no empty part"),
        (lambda: given.arms(None, "", None, (5,), KNOWN), "--modes must be a list .* no empty part"),
        (lambda: given.arms("", None, None, (5,), KNOWN), "--init must be a list .* no empty part"),
        (lambda: given.arms(None, None, "scratch:full@x", (5,), KNOWN), "--arms: a size is .* got 'x'"),
        (lambda: given.search_size("5,6"), "--search-shapes: a size is .* got '5,6'"),
    ],
)
def test_wrong_options(call, said):
    with pytest.raises(ValueError, match=said) as error:
        call()
    assert "\n" not in str(error.value)
