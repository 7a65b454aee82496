"""Data sets, corruptions and streams.

>>> import ramen.data
>>> images = ramen.data.load("tiny", domains=["fog", "neon"], pictures=10)
>>> stream = ramen.data.make_stream("mixed", images, seed=0)
>>> len(stream)
20
"""

from typing import TYPE_CHECKING

from ramen.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from ramen.data.catalogue import describe as describe
    from ramen.data.catalogue import list_datasets as list_datasets
    from ramen.data.catalogue import load as load
    from ramen.data.corruptions import CORRUPTIONS as CORRUPTIONS
    from ramen.data.corruptions import EXTRA_CORRUPTIONS as EXTRA_CORRUPTIONS
    from ramen.data.corruptions import corrupt as corrupt
    from ramen.data.dataset import Dataset as Dataset
    from ramen.data.dataset import Domain as Domain
    from ramen.data.downloads import DownloadError as DownloadError
    from ramen.data.downloads import download as download
    from ramen.data.make import make_cifar_c as make_cifar_c
    from ramen.data.make import make_imagenet_c as make_imagenet_c
    from ramen.data.reading import DataError as DataError
    from ramen.data.streams import ALIASES as ALIASES
    from ramen.data.streams import PROTOCOLS as PROTOCOLS
    from ramen.data.streams import Stream as Stream
    from ramen.data.streams import make_stream as make_stream
    from ramen.data.verification import verify as verify

# Where each public name is defined. They are imported when first used: `import ramen.data` alone loads
# neither torch nor numpy. No module of this package may have one of these names: it would hide the function.
_HOMES = {
    name: f"ramen.data.{module}"
    for module, names in {
        "catalogue": ("describe", "list_datasets", "load"),
        "corruptions": ("CORRUPTIONS", "EXTRA_CORRUPTIONS", "corrupt"),
        "dataset": ("Dataset", "Domain"),
        "downloads": ("DownloadError", "download"),
        "make": ("make_cifar_c", "make_imagenet_c"),
        "reading": ("DataError",),
        "streams": ("ALIASES", "PROTOCOLS", "Stream", "make_stream"),
        "verification": ("verify",),
    }.items()
    for name in names
}

__all__ = sorted(_HOMES)

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
