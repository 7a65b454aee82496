"""Data sets by name."""

import inspect
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ramen.data import archives
from ramen.data.archives import Archive
from ramen.data.corruptions import EXTRA_CORRUPTIONS
from ramen.data.dataset import Dataset
from ramen.data.drawings.domains import DOMAINS, EXTRA_DOMAINS
from ramen.data.drawings.shapes import OBJECTS
from ramen.data.formats import arrays, cifar_c, domainbed, folder, imagenet_c, manifest, potpourri, tiny
from ramen.data.formats.reading import Reader, Reading
from ramen.utils.checks import nearest


@dataclass(frozen=True)
class DataInfo:
    """What is known about a data set."""

    name: str
    title: str
    classes: int | None  # None if the files decide
    domains: int | None
    images: int | None  # per domain, or in total if the domains differ in size
    layout: str
    source: str
    reader: Reader
    archives: tuple[Archive, ...] = ()
    downloadable: bool = False
    needs_root: bool = True
    same_names: bool = False  # whether its usual list of class names contains a name twice
    extra_domains: tuple[str, ...] = ()  # used only if requested; no published result is about them

    @property
    def options(self) -> tuple[str, ...]:
        """What ``load`` takes besides the name and the root."""
        return tuple(name for name in inspect.signature(self.reader).parameters if name != "root")


def _cifar_c(name: str, title: str, classes: int, archive: Archive, reader: Reader) -> DataInfo:
    layout = "<corruption>.npy and labels.npy"
    return DataInfo(
        name,
        title,
        classes,
        15,
        10_000,
        layout,
        archive.page,
        reader,
        (archive,),
        downloadable=True,
        extra_domains=EXTRA_CORRUPTIONS,
    )


def _imagenet_c(name: str, title: str, images: int, layout: str, source: str, reader: Reader) -> DataInfo:
    return DataInfo(
        name,
        title,
        imagenet_c.CLASSES,
        15,
        images,
        layout,
        source,
        reader,
        archives.IMAGENETC,
        same_names=True,
        extra_domains=EXTRA_CORRUPTIONS,
    )


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


def _own(name: str, title: str, layout: str, reader: Reader) -> DataInfo:
    return DataInfo(name, title, None, None, None, layout, "your own", reader)


_TREE = "<corruption>/<severity>/<wnid>/<image>"
_PAGE = archives.IMAGENETC[0].page
_DATASETS = {
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
        _own("folder", "a folder of images", "<domain>/<class>/<image>", folder.read_folder),
        _own(
            "manifest",
            "a table of image files",
            "a CSV file with the columns path, class, domain",
            manifest.read_manifest,
        ),
        _own(
            "arrays",
            "a file of arrays",
            "an .npz file with labels and one array (n, H, W, 3) per domain",
            arrays.read_arrays,
        ),
        replace(
            _own(
                "potpourri",
                "several data sets in one",
                "a TOML file with one table [[set]] per data set",
                potpourri.make_reader(lambda name, root, **options: read(name, root, **options)),
            ),
            same_names=True,
        ),
        DataInfo(
            "tiny",
            "drawings for the tiny CLIP",
            len(OBJECTS),
            len(DOMAINS),
            300,
            "none: the images are drawn when they are needed",
            "the package itself",
            tiny.read_tiny,
            needs_root=False,
            extra_domains=EXTRA_DOMAINS,
        ),
    )
}


def list_datasets() -> list[str]:
    """The names of all data sets.

    >>> list_datasets()[:3]
    ['cifar10c', 'cifar100c', 'imagenetc']
    """
    return list(_DATASETS)


def describe(name: str) -> DataInfo:
    """What is known about a data set.

    >>> describe("pacs").classes
    7
    """
    if name not in _DATASETS:
        raise ValueError(f"name: no data set is called {name!r}{nearest(str(name), _DATASETS)}")
    return _DATASETS[name]


def read(name: str, root: str | os.PathLike[str] | None = None, **options: Any) -> Reading:
    """Read the files of a data set: what is there, and everything that is wrong with it."""
    info = describe(name)
    check_root(name, root)
    for option in options:
        if option not in info.options:
            raise ValueError(f"{name} has no option {option!r}{nearest(option, info.options)}")
    return info.reader(None if root is None else Path(root).expanduser(), **options)


def check_root(name: str, root: object) -> None:
    """Raise ValueError if the data set needs a root that is not given, or has none and one is given."""
    if describe(name).needs_root and root is None:
        raise ValueError(f"root: data set {name!r} needs the folder or file that holds it")
    if not describe(name).needs_root and root is not None:
        raise ValueError(f"root: data set {name!r} comes with the package, got {str(root)!r}")


def load(name: str, root: str | os.PathLike[str] | None = None, **options: Any) -> Dataset:
    """Load a data set from its files; images are read when they are requested.

    Args:
        name: One of ``list_datasets()``.
        root: The folder that holds the files, or its parent; the CSV file for ``"manifest"``, the .npz file
            for ``"arrays"``, the TOML file for ``"potpourri"``, None for ``"tiny"``.
        **options: ``domains`` selects domains and their order. CIFAR-C and ImageNet-C take a ``severity``
            from 1 to 5; ImageNet-C takes the file ``class_names``, and its listed 5,000 images the file
            ``image_list``; ``"arrays"`` takes ``classes``; ``"tiny"`` takes ``pictures`` (images per domain)
            and ``picture_seed``.

    >>> data = load("tiny", domains=["fog", "neon"], pictures=10)
    >>> [domain.name for domain in data.domains], len(data)
    (['fog', 'neon'], 20)
    """
    return read(name, root, **options).dataset()
