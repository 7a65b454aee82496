"""What open_clip would have to download for a model, and whether it can.

Without a network, huggingface_hub tries again for about a minute before it gives up, once per file. One quick
look beforehand says at once what is missing. Nothing changes if the files are there or the network is.
"""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

_PATIENCE = 5.0  # seconds for one answer of any kind; looking up a host's name counts
_HUB_MODEL = "hf-hub:"
_CONFIGURATION = "open_clip_config.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "config.json")


@dataclass(frozen=True)
class Download:
    """A file that open_clip downloads if it is not in the cache.

    Attributes:
        what: In words, for messages.
        address: Where it comes from.
        cache: The folder in which it was looked for.
        hub: Whether huggingface_hub downloads it.
    """

    what: str
    address: str
    cache: Path
    hub: bool


def check_downloads(model: str, tag: Mapping[str, Any], cache_dir: str | os.PathLike[str] | None) -> None:
    """Raise ConnectionError if something must be downloaded and cannot be.

    Args:
        model: As open_clip takes it.
        tag: open_clip's record of the weights; empty for a file or for none.
        cache_dir: Where downloads are kept; the default folders if None.
    """
    from huggingface_hub import constants

    offline = bool(constants.HF_HUB_OFFLINE)
    for needed in _missing(model, tag, cache_dir):
        if needed.hub and offline:
            reason = "HF_HUB_OFFLINE is set: it is not downloaded"
        else:
            why = _why_unreachable(needed)
            if why is None:
                continue
            reason = f"{needed.address} cannot be reached: {why}"
        raise ConnectionError(
            f"{needed.what} of {model} is not in the cache {needed.cache}, and {reason}. Load it once with a "
            "network and copy the cache here (cache_dir= or HF_HOME says where it is), or give a checkpoint "
            'file: pretrained="weights.safetensors"'
        )


def check_hub_repository(name: str, cache_dir: str | os.PathLike[str] | None) -> None:
    """Raise ConnectionError if a model of transformers, not all of it in the cache, cannot be downloaded.

    Args:
        name: Of a repository on the Hugging Face hub.
        cache_dir: Where downloads are kept; the default folder if None.
    """
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.errors import HFValidationError

    try:
        address = hf_hub_url(name, "config.json")
    except HFValidationError:
        raise ValueError(f"name_or_model: {name!r} is neither a folder nor a name on the Hub") from None
    if name.count("/") != 1:
        raise ValueError(f"name_or_model: {name!r} is neither a folder nor a name on the Hub, OWNER/MODEL")
    cache = Path(constants.HF_HUB_CACHE if cache_dir is None else cache_dir)
    if constants.HF_HUB_OFFLINE:
        reason: str | None = "HF_HUB_OFFLINE is set: it is not downloaded"
    else:
        why = _why_unreachable(Download("the model", address, cache, hub=True))
        reason = None if why is None else f"{address} cannot be reached: {why}"
    if reason is not None:
        raise ConnectionError(
            f"the model {name} is not, or not as a whole, in the cache {cache}, and {reason}. Load it once "
            "with a network and copy the cache here (cache_dir= or HF_HOME says where it is), or give a "
            "folder that save_pretrained wrote"
        )


def find_hub_file(repository: str, names: tuple[str, ...], cache_dir: str | os.PathLike[str] | None) -> Path:
    """The first of these files of a repository that is in the cache, or else on the hub: downloaded.

    Args:
        repository: Its name on the Hugging Face hub; a revision may follow after ``@``.
        names: Alternatives, the best first.
        cache_dir: Where downloads are kept; the default folder if None.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError

    repository, _, revision = repository.partition("@")
    cache = None if cache_dir is None else os.fspath(cache_dir)
    for name in names:
        found = try_to_load_from_cache(repository, name, cache_dir=cache, revision=revision or None)
        if isinstance(found, str):
            return Path(found)
    check_hub_repository(repository, cache_dir)
    for name in names:
        try:
            return Path(hf_hub_download(repository, name, cache_dir=cache, revision=revision or None))
        except EntryNotFoundError:
            continue
    raise ValueError(f"{repository} on the Hub has none of {', '.join(names)}")


def _missing(model: str, tag: Mapping[str, Any], cache_dir: str | os.PathLike[str] | None) -> list[Download]:
    """What is not in the caches: the weights, and the tokenizer if it is not one of open_clip's own."""
    import open_clip
    from open_clip.constants import HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME

    found: list[Download | None] = []
    if model.startswith(_HUB_MODEL):
        found.append(
            _on_hub("the configuration", model.removeprefix(_HUB_MODEL), (_CONFIGURATION,), cache_dir)
        )
    elif tag.get("hf_hub"):
        repository, _, name = tag["hf_hub"].rpartition("/")
        names = (str(Path(name).with_suffix(".safetensors")), name) if name else ()
        found.append(
            _on_hub("the checkpoint", repository, (*names, HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME), cache_dir)
        )
    elif tag.get("url"):
        found.append(_at_address(tag["url"], cache_dir))
    text = (open_clip.get_model_config(model.replace("/", "-")) or {}).get("text_cfg", {}) if tag else {}
    if text.get("hf_tokenizer_name"):
        found.append(_on_hub("the tokenizer", text["hf_tokenizer_name"], _TOKENIZER_FILES, cache_dir))
    return [one for one in found if one is not None]


def _on_hub(
    what: str, repository: str, names: tuple[str, ...], cache_dir: str | os.PathLike[str] | None
) -> Download | None:
    """None if one of these files of a repository is in the cache: they are alternatives."""
    from huggingface_hub import hf_hub_url, try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_CACHE

    cache = Path(HF_HUB_CACHE if cache_dir is None else cache_dir)
    for name in names:
        if isinstance(try_to_load_from_cache(repository, name, cache_dir=cache), str):
            return None
    return Download(what, hf_hub_url(repository, names[0]), cache, hub=True)


def _at_address(url: str, cache_dir: str | os.PathLike[str] | None) -> Download | None:
    cache = Path("~/.cache/clip" if cache_dir is None else cache_dir).expanduser()
    return (
        None
        if (cache / url.rpartition("/")[2]).is_file()
        else Download("the checkpoint", url, cache, hub=False)
    )


def _why_unreachable(needed: Download) -> str | None:
    """Why nothing answers at the address; None if something does, whatever it says."""
    answers: list[str | None] = []

    def ask() -> None:
        answers.append(_ask_hub(needed.address) if needed.hub else _ask(needed.address))

    asking = threading.Thread(target=ask, daemon=True)  # a thread: looking up a name has no timeout
    asking.start()
    asking.join(_PATIENCE + 1)
    return answers[0] if answers else f"no answer in {_PATIENCE:g} seconds"


def _ask_hub(address: str) -> str | None:
    """Ask as huggingface_hub does, with its proxies and certificates."""
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    try:
        get_session().head(address, timeout=_PATIENCE)
    except Exception as error:  # of httpx or requests, by version
        return None if "ReadTimeout" in type(error).__name__ else f"{type(error).__name__}: {error}"
    return None


def _ask(address: str) -> str | None:
    try:
        with urlopen(Request(address, method="HEAD"), timeout=_PATIENCE):
            return None
    except HTTPError:
        return None
    except OSError as error:
        return str(error)
