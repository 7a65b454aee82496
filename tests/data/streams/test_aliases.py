"""Names by which people know protocols."""

import inspect

import pytest

from ramen.data.streams import ALIASES, PROTOCOLS, find_protocol
from ramen.data.streams.stream import make_stream
from tests.data.streams.small_datasets import balanced, source


@pytest.mark.parametrize("name", ALIASES)
def test_an_alias_is_the_protocol_with_its_parameters(name):
    alias = ALIASES[name]
    labels = balanced(each=30)
    short = make_stream(name, source(alias.protocol, labels), 3)
    long = make_stream(alias.protocol, source(alias.protocol, labels), 3, **alias.parameters)
    assert short.identity() == long.identity()
    assert short.protocol == alias.protocol
    assert find_protocol(name) is PROTOCOLS[alias.protocol]


def test_no_alias_hides_a_protocol_or_sets_what_does_not_exist():
    assert not set(ALIASES) & set(PROTOCOLS)
    for alias in ALIASES.values():
        assert set(alias.parameters) <= set(PROTOCOLS[alias.protocol].parameters)
        assert "candidates" in inspect.signature(PROTOCOLS[alias.protocol].arrange).parameters
        assert str(alias).startswith(alias.protocol)


def test_given_parameters_override_those_of_an_alias():
    stream = make_stream("stata_high", balanced(), delta=5)
    assert stream.parameters["delta"] == 5
    assert stream.parameters["within"] == "shuffled"


def test_misspelt_aliases_and_parameters():
    with pytest.raises(ValueError, match="there is no protocol 'noniid'; did you mean 'non_iid'"):
        make_stream("noniid", [[0]])
    with pytest.raises(TypeError, match="protocol 'correlated' has no parameter 'gamma'"):
        make_stream("non_iid", [[0]], gamma=1)
