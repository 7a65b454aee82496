"""Presets: complete, with the published values, each line with its source."""

import math
import re
import tomllib
from pathlib import Path

import pytest

import ramen
from ramen.experiments import paper
from ramen.experiments.experiment import plan
from ramen.experiments.presets import FILE, NO_PRESET, find_preset, list_presets, load_preset

METHODS = Path(ramen.__file__).parent / "methods"
# Parameters that a method chooses itself, unless numbers are given.
NUMBERS = {
    "ramen": {"capacity": 0, "topk": 0, "beta": 0.0, "lr": 0.0},
    "eata": {"redundancy": 0.0},
}
OWN = sorted({path.stem for path in METHODS.glob("*.py")} & set(ramen.list_methods()))  # not a test's own

# The Ramen paper's table of hyper-parameters, copied by hand: CIFAR-10-C, CIFAR-100-C, ImageNet-C, DomainNet.
SETS = ("cifar10c", "cifar100c", "imagenetc", "domainnet")
FACTS = {
    "model": ("ViT-B-32/openai", "ViT-B-16/openai", "ViT-L-14/openai", "ViT-B-32/openai"),
    "batch": (100, 100, 50, 100),
    "severity": (5, 5, 5, None),
}
TABLE = {
    ("tent", "lr"): ((2e-5, 2e-5, 1e-4, 1e-6), (1e-4, 2e-4, 2e-3, 1e-6)),
    ("note", "lr"): ((2e-5, 2e-5, 1e-4, 2e-5), (1e-4, 2e-4, 2e-3, 1e-4)),
    ("note", "memory"): ((100, 100, 50, 100),) * 2,
    ("sar", "lr"): ((2e-5, 2e-5, 1e-4, 2e-5), (1e-4, 2e-4, 2e-3, 1e-4)),
    ("sar", "margin"): ((0.4,) * 4,) * 2,
    ("sar", "rho"): ((0.05,) * 4,) * 2,
    ("sar", "reset_below"): ((0.2,) * 4,) * 2,
    ("rotta", "lr"): ((1e-2, 1e-2, 1e-2, 1e-5), (2e-2, 2e-2, 2e-2, 1e-4)),
    ("tda", "positive_alpha"): ((1.0,) * 4, (1.0, 1.0, 2.0, 2.0)),
    ("tda", "positive_capacity"): ((3,) * 4,) * 2,
    ("tda", "positive_beta"): ((5.0,) * 4,) * 2,
    ("tda", "negative_capacity"): ((2,) * 4,) * 2,
    ("tda", "negative_alpha"): ((0.117,) * 4,) * 2,
    ("tda", "negative_beta"): ((1.0,) * 4,) * 2,
    ("tda", "entropy_lower"): ((0.2,) * 4,) * 2,
    ("tda", "entropy_upper"): ((0.5,) * 4,) * 2,
    ("tda", "mask_lower"): ((0.03,) * 4,) * 2,
    ("tda", "mask_upper"): ((1.0,) * 4,) * 2,
    ("dmn", "alpha"): ((0.1,) * 4, (0.2, 1.0, 1.0, 0.2)),
    ("dmn", "beta"): ((5.5,) * 4,) * 2,
    ("dmn", "capacity"): ((50,) * 4,) * 2,
    ("watt", "lr"): ((1e-3,) * 4,) * 2,
    ("watt", "steps"): ((2,) * 4,) * 2,
    ("watt", "rounds"): ((5,) * 4,) * 2,
    ("clipartt", "lr"): ((1e-3,) * 4,) * 2,
    ("clipartt", "topk"): ((3,) * 4,) * 2,
    ("clipartt", "iterations"): ((10,) * 4,) * 2,
    ("mint", "lr"): ((5e-3, 5e-3, 1e-2, 5e-3), (7e-3, 7e-3, 1.5e-2, 5e-3)),
    ("mint", "prior"): ((math.inf,) * 4, (1e4, 1e4, 1e4, 1e5)),
    ("ramen", "capacity"): ((7500, 750, 75, 300),) * 2,
    ("ramen", "topk"): ((50, 5, 1, 10),) * 2,
    ("ramen", "beta"): ((5.0, 5.0, 0.0, 5.0),) * 2,
    ("ramen", "lr"): ((1e-2,) * 4,) * 2,
    ("entmin", "lr"): ((1e-2,) * 4,) * 2,
}
# Methods that are not in that paper: from their own papers and public code, in the same order, for mixed
# streams and for single domains.
OTHERS = {
    ("eata", "margin"): ((0.4,) * 4,) * 2,
    ("eata", "redundancy"): ((0.4, 0.1, 0.05, 0.1),) * 2,
    ("eata", "fisher"): ((1.0, 1.0, 2000.0, 2000.0),) * 2,
    ("deyo", "margin"): ((0.5,) * 4,) * 2,
    ("deyo", "weight_margin"): ((0.4,) * 4,) * 2,
    ("deyo", "plpd_threshold"): ((0.2,) * 4, (0.3,) * 4),
    ("lame", "neighbours"): ((5,) * 4,) * 2,
    ("lame", "rounds"): ((100,) * 4,) * 2,
    ("stata", "density_weight"): ((1 / 50,) * 4,) * 2,
    ("oga", "capacity"): ((8,) * 4,) * 2,
    ("oga", "tau"): ((0.05,) * 4,) * 2,
    ("onzeta", "proxy_share"): ((0.4, 0.4, 0.8, 0.4),) * 2,
    ("onzeta", "temperature"): ((0.04 / 0.01,) * 4,) * 2,
    ("tps", "lr"): ((1e-3, 1e-3, 5e-3, 1e-3),) * 2,
    ("zero", "kept"): ((0.3,) * 4,) * 2,
    ("mta", "affinity_weight"): ((4.0,) * 4,) * 2,
    ("mta", "entropy_weight"): ((0.2,) * 4,) * 2,
    ("tpt", "lr"): ((5e-3,) * 4,) * 2,
    **{(method, "views"): ((64,) * 4,) * 2 for method in ("tps", "zero", "mta", "tpt")},
}


