"""The domains of the demo and its mixed stream."""

from ramen.data.corruptions import CORRUPTIONS
from ramen.data.drawings import styles
from ramen.data.drawings.tiny import DOMAINS, mixed_stream


def test_stream_is_balanced_shuffled_and_determined_by_its_seed():
    stream = mixed_stream(["cat", "house"], 6, seed=3)
    assert len(stream) == 6 * len(DOMAINS)
    assert stream.pixels.shape == (len(stream), 3, 32, 32)
    for domain in range(len(DOMAINS)):
        assert sorted(stream.labels[stream.domains == domain].tolist()) == [0, 0, 0, 1, 1, 1]
    assert stream.domains.tolist() != sorted(stream.domains.tolist())
    again = mixed_stream(["cat", "house"], 6, seed=3)
    assert stream.pixels.equal(again.pixels)
    assert stream.domains.equal(again.domains)
    assert not stream.pixels.equal(mixed_stream(["cat", "house"], 6, seed=4).pixels)


def test_domains_are_all_corruptions_but_frost_and_all_unseen_styles():
    corruptions = [name for name in CORRUPTIONS if name != "frost"]
    assert len(corruptions) == 14
    assert (*corruptions, *styles.UNSEEN) == DOMAINS
    assert not set(styles.UNSEEN) & set(styles.TRAINED)
    done = []
    mixed_stream(["cat"], 2, seed=0, progress=done.append)
    assert sum(done) == 2 * len(DOMAINS)
