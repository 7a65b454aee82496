"""The tables of the study of harm, as they are stored and shown again."""

from ramen.experiments.studies.harm_tables import gain_table, marked, worst_table
from ramen.experiments.studies.study_result import stored_table, study


def gain(points, margin, seeds, broken=1):
    return {"points": points, "margin": margin, "seeds": seeds, "repaired": 0, "broken": broken}


DATA = {
    "seeds": [0, 1],
    "batch": 100,
    "methods": {"good": {}, "bad": {}},
    "rows": {
        "mixed domains": {
            "images": 2000,
            "zero_shot": [80.0, 82.0],
            "methods": {"good": gain(1.0, 0.25, [0.5, 1.5]), "bad": gain(-0.6, 0.1, [-0.8, -0.4])},
        },
        "clean images": {
            "images": 1000,
            "zero_shot": [99.0, 100.0],
            "methods": {"good": gain(0.0, 0.0, [0.0, 0.0], 0), "bad": gain(-0.5, 0.0, [-0.5, -0.5])},
        },
    },
    "left_out": ["first image (too few images)"],
}


def test_cells():
    rows = [[cell.text for cell in row] for row in gain_table(DATA).rows]
    assert rows[0] == ["mixed domains", "81.00", "+1.00 ± 0.25", "-0.60 ± 0.10 !"]
    assert rows[1] == ["clean images", "99.50", "+0.00", "-0.50 ± 0.00"]
    assert [cell.text for cell in worst_table(DATA).rows[0][1:]] == ["2,000", "+0.50", "-0.80 !"]
    assert marked(-0.5001) == "-0.50 !"


def test_notes():
    text = " ".join(gain_table(DATA).notes)
    assert "! marks what is below -0.5" in text
    assert "Left out: first image (too few images)." in text
    assert "Left out" not in " ".join(gain_table({**DATA, "left_out": []}).notes)


def test_marked_numbers_are_numbers_when_they_are_shown_again():
    stored = study("harm", "t", [gain_table(DATA)], {})["tables"][0]
    table = stored_table(stored)
    assert [column.align for column in table.columns] == ["left", *["right"] * 3]
    cell = table.rows[0][3]
    assert (cell.text, cell.value, cell.deviation) == ("-0.60 ± 0.10 !", -0.6, 0.1)
