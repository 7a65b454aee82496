"""Ways to make a ``ZeroShotClassifier``, from the models of other libraries."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from ramen.encoder.encoder import AffineEncoder, check_fused
from ramen.images.preprocess import Preprocess
from ramen.models import prompts
from ramen.models.networks import as_preprocess, class_means, load_timm, take_head
from ramen.models.open_clip import load_open_clip_towers
from ramen.models.text import TwoTowers
from ramen.models.transformers import load_transformers
from ramen.utils.devices import parse_device
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
                ``"auto"`` is what computes fastest on the device: float16 on a GPU, bfloat16 for a
                large transformer on a CPU with AVX512-BF16 or AMX, else float32.
            logit_scale: The model's own if not given.
            preprocess: The model's own if not given. A tag of open_clip knows it; for a checkpoint file of a
                model that was trained otherwise (SigLIP, for one) it must be said.
            quick_gelu: Whether the model was trained with that activation; likewise known for tags.
            cache_dir: Where open_clip keeps what it downloads.
            fused: As in ``ZeroShotClassifier``.
            allow_same_names: Accept classes of the same name, or with names that the model's tokenizer cannot
                distinguish, since it reads no more tokens.
        """
        load = partial(load_open_clip_towers, model, pretrained, quick_gelu, cache_dir, preprocess)
        return cls._from_towers(load, classes, templates, device, dtype, logit_scale, fused, allow_same_names)

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
            dtype: Type of the image encoder's weights, norm layers excepted, or ``"auto"``, as in
                ``from_open_clip``; the text tower is in fp32.
            logit_scale: The model's own if not given.
            preprocess: The processor's own if not given: bit for bit what its Pillow version does to RGB
                images. Processors that use torchvision round differently in resizing.
            cache_dir: Where huggingface_hub keeps what it downloads.
            fused: As in ``ZeroShotClassifier``.
            allow_same_names: Accept classes of the same name, or with names that the model's tokenizer cannot
                distinguish.
        """
        load = partial(load_transformers, name_or_model, processor, cache_dir, preprocess)
        return cls._from_towers(load, classes, templates, device, dtype, logit_scale, fused, allow_same_names)

    @classmethod
    def _from_towers(
        cls,
        load: Callable[[torch.device], TwoTowers],
        classes: Sequence[str],
        templates: str | Sequence[str],
        device: str | torch.device,
        dtype: str | torch.dtype,
        logit_scale: float | None,
        fused: bool | str,
        allow_same_names: bool,
    ) -> Self:
        fused, device = check_fused(fused), parse_device(device)
        names = prompts.check_classes(classes, allow_same_names=allow_same_names)
        templates = prompts.check_templates(templates)
        towers = load(device)  # once nothing of the arguments is wrong: it may take minutes
        if not allow_same_names:
            prompts.check_distinct_prompts(towers.tokenize, names, templates)
        return cls(
            AffineEncoder(towers.image_tower, device=device, dtype=dtype, fused=fused),
            prompts.embed_classes(towers.encode_text, names, templates),
            towers.logit_scale if logit_scale is None else logit_scale,
            classes=names,
            templates=templates,
            preprocess=towers.preprocess,
            encode_text=towers.encode_text,
            fused=fused,
            allow_same_names=allow_same_names,
            logit_bias=towers.logit_bias,
        )

    @classmethod
    @plain_numerics()
    def from_classifier(
        cls,
        model: Any,
        classes: Sequence[str] | None = None,
        *,
        preprocess: Any = None,
        image_size: int | tuple[int, int] | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        logit_scale: float | None = None,
        fused: bool | str = "auto",
        allow_same_names: bool = False,
    ) -> Self:
        """Take an ordinary classification network, whose last linear layer becomes the class embeddings.

        Logits are the network's own, with all lengths and biases (``ramen.models.networks``). The
        embedding that methods compare images by is the input of the last layer with a 1 behind it, of unit
        length.

        Args:
            model: A network of torchvision, timm, transformers or your own, with norm layers, that maps
                images to logits ``(B, C)`` and ends with a linear layer. It is not changed.
            classes: Class names, in the order of the logits; the model's own, or "0", "1", ..., if not given.
            preprocess: A ``ramen.Preprocess``, the ``transforms()`` of torchvision's weights or an image
                processor of transformers; networks of timm know theirs.
            image_size: Height and width of the images, or one number, if there is no preprocessing.
            device: Where to compute; the network's own device if not given.
            dtype: Type of its weights, norm layers excepted, or ``"auto"``; its own if not given.
            logit_scale: For methods that multiply cosines by it (DMN, OGA, OnZeta, StatA), which the network
                does not do: its lengths of class vectors and of features of random images, multiplied.
            fused: As in ``ZeroShotClassifier``.
            allow_same_names: Accept classes of the same name.
        """
        chosen = as_preprocess(preprocess, model)
        size = _image_size(chosen, image_size)
        parts = take_head(model, size)
        names = parts.classes if classes is None else classes
        return cls(
            as_encoder(parts.features, size, device, dtype, check_fused(fused)),
            parts.class_embeddings,
            parts.logit_scale if logit_scale is None else logit_scale,
            classes=names,
            preprocess=chosen,
            fused=fused,
            allow_same_names=allow_same_names or classes is None,
            class_lengths=parts.class_lengths,
        )

    @classmethod
    @plain_numerics()
    def from_timm(
        cls,
        name: str,
        class_embeddings: Tensor | None = None,
        classes: Sequence[str] | None = None,
        *,
        pretrained: bool | str | os.PathLike[str] = True,
        logit_scale: float | None = None,
        preprocess: Any = None,
        device: str | torch.device = "cpu",
        dtype: str | torch.dtype = "float32",
        cache_dir: str | os.PathLike[str] | None = None,
        fused: bool | str = "auto",
        allow_same_names: bool = False,
    ) -> Self:
        """Load a model of timm: a tower with class embeddings from elsewhere, or a network with its own head.

        Args:
            name: As timm has it, ``vit_small_patch14_dinov2.lvd142m`` for example.
            class_embeddings: ``(C, d)`` of the width of the model's pooled features; ``from_prototypes``
                makes them of labelled images. If not given, the model must have a head: see
                ``from_classifier``.
            classes: Names; "0", "1", ... if not given.
            pretrained: True for timm's weights, False for random ones, or a checkpoint file.
            logit_scale: 100 with ``class_embeddings`` if not given; see ``from_classifier`` without.
            preprocess: timm's for this model if not given.
            device: Where to compute.
            dtype: Type of the weights, norm layers excepted, or ``"auto"``.
            cache_dir: Where huggingface_hub keeps what it downloads.
            fused: As in ``ZeroShotClassifier``.
            allow_same_names: Accept classes of the same name.
        """
        model = load_timm(name, pretrained, cache_dir, keep_head=class_embeddings is None)
        options: dict[str, Any] = {"device": device, "dtype": dtype, "fused": fused}
        options |= {"classes": classes, "allow_same_names": allow_same_names}
        if class_embeddings is None:
            return cls.from_classifier(model, preprocess=preprocess, logit_scale=logit_scale, **options)
        chosen = as_preprocess(preprocess, model)
        scale = 100.0 if logit_scale is None else logit_scale
        return cls(model, class_embeddings, scale, preprocess=chosen, **options)

    @classmethod
    @plain_numerics()
    def from_prototypes(
        cls,
        encoder: nn.Module | AffineEncoder,
        images: Any,
        labels: Tensor | Sequence[int],
        classes: Sequence[str] | None = None,
        *,
        logit_scale: float | None = None,
        preprocess: Any = None,
        batch_size: int = 32,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        fused: bool | str = "auto",
        allow_same_names: bool = False,
    ) -> Self:
        """Take any image encoder, with class embeddings that are means of a few labelled images.

        Args:
            encoder: As in ``ZeroShotClassifier``.
            images: A float tensor ``(N, 3, H, W)``, preprocessed; or with ``preprocess`` anything that it
                takes.
            labels: A class number of each image, from 0 on; every class must have an image.
            classes: Names; "0", "1", ... if not given.
            logit_scale: What explains the labels best, each image left out of the means once, if not given:
                the scale with the lowest cross entropy. With one image per class there is none: 100 then.
            preprocess: As in ``from_classifier``.
            batch_size: Images that are encoded at a time.
            device: Where to compute; the encoder's own device if not given.
            dtype: Type of its weights, norm layers excepted, or ``"auto"``; its own if not given.
            fused: As in ``ZeroShotClassifier``.
            allow_same_names: Accept classes of the same name.
        """
        chosen = as_preprocess(preprocess, encoder)
        encoder = as_encoder(encoder, chosen, device, dtype, check_fused(fused))
        means, best_scale = class_means(encoder, images, labels, chosen, batch_size)
        return cls(
            encoder,
            means,
            best_scale if logit_scale is None else logit_scale,
            classes=classes,
            preprocess=chosen,
            fused=fused,
            allow_same_names=allow_same_names,
        )


def as_encoder(
    encoder: nn.Module | AffineEncoder,
    images: Preprocess | tuple[int, int] | None,
    device: str | torch.device | None,
    dtype: str | torch.dtype | None,
    fused: bool | str,
) -> AffineEncoder:
    """A module as an ``AffineEncoder``, if it is none yet; ``images`` is what is known of their size."""
    if not isinstance(encoder, AffineEncoder):
        size = images.size if isinstance(images, Preprocess) else images
        example = None if size is None else torch.empty(1, 3, *size, device="meta")
        return AffineEncoder(encoder, example=example, device=device, dtype=dtype, fused=fused)
    if device is not None or dtype is not None:
        raise ValueError("device and dtype belong to the AffineEncoder when the encoder is one already")
    if fused is True and not encoder.fused:
        raise ValueError(f"fused=True: this encoder has no fused passes: {encoder.plain_reason}")
    return encoder


def _image_size(preprocess: Preprocess | None, given: int | tuple[int, int] | None) -> tuple[int, int]:
    if preprocess is not None:
        if given is not None:
            raise ValueError(f"image_size belongs to preprocess, which says {preprocess.size}, got {given!r}")
        return preprocess.size
    if given is None:
        raise ValueError(
            "preprocess must be given for a network that does not say which images it takes, or image_size "
            "for one whose images are preprocessed elsewhere"
        )
    return Preprocess(given).size  # type: ignore[arg-type]  # one number is enough
