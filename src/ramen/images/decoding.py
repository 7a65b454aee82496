"""From what users and strangers send to an RGB image, or to an error that says why not.

Nothing is decoded before its format, its bytes and the pixels that its header declares are found acceptable.
Files are read, never mapped into memory: one that somebody shortens meanwhile cannot end the process.
"""

import os
from functools import cache
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import (  # the plugins too: Pillow would load all that it has before it tries one that is not loaded
    AvifImagePlugin,  # noqa: F401
    BmpImagePlugin,  # noqa: F401
    ExifTags,
    GifImagePlugin,  # noqa: F401
    Image,
    ImageFile,
    JpegImagePlugin,  # noqa: F401
    PngImagePlugin,  # noqa: F401
    TiffImagePlugin,  # noqa: F401
    UnidentifiedImageError,
    WebPImagePlugin,  # noqa: F401
)
from torch import Tensor

from ramen.images.file_checks import (
    MAX_SIDE,
    DecodingSettings,
    LimitedReads,
    check_bytes,
    check_chunks,
    check_scans,
    check_tags,
    declared_size,
    is_heif,
    no_pillow_warnings,
    read_file,
    read_object,
    silence_libtiff,
)
from ramen.images.rgb import extremes, float_scaling, sixteen_bits, to_eight_bits, to_rgb
from ramen.utils.checks import one_line, readable_bytes

ImageSource = (
    str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes] | Image.Image | NDArray[Any] | Tensor
)

