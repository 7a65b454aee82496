"""Models by name: what ``--model`` means, wherever a model is named."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ramen.models import prompts
from ramen.utils.checks import nearest, one_line
from ramen.utils.files import UserFile, in_words, load_file

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ramen.models.classifier import ZeroShotClassifier

TINY = "tiny"  # the model that is part of the package
FORMS = {
    TINY: "the tiny CLIP included in the package",
    "ARCH/TAG": "an open_clip architecture and tag, such as ViT-B-32/openai",
    "ARCH/FILE": "an open_clip architecture and a checkpoint file",
    "hf-hub:NAME": "a model on the Hugging Face hub in open_clip's format",
    "local-dir:FOLDER": "a folder with a model in that format",
    "transformers:NAME": "a model of transformers: on the Hugging Face hub, or a folder",
    "torchvision:NAME": "a network of torchvision with its own classes; torchvision:NAME/FILE: your weights",
    "timm:NAME": "a network of timm with its own classes; timm:NAME/FILE with your weights",
    "stored:FOLDER": "a folder with an image tower and text embeddings",
    "random:ARCH": "random weights, the same each time: to try everything without downloads",
    "FILE.py:FUNCTION": "your own: FUNCTION(classes, device=..., dtype=...) returns a ZeroShotClassifier",
}
_SEED = 0  # of the random weights


def load_model(
    name: str,
    classes: Sequence[str] | None,
    templates: str | Sequence[str] = prompts.ENSEMBLE,
    device: "str | torch.device" = "cpu",
    dtype: "str | torch.dtype" = "float32",
    *,
    allow_same_names: bool = False,
    numbered: bool = False,
) -> "ZeroShotClassifier":
    """Load a model by name, one of the ``FORMS``, as a classifier.

    Without classes it has those that it brings, if it is a network that classifies; ``numbered`` accepts
    numbers as names of those that it brings without names. Other arguments are those of
    ``ZeroShotClassifier.from_open_clip``.
    """
    import torch

    from ramen.models.classifier import ZeroShotClassifier
    from ramen.models.stored import load_stored

    options: dict[str, Any] = {"device": device, "dtype": dtype, "allow_same_names": allow_same_names}
    nameless = (
        f"classes must be given: {name} does not know the names of its classes (--classes or --classes-file, "
        "in the order of its logits)"
    )
    if _is_function(name):
        made = _made_by_function(name, classes, **options)
        if classes is None and not numbered and made.classes == tuple(map(str, range(made.num_classes))):
            raise ValueError(nameless)
        return made
    kind, colon, rest = name.partition(":")
    network = _NETWORKS[kind](rest) if kind in _NETWORKS and rest else None
    if network is not None:
        if network.own is None and classes is None and not numbered:
            raise ValueError(nameless)
        return _made_of_network(network, name, classes, options)
    if classes is None:
        raise ValueError(f"classes must be given: {name} knows none of its own (--classes or --classes-file)")
    if kind == "transformers" and rest:
        return ZeroShotClassifier.from_transformers(rest, classes, None, templates, **options)
    if kind == "stored" and colon:
        return load_stored(Path(rest).expanduser(), classes, templates, **options)
    architecture, pretrained = parts_of(name)
    with torch.random.fork_rng(devices=[]):  # open_clip draws random weights before it loads others
        torch.manual_seed(_SEED)
        return ZeroShotClassifier.from_open_clip(architecture, pretrained, classes, templates, **options)


def parts_of(name: str) -> tuple[str, str | None]:
    """The arguments ``model`` and ``pretrained`` of open_clip."""
    if name == TINY:
        from ramen.models.tiny_clip.model import FOLDER

        return f"local-dir:{FOLDER}", None
    if name.startswith(("hf-hub:", "local-dir:")):
        return name, None
    if name.startswith("random:"):
        return name.removeprefix("random:"), None
    architecture, slash, pretrained = name.partition("/")
    if not (architecture and slash and pretrained):
        forms = "; ".join(f"{form}: {meaning}" for form, meaning in FORMS.items())
        raise ValueError(f"model: {name!r} has none of these forms: {forms}")
    return architecture, str(Path(pretrained).expanduser()) if "/" in pretrained else pretrained


def may_bring_classes(name: str) -> bool:
    """Whether a model of this form may know its classes; the others embed whatever names they are given."""
    return name.partition(":")[0] in _NETWORKS or _is_function(name)


def full_name(name: str) -> str:
    """The same name for processes in other folders: of a file of one's own, its full path."""
    file, _, function = name.rpartition(":")
    return f"{os.path.abspath(os.path.expanduser(file))}:{function}" if _is_function(name) else name


