"""A folder that is larger than one machine: Ray Data reads it, and actors classify it, with a memory each.

    python examples/ray_data.py PHOTOS labels --model ViT-B-16/openai --classes "cat,dog" --actors 8 --gpus 1

Needs ramen-tta[ray,parquet]. Each actor adapts to the images that it is given.
"""

import argparse
from typing import Any

import numpy as np
import ray

import ramen
from ramen.models.names import full_name, load_model


class Labeller:
    """One model with one memory, in an actor."""

    def __init__(self, model: str, classes: list[str], device: str) -> None:
        classifier = load_model(full_name(model), classes, device=device, dtype="auto")
        self.predictor = ramen.Predictor(ramen.create("ramen", classifier), batch_size=32)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The results for a block of files."""
        results = list(self.predictor.classify(zip(batch["path"], batch["bytes"], strict=True)))
        columns = ("key", "label", "probability", "zero_shot_label", "adapted", "error")
        return {name: np.array([getattr(one, name) for one in results], object) for name in columns}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("photos", help="a folder or a bucket")
    parser.add_argument("out", help="a folder for Parquet files")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--classes", required=True, help="separated by commas")
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--gpus", type=float, default=0, help="per actor")
    given = parser.parse_args()
    made = (given.model, given.classes.split(","), "cuda" if given.gpus else "cpu")
    photos = ray.data.read_binary_files(given.photos, include_paths=True)
    share = {"num_cpus": 0.5, "num_gpus": given.gpus}  # of each actor; the other cores read files
    labels = photos.map_batches(
        Labeller, batch_size=256, concurrency=given.actors, fn_constructor_args=made, **share
    )
    labels.write_parquet(given.out)
