"""Small architectures that open_clip builds by name, with a real text tower."""

import json
from pathlib import Path

TINY_VIT = {"layers": 2, "width": 32, "head_width": 16, "patch_size": 8}


def add_tiny_model(folder: Path, name: str, vision: dict[str, object], **extra: object) -> str:
    """Register an architecture with open_clip.

    Args:
        folder: Where its configuration is written.
        name: What open_clip calls it from now on.
        vision: Settings of the image tower beside the image size of 32.
        extra: Further settings of the model.

    Returns:
        The name.
    """
    import open_clip

    config = {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 32, **vision},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
        **extra,
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config))
    open_clip.add_model_config(path)
    return name
