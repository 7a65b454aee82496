"""Ways to make a ``ZeroShotClassifier``, from the models of other libraries."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import torch

from ramen.encoder.affine_encoder import AffineEncoder
from ramen.encoder.module_facts import check_fused
from ramen.images.preprocess import Preprocess
from ramen.models import prompts
from ramen.models.open_clip import load_open_clip, load_tokenizer, text_encoder
from ramen.models.transformers import load_transformers
from ramen.utils.devices import parse_device, parse_dtype
from ramen.utils.numerics import plain_numerics


class Constructors:
    """The class methods of ``ZeroShotClassifier`` that load models."""

    if TYPE_CHECKING:

        def __init__(self, *arguments: Any, **options: Any) -> None: ...

    @classmethod
    @plain_numerics()
    def from_open_clip(
        cls,
        model: str,
        pretrained: str | os.PathLike[str] | None,
        classes: Sequence[str],
        templates: str | Sequence[str] = prompts.ENSEMBLE,
        device: str | torch.device = "cpu",
        dtype: str | torch.dtype = "float32",
        *,
        logit_scale: float | None = None,
        preprocess: Preprocess | None = None,
        quick_gelu: bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        fused: bool | str = "auto",
        allow_same_names: bool = False,
    ) -> Self:
        """Load a model of open_clip and embed the classes with its text tower.

        Args:
            model: An architecture name of open_clip, ``hf-hub:...`` or ``local-dir:...``.
            pretrained: A tag of open_clip, a checkpoint file, or None for random weights.
            classes: Class names.
            templates: A name in ``ramen.prompts.TEMPLATE_SETS`` or strings with ``{}`` for the class name.
            device: Where to compute.
            dtype: Type of the image encoder's weights, norm layers excepted; the text tower stays in fp32.
            logit_scale: The model's own if not given.
            preprocess: The model's own if not given. A tag of open_clip knows it; for a checkpoint file of a
                model that was trained otherwise (SigLIP, for one) it must be said.
            quick_gelu: Whether the model was trained with that activation; likewise known for tags.
            cache_dir: Where open_clip keeps what it downloads.
            fused: As in ``ZeroShotClassifier``.
            allow_same_names: Accept classes of the same name, or with names that the model's tokenizer cannot
                distinguish: it reads so many tokens and no more.
        """
        fused = check_fused(fused)
        names = prompts.check_classes(classes, allow_same_names=allow_same_names)
        templates = prompts.check_templates(templates)
        device, dtype = parse_device(device), parse_dtype(dtype)
        clip = load_open_clip(model, pretrained, quick_gelu=quick_gelu, cache_dir=cache_dir)
        image_tower = clip.visual
        encoder = AffineEncoder(image_tower, device=device, dtype=dtype, fused=fused)
        if preprocess is None:
            preprocess = Preprocess.from_open_clip(image_tower.preprocess_cfg)
        if logit_scale is None:
            logit_scale = clip.logit_scale.exp().item()  # before it moves: devices differ in the last digit
        bias = getattr(clip, "logit_bias", None)
        clip.visual = None  # the rest of the model is the text tower
        tokenizer = load_tokenizer(model, cache_dir)
        if not allow_same_names:
            prompts.check_distinct_prompts(tokenizer, names, templates)
        encode_text = text_encoder(clip.to(device), tokenizer)
        return cls(
            encoder,
            prompts.embed_classes(encode_text, names, templates),
            logit_scale,
            classes=names,
            templates=templates,
            preprocess=preprocess,
            encode_text=encode_text,
            fused=fused,
            allow_same_names=allow_same_names,
            logit_bias=0.0 if bias is None else bias.item(),
        )

    @classmethod
    @plain_numerics()
    def from_transformers(
        cls,
        name_or_model: Any,
        classes: Sequence[str],
        processor: Any = None,
        templates: str | Sequence[str] = prompts.ENSEMBLE,
        device: str | torch.device = "cpu",
        dtype: str | torch.dtype = "float32",
        *,
        logit_scale: float | None = None,
        preprocess: Preprocess | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        fused: bool | str = "auto",
        allow_same_names: bool = False,
    ) -> Self:
        """Load a model of transformers and embed the classes with its text tower.

        CLIP, MetaCLIP, SigLIP, SigLIP 2 of fixed resolution, AltCLIP, ChineseCLIP: whatever ``AutoModel`` and
        ``AutoProcessor`` load that has ``get_image_features`` and ``get_text_features``.

        Args:
            name_or_model: A name on the Hugging Face hub, a folder, or a loaded model, which is not changed.
                A model in the hub's cache is used as it is there, without asking the hub.
            classes: Class names.
            processor: Of a loaded model, which has none of its own; a name brings its own.
            templates: A name in ``ramen.prompts.TEMPLATE_SETS`` or strings with ``{}`` for the class name.
            device: Where to compute.
            dtype: Type of the image encoder's weights, norm layers excepted; the text tower is in fp32.
            logit_scale: The model's own if not given.
            preprocess: The processor's own if not given: bit for bit what its Pillow version does to RGB
                images. Processors that use torchvision round differently in resizing.
            cache_dir: Where huggingface_hub keeps what it downloads.
            fused: As in ``ZeroShotClassifier``.
            allow_same_names: Accept classes of the same name, or with names that the model's tokenizer cannot
                distinguish.
        """
        fused = check_fused(fused)
        names = prompts.check_classes(classes, allow_same_names=allow_same_names)
        templates = prompts.check_templates(templates)
        device, dtype = parse_device(device), parse_dtype(dtype)
        loaded = load_transformers(name_or_model, processor, cache_dir, preprocess, device)
        if not allow_same_names:
            prompts.check_distinct_prompts(loaded.tokenize, names, templates)
        return cls(
            AffineEncoder(loaded.image_tower, device=device, dtype=dtype, fused=fused),
            prompts.embed_classes(loaded.encode_text, names, templates),
            loaded.logit_scale if logit_scale is None else logit_scale,
            classes=names,
            templates=templates,
            preprocess=loaded.preprocess,
            encode_text=loaded.encode_text,
            fused=fused,
            allow_same_names=allow_same_names,
            logit_bias=loaded.logit_bias,
        )
