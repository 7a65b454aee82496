"""The domains of the demo."""

from ramen.data.corruptions import CORRUPTIONS
from ramen.data.drawings import styles
from ramen.data.drawings.tiny import DOMAINS


def test_domains_are_all_corruptions_but_frost_and_all_unseen_styles():
    corruptions = [name for name in CORRUPTIONS if name != "frost"]
    assert len(corruptions) == 14
    assert (*corruptions, *styles.UNSEEN) == DOMAINS
    assert not set(styles.UNSEEN) & set(styles.TRAINED)
