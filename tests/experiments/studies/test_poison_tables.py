"""The tables of poisoned streams follow from their numbers."""

import pytest

from ramen.experiments.studies.poison_tables import loss_table, losses, summary_table, worst_gain

DATA = {
    "images": 100,
    "attacker_images": 20,
    "attacks": ["flood", "noise"],
    "shares": [0.1, 0.5],
    "eps": 8 / 255,
    "steps": 20,
    "batch": 10,
    "methods": {
        "steady": {
            "zero_shot": [80.0, 82.0],
            "clean": [84.0, 85.0],
            "poisoned": {
                "flood": {"0.1": [83.0, 85.0], "0.5": [79.0, 81.5]},
                "noise": {"0.1": [84.0, 86.0], "0.5": [83.0, 83.0]},
            },
        },
        "alone": {
            "zero_shot": [80.0],
            "clean": [80.0],
            "poisoned": {"flood": {"0.1": [80.0], "0.5": [81.0]}, "noise": {"0.1": [79.5], "0.5": [80.0]}},
        },
    },
}


def test_worst_attack():
    rows = [[cell.text for cell in row] for row in summary_table(DATA).rows]
    assert rows == [
        [
            "steady",
            "81.00 ± 1.41",
            "84.50 ± 0.71",
            "0.50 ± 0.71",
            "4.25 ± 1.06",
            "-0.75 ± 0.35",
        ],
        ["alone", "80.00", "80.00", "0.50", "0.00", "-0.50"],
    ]
    assert [column.head for column in summary_table(DATA).columns][3:] == [
        "lost, 10 %",
        "lost, 50 %",
        "worst - zero-shot",
    ]


def test_every_attack_and_share():
    table = loss_table(DATA)
    assert [column.head for column in table.columns][1:] == [
        "flood, 10 %",
        "flood, 50 %",
        "noise, 10 %",
        "noise, 50 %",
    ]
    rows = [[cell.text for cell in row] for row in table.rows]
    assert rows == [["steady", "0.50", "4.25", "-0.50", "1.50"], ["alone", "0.00", "-1.00", "0.50", "0.00"]]


def test_numbers_of_each_seed():
    entry = DATA["methods"]["steady"]
    assert losses(entry, "flood", 0.5) == pytest.approx([5, 3.5])
    assert worst_gain(DATA, entry) == pytest.approx([-1, -0.5])
