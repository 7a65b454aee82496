"""Models of timm by name, with weights that are read, never executed."""

import os
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ramen.models.checkpoint_files import read_weights
from ramen.models.downloads_needed import find_hub_file
from ramen.utils.checks import nearest

_FILES = ("model.safetensors", "pytorch_model.bin")


def load_timm(
    name: str,
    pretrained: bool | str | os.PathLike[str],
    cache_dir: str | os.PathLike[str] | None,
    *,
    keep_head: bool,
    **options: Any,
) -> nn.Module:
    """A model of timm in eval mode.

    Args:
        name: As timm has it, ``ARCHITECTURE`` or ``ARCHITECTURE.TAG``.
        pretrained: True for the tag's own weights, False for random ones, or a checkpoint file.
        cache_dir: Where huggingface_hub keeps what it downloads.
        keep_head: Whether it classifies; otherwise it ends with its pooled features.
        options: For ``timm.create_model``.
    """
    import timm

    if not isinstance(name, str):
        raise TypeError(f"name must be the name of a model of timm, got {type(name).__name__}")
    if not timm.is_model(name):
        raise ValueError(f"name: timm has no model {name!r}{nearest(name, timm.list_models())}")
    if not keep_head:
        options["num_classes"] = 0
    if pretrained is False:
        random: nn.Module = timm.create_model(name, pretrained=False, **options)
        return random.eval()
    weights = _weights(name, pretrained, cache_dir)
    try:
        # timm renames the weights of other codes, and drops those of the head if it is not kept
        model: nn.Module = timm.create_model(
            name, pretrained=True, pretrained_cfg_overlay={"state_dict": weights}, **options
        )
    except (RuntimeError, KeyError) as error:
        what = " ".join(str(error).split())[:600]
        raise ValueError(f"pretrained: the weights do not fit {name}: {what}") from error
    return model.eval()


def _weights(
    name: str, pretrained: bool | str | os.PathLike[str], cache_dir: str | os.PathLike[str] | None
) -> dict[str, Tensor]:
    import timm

    if not isinstance(pretrained, bool):
        return read_weights(Path(os.fspath(pretrained)).expanduser())
    config = timm.models.get_pretrained_cfg(name)
    repository = getattr(config, "hf_hub_id", None)
    if not repository:
        raise ValueError(
            f"pretrained: timm knows no weights of {name} on the Hub: name a tag ({name}.TAG), or give a file"
        )
    file = getattr(config, "hf_hub_filename", None)
    return read_weights(find_hub_file(repository, (file,) if file else _FILES, cache_dir))
