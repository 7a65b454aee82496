"""Files that models need from a network: found in a cache, downloaded, or at once a clear error.

Without a network, huggingface_hub tries again for about a minute before it gives up, once per file. One HEAD
request beforehand says at once what is missing. Nothing changes if the files are there or the network is.
"""

import os
import re
import ssl
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

PATIENCE = 5.0  # seconds for one answer of any kind; looking up a host's name counts
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "config.json")
Folder = str | os.PathLike[str] | None


def check_downloads(model: str, tag: Mapping[str, Any], cache_dir: Folder) -> None:
    """Raise ConnectionError if open_clip would have to download something and cannot.

    Args:
        model: As open_clip takes it.
        tag: open_clip's record of the weights; empty for a file or for none.
        cache_dir: Where downloads are kept; the default folders if None.
    """
    for what, address, cache in _missing(model, tag, cache_dir):
        _require(
            f"{what} of {model} is not in the cache {cache}",
            address,
            'give a checkpoint file: pretrained="weights.safetensors"',
            of_the_hub=address != tag.get("url"),
        )


def check_hub_repository(name: str, cache_dir: Folder) -> None:
    """Raise ConnectionError if a model of transformers, not all of it in the cache, cannot be downloaded."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.errors import HFValidationError

    try:
        address = hf_hub_url(name, "config.json")
    except HFValidationError:
        address = ""
    if name.count("/") != 1 or not address:
        raise ValueError(f"name_or_model: {name!r} is neither a folder nor a name on the Hub, OWNER/MODEL")
    missing = f"the model {name} is not, or not as a whole, in the cache {_hub_cache(cache_dir)}"
    _require(missing, address, "give a folder that save_pretrained wrote", of_the_hub=True)


def find_hub_file(repository: str, names: tuple[str, ...], cache_dir: Folder) -> Path:
    """The first of these files of a repository that is in the cache, or else on the hub: downloaded.

    Args:
        repository: Its name on the Hugging Face hub; a revision may follow after ``@``.
        names: Alternatives, the best first.
        cache_dir: Where downloads are kept; the default folder if None.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    repository, _, revision = repository.partition("@")
    options: dict[str, Any] = {"cache_dir": cache_dir, "revision": revision or None}
    for only_local in (True, False):
        if not only_local:
            check_hub_repository(repository, cache_dir)
        for name in names:
            try:
                return Path(hf_hub_download(repository, name, local_files_only=only_local, **options))
            except EntryNotFoundError:  # on the hub or, a LocalEntryNotFoundError, in the cache
                continue
    raise ValueError(f"{repository} on the Hub has none of {', '.join(names)}")


def find_web_file(address: str) -> Path:
    """A file that torch.hub has downloaded, or does now; the end of its name is checked against its hash."""
    from torch import hub

    file = Path(hub.get_dir()) / "checkpoints" / address.rpartition("/")[2]
    if not file.is_file():
        _require(f"{file.name} is not in {file.parent}", address, "name a checkpoint file", of_the_hub=False)
        file.parent.mkdir(parents=True, exist_ok=True)
        stated = re.search(r"-([0-9a-f]{8,})\.", file.name)
        hub.download_url_to_file(address, str(file), stated and stated[1], progress=False)
    return file


def _missing(model: str, tag: Mapping[str, Any], cache_dir: Folder) -> Iterator[tuple[str, str, Path]]:
    """What is not in the caches, where it comes from, and the cache: the weights, and a tokenizer's files."""
    import open_clip
    from huggingface_hub import hf_hub_url, try_to_load_from_cache
    from open_clip.constants import HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME

    wanted: list[tuple[str, str, tuple[str, ...]]] = []  # on the hub; the names are alternatives
    if model.startswith("hf-hub:"):
        wanted.append(("the configuration", model.removeprefix("hf-hub:"), ("open_clip_config.json",)))
    elif tag.get("hf_hub"):
        repository, _, name = tag["hf_hub"].rpartition("/")
        own = (str(Path(name).with_suffix(".safetensors")), name) if name else ()
        wanted.append(("the checkpoint", repository, (*own, HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME)))
    elif tag.get("url"):
        cache = Path("~/.cache/clip" if cache_dir is None else cache_dir).expanduser()
        if not (cache / tag["url"].rpartition("/")[2]).is_file():
            yield "the checkpoint", tag["url"], cache
    text = (open_clip.get_model_config(model.replace("/", "-")) or {}).get("text_cfg", {}) if tag else {}
    if text.get("hf_tokenizer_name"):
        wanted.append(("the tokenizer", text["hf_tokenizer_name"], _TOKENIZER_FILES))
    for what, repository, names in wanted:
        found = (try_to_load_from_cache(repository, n, cache_dir=_hub_cache(cache_dir)) for n in names)
        if not any(isinstance(file, str) for file in found):
            yield what, hf_hub_url(repository, names[0]), _hub_cache(cache_dir)


def _hub_cache(cache_dir: Folder) -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE if cache_dir is None else cache_dir)


def _require(missing: str, address: str, instead: str, *, of_the_hub: bool) -> None:
    from huggingface_hub import constants

    reason = "HF_HUB_OFFLINE is set: it is not downloaded"
    if not (of_the_hub and constants.HF_HUB_OFFLINE):
        why = why_unreachable(address)
        if why is None:
            return
        reason = f"{address} cannot be reached: {why}"
    raise ConnectionError(
        f"{missing}, and {reason}. Load it once with a network and copy the cache here (cache_dir= or "
        f"HF_HOME says where it is), or {instead}"
    )


def why_unreachable(address: str, patience: float = PATIENCE) -> str | None:
    """Why nothing answers at the address within so many seconds; None if something does, whatever it says."""
    answer = [f"no answer in {patience:g} seconds"]

    def ask() -> None:
        try:
            urlopen(Request(address, method="HEAD"), timeout=patience).close()
            answer.clear()
        except (HTTPError, TimeoutError):  # an answer with an error, or a slow one
            answer.clear()
        except OSError as error:
            answer[:] = [str(error)]
            if isinstance(getattr(error, "reason", error), ssl.SSLError):  # only the library knows these
                answer.clear()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()  # a thread: looking up a name has no timeout
    asking.join(patience + 1)
    return next(iter(answer), None)