def recorded_name(name: str) -> str:
    """What results say of a model: of a file of one's own, its name and its hash, never its folder."""
    if not _is_function(name):
        return name
    file, function, _ = _find_function(name)
    return f"{file.path.name}:{function} sha256:{file.sha256[:12]}"


# -- functions of the user's own ---------------------------------------------------------------------------


def _is_function(name: str) -> bool:
    path, _, function = name.rpartition(":")
    return path.endswith(".py") and function.isidentifier()


def _find_function(name: str) -> tuple[UserFile, str, Callable[..., Any]]:
    path, _, function = name.rpartition(":")
    file = load_file("model", path)
    found = getattr(file.module, function, None)
    if not callable(found):
        defined = [key for key, value in vars(file.module).items() if callable(value) and key[0] != "_"]
        raise ValueError(f"model: {path} defines no function {function!r}{nearest(function, defined)}")
    return file, function, found


def _made_by_function(
    name: str,
    classes: Sequence[str] | None,
    device: "str | torch.device",
    dtype: "str | torch.dtype",
    allow_same_names: bool,
) -> "ZeroShotClassifier":
    from ramen.models.classifier import ZeroShotClassifier

    file, function, call = _find_function(name)
    where, device, dtype = f"model: {function} in {file.path}", str(device), _dtype_name(dtype)
    names = None if classes is None else prompts.check_classes(classes, allow_same_names=allow_same_names)
    try:
        made = call(None if names is None else list(names), device=device, dtype=dtype)
    except Exception as error:
        raise ValueError(f"{where} failed: {in_words(error, file.path)}") from error
    if not isinstance(made, ZeroShotClassifier):
        raise TypeError(f"{where} must return a ZeroShotClassifier, got {type(made).__name__}")
    if names is not None and made.classes != names:
        raise ValueError(
            f"{where} was asked for the classes {_listed(names)} and returned a classifier for "
            f"{_listed(made.classes)}: hand `classes` on to what makes it"
        )
    asked, came = (device.partition(":")[0], dtype), (made.device.type, _dtype_name(made.dtype))
    for wanted, got in zip(asked, came, strict=True):
        if wanted not in ("auto", got):
            raise ValueError(
                f"{where} must return a classifier on the device and in the dtype that it is given: asked "
                f"for {wanted}, got {got}"
            )
    return made


def _dtype_name(dtype: "str | torch.dtype") -> str:
    return str(dtype).removeprefix("torch.")


# -- networks that classify, and bring their classes -------------------------------------------------------


class Network(NamedTuple):
    """A network that classifies, the names of its classes and the preprocessing, where they are known."""

    module: "nn.Module"
    own: Sequence[str] | None
    preprocess: Any = None


def _made_of_network(
    network: Network, name: str, classes: Sequence[str] | None, options: dict[str, Any]
) -> "ZeroShotClassifier":
    """A classifier for its own classes, for some of them, or for names in the order of its logits."""
    from ramen.models.classifier import ZeroShotClassifier

    make = partial(ZeroShotClassifier.from_classifier, network.module, preprocess=network.preprocess)
    if network.own is None:
        return make(classes, **options)
    own = unique_names(network.own)
    if classes is None:
        return make(own, **options)
    names = prompts.check_classes(classes, allow_same_names=options["allow_same_names"])
    rows = _rows(name, own, names)
    if rows == list(range(len(own))):
        return make(names, **options)
    whole = make(own, **options)
    assert whole.class_lengths is not None
    return ZeroShotClassifier(
        whole.encoder,
        whole.class_embeddings[rows],
        whole.logit_scale,
        classes=names,
        preprocess=whole.preprocess if whole.can_preprocess else None,
        class_lengths=whole.class_lengths[rows],
        allow_same_names=options["allow_same_names"],
    )


def unique_names(names: Sequence[str]) -> tuple[str, ...]:
    """Class names as prompts have them; one that has occurred before gets its number behind it.

    >>> unique_names(["crane", "fire_truck", "crane"])
    ('crane', 'fire truck', 'crane (2)')
    """
    plain = prompts.check_classes(names, allow_same_names=True)
    return tuple(f"{n} ({i})" if n in plain[:i] else n for i, n in enumerate(plain))


