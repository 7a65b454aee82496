from ramen.classify.page import ChangesSummary
from tests.fakes.served_results import answer, failure


def test_one_pass_over_results():
    results = [
        answer("a", "dog", "cat", probability=0.4, entropy=1.0, zero_shot_entropy=2.0),
        failure("b"),
        answer("c", "cat", entropy=0.5, zero_shot_entropy=0.5),
        answer("d", "dog", "cat", probability=0.9, entropy=0.0, zero_shot_entropy=0.5),
        answer("e", "cat", "dog", probability=0.6, entropy=0.5, zero_shot_entropy=1.0),
    ]
    summary = ChangesSummary.of(iter(results), answers=4)
    assert [result.key for result in summary.changes] == ["d", "e", "a"]
    assert [result.key for result in summary.failures] == ["b"]
    assert summary.transitions == {("cat", "dog"): 2, ("dog", "cat"): 1}
    assert (summary.tally.files, summary.tally.errors, summary.tally.changed) == (5, 1, 3)
    assert summary.entropies == (1.0, 0.5)
    (part,) = summary.parts
    assert (part.before, part.after) == ({"cat": 3, "dog": 1}, {"cat": 2, "dog": 2})


def test_time_has_at_most_forty_parts_of_one_size():
    for count in (1, 19, 20, 21, 800, 801, 12_345):
        results = [answer(str(number)) for number in range(count)]
        parts = ChangesSummary.of(results, answers=count).parts
        sizes = [part.answers for part in parts]
        assert len(sizes) <= 40
        assert sum(sizes) == count
        assert len(set(sizes[:-1])) <= 1
        assert all(size >= 20 for size in sizes[:-1])


def test_it_does_not_grow_with_the_output():
    results = [answer(f"a{n}", "dog", "cat", probability=n / 100) for n in range(100)]
    results += [failure(f"b{n}") for n in range(50)]
    summary = ChangesSummary.of(results, answers=100, shown=10)
    assert [result.key for result in summary.changes] == [f"a{n}" for n in range(99, 89, -1)]
    assert [result.key for result in summary.failures] == [f"b{n}" for n in range(10)]
    assert (summary.tally.changed, summary.tally.errors) == (100, 50)


def test_an_empty_output():
    summary = ChangesSummary.of([], answers=0)
    assert summary.parts == summary.changes == summary.failures == []
    assert summary.entropies == (0.0, 0.0)
