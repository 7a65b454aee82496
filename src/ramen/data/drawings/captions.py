"""Captions of images: the object, and often one thing more: its style, quality or size.

Style words keep the domain in the image embedding. A model trained on class names alone learns to ignore how
an image was made, and then the neighbours of an image are not of its domain.
"""

from ramen.data.drawings import shapes, styles

# Names that people use for the same object; the first is the class name.
NAMES: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in shapes.OBJECTS},
    "boat": ("boat", "sailboat", "ship"),
    "butterfly": ("butterfly", "moth"),
    "car": ("car", "automobile"),
    "cat": ("cat", "kitten"),
    "chair": ("chair", "seat"),
    "cup": ("cup", "mug"),
    "flower": ("flower", "blossom"),
    "hat": ("hat", "top hat"),
    "house": ("house", "home", "cottage"),
    "lamp": ("lamp", "table lamp"),
    "moon": ("moon", "crescent"),
    "mushroom": ("mushroom", "toadstool"),
    "rocket": ("rocket", "spaceship"),
    "tree": ("tree", "fir"),
    "umbrella": ("umbrella", "parasol"),
}

PLAIN = (
    "a {}.",
    "the {}.",
    "a picture of a {}.",
    "a photo of a {}.",
    "itap of a {}.",
    "art of the {}.",
    "an image of the {}.",
)

STYLES: dict[str, tuple[str, ...]] = {
    "flat": ("clip art of a {}.", "a flat drawing of a {}.", "a {} icon."),
    "cartoon": ("a cartoon {}.", "a {} in a video game.", "a comic of the {}."),
    "line drawing": ("a line drawing of a {}.", "an outline of the {}.", "a {} in ink."),
    "pencil": ("a pencil sketch of a {}.", "a sketch of the {}.", "a shaded drawing of a {}."),
    "silhouette": ("a silhouette of a {}.", "the shadow of a {}.", "a black {}."),
    "crayon": ("a crayon drawing of a {}.", "a {} in wax crayon.", "a child's drawing of a {}."),
    "watercolour": ("a watercolour of a {}.", "a painting of the {}.", "a soft painted {}."),
    "origami": ("a origami {}.", "a {} folded from paper.", "a paper {}."),
    "photo": ("a 3d render of a {}.", "a {} with a shadow.", "a realistic photo of the {}."),
}
assert tuple(STYLES) == tuple(styles.TRAINED)

_BAD = ("a bad photo of the {}.", "a bad picture of a {}.")
QUALITIES: dict[str, tuple[str, ...]] = {
    "blurry": ("a blurry photo of a {}.", "a {} out of focus.", *_BAD),
    "noisy": ("a noisy photo of a {}.", "a grainy picture of the {}.", *_BAD),
    "dark": ("a dark photo of a {}.", "the {} at night.", *_BAD),
    "bright": ("a bright photo of a {}.", "an overexposed {}.", *_BAD),
    "pale": ("a pale photo of a {}.", "a {} in low contrast.", *_BAD),
}

SIZES: dict[str, tuple[str, ...]] = {
    "small": ("a photo of the small {}.", "a small {}.", "a tiny {}."),
    "large": ("a photo of the large {}.", "a large {}.", "a big {}."),
}

# Everything that a caption may add to the name of the object, numbered; 0 adds nothing.
ADDITIONS: tuple[tuple[str, ...], ...] = (
    PLAIN,
    *STYLES.values(),
    *QUALITIES.values(),
    *SIZES.values(),
)
FIRST_STYLE = 1
FIRST_QUALITY = FIRST_STYLE + len(STYLES)
FIRST_SIZE = FIRST_QUALITY + len(QUALITIES)


def captions(name: str, addition: int) -> list[str]:
    """All captions of an object with one addition."""
    return [frame.format(word) for frame in ADDITIONS[addition] for word in NAMES[name]]


def object_called(word: str) -> str | None:
    """The object that ``word`` means; None if it is not one that can be drawn."""
    word = " ".join(word.lower().split())
    return next((name for name, words in NAMES.items() if word in words), None)