@pytest.mark.parametrize("place", range(4), ids=SETS)
def test_the_published_values(place):
    preset = load_preset(SETS[place])
    for fact, values in FACTS.items():
        assert getattr(preset, fact) == values[place], fact
    for (method, parameter), settings in (TABLE | OTHERS).items():
        for protocol, values in zip(("mixed", "single"), settings, strict=True):
            assert preset.rows[protocol][method][parameter] == values[place], (protocol, method, parameter)


@pytest.mark.parametrize("place", range(4), ids=SETS)
def test_values_that_follow_from_the_batch_or_the_stream(place):
    preset = load_preset(SETS[place])
    setting = paper.SETTINGS[preset.data[-1]]  # imagenetc5k, not imagenetc
    for protocol, domains in (("mixed", 1), ("single", len(setting.domains))):
        for method in ("eata", "deyo"):
            assert preset.rows[protocol][method]["lr"] == 1e-3 * setting.batch / 64
        horizon = preset.rows[protocol]["onzeta"]["horizon"]
        assert abs(horizon - setting.images / domains) <= 0.5


def test_the_tiny_preset_leaves_the_newer_methods_at_their_defaults():
    for rows in load_preset("tiny").rows.values():
        for method in ("eata", "deyo", "t3a", "lame", "stata", "oga", "onzeta", "tps", "zero", "mta", "tpt"):
            assert rows[method].items() <= ramen.describe(method).defaults.items()


@pytest.mark.parametrize("name", list_presets())
def test_every_method_has_a_row_in_both_settings(name):
    preset = load_preset(name)
    assert sorted(preset.rows) == ["mixed", "single"]
    for protocol in preset.rows:
        assert sorted(preset.rows[protocol]) == OWN
        for method in OWN:
            parameters = preset.row(method, protocol)
            assert set(parameters) <= set(ramen.describe(method).defaults)
            default = {**ramen.describe(method).defaults, **NUMBERS.get(method, {})}
            assert all(type(value) is type(default[key]) for key, value in parameters.items()), method


def test_every_line_says_where_it_comes_from():
    """And no value is written that no preset has."""
    for number, line in enumerate(FILE.read_text().splitlines(), start=1):
        if line.strip():
            comment = re.search(r'(?:^|[\]"\d\w] *)# (.+)$', line)
            assert comment, f"line {number}: {line}"
            assert len(comment[1]) > 5, f"line {number}: {line}"
    content = tomllib.loads(FILE.read_text())
    names = {*content.pop("presets"), "others"}
    for method, row in content.items():
        for parameter, cells in row.items():
            assert not isinstance(cells, dict) or set(cells) <= names, (method, parameter)


def test_the_guess_for_rn101_has_the_values_of_cifar100c():
    guess, known = load_preset("cifar100c_rn101"), load_preset("cifar100c")
    assert guess.model == "RN101/openai"
    for protocol, rows in known.rows.items():
        for method, parameters in rows.items():
            assert guess.row(method, protocol) | parameters == guess.row(method, protocol)


def test_which_preset_is_taken():
    assert find_preset(None, "imagenetc5k").name == "imagenetc"
    assert find_preset(None, "cifar100c").name == "cifar100c"
    assert find_preset(None, "cifar100c", "RN101/openai").name == "cifar100c_rn101"
    assert find_preset(None, "cifar100c", "ViT-L-14/openai").name == "cifar100c"
    assert find_preset(None, "folder") is NO_PRESET
    assert find_preset("none", "cifar10c") is NO_PRESET
    assert find_preset("domainnet", "cifar10c").name == "domainnet"


def test_other_protocols_take_the_mixed_rows_unless_the_file_says_otherwise(tmp_path):
    kwargs = {"data": "cifar10c", "root": "DATA"}
    assert plan(["tent"], protocol="continual", **kwargs)[0].parameters == {"lr": 2e-5}
    assert plan(["tent"], protocol="single", **kwargs)[0].parameters == {"lr": 1e-4}
    own = tmp_path / "own.toml"
    own.write_text('model = "tiny"\n[mixed.tent]\nlr = 0.5\n[continual.tent]\nlr = 0.25\n')
    assert plan(["tent"], protocol="continual", preset=str(own))[0].parameters == {"lr": 0.25}
    (run,) = plan(["tent"], protocol="bursty", preset=str(own))
    assert (run.parameters, run.preset) == ({"lr": 0.5}, str(own))
