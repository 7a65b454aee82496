"""A zero-shot server as people write it: FastAPI and open_clip, one image per request, a pool of threads.

python -m service_checks.plain_server ARCHITECTURE PRETRAINED DEVICE DTYPE PORT CLASSES_FILE
"""

import io
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from PIL import Image


class PlainClip:
    """The model, with or without pretrained weights, and the text embeddings of its classes."""

    def __init__(
        self, architecture: str, pretrained: str, device: str, dtype: str, classes: list[str]
    ) -> None:
        import open_clip

        torch.manual_seed(0)
        self.model, _, self.preprocess = open_clip.create_model_and_transforms(
            architecture, pretrained or None
        )
        self.model = self.model.to(device, getattr(torch, dtype)).eval()
        self.device, self.dtype, self.classes = device, getattr(torch, dtype), classes
        tokens = open_clip.get_tokenizer(architecture)([f"a photo of a {name}" for name in classes])
        with torch.no_grad():
            self.text = F.normalize(self.model.encode_text(tokens.to(device)), dim=-1)

    def load(self, data: bytes) -> torch.Tensor:
        """An image file as the model needs it."""
        pixels: torch.Tensor = self.preprocess(Image.open(io.BytesIO(data)).convert("RGB"))
        return pixels

    def probabilities(self, images: torch.Tensor) -> list[list[float]]:
        """Of all classes, for each image."""
        with torch.no_grad():
            found = F.normalize(self.model.encode_image(images.to(self.device, self.dtype)), dim=-1)
            answer: list[list[float]] = (100.0 * found @ self.text.T).float().softmax(dim=-1).tolist()
            return answer

    def answer(self, probabilities: list[float]) -> dict[str, Any]:
        """As JSON."""
        best = max(range(len(self.classes)), key=probabilities.__getitem__)
        return {"label": self.classes[best], "probability": probabilities[best]}


def from_arguments() -> tuple[PlainClip, int]:
    """The model and the port that the command line names."""
    architecture, pretrained, device, dtype, port, listed = sys.argv[1:7]
    classes = Path(listed).read_text().split("\n")[:-1]
    return PlainClip(architecture, pretrained, device, dtype, classes), int(port)


def main() -> None:
    import uvicorn
    from fastapi import FastAPI, File

    clip, port = from_arguments()
    app = FastAPI()

    @app.get("/health")
    def health() -> str:
        return "ok"

    @app.post("/predict")
    def predict(files: Annotated[bytes, File()]) -> dict[str, Any]:
        return clip.answer(clip.probabilities(clip.load(files)[None])[0])

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
