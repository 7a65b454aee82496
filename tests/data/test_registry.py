"""Data sets by name: unknown names and options, roots."""

import pytest

from ramen.data.registry import load, read


def test_roots():
    with pytest.raises(ValueError, match="data set 'tiny' comes with the package, got 'DATA'"):
        read("tiny", "DATA")
    with pytest.raises(ValueError, match="data set 'cifar10c' needs the folder or file"):
        read("cifar10c")


def test_unknown_names():
    with pytest.raises(ValueError, match="no data set is called 'domainet'; did you mean 'domainnet'"):
        load("domainet", ".")
    with pytest.raises(ValueError, match="pacs has no option 'severity'"):
        load("pacs", ".", severity=5)
