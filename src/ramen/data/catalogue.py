"""Every data set is one record here; they are found and loaded by name."""

import os
from pathlib import Path
from typing import Any

from ramen.data import arrays, table, trees
from ramen.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from ramen.data.dataset import Dataset
from ramen.data.drawings import tiny
from ramen.data.drawings.shapes import OBJECTS
from ramen.data.reading import Archive, DataInfo, Reading
from ramen.utils.checks import nearest

_IMAGENETC = tuple(
    Archive(f"{kind}.tar", md5, 2235448, holds)
    for kind, md5, holds in (
        ("noise", "e80562d7f6c3f8834afb1ecf27252745", CORRUPTIONS[:3]),
        ("blur", "2d8e81fdd8e07fef67b9334fa635e45c", CORRUPTIONS[3:7]),
        ("weather", "33ffea4db4d93fe4a428c40a6ce0c25d", CORRUPTIONS[7:11]),
        ("digital", "89157860d7b10d5797849337ca2e5c03", CORRUPTIONS[11:]),
        ("extra", "d492dfba5fc162d8ec2c3cd8ee672984", EXTRA_CORRUPTIONS),
    )
)
_DOMAINBED = "https://github.com/facebookresearch/DomainBed, domainbed/scripts/download.py"


def _cifar_c(name: str, title: str, classes: tuple[str, ...], archive: Archive) -> DataInfo:
    return DataInfo(
        name=name,
        title=title,
        reader=arrays.read_cifar_c,
        layout="<corruption>.npy and labels.npy",
        source=archive.page,
        class_names=classes,
        classes=len(classes),
        counts=dict.fromkeys(CORRUPTIONS, 10_000),
        folders=(archive.file.removesuffix(".tar"),),
        archives=(archive,),
        downloadable=True,
        extra_domains=EXTRA_CORRUPTIONS,
    )


def _imagenet_c(**facts: Any) -> DataInfo:
    return DataInfo(
        classes=1_000,
        folders=("ImageNet-C", "imagenet-c", "imagenet_c", "ImageNetC"),
        archives=_IMAGENETC,
        same_names=True,
        extra_domains=EXTRA_CORRUPTIONS,
        **facts,
    )


def _domainbed(
    name: str,
    title: str,
    classes: int,
    folders: tuple[str, ...],
    source: str = _DOMAINBED,
    /,
    **counts: int | None,
) -> DataInfo:
    return DataInfo(
        name=name,
        title=title,
        reader=trees.read_domains,
        layout="<domain>/<class>/<image>",
        source=source,
        classes=classes,
        counts=counts,
        folders=folders,
    )


_TREE = "<corruption>/<severity>/<wnid>/<image>"
_RECORDS = (
    _cifar_c(
        "cifar10c",
        "CIFAR-10-C",
        arrays.CIFAR10,
        Archive("CIFAR-10-C.tar", "56bf5dcef84df0e2308c6dcbcbbd8499", 2535967),
    ),
    _cifar_c(
        "cifar100c",
        "CIFAR-100-C",
        arrays.CIFAR100,
        Archive("CIFAR-100-C.tar", "11f0ed0f1191edbf9fa23466ae6021d3", 3555552),
    ),
    _imagenet_c(
        name="imagenetc",
        title="ImageNet-C",
        reader=trees.read_imagenetc,
        layout=_TREE,
        source=_IMAGENETC[0].page,
        downloadable=True,
        counts=dict.fromkeys(CORRUPTIONS, 50_000),
    ),
    _imagenet_c(
        name="imagenetc5k",
        title="ImageNet-C, the listed 5,000",
        reader=trees.read_imagenetc5k,
        layout=f"{_TREE} and {trees.LIST_FILE}",
        source=f"{_IMAGENETC[0].page}; the list: {trees.LIST_SOURCE}",
        counts=dict.fromkeys(CORRUPTIONS, 5_000),
    ),
    _domainbed(
        "domainnet",
        "DomainNet",
        345,
        ("domain_net", "DomainNet", "domainnet"),
        f"{_DOMAINBED}, or http://ai.bu.edu/M3SDA/ (the cleaned version)",
        **{"clipart": 48_129, "infograph": 51_605, "painting": 72_266},
        **{"quickdraw": 172_500, "real": 172_947, "sketch": 69_128},
    ),
    _domainbed(
        "pacs", "PACS", 7, ("PACS", "pacs"), art_painting=2_048, cartoon=2_344, photo=1_670, sketch=3_929
    ),
    _domainbed(
        "vlcs", "VLCS", 5, ("VLCS", "vlcs"), Caltech101=1_415, LabelMe=2_656, SUN09=3_282, VOC2007=3_376
    ),
    _domainbed(
        "officehome",
        "OfficeHome",
        65,
        ("office_home", "OfficeHome", "OfficeHomeDataset_10072016"),
        **{"Art": 2_427, "Clipart": 4_365, "Product": 4_439, "Real World": 4_357},
    ),
    _domainbed(
        "terraincognita",
        "TerraIncognita",
        10,
        ("terra_incognita", "TerraIncognita"),
        **dict.fromkeys(("location_100", "location_38", "location_43", "location_46")),
    ),
    DataInfo(
        name="folder", title="a folder of images", reader=trees.read_folder, layout="<domain>/<class>/<image>"
    ),
    DataInfo(
        name="manifest",
        title="a table of image files",
        reader=table.read_manifest,
        layout="a CSV file with the columns path, class, domain",
    ),
    DataInfo(
        name="arrays",
        title="a file of arrays",
        reader=arrays.read_arrays,
        layout="an .npz file with labels and one array (n, H, W, 3) per domain",
    ),
    DataInfo(
        name="tiny",
        title="drawings for the tiny CLIP",
        reader=tiny.read_tiny,
        layout="none: the images are drawn when they are needed",
        source="the package itself",
        classes=len(OBJECTS),
        counts=dict.fromkeys(tiny.DOMAINS, 300),
        needs_root=False,
        extra_domains=EXTRA_CORRUPTIONS,
    ),
)
_DATASETS = {info.name: info for info in _RECORDS}


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
    return info.reader(info, Path() if root is None else Path(root).expanduser(), **options)


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
            for ``"arrays"``, None for ``"tiny"``.
        **options: ``domains`` selects domains and their order. CIFAR-C and ImageNet-C take a ``severity``
            from 1 to 5; ImageNet-C takes the file ``class_names``, and its listed 5,000 images the file
            ``image_list``; ``"arrays"`` takes ``classes``; ``"tiny"`` takes ``pictures`` (images per domain),
            ``picture_seed`` and ``classes`` (what is drawn).

    >>> data = load("tiny", domains=["fog", "neon"], pictures=10)
    >>> [domain.name for domain in data.domains], len(data)
    (['fog', 'neon'], 20)
    """
    return read(name, root, **options).dataset()
