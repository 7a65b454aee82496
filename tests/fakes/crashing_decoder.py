"""A decoder that ends its process, as a hostile file or the system's hunt for memory may."""

import os

from ramen.predict.decoding import DecodedSource, Decoder
from ramen.predict.sources import Source


class CrashingDecoder(Decoder):
    """Dies of every source whose key begins with "deadly"."""

    def decode(self, source: Source) -> DecodedSource:
        if source.key.startswith("deadly"):
            os._exit(3)
        return super().decode(source)
