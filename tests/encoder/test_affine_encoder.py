"""The encoder as a function of its norm parameters, against ordinary modules and autograd."""

import copy
import functools
import warnings
from collections.abc import Callable

import open_clip
import pytest
import torch
from torch import Tensor, nn

from ramen import testing
from ramen.encoder.encoder import AffineEncoder
from ramen.encoder.statistics import Statistics
from ramen.methods._losses import entropy
from ramen.methods._optim import sign_step


@functools.cache
def text_embeddings(width: int, classes: int = 5) -> Tensor:
    vectors = torch.randn(classes, width, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return nn.functional.normalize(vectors, dim=-1)


def entropy_of(embeddings: Tensor) -> Tensor:
    return entropy(20 * embeddings @ text_embeddings(embeddings.shape[1]).to(embeddings.dtype).T)


def norm_parameters(module: nn.Module) -> list[nn.Parameter]:
    kinds = (nn.LayerNorm, nn.BatchNorm2d, nn.GroupNorm, nn.RMSNorm)
    layers = [m for m in module.modules() if isinstance(m, kinds)]
    return [p for m in layers for p in (m.weight, getattr(m, "bias", None)) if p is not None]


def looped_gradients(module: nn.Module, images: Tensor) -> Tensor:
    """The oracle: one image at a time through the ordinary module, one backward pass each."""
    module = copy.deepcopy(module).eval()
    parameters = norm_parameters(module)
    rows = []
    for image in images:
        module.zero_grad()
        features = module(image[None])
        entropy_of(nn.functional.normalize(features, dim=-1)).sum().backward()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        rows.append(torch.cat([g.flatten() for g in grads]))
    return torch.stack(rows)


def sample_gradients(encoder: AffineEncoder, images: Tensor) -> Tensor:
    affine = encoder.base.expand(len(images), -1).detach().requires_grad_()
    return encoder.gradient(entropy_of(encoder(images, affine)).sum(), affine)


class SequenceFirst(nn.Module):
    """Tokens before images: (L, B, D), as OpenAI's CLIP runs its blocks; ends without a token axis."""

    def __init__(self, tokens: int = 4) -> None:
        super().__init__()
        self.tokens = tokens
        self.embed = nn.Linear(3 * 32 * 32 // tokens, 12)
        self.ln_1 = nn.LayerNorm(12)
        self.attention = nn.MultiheadAttention(12, 2)
        self.ln_2 = nn.LayerNorm(12)
        self.mlp = nn.Linear(12, 12)
        self.ln_post = nn.LayerNorm(12)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.flatten(1).view(len(x), self.tokens, -1)).permute(1, 0, 2)
        y = self.ln_1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.mlp(self.ln_2(x)).relu()
        return self.ln_post(x.mean(0))


class Convolutional(nn.Module):
    """GroupNorm, BatchNorm and RMSNorm, with one norm layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, stride=4)
        self.group = nn.GroupNorm(2, 8)
        self.batch = nn.BatchNorm2d(8)
        self.twice = nn.RMSNorm(8)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.batch(self.group(self.stem(x)).relu()).mean((2, 3))
        return self.head(self.twice(x + self.twice(x)))


class TorchTransformer(nn.Module):
    """torch's own encoder layer, whose fused inference kernel does not call its norm layers."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=True)
        self.patches = nn.Conv2d(3, 16, 8, stride=8)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1)


class Folded(nn.Module):
    """Each image becomes several rows of the batch axis before it is normalised."""

    def __init__(self, interleaved: bool = False) -> None:
        super().__init__()
        self.interleaved = interleaved
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.mean(1)  # (B, 32, 32)
        if self.interleaved:
            folded = self.norm(rows.transpose(0, 1).reshape(-1, 32)).view(32, len(x), 32).transpose(0, 1)
        else:
            folded = self.norm(rows.reshape(-1, 32)).view(len(x), 32, 32)
        return self.head(folded.mean(1))


