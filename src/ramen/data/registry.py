"""Data sets by name."""

import inspect
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramen.checks import nearest
from ramen.data import archives, cifar_c, domainbed, folder, imagenet_c
from ramen.data.archives import Archive
from ramen.data.dataset import Dataset
from ramen.data.reading import Reader, Reading


@dataclass(frozen=True)
class DataInfo:
    """What is known of a data set."""

    name: str
    title: str
    classes: int | None  # None where the files decide
    domains: int | None
    pictures: int | None  # in a domain, or in all together where they differ
    layout: str
    source: str
    reader: Reader
    archives: tuple[Archive, ...] = ()
    downloadable: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """What ``load`` takes beside the name and the root."""
        return tuple(name for name in inspect.signature(self.reader).parameters if name != "root")


def _cifar_c(name: str, title: str, classes: int, archive: Archive, reader: Reader) -> DataInfo:
    layout = "<corruption>.npy and labels.npy"
    return DataInfo(
        name, title, classes, 15, 10_000, layout, archive.page, reader, (archive,), downloadable=True
    )


def _imagenet_c(name: str, title: str, pictures: int, layout: str, source: str, reader: Reader) -> DataInfo:
    return DataInfo(name, title, imagenet_c.CLASSES, 15, pictures, layout, source, reader, archives.IMAGENETC)


def _domainbed(name: str) -> DataInfo:
    release = domainbed.RELEASES[name]
    counts = [count for count in release.domains.values() if count]
    return DataInfo(
        name,
        release.title,
        release.classes,
        len(release.domains),
        sum(counts) or None,
        "<domain>/<class>/<image>",
        release.source,
        domainbed.reader(name),
    )


_TREE = "<corruption>/<severity>/<wnid>/<image>"
_PAGE = archives.IMAGENETC[0].page
_RECORDS = {
    info.name: info
    for info in (
        _cifar_c("cifar10c", "CIFAR-10-C", 10, archives.CIFAR10C, cifar_c.read_cifar10c),
        _cifar_c("cifar100c", "CIFAR-100-C", 100, archives.CIFAR100C, cifar_c.read_cifar100c),
        _imagenet_c("imagenetc", "ImageNet-C", 50_000, _TREE, _PAGE, imagenet_c.read_imagenetc),
        _imagenet_c(
            "imagenetc5k",
            "ImageNet-C, the listed 5,000",
            5_000,
            f"{_TREE} and {imagenet_c.LIST_FILE}",
            f"{_PAGE}; the list: {imagenet_c.LIST_SOURCE}",
            imagenet_c.read_imagenetc5k,
        ),
        *map(_domainbed, domainbed.RELEASES),
        DataInfo(
            "folder", "a folder", None, None, None, "<domain>/<class>/<image>", "your own", folder.read_folder
        ),
        DataInfo(
            "manifest",
            "a table of files",
            None,
            None,
            None,
            "a CSV file with the columns path, class, domain",
            "your own",
            folder.read_manifest,
        ),
    )
}


def list_datasets() -> list[str]:
    """The names of all data sets.

    >>> list_datasets()[:3]
    ['cifar10c', 'cifar100c', 'imagenetc']
    """
    return list(_RECORDS)


def describe(name: str) -> DataInfo:
    """What is known of a data set."""
    if name not in _RECORDS:
        raise ValueError(f"name: no data set is called {name!r}{nearest(str(name), _RECORDS)}")
    return _RECORDS[name]


def read(name: str, root: str | os.PathLike[str], **options: Any) -> Reading:
    """Look at a data set's files: what is there, and everything that is wrong."""
    info = describe(name)
    for option in options:
        if option not in info.options:
            raise ValueError(f"{name} has no option {option!r}{nearest(option, info.options)}")
    return info.reader(Path(root).expanduser(), **options)


def load(name: str, root: str | os.PathLike[str], **options: Any) -> Dataset:
    """A data set from its files; images are read when they are asked for.

    Args:
        name: One of ``list_datasets()``.
        root: The folder that holds the files, or the one around it; for ``"manifest"`` the CSV file.
        **options: ``domains`` chooses some, in that order; CIFAR-C and ImageNet-C have a ``severity`` from 1
            to 5; ImageNet-C takes ``class_names`` and, for the listed pictures, ``image_list``, both files.
    """
    return read(name, root, **options).dataset()
