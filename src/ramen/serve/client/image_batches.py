"""Sources put together into requests."""

from ramen.serve.client.server_calls import Loaded


class ImageBatches:
    """Collects images until there are enough for a request.

    Args:
        size: The most images in a request.
        max_bytes: The most bytes of them, unless a single image has more.
    """

    def __init__(self, size: int, max_bytes: int) -> None:
        self._size, self._max_bytes = size, max_bytes
        self._images: list[Loaded] = []
        self._bytes = 0

    def add(self, image: Loaded) -> list[list[Loaded]]:
        """Take an image; the requests that are complete now, none, one or two."""
        complete = []
        nbytes = getattr(image, "nbytes", 0)  # answers of unreadable images take none
        if self._images and self._bytes + nbytes > self._max_bytes:
            complete += self.rest()
        self._images.append(image)
        self._bytes += nbytes
        if len(self._images) == self._size:
            complete += self.rest()
        return complete

    def rest(self) -> list[list[Loaded]]:
        """What was not enough for a request so far."""
        images, self._images, self._bytes = self._images, [], 0
        return [images] if images else []
