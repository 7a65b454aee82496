import pytest

from ramen.serve.on_ray.scaling import Scaling


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"replicas": 0}, "replicas must be"),
        ({"replicas": 2, "max_replicas": 3, "min_replicas": 1}, "and not both, got replicas=2"),
        ({"min_replicas": 2}, "go together, got 2 and None"),
        ({"min_replicas": 3, "max_replicas": 2}, "min_replicas must be .*max_replicas=2"),
        ({"min_replicas": 0, "max_replicas": 2}, "min_replicas must be"),
        ({"gpus_per_replica": -1}, "gpus_per_replica must be"),
        ({"ingress_replicas": 0}, "ingress_replicas must be"),
    ],
)
def test_what_makes_no_sense_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Scaling(**given)


def test_the_most_replicas_that_there_can_be():
    assert Scaling().most == 1
    assert Scaling(replicas=3).most == 3
    assert Scaling(min_replicas=1, max_replicas=8).most == 8
