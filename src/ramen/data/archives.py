"""The released archives: their names, checksums and addresses."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# Called with what is being done, how much of it is done, and the total (None if unknown).
Progress = Callable[[str, int, int | None], object]

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Archive:
    """A file of a Zenodo record."""

    file: str
    md5: str
    record: int

    @property
    def url(self) -> str:
        """The address of the file itself."""
        return f"https://zenodo.org/records/{self.record}/files/{self.file}"

    @property
    def page(self) -> str:
        """The address of the page that describes its record."""
        return f"https://zenodo.org/records/{self.record}"


CIFAR10C = Archive("CIFAR-10-C.tar", "56bf5dcef84df0e2308c6dcbcbbd8499", 2535967)
CIFAR100C = Archive("CIFAR-100-C.tar", "11f0ed0f1191edbf9fa23466ae6021d3", 3555552)
IMAGENETC = (
    Archive("noise.tar", "e80562d7f6c3f8834afb1ecf27252745", 2235448),
    Archive("blur.tar", "2d8e81fdd8e07fef67b9334fa635e45c", 2235448),
    Archive("weather.tar", "33ffea4db4d93fe4a428c40a6ce0c25d", 2235448),
    Archive("digital.tar", "89157860d7b10d5797849337ca2e5c03", 2235448),
    Archive("extra.tar", "d492dfba5fc162d8ec2c3cd8ee672984", 2235448),
)


def no_progress(what: str, done: int, total: int | None) -> None:
    """Report nothing."""


def md5_of(path: Path, what: str, progress: Progress = no_progress) -> str:
    """The MD5 checksum of a file; ``progress`` is called with ``what`` after every chunk."""
    digest = hashlib.md5(usedforsecurity=False)
    done, total = 0, path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            progress(what, done, total)
    return digest.hexdigest()
