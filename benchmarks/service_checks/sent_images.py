"""Images as they are sent: drawings of many domains, and the bodies of requests."""

import base64
import io
import json
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ramen.client.operations import SentImage
from ramen.data.drawings.shapes import OBJECTS
from ramen.data.drawings.tiny import DOMAINS, draw_domain
from service_checks.http_connection import PreparedRequest, prepare

Pixels = NDArray[np.uint8]


@lru_cache(maxsize=32)
def domain_images(domain: int, count: int, size: tuple[int, int], seed: int = 0) -> Pixels:
    """Drawings ``(n, h, w, 3)`` of one domain."""
    drawn = draw_domain(DOMAINS[domain % len(DOMAINS)], tuple(OBJECTS), count, seed)
    order = np.random.default_rng((seed, domain)).permutation(count)
    height, width = size
    return np.stack([np.asarray(Image.fromarray(drawn[place]).resize((width, height))) for place in order])


def mixed_images(count: int, size: tuple[int, int], seed: int = 0) -> Pixels:
    """Drawings of four domains in turn."""
    parts = [domain_images(4 * domain, -(-count // 4), size, seed) for domain in range(4)]
    return np.stack(parts, axis=1).reshape(-1, *parts[0].shape[1:])[:count]


def sent(images: Pixels) -> list[SentImage]:
    """As the engine is given them."""
    return [SentImage(f"image {number}", image) for number, image in enumerate(images)]


def jpeg(image: Pixels, size: tuple[int, int] = (500, 375)) -> bytes:
    """As a JPEG file of some width and height; by default that of a small photograph."""
    file = io.BytesIO()
    Image.fromarray(image).resize(size).save(file, "JPEG", quality=90)
    return file.getvalue()


def classify_path(stream: str, query: str = "") -> str:
    """Where images of a stream are sent."""
    return f"/v1/streams/{stream}/classify{query}"


def raw_request(stream: str, images: Pixels, query: str = "") -> PreparedRequest:
    """A request with plain pixels."""
    headers = {"Content-Type": "application/x-ramen-uint8", "X-Shape": ",".join(map(str, images.shape))}
    return prepare("POST", classify_path(stream, query), images.tobytes(), headers, images=len(images))


def file_request(stream: str, data: bytes, content_type: str = "image/jpeg") -> PreparedRequest:
    """A request whose body is one file."""
    return prepare("POST", classify_path(stream), data, {"Content-Type": content_type}, images=1)


def multipart_request(stream: str, files: Sequence[bytes], path: str = "") -> PreparedRequest:
    """A request with several files; ``path`` is that of another server."""
    boundary = "----ramen-benchmark"
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="files"; filename="{number}.jpg"\r\n'
        f"Content-Type: image/jpeg\r\n\r\n".encode()
        + data
        + b"\r\n"
        for number, data in enumerate(files)
    ]
    body = b"".join(parts) + f"--{boundary}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    return prepare("POST", path or classify_path(stream), body, headers, images=len(files))


def json_request(stream: str, files: Sequence[tuple[str, bytes]]) -> PreparedRequest:
    """A request with files as base64, each with its key."""
    images = [{"key": key, "data": base64.b64encode(data).decode()} for key, data in files]
    body = json.dumps({"images": images}).encode()
    headers = {"Content-Type": "application/json"}
    return prepare("POST", classify_path(stream), body, headers, images=len(files))
