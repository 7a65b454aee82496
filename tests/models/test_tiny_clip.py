import json

import torch

from ramen.data.drawings import styles
from ramen.data.drawings.shapes import OBJECTS
from ramen.data.drawings.tiny import draw_images
from ramen.models.tiny_clip.model import FOLDER, load_tiny
from training import tiny_clip as train


def clean(names, seed=1234):
    drawn_in = [list(styles.TRAINED)[n % len(styles.TRAINED)] for n in range(len(names))]
    return torch.from_numpy(draw_images(names, drawn_in, (seed,)).pixels).permute(0, 3, 1, 2), drawn_in


def test_weights_are_small_and_come_from_the_default_recipe():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 20e6
    assert json.loads((FOLDER / "recipe.json").read_text()) == vars(train.Recipe())
    config = json.loads((FOLDER / train.CONFIG_FILE).read_text())
    assert config == json.loads(json.dumps(train.model_config(train.Recipe())))


def test_clean_images_are_recognised():
    names = list(OBJECTS) * 5
    pixels, _ = clean(names)
    classifier = load_tiny(list(OBJECTS))
    with torch.no_grad():
        labels = classifier.logits(classifier.encode(classifier.preprocess(pixels))).argmax(1)
    assert (labels == torch.arange(len(names)) % len(OBJECTS)).float().mean() > 0.97


def test_other_words_for_the_same_objects_are_understood():
    pixels, _ = clean(["cat", "boat", "house"] * 8)
    classifier = load_tiny(["sailboat", "kitten", "cottage", "toadstool"])
    with torch.no_grad():
        labels = classifier.logits(classifier.encode(classifier.preprocess(pixels))).argmax(1)
    assert (labels == torch.tensor([1, 0, 2] * 8)).float().mean() > 0.9


def test_style_words_are_understood():
    """The text tower reads more than the object: an image finds the caption of its style."""
    pixels, drawn_in = clean(["fish"] * 45)
    frames = ["a pencil sketch of a {}.", "a silhouette of a {}.", "a watercolour of a {}."]
    classifier = load_tiny(["fish", "key"])
    texts = classifier.encode_text([frame.format("fish") for frame in frames])
    with torch.no_grad():
        found = (classifier.encode(classifier.preprocess(pixels)) @ texts.T).argmax(1).tolist()
    expected = {"pencil": 0, "silhouette": 1, "watercolour": 2}
    hits = [expected[style] == f for style, f in zip(drawn_in, found, strict=True) if style in expected]
    assert sum(hits) / len(hits) > 0.9
