"""The same with LitServe, which makes batches: the arguments of ``plain_server`` and the size of a batch."""

import importlib
import sys
from typing import Any

import torch
from fastapi import Request

from service_checks.plain_server import PlainClip, from_arguments

litserve: Any = importlib.import_module("litserve")


class BatchedClip(litserve.LitAPI):  # type: ignore[misc]
    """Decodes, stacks, asks the model once."""

    clip: PlainClip

    def setup(self, device: str) -> None:
        """Load the model, in the process that computes."""
        self.clip = from_arguments()[0]

    def decode_request(self, request: Request) -> torch.Tensor:
        """The file of a form."""
        return self.clip.load(request["files"].file.read())

    def batch(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        """Of what has come in the meantime."""
        return torch.stack(inputs)

    def predict(self, images: torch.Tensor) -> list[list[float]]:
        """All at once."""
        return self.clip.probabilities(images)

    def unbatch(self, output: list[list[float]]) -> list[list[float]]:
        """One by one again."""
        return output

    def encode_response(self, output: list[float]) -> dict[str, Any]:
        """As JSON."""
        return self.clip.answer(output)


def main() -> None:
    device, port, batch = sys.argv[3], int(sys.argv[5]), int(sys.argv[7])
    api = BatchedClip(max_batch_size=batch, batch_timeout=0.005)
    accelerator = "cuda" if device.startswith("cuda") else "cpu"
    server = litserve.LitServer(api, accelerator=accelerator, devices=1, timeout=60)
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main()
