import pytest

from ramen.serve.settings import EngineSettings
from tests.serve.engine.engines import engine


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_batch", 0),
        ("max_delay_ms", -1.0),
        ("max_delay_ms", float("nan")),
        ("max_queue_images", 0),
        ("max_queue_bytes", 0),
        ("invariant", 1),
        ("streams_budget", 0),
        ("stream_memory", "1 GiB"),
        ("max_streams", 0),
        ("create_on_use", None),
        ("keep_changed", -1),
    ],
)
def test_settings_that_make_no_sense_are_named(name: str, value: object) -> None:
    with pytest.raises((TypeError, ValueError), match=name):
        EngineSettings(**{name: value})  # type: ignore[arg-type]


def test_save_every_is_checked_before_anything_starts(clf) -> None:
    with pytest.raises(ValueError, match="save_every"):
        engine(clf, save_every="now and then")
