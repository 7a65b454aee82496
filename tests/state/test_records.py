import random

import torch

from ramen.state.log import Gap, Record, read_records, write_record


def made(count):
    """Records of different lengths, one after the other."""
    return [
        b"".join(write_record({"t": torch.arange(3 * n, dtype=torch.uint8)}, {"number": str(n)}))
        for n in range(count)
    ]


def parts(data):
    return list(read_records(bytearray(data)))


def test_records_come_back_in_order():
    found = parts(b"".join(made(5)))
    assert [part.facts["number"] for part in found] == list("01234")
    assert [part.tensors["t"].numel() for part in found] == [0, 3, 6, 9, 12]
    assert found[-1].stop == len(b"".join(made(5)))


def test_any_changed_byte_costs_its_record_and_no_other():
    records, draw = made(3), random.Random(0)
    first, second = len(records[0]), len(records[0]) + len(records[1])
    for place in range(first, second):
        data = bytearray(b"".join(records))
        data[place] ^= 1 << draw.randrange(8)
        before, gap, after = parts(data)
        assert isinstance(gap, Gap)
        assert (gap.start, gap.stop) == (first, second)
        assert (before.facts["number"], after.facts["number"]) == ("0", "2")


def test_an_end_that_was_cut_off_is_a_gap():
    records = made(2)
    data = b"".join(records)
    for length in range(len(records[0]) + 1, len(data)):
        record, gap = parts(data[:length])
        assert isinstance(record, Record)
        assert (gap.start, gap.stop) == (len(records[0]), length)


def test_bytes_between_records_are_a_gap():
    one, two = made(2)
    for noise in (b"x", b"RAMENREC", bytes(24), one[:30]):
        found = parts(one + noise + two)
        assert [type(part) for part in found] == [Record, Gap, Record]
        assert found[1].stop - found[1].start == len(noise)


def test_nothing_has_no_records():
    assert parts(b"") == []
