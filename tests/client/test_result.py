import json

from ramen.client.result import Result

ANSWER = Result("a.png", "cat", 0.6, "dog", 0.5, (("cat", 0.6), ("dog", 0.4)), True, 12, 32, 0.67, 0.69)


def test_results_survive_json():
    for result in (ANSWER, Result.failed("b.png", "b.png has no pixels", 32)):
        assert Result.from_dict(json.loads(json.dumps(result.to_dict()))) == result


def test_only_an_answer_can_be_changed_by_adaptation():
    assert ANSWER.changed
    assert not Result.failed("b.png", "b.png has no pixels", 32).changed
