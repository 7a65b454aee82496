"""Small random models of transformers with their processors, in folders as save_pretrained writes them."""

import io
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

SIZE, OUTPUT = 32, 12
WORDS = ("a", "photo", "of", "cat", "polar", "bear", "fire", "truck", "blurry", "itap", "the", "good")
FAMILIES = ("CLIP", "Siglip", "AltCLIP", "ChineseCLIP", "MetaClip2")

_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": SIZE,
    "patch_size": 8,
}
_TEXT: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def random_model(family: str) -> Any:
    """A model whose norm layers, scale and bias are not those of a fresh one."""
    import transformers

    tokenizer = _tokenizer(family)
    text = _TEXT | {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    text |= {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    text["max_position_embeddings"] = {"AltCLIP": 66, "Siglip": 32}.get(family, 24)
    if family == "AltCLIP":
        text["project_dim"] = OUTPUT
    if family == "Siglip":
        text["projection_size"] = _VISION["hidden_size"]
    projection = {} if family == "Siglip" else {"projection_dim": OUTPUT}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = getattr(transformers, f"{family}Config")(
            text_config=text, vision_config=_VISION, **projection
        )
        model: nn.Module = getattr(transformers, f"{family}Model")(config)
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.data += 0.2 * torch.randn_like(parameter)
            elif "position_embedding" not in name:
                # fresh weights are so small that all images and texts look alike
                parameter.data *= 8 if name.startswith("text") and family != "Siglip" else 2
    model.logit_scale.data.fill_(2.5)
    if hasattr(model, "logit_bias"):
        model.logit_bias.data.fill_(-7.0)
    return model.eval()


def processor(family: str, *, pillow: bool = False, size: int = SIZE) -> Any:
    """The processor of such a model; ``pillow``: the image processor that works with Pillow and numpy."""
    import transformers

    prefix = {"AltCLIP": "CLIP", "MetaClip2": "CLIP"}.get(family, family)
    kind = getattr(transformers, f"{prefix}ImageProcessor{'Pil' if pillow else ''}")
    sizes: dict[str, Any] = {"size": {"height": size, "width": size}}
    if family == "ChineseCLIP":
        sizes["do_center_crop"] = False  # as its checkpoints say
    if prefix == "CLIP":
        sizes = {"size": {"shortest_edge": size}, "crop_size": {"height": size, "width": size}}
    combine = getattr(transformers, f"{prefix if family != 'AltCLIP' else 'AltCLIP'}Processor")
    return combine(image_processor=kind(**sizes), tokenizer=_tokenizer(family))


def save_model(family: str, folder: Path) -> Path:
    """Write a model and its processor."""
    random_model(family).save_pretrained(folder)
    processor(family).save_pretrained(folder)
    return folder


def save_in_cache(family: str, name: str, cache: Path) -> None:
    """Write a model and its processor as huggingface_hub keeps what it has downloaded."""
    folder = cache / f"models--{name.replace('/', '--')}"
    save_model(family, folder / "snapshots" / "0123")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0123")


@cache
def _tokenizer(family: str) -> Any:
    import transformers

    if family == "CLIP":
        letters = [chr(code) for code in range(97, 123)]
        pieces = letters + [letter + "</w>" for letter in letters] + [".</w>", ".", "<|startoftext|>"]
        vocabulary = {piece: number for number, piece in enumerate([*pieces, "<|endoftext|>"])}
        return transformers.CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=24)
    if family == "ChineseCLIP":
        letters = [chr(code) for code in range(97, 123)]
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, ".", *letters[1:]]
        pieces += [f"##{letter}" for letter in letters]
        vocabulary = {piece: number for number, piece in enumerate(pieces)}
        return transformers.BertTokenizer(vocab=vocabulary, model_max_length=512)
    if family in ("AltCLIP", "MetaClip2"):
        letters = [chr(code) for code in range(97, 123)]
        pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", ".", *letters, *(f"▁{word}" for word in WORDS[1:])]
        scored = [(piece, -float(number)) for number, piece in enumerate([*pieces, "<mask>"])]
        return transformers.XLMRobertaTokenizer(vocab=scored, model_max_length=24)
    return _siglip_tokenizer()


def _siglip_tokenizer() -> Any:
    import tempfile

    import sentencepiece
    import transformers

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(WORDS), "abcdefghijklmnopqrstuvwxyz ."] * 20),
        model_writer=written,
        vocab_size=60,
        hard_vocab_limit=False,
        pad_id=3,
        minloglevel=2,
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "spiece.model"
        file.write_bytes(written.getvalue())
        return transformers.SiglipTokenizer(str(file), model_max_length=32)