def perturb_norms(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(5)
    for parameter in norm_parameters(module):
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return module


def make(kind: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        kinds = {
            "sequence-first": SequenceFirst,
            "convolutional": Convolutional,
            "torch-transformer": TorchTransformer,
            "folded": Folded,
        }
        module = kinds[kind]() if kind in kinds else testing.small_tower(kind)
        return perturb_norms(module)


ENCODERS = ["vit", "resnet", "sequence-first", "convolutional", "torch-transformer", "folded"]


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("batch", [1, 4, 5])  # 4: as many images as SequenceFirst has tokens
def test_equals_the_module_and_its_looped_gradients(kind: str, batch: int, images: Tensor) -> None:
    module = make(kind).double()
    images = images[:batch].double()
    encoder = AffineEncoder(module)
    with torch.no_grad():
        expected = nn.functional.normalize(copy.deepcopy(module).eval()(images), dim=-1)
        rows = encoder.base.expand(batch, -1)
        for affine in (None, encoder.base, rows):
            torch.testing.assert_close(encoder(images, affine), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        sample_gradients(encoder, images), looped_gradients(module, images), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("kind", ENCODERS)
def test_each_image_has_its_own_parameters(kind: str, images: Tensor) -> None:
    module = make(kind).double()
    images = images.double()
    encoder = AffineEncoder(module)
    generator = torch.Generator().manual_seed(2)
    noise = torch.randn(len(images), len(encoder.base), generator=generator, dtype=torch.float64)
    affine = encoder.base + 0.1 * noise
    together = encoder(images, affine)
    alone = torch.cat([encoder(image[None], row) for image, row in zip(images, affine, strict=True)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)

    ordinary = copy.deepcopy(module).eval()
    for parameter, piece in zip(norm_parameters(ordinary), encoder.layout, strict=True):
        parameter.data = affine[2, piece.start : piece.stop].view(piece.shape)
    expected = nn.functional.normalize(ordinary(images[2:3]), dim=-1)
    torch.testing.assert_close(together[2:3], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_gradients_equal_torch_func(kind: str, images: Tensor) -> None:
    module = make(kind).double().eval()
    images = images[:3].double()
    encoder = AffineEncoder(module)
    others = dict(module.named_parameters()) | dict(module.named_buffers())

    def loss(norms: dict[str, Tensor], image: Tensor) -> Tensor:
        features = torch.func.functional_call(module, {**others, **norms}, (image[None],))
        return entropy_of(nn.functional.normalize(features, dim=-1)).sum()

    norms = {piece.name: others[piece.name].detach() for piece in encoder.layout}
    text_embeddings(encoder.embed_dim)  # vmap draws no random numbers
    rows = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(norms, images)
    expected = torch.cat([rows[piece.name].flatten(1) for piece in encoder.layout], 1)
    torch.testing.assert_close(sample_gradients(encoder, images), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("name", "size"), [("ViT-B-32", 39_936), ("RN101", 105_472)])
def test_full_size_towers(name: str, size: int) -> None:
    torch.manual_seed(0)
    module = open_clip.create_model(name).visual.eval()
    images = torch.randn(2, 3, 224, 224)
    encoder = AffineEncoder(module)
    assert len(encoder.base) == size
    with torch.no_grad():
        expected = nn.functional.normalize(module(images), dim=-1)
        torch.testing.assert_close(encoder(images), expected, rtol=0, atol=1e-5)
    gradients, oracle = sample_gradients(encoder, images), looped_gradients(module, images)
    assert (gradients - oracle).norm() < 1e-3 * oracle.norm()


def test_layout_names_every_slice() -> None:
    module = testing.small_tower("vit")
    encoder = AffineEncoder(module)
    parameters = dict(module.named_parameters())
    assert encoder.layout[0].name == "ln_pre.weight"
    assert [p.kind for p in encoder.layout[:2]] == ["weight", "bias"]
    assert [p.start for p in encoder.layout] == [0, *(p.stop for p in encoder.layout[:-1])]
    assert encoder.layout[-1].stop == len(encoder.base)
    for piece in encoder.layout:
        stored = encoder.base[piece.start : piece.stop].view(piece.shape)
        assert torch.equal(stored, parameters[piece.name].detach()), piece.name


def test_the_owners_module_is_untouched(tower_kind: str, images: Tensor) -> None:
    module = testing.small_tower(tower_kind).train()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    children = dict(module.named_modules())
    encoder = AffineEncoder(module)
    sample_gradients(encoder, images)
    assert module.training
    assert dict(module.named_modules()) == children
    assert all(p.requires_grad and p.grad is None for p in module.parameters())
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    # The owner's running statistics move on without the encoder's.
    expected = encoder(images)
    module(images)
    assert torch.equal(encoder(images), expected)


def test_weights_are_shared_not_copied() -> None:
    module = testing.small_tower("vit")
    encoder = AffineEncoder(module)
    shared = encoder.weights()["conv1.weight"]
    assert shared.data_ptr() == module.conv1.weight.data_ptr()


def test_no_gradient_for_any_other_weight(images: Tensor) -> None:
    module = testing.small_tower("vit")
    encoder = AffineEncoder(module)
    affine = encoder.base.expand(len(images), -1).detach().requires_grad_()
    weights = list(module.parameters())
    assert all(weight.requires_grad for weight in weights)
    total = encoder(images, affine).sum()
    of_affine, *of_weights = torch.autograd.grad(total, [affine, *weights], allow_unused=True)
    assert of_affine.any()
    assert of_weights == [None] * len(weights)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(tower_kind: str, dtype: str, images: Tensor) -> None:
    module = testing.small_tower(tower_kind)
    full, half = AffineEncoder(module), AffineEncoder(module, dtype=dtype)
    assert half.base.dtype == torch.float32
    assert torch.equal(half.base, full.base)
    assert half(images, normalize=False).dtype == getattr(torch, dtype)
    assert half(images).dtype == torch.float32
    assert (half(images) * full(images)).sum(1).min() > 0.99
    exact, rough = sample_gradients(full, images), sample_gradients(half, images)
    assert rough.dtype == torch.float32
    # three digits in bf16: where a random network's answer hangs on the fourth, its gradient turns
    expected = 0.98 if dtype == "float16" else 0.8
    assert nn.functional.cosine_similarity(exact, rough).median() > expected


def test_norm_statistics_are_computed_in_fp32() -> None:
    """Squares of 300 overflow in fp16; in fp32 the layer normalises as it should."""
    norm = nn.Sequential(nn.Flatten(), nn.LayerNorm(12, bias=False), nn.Linear(12, 12, bias=False))
    nn.init.eye_(norm[2].weight)
    encoder = AffineEncoder(norm, dtype="float16")
    images = 300 * torch.randn(2, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    expected = nn.functional.layer_norm(images.flatten(1), (12,))
    torch.testing.assert_close(encoder(images, normalize=False).float(), expected, atol=5e-3, rtol=5e-3)


def test_fp16_gradients_of_confident_images_do_not_vanish(images: Tensor) -> None:
    module = testing.small_tower("vit")
    encoders = [AffineEncoder(module, dtype=d) for d in ("float32", "float16")]
    nonzero = []
    for encoder in encoders:
        affine = encoder.base.expand(len(images), -1).detach().requires_grad_()
        tiny = entropy_of(encoder(images, affine)).sum() * 1e-8
        nonzero.append((encoder.gradient(tiny, affine) != 0).float().mean().item())
    assert nonzero[1] > 0.9 * nonzero[0]


def test_towers_of_timm_and_coca(images: Tensor) -> None:
    torch.manual_seed(0)
    coca = open_clip.create_model("coca_ViT-B-32").visual.eval()
    encoder = AffineEncoder(coca)
    # the pooling query's norm sees no image: it stays as it is, outside the flat vector
    assert "attn_pool.ln_q.weight" not in {piece.name for piece in encoder.layout}
    pixels = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        expected = nn.functional.normalize(coca(pixels)[0], dim=-1)
        rows = encoder.base.expand(2, -1)
        torch.testing.assert_close(encoder(pixels, rows), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "arguments", "size"),
    [
        ("convnext_atto", {}, 64),
        (
            "vit_tiny_patch16_224",
            {"img_size": 64, "global_pool": "map", "class_token": False},
            64,
        ),  # as SigLIP
        ("resnet18", {}, 64),
        ("resnetv2_50", {}, 64),  # norm layers with a fused activation, and GroupNorm-like stem
        ("mobilevit_xxs", {}, 64),  # folds patches into the batch axis
        ("swin_tiny_patch4_window7_224", {"img_size": 56}, 56),
    ],
)
def test_timm_towers(name: str, arguments: dict[str, object], size: int) -> None:
    import timm

    torch.manual_seed(0)
    tower = perturb_norms(timm.create_model(name, num_classes=8, **arguments)).double().eval()
    images = torch.randn(3, 3, size, size, dtype=torch.float64)
    encoder = AffineEncoder(tower, example=images)
    with torch.no_grad():
        expected = nn.functional.normalize(tower(images), dim=-1)
        torch.testing.assert_close(encoder(images, encoder.base.expand(3, -1)), expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(
        sample_gradients(encoder, images), looped_gradients(tower, images), rtol=1e-6, atol=1e-12
    )


def test_gradient_checkpointing_is_switched_off(images: Tensor) -> None:
    module = testing.small_tower("vit")
    module.transformer.grad_checkpointing = True
    encoder = AffineEncoder(module.double())
    module.transformer.grad_checkpointing = False
    torch.testing.assert_close(
        sample_gradients(encoder, images.double()), looped_gradients(module, images.double())
    )


def test_under_inference_mode(images: Tensor) -> None:
    with torch.inference_mode():
        encoder = AffineEncoder(testing.small_tower("vit"))
    assert sample_gradients(encoder, images).abs().sum() > 0


@pytest.mark.parametrize("size", [1e-4, 0.03, 1.0, 300.0])
@pytest.mark.parametrize("shared", [True, False])
def test_fp16_gradients_neither_vanish_nor_overflow_whatever_the_features_size(
    size: float, shared: bool
) -> None:
    """Small features mean large gradients: a fixed scale of the loss would overflow."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 64), nn.LayerNorm(64), nn.Linear(64, 16))
    for parameter in module[3].parameters():
        parameter.data *= size
    images = torch.randn(20, 3, 32, 32)
    gradients = []
    for dtype in ("float32", "float16"):
        encoder = AffineEncoder(module, dtype=dtype)
        affine = encoder.base if shared else encoder.base.expand(20, -1)
        affine = affine.detach().requires_grad_()
        gradients.append(encoder.gradient(entropy_of(encoder(images, affine)).sum(), affine))
    assert gradients[1].isfinite().all()
    assert nn.functional.cosine_similarity(*gradients, dim=-1).min() > 0.99
    torch.testing.assert_close(gradients[1].norm(), gradients[0].norm(), rtol=0.02, atol=0)


def test_a_norm_parameter_that_two_layers_share(images: Tensor) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(3 * 32 * 32, 8)
            self.a, self.b = nn.LayerNorm(8), nn.LayerNorm(8)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(self.embed(x.flatten(1))).sin())

    module = Tied().double()
    encoder = AffineEncoder(module)
    encoder(images.double())
    assert [piece.name for piece in encoder.layout] == ["a.weight", "a.bias", "b.bias"]
    affine = encoder.base.detach().requires_grad_()
    gradient = encoder.gradient(entropy_of(encoder(images.double(), affine)).sum(), affine)
    entropy_of(nn.functional.normalize(module(images.double()), dim=-1)).sum().backward()
    expected = torch.cat([module.a.weight.grad, module.a.bias.grad, module.b.bias.grad])
    torch.testing.assert_close(gradient, expected)


def test_an_rms_norm_with_a_bias(images: Tensor) -> None:
    class BiasedRMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias, self.eps = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8)), 1e-6

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.rms_norm(x, (8,), self.weight, self.eps) + self.bias

    encoder = AffineEncoder(nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 8), BiasedRMSNorm()))
    affine = encoder.base + torch.randn(16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(encoder(images, affine), encoder(images, affine.expand(6, -1)))


def test_under_another_default_device_and_type(images: Tensor) -> None:
    module = testing.small_tower("vit")
    expected = AffineEncoder(module)(images)
    try:
        torch.set_default_dtype(torch.float64)
        with torch.device("meta"):
            encoder = AffineEncoder(module)
            embeddings = encoder(images, encoder.base.expand(6, -1))
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(embeddings, expected, rtol=0, atol=1e-5)


# -- what cannot be wrapped ---------------------------------------------------------------------------


class Custom(nn.Module):
    """One linear layer and two norms; what happens between them is up to ``run``."""

    def __init__(self, run: Callable[[nn.Module, Tensor], object]) -> None:
        super().__init__()
        self.embed, self.norm, self.last = nn.Linear(3 * 32 * 32, 8), nn.LayerNorm(8), nn.LayerNorm(8)
        self.tokens, self.query = nn.Linear(3 * 32 * 8, 8), nn.Parameter(torch.randn(8))
        self.listed = [self.norm]  # where a replacement does not reach
        self.run = run

    def forward(self, x: Tensor) -> object:
        return self.run(self, x.flatten(1))


def used_twice(module: nn.Module, x: Tensor) -> Tensor:
    """On tokens (L, B, D) and then on pooled features (B, D)."""
    tokens = module.tokens(x.view(len(x), 4, -1)).transpose(0, 1)
    return module.last(module.norm(module.norm(tokens).mean(0)))


def mixing(module: nn.Module, x: Tensor) -> Tensor:
    y = module.last(module.norm(module.embed(x)))
    return y - 0.5 * y.mean(0)


class Twisted(nn.LayerNorm):
    """A subclass that does something else."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flip(-1) * torch.arange(x.shape[-1])


def not_finite() -> nn.Module:
    module = testing.small_tower("vit")
    module.conv1.weight.data[0] = torch.nan
    return module


def linear(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 8), *layers)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (linear, "has no norm layer"),
        (lambda: linear(nn.LayerNorm(8, elementwise_affine=False)), "has no norm layer"),
        (lambda: linear(Twisted(8)), "Sequential"),
        (lambda: Folded(interleaved=True), "'norm'"),
        (lambda: Custom(used_twice), "'norm'"),
        (lambda: Custom(lambda module, x: module.last(module.listed[0](module.embed(x)))), "layers norm"),
        (lambda: Custom(mixing), "other images"),
        (not_finite, "VisionTransformer"),
        (lambda: Custom(lambda module, x: {"features": module.norm(module.embed(x))}), "got dict"),
        (lambda: Custom(lambda module, x: module.norm(module.embed(x))[:, None]), r"\(1, 1, 8\)"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.LayerNorm(4)), r"\(1, 3, 32, 32\)"),
    ],
)
def test_modules_that_cannot_be_wrapped(make: Callable[[], nn.Module], named: str, images: Tensor) -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of norms that take no part
        with pytest.raises(ValueError, match=named):
            AffineEncoder(make(), example=images)


class OddNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / x.abs().amax(-1, keepdim=True)


def test_norms_that_are_not_adapted_are_reported(images: Tensor) -> None:
    layers = OddNorm(), nn.LayerNorm(8), nn.Unflatten(1, (8, 1)), nn.BatchNorm1d(8, track_running_stats=False)
    module = linear(*layers, nn.Flatten())
    with pytest.warns(UserWarning, match="is not adapted") as caught:
        encoder = AffineEncoder(module)
    assert [str(one.message).split("'")[1] for one in caught] == ["2", "5"]
    assert {piece.layer for piece in encoder.layout} == {"3"}
    module = linear(nn.LayerNorm(8))
    module[1].unused_norm = nn.LayerNorm(5)
    with pytest.warns(UserWarning, match=r"'1\.unused_norm'"):
        encoder = AffineEncoder(module, example=images)
    assert len(encoder.base) == 26
    assert sample_gradients(encoder, images)[:, :10].abs().sum() == 0


def test_a_norm_of_a_learned_constant(images: Tensor) -> None:
    """It is left out of the flat vector, if it is known in time."""
    module = Custom(lambda module, x: module.last(module.embed(x)) * module.norm(module.query))
    with pytest.raises(ValueError, match="example"):
        AffineEncoder(module)(images)
    assert len(AffineEncoder(module, example=images).base) == 16


def test_wrong_arguments(images: Tensor) -> None:
    module = testing.small_tower("vit")
    encoder = AffineEncoder(module)
    for kind, name, call in [
        (ValueError, "affine", lambda: encoder(images, encoder.base[:-1])),
        (ValueError, "affine", lambda: encoder(images, encoder.base.expand(5, -1))),
        (TypeError, "affine", lambda: encoder(images, [1.0])),
        (TypeError, "images", lambda: encoder(images.to(torch.uint8))),
        (TypeError, "module", lambda: AffineEncoder("ViT-B-32")),
        (ValueError, "example", lambda: AffineEncoder(module, example=[1])),
        (ValueError, "dtype", lambda: AffineEncoder(module, dtype="int8")),
        (ValueError, "fused", lambda: AffineEncoder(module, fused="compiled")),
    ]:
        with pytest.raises(kind, match=name):
            call()


def test_no_warning_for_ordinary_towers(tower_kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AffineEncoder(testing.small_tower(tower_kind))


def test_sign_step() -> None:
    gradient = torch.tensor([2.0, -0.1, 0.0, torch.nan, torch.inf, -torch.inf])
    stepped = sign_step(torch.ones(6), gradient, 0.5)
    assert stepped.tolist() == [0.5, 1.5, 1.0, 1.0, 1.0, 1.0]


def test_a_module_that_is_not_covered_can_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    # without its code generator, which takes minutes
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    pooled = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), *pooled).eval()
    batch = torch.randn(4, 3, 9, 9)
    plain, compiled = (AffineEncoder(module, example=batch, fused=choice) for choice in ("auto", "compile"))
    assert (plain.compiled, compiled.compiled, compiled.fused) == (False, True, False)
    assert compiled.plain_reason == plain.plain_reason
    rows = plain.base + 0.1 * torch.randn(4, len(plain.base))
    results = []
    for encoder in (plain, compiled):
        leaf = rows.clone().requires_grad_()
        features = encoder(batch, leaf)
        gradient = encoder.gradient(features[:, 0].sum(), leaf)
        results.append((features.detach(), gradient, encoder(batch), encoder(batch, rows)))
        # what differs from call to call is not compiled
        results[-1] += (encoder(batch, statistics=Statistics()),)
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two)
    assert results[0][1].abs().max() > 1e-3
    covered = AffineEncoder(testing.small_tower("vit"), fused="compile")
    assert covered.fused
    assert not covered.compiled


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_batch_norm_with_an_activation_in_place(layout: torch.memory_format) -> None:
    """Each image's features and gradient are those of an ordinary module with its parameters."""
    layers = (
        nn.Conv2d(3, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU6(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    module = nn.Sequential(*layers).double().eval()
    norm = layers[1]
    nn.init.normal_(norm.running_mean)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    images = torch.randn(4, 3, 9, 9, dtype=torch.float64).to(memory_format=layout)
    encoder = AffineEncoder(module, example=images, fused=False)
    rows = (encoder.base + 0.3 * torch.randn(4, 12, dtype=torch.float64)).requires_grad_()
    features = encoder(images, rows, normalize=False)
    gradients = encoder.gradient(features.square().sum(), rows)
    for image, row, found, gradient in zip(images, rows.detach(), features, gradients, strict=True):
        norm.weight.data, norm.bias.data = row.split(6)
        expected = module(image[None])
        own = torch.autograd.grad(expected.square().sum(), [norm.weight, norm.bias])
        torch.testing.assert_close(found, expected[0])
        torch.testing.assert_close(gradient, torch.cat(own))


@pytest.mark.gpu
@pytest.mark.parametrize("fused", ["auto", "compile"])
def test_convolutions_that_are_not_covered_suit_a_gpu(fused: str) -> None:
    """The channels of a pixel are next to each other in the encoder's copy; the module stays as it is."""
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    module = nn.Sequential(*layers).eval()
    batch = torch.randn(3, 3, 16, 16)
    encoder = AffineEncoder(module, example=batch, device="cuda", fused=fused)
    found = encoder(batch.cuda(), encoder.base.expand(3, -1), normalize=False)
    torch.testing.assert_close(found.cpu(), module(batch), rtol=1e-4, atol=1e-5)
    assert encoder.weights()["0.weight"].is_contiguous(memory_format=torch.channels_last)
    assert module[0].weight.is_contiguous()
