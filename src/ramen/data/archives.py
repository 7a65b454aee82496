"""The released archives: their names, checksums and where they are."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Archive:
    """A file of a Zenodo record."""

    file: str
    md5: str
    record: int

    @property
    def url(self) -> str:
        """Where the file itself is."""
        return f"https://zenodo.org/records/{self.record}/files/{self.file}"

    @property
    def page(self) -> str:
        """Where its record is described."""
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


def md5_of(path: Path, advance: Callable[[int], object] = lambda count: None) -> str:
    """The checksum of a file; ``advance`` hears of every chunk's bytes."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            advance(len(chunk))
    return digest.hexdigest()