_TURNS = {  # by the value of EXIF's orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_MAX_LAYERS = 8  # of a TIFF file, whose channels may be stored one after the other
_MAX_RLE_PIXELS, _MAX_RLE_BYTES = 2**22, 2**21  # of a BMP file, which Pillow decodes in Python
_BYTES_PER_PIXEL = {"WEBP": 16}  # that a decoder allocates; 4 for others
_BUDGET = 8  # bytes per allowed pixel that a decoder may allocate
_MAX_EXIF = 2**20  # bytes; within a JPEG file there is room for 64 KiB
_LONGEST_REASON = 300  # characters; what a decoder says may quote the file


class UnreadableImageError(ValueError):
    """An image that cannot be decoded, or must not be; the message names it and the reason."""


class MissingImageError(UnreadableImageError, FileNotFoundError):
    """There is no file at the path."""


def decode(
    source: ImageSource, settings: DecodingSettings | None = None, name: str | None = None
) -> Image.Image:
    """One image, completely decoded, in mode RGB and without metadata.

    Of an animation or a file of several pages it is the first. Whatever goes wrong is an
    ``UnreadableImageError``; for a missing file it is also a ``FileNotFoundError``.

    Args:
        source: A path; the bytes of a file; a binary file object, which is read from its beginning if it can
            seek; a PIL image; an array ``(H, W)`` or ``(H, W, channels)`` with 1, 3 or 4 channels of uint8,
            uint16 or floats; a uint8 tensor ``(3, H, W)``. Floats are within 0 to 1, or within 0 to 255.
        settings: What is accepted; the defaults if not given.
        name: What errors call it; by default the path.
    """
    name = _name(source) if name is None else name
    try:
        with no_pillow_warnings():
            return _decode(source, settings or DecodingSettings())
    except Exception as error:  # decoders raise errors of all kinds
        if isinstance(error, FileNotFoundError) and isinstance(source, str | os.PathLike):
            path = _name(source)
            called = "" if name == path else f"{name}: "
            raise MissingImageError(f"{called}no image file at {path}") from None
        raise UnreadableImageError(
            f"{name} cannot be read as an image: {one_line(error, _LONGEST_REASON)}"
        ) from error


def _decode(source: object, settings: DecodingSettings) -> Image.Image:
    if isinstance(source, str | os.PathLike):
        return _from_bytes(read_file(source, settings.max_bytes), settings)
    if isinstance(source, bytes | bytearray | memoryview):
        check_bytes(source.nbytes if isinstance(source, memoryview) else len(source), settings.max_bytes)
        return _from_bytes(bytes(source), settings)
    if isinstance(source, Image.Image):
        return _from_pil(source, settings)
    if isinstance(source, Tensor):
        return _from_tensor(source, settings)
    if isinstance(source, np.ndarray):
        return _from_array(source, settings)
    if hasattr(source, "read"):
        return _from_bytes(read_object(source, settings.max_bytes), settings)
    raise TypeError(
        "it must be a path, bytes, a binary file object, a PIL image, an array or a tensor, "
        f"got {type(source).__name__}"
    )


def _name(source: object) -> str:
    if isinstance(source, str | os.PathLike):
        return os.fsdecode(source)
    name = getattr(source, "name", None) or getattr(source, "filename", None)
    return name if isinstance(name, str) else "the image"


# -- bytes ------------------------------------------------------------------------------------------


def _from_bytes(data: bytes, settings: DecodingSettings) -> Image.Image:
    if not data:
        raise ValueError("it is empty")
    size = declared_size(data)
    if size is not None:
        _check_pixels(size, settings.max_pixels, "WEBP" if data.startswith(b"RIFF") else "")
    if data.startswith(b"\x89PNG"):
        check_chunks(data)
    elif data.startswith((b"II", b"MM")):
        check_tags(data)
        silence_libtiff()
    elif is_heif(data):
        _open_heif()
    file = LimitedReads(data)
    formats = [name for name in settings.formats if (name == "HEIF") == is_heif(data)]
    try:
        image = Image.open(file, formats=formats)
    except UnidentifiedImageError:
        raise ValueError(f"it is none of {', '.join(settings.formats)}, or its header is damaged") from None
    except Image.DecompressionBombError:
        raise ValueError(f"its header declares far more than {settings.max_pixels} pixels") from None
    with image:
        _check_pixels(image.size, settings.max_pixels, image.format or "")
        _check_work(image, data)
        if _is_run_length_encoded(image):
            file.allow(len(data))  # it is read code by code
        image.load()
        return _finished(image, settings)


@cache
def _open_heif() -> None:
    """Let Pillow open HEIF files, those of most phones: the image alone, on the calling thread."""
    import pillow_heif

    pillow_heif.register_heif_opener(
        thumbnails=False, depth_images=False, aux_images=False, decode_threads=1, save_nclx_profile=False
    )


def _check_work(image: ImageFile.ImageFile, data: bytes) -> None:
    """Refuse what takes much longer than its pixels justify."""
    if image.format in ("JPEG", "MPO"):
        check_scans(data)
    pixels = image.width * image.height
    tiles = [tile.extents for tile in image.tile if tile.extents is not None]
    if sum((right - left) * (lower - upper) for left, upper, right, lower in tiles) > _MAX_LAYERS * pixels:
        raise ValueError("its strips cover it too many times")
    if _is_run_length_encoded(image) and (pixels > _MAX_RLE_PIXELS or len(data) > _MAX_RLE_BYTES):
        raise ValueError(
            f"it has {pixels} run-length encoded pixels in {len(data)} bytes, more than {_MAX_RLE_PIXELS} "
            f"pixels or {_MAX_RLE_BYTES} bytes"
        )


def _is_run_length_encoded(image: ImageFile.ImageFile) -> bool:
    return any(tile.codec_name == "bmp_rle" for tile in image.tile)


# -- pixels -----------------------------------------------------------------------------------------


def _from_pil(image: Image.Image, settings: DecodingSettings) -> Image.Image:
    known = "JPEG" if image.format == "MPO" else image.format
    if isinstance(image, ImageFile.ImageFile) and known not in settings.formats:
        raise ValueError(f"its format is {image.format}, none of {', '.join(settings.formats)}")
    _check_pixels(image.size, settings.max_pixels)
    image.load()
    return _finished(image.copy() if image.mode == "RGB" else image, settings)


def _from_tensor(tensor: Tensor, settings: DecodingSettings) -> Image.Image:
    if str(tensor.dtype) != "torch.uint8" or tensor.ndim != 3 or tensor.shape[0] != 3:
        raise ValueError(
            f"a tensor must be uint8 of shape (3, H, W), got {tensor.dtype} {tuple(tensor.shape)}"
        )
    _check_pixels((tensor.shape[2], tensor.shape[1]), settings.max_pixels)
    return Image.fromarray(tensor.detach().permute(1, 2, 0).contiguous().cpu().numpy())


def _from_array(array: NDArray[Any], settings: DecodingSettings) -> Image.Image:
    array = np.asarray(array)
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise ValueError(f"an array must have the shape (H, W) or (H, W, 1, 3 or 4), got {array.shape}")
    _check_pixels((array.shape[1], array.shape[0]), settings.max_pixels)
    if array.dtype == np.uint16:
        array = sixteen_bits(array)
    elif array.dtype.kind == "f":
        array = float_scaling(extremes(array))(array)
    elif array.dtype != np.uint8:
        raise ValueError(f"an array must be of uint8, uint16 or floats, got {array.dtype}")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    return to_rgb(Image.fromarray(np.ascontiguousarray(array)))


def _check_pixels(size: tuple[int, int], max_pixels: int, format_name: str = "") -> None:
    width, height = size
    if width < 1 or height < 1:
        raise ValueError(f"it has no pixels ({width} x {height})")
    if max(size) > MAX_SIDE:
        raise ValueError(f"it has {width} x {height} pixels, and no side may be longer than {MAX_SIDE}")
    most = min(max_pixels, _BUDGET * max_pixels // _BYTES_PER_PIXEL.get(format_name, 4))
    if width * height > most:
        raise ValueError(
            f"it has {width} x {height} pixels, more than {most}: max_pixels (--max-pixels) allows more"
        )


def _finished(image: Image.Image, settings: DecodingSettings) -> Image.Image:
    """A loaded image turned, converted, and without metadata, which would turn it a second time."""
    narrow = to_eight_bits(image)
    if settings.orient:
        turn = _TURNS.get(_orientation(image))
        narrow = narrow if turn is None else narrow.transpose(turn)
    result = to_rgb(narrow)
    result.info = {}
    return result


def _orientation(image: Image.Image) -> int:
    """EXIF's number; 1, which means upright, if there is none, or none that can be read."""
    length = len(image.info.get("exif") or b"")  # None for HEIF files without
    if length > _MAX_EXIF:
        raise ValueError(
            f"its EXIF data have {readable_bytes(length)}, more than {readable_bytes(_MAX_EXIF)}"
        )
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # parsers of metadata raise errors of all kinds too
        return 1
    return value if isinstance(value, int) else 1