def _rows(name: str, own: tuple[str, ...], asked: tuple[str, ...]) -> list[int]:
    """Which of a network's classes were asked for: by their names, or all of them under other names."""
    places = {known.lower(): number for number, known in enumerate(own)}
    found = {i: places[word.lower()] for i, word in enumerate(asked) if word.lower() in places}
    if len(found) == len(asked):
        return [found[i] for i in range(len(asked))]
    if len(asked) == len(own):
        if 2 * sum(i == number for i, number in found.items()) < len(found):
            raise ValueError(f"classes: {name} has {_listed(own)}, in another order, got {_listed(asked)}")
        return list(range(len(own)))
    unknown = next(word for i, word in enumerate(asked) if i not in found)
    raise ValueError(
        f"classes: {name} classifies into {_listed(own)}; {unknown!r} is none of them"
        f"{nearest(unknown, own)}. Name some of these, all of them in their order, or none (without "
        "--classes) for all; a model with a text tower, such as ViT-B-16/openai, takes any classes"
    )


def _listed(names: Sequence[str]) -> str:
    return f"{len(names):,} classes ({', '.join(names[:3])}{', ...' * (len(names) > 3)})"


def _of_timm(given: str) -> Network:
    from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset

    from ramen.models.networks import load_timm

    tag, _, file = given.partition("/")
    network: Any = load_timm(tag, Path(file).expanduser() if file else True, None, keep_head=True)
    if file:
        return Network(network, None)
    names, subset = network.pretrained_cfg.get("label_names"), infer_imagenet_subset(network)
    if not names and subset is not None:
        table = ImageNetInfo(subset)
        names = [table.index_to_description(number) for number in range(table.num_classes())]
    return Network(network, names or None)


def _of_torchvision(given: str) -> Network:
    from torchvision import models

    from ramen.models.checkpoints import find_web_file, read_weights

    name, _, weights = given.partition("/")
    known = models.list_models(module=models)
    if name not in known:
        raise ValueError(f"model: torchvision has no network {name!r} that classifies{nearest(name, known)}")
    tags = models.get_model_weights(name)
    if weights and weights not in tags.__members__:
        file = Path(weights).expanduser()
        if not file.is_file():
            hint = nearest(weights, tags.__members__)
            raise ValueError(
                f"model: {weights!r} is neither a file nor weights of torchvision's {name}{hint}"
            )
        state, names, tag = read_weights(file), None, tags.DEFAULT
    else:
        tag = tags[weights] if weights else tags.DEFAULT
        state, names = read_weights(find_web_file(tag.url)), tag.meta["categories"]
    network = models.get_model(name, weights=None, num_classes=len(list(state.values())[-1]))
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"model: {weights} does not fit {name}: {one_line(error)}") from None
    return Network(network.eval(), names, tag.transforms())


def _of_transformers(given: str) -> Network | None:
    from ramen.models.networks import known_names
    from ramen.models.transformers import load_image_classifier

    found = load_image_classifier(given)
    return None if found is None else Network(found[0], known_names(found[0]), found[1])


_NETWORKS: dict[str, Callable[[str], Network | None]] = {
    "timm": _of_timm,
    "torchvision": _of_torchvision,
    "transformers": _of_transformers,
}


# -- for commands ------------------------------------------------------------------------------------------


class MissingWeightsError(RuntimeError):
    """A model's weights cannot be had."""


class ModelChoice(Protocol):
    """A model, and the classes that it is for; the fields are those of a ``ClassifyRequest``."""

    @property
    def model(self) -> str: ...
    @property
    def classes(self) -> Sequence[str] | None: ...
    @property
    def templates(self) -> str | tuple[str, ...]: ...
    @property
    def device(self) -> str | None: ...
    @property
    def dtype(self) -> str | None: ...


def load_classifier(request: ModelChoice, classes: Sequence[str] | None = None) -> "ZeroShotClassifier":
    """The model for the classes; MissingWeightsError if its weights can neither be found nor downloaded."""
    from ramen.utils.devices import device_and_dtype_names

    device, dtype = device_and_dtype_names(request.device, request.dtype)
    try:
        return load_model(request.model, classes or request.classes or None, request.templates, device, dtype)
    except (ValueError, ConnectionError) as error:
        cause = error if isinstance(error, ConnectionError) else error.__cause__
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        if cause is None or _is_function(request.model):
            raise
        raise MissingWeightsError(
            f"the weights of {request.model} cannot be loaded: {cause}\n"
            "They are downloaded when they are first used, which needs a network. Without one, copy a "
            "checkpoint to this machine and use --model ARCH/FILE or local-dir:FOLDER (`ramen models list` "
            f"explains the forms), or try --model {TINY}, which is included and knows drawings only."
        ) from error
