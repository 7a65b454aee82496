import pytest

from ramen.client.operations import InvalidRequestError, check_stream_name
from ramen.serve.engine.streams import check_class_names


@pytest.mark.parametrize("name", ["a", "7", "camera-1", "Tenant_3.left", "x" * 64])
def test_good_names(name: str) -> None:
    assert check_stream_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "-a", "_a", "a/b", "a\\b", "a b", "é", "a\n", "a\0", "x" * 65, None, 7]
)
def test_names_that_could_be_paths_or_worse_are_refused(name: object) -> None:
    with pytest.raises(InvalidRequestError, match="a stream's name must be 1 to 64 letters"):
        check_stream_name(name)


def test_messages_do_not_repeat_endless_names() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_stream_name("/" * 10_000)
    assert len(str(caught.value)) < 300


def test_class_names_are_those_that_the_classifier_will_have() -> None:
    assert check_class_names(["polar_bear", " fox"]) == ("polar bear", "fox")


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ("cat", "must be a list"),
        (None, "must be a list"),
        ([], "at least one"),
        (["cat", "cat"], "more than one 'cat'"),
        (["cat", ""], "non-empty"),
        (["cat", 7], "non-empty strings, got 7"),
        (["x" * 201], "at most 200 characters, got one of 201"),
        (["x"] * 10_001, "at most 10000, got 10001"),
    ],
)
def test_other_class_names_are_refused(classes: object, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        check_class_names(classes)
