"""Every registered method through the contract, and the contract against methods that break it."""

import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from ramen.methods import field
from ramen.utils import checks
from tests.contract.settings import FEWER_STEPS, SETTINGS, SMALLER_STEPS, STATISTICS_SETTINGS, TOWERS
from tests.helpers.slow_tests import full


@pytest.mark.parametrize(("name", "parameters", "kind"), TOWERS, ids=lambda value: str(value))
def test_contract(name: str, parameters: dict, kind: str) -> None:
    testing.check_method(name, testing.small_classifier(kind), **parameters)


@pytest.mark.parametrize(("name", "parameters"), STATISTICS_SETTINGS, ids=lambda value: str(value))
@pytest.mark.parametrize("dtype", full(["float32", "bfloat16", "float64"], ["float32"]))
def test_contract_with_other_statistics(name: str, parameters: dict, dtype: str) -> None:
    testing.check_method(name, testing.small_classifier("resnet", dtype=dtype), **parameters)


@pytest.mark.parametrize("name", ramen.list_methods())
@pytest.mark.parametrize("dtype", full(["bfloat16", "float64"], ["bfloat16"]))
def test_contract_in_other_precisions(name: str, dtype: str) -> None:
    parameters = SMALLER_STEPS.get(name, {}) if dtype == "bfloat16" else {}
    classifier = testing.small_classifier(dtype=dtype)
    testing.check_method(name, classifier, **FEWER_STEPS.get(name, {}), **parameters)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "parameters"), SETTINGS, ids=lambda value: str(value))
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_contract_on_a_gpu(name: str, parameters: dict, dtype: str) -> None:
    classifier = testing.small_classifier(dtype=dtype, device="cuda")
    testing.check_method(name, classifier, **parameters)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "parameters"), STATISTICS_SETTINGS, ids=lambda value: str(value))
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_contract_with_other_statistics_on_a_gpu(
    name: str, parameters: dict, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # convolutions as exact as the contract
    classifier = testing.small_classifier("resnet", dtype=dtype, device="cuda")
    testing.check_method(name, classifier, **parameters)


class _Honest(ramen.Method):
    """A user's own method: zero-shot, with a sum over what it has seen."""

    sums: Tensor

    def __init__(self, classifier: ramen.ZeroShotClassifier, *, seed: int = 0) -> None:
        super().__init__(classifier, seed=seed)
        self.add_state("sums", classifier.class_embeddings.new_zeros(classifier.num_classes))

    def adapt(self, images: Tensor, usable: Tensor) -> ramen.Answer:
        logits = self.classifier.logits(self.classifier.encode(images))
        usable = usable & logits.isfinite().all(1)
        self.sums = self.sums + torch.where(usable[:, None], logits, 0).sum(0)
        return ramen.Answer(logits, logits, usable)


def entered(cls: type[ramen.Method], **facts: object) -> type[ramen.Method]:
    record = {
        "name": "own",
        "title": "A user's own",
        "venue": "",
        "paper": "none",
        "updates": "nothing",
        "predicts_with": "the one forward pass",
        "batch_dependent": False,
        "forwards": 1,
        "backwards": 0,
    }
    return ramen.register(ramen.MethodInfo(**{**record, **facts}))(cls)


@pytest.mark.usefixtures("own_methods")
def test_a_users_own_method_passes_in_one_line() -> None:
    ramen.testing.check_method(entered(_Honest))
    ramen.testing.check_method("own")


class _ForgetsReset(_Honest):
    def adapt(self, images: Tensor, usable: Tensor) -> ramen.Answer:
        answer = super().adapt(images, usable)
        return ramen.Answer(answer.logits + self.sums, answer.zero_shot_logits, usable)

    def reset(self) -> None:
        sums = self.sums.clone()
        super().reset()
        self.sums = sums


class _WritesIntoTheModel(_Honest):
    def adapt(self, images: Tensor, usable: Tensor) -> ramen.Answer:
        self.classifier.encoder.base += 0.01
        return super().adapt(images, usable)


class _UsesGlobalRandomness(_Honest):
    def adapt(self, images: Tensor, usable: Tensor) -> ramen.Answer:
        answer = super().adapt(images, usable)
        noisy = answer.logits + torch.randn_like(answer.logits)
        return ramen.Answer(noisy, answer.zero_shot_logits, usable)


class _ReadsTags(_Honest):
    def predict(self, images: Tensor, *, tags: Tensor | None = None, **options: object) -> ramen.Prediction:
        out = super().predict(images, tags=tags, **options)
        out.logits = out.logits if tags is None else out.logits * (1 + tags[:, None].float())
        return out


class _KeepsEverything(_Honest):
    def __init__(self, classifier: ramen.ZeroShotClassifier, *, seed: int = 0) -> None:
        super().__init__(classifier, seed=seed)
        self.kept: list[Tensor] = []

    def adapt(self, images: Tensor, usable: Tensor) -> ramen.Answer:
        self.kept.append(images)
        return super().adapt(images, usable)

    def state_dict(self) -> dict[str, Tensor]:
        return {**super().state_dict(), **{f"content.kept{i}": t for i, t in enumerate(self.kept)}}


class _SharesItsState(_Honest):
    def state_dict(self) -> dict[str, Tensor]:
        return {**super().state_dict(), "content.sums": self.sums}


class _AcceptsAnyState(_Honest):
    """Hand-written state, with the holes that hand-written state has."""

    def __init__(self, classifier: ramen.ZeroShotClassifier, keep: int = 2, *, seed: int = 0) -> None:
        super().__init__(classifier, seed=seed)
        self.keep = keep
        self.last = torch.zeros(0, classifier.num_classes)

    def adapt(self, images: Tensor, usable: Tensor) -> ramen.Answer:
        answer = super().adapt(images, usable)
        if isinstance(self.keep, int):
            self.last = torch.cat([self.last, answer.logits[answer.usable].float()])[-self.keep :]
        return answer

    def reset(self) -> None:
        super().reset()
        self.last = self.last[:0]

    def state_dict(self) -> dict[str, Tensor]:
        return {**super().state_dict(), "content.last": self.last.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict({name: tensor for name, tensor in state.items() if name != "content.last"})
        self.last = state["content.last"].clone()

    def memory_bytes(self) -> int:
        return super().memory_bytes() + 4 * int(self.keep) * self.classifier.num_classes


class _AcceptsForeignStates(_Honest):
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if "content.sums" in state:
            super().load_state_dict(state)


class _IgnoresItsSeed(_Honest):
    """Random, and not by its seed alone."""

    calls = 0

    def adapt(self, images: Tensor, usable: Tensor) -> ramen.Answer:
        type(self).calls += 1
        answer = super().adapt(images, usable)
        noisy = answer.logits + (0 if self.seed == 0 else torch.tensor(float(self.calls)))
        return ramen.Answer(noisy, answer.zero_shot_logits, answer.usable)


class _HidesItsRandomness(_Honest):
    """Its record says that the seed has no effect."""

    def adapt(self, images: Tensor, usable: Tensor) -> ramen.Answer:
        answer = super().adapt(images, usable)
        noise = torch.rand(answer.logits.shape, generator=self.generator())
        return ramen.Answer(answer.logits + noise, answer.zero_shot_logits, answer.usable)


class _LearnsFromBatchesOfNothing(_Honest):
    """Steps once a batch, whatever is in it."""

    def adapt(self, images: Tensor, usable: Tensor) -> ramen.Answer:
        answer = super().adapt(images, usable)
        logits = answer.logits + self.sums.mean()
        self.sums = self.sums + 1
        return ramen.Answer(logits, answer.zero_shot_logits, answer.usable)


class _ForgetsItsBounds(_Honest):
    """Declares a field, and does not check it."""

    rate: float = field(0.5, ge=0, lt=1, doc="A rate.")

    def __init__(self, classifier: ramen.ZeroShotClassifier, rate: float = 0.5, *, seed: int = 0) -> None:
        super().__init__(classifier, seed=seed)
        self.rate = checks.number("rate", rate, -9)


class _LooksAtItsBatch(_Honest):
    def adapt(self, images: Tensor, usable: Tensor) -> ramen.Answer:
        answer = super().adapt(images, usable)
        return ramen.Answer(answer.logits - answer.logits.mean(0), answer.zero_shot_logits, usable)


class _SharesItsMemory(_Honest):
    """Streams learn from each other."""

    def adapt(self, images: Tensor, usable: Tensor) -> ramen.Answer:
        answer = super().adapt(images, usable)
        latest = self.classifier.__dict__.setdefault("latest", {})
        others = sum((sums for key, sums in latest.items() if key != id(self)), torch.zeros(()))
        latest[id(self)] = self.sums
        return ramen.Answer(answer.logits + others, answer.zero_shot_logits, answer.usable)


class _ChangesItsInput(_Honest):
    def predict(self, images: Tensor, **kwargs: object) -> ramen.Prediction:
        if isinstance(images, Tensor) and images.is_floating_point() and not images.is_inference():
            images += 1
        return super().predict(images, **kwargs)


class _RunsTwice(_Honest):
    def adapt(self, images: Tensor, usable: Tensor) -> ramen.Answer:
        super().adapt(images, usable)
        return super().adapt(images, usable)


class _TrainsOnItsMemory(_Honest):
    """Encodes the first ``memory`` images; ``extra`` adds to them, ``repeats`` does it again."""

    extra, repeats = 0, 1

    def __init__(self, classifier: ramen.ZeroShotClassifier, memory: int = 100, *, seed: int = 0) -> None:
        super().__init__(classifier, seed=seed)
        self.memory = checks.integer("memory", memory, 1)

    def adapt(self, images: Tensor, usable: Tensor) -> ramen.Answer:
        memory = images.repeat(100, 1, 1, 1)[: self.memory + self.extra]
        for _ in range(self.repeats):
            self.classifier.encode(memory)
        return super().adapt(images, usable)


@pytest.mark.usefixtures("own_methods")
def test_passes_are_counted_with_a_memory_of_the_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"forwards": 2, "batch_sized": ("memory",)}
    testing.check_method(entered(_TrainsOnItsMemory, **facts))
    testing.check_method(entered(_TrainsOnItsMemory, **facts), memory=50)
    with pytest.raises(AssertionError, match=r"passes: \(2\.0, 0\.0\) forward .*, \(3, 0\) declared"):
        testing.check_method(entered(_TrainsOnItsMemory, **{**facts, "forwards": 3}))

    monkeypatch.setattr(_TrainsOnItsMemory, "extra", -2)  # a memory that is not full counts as if it were
    testing.check_method(entered(_TrainsOnItsMemory, **facts))
    monkeypatch.setattr(_TrainsOnItsMemory, "extra", 2)
    with pytest.raises(AssertionError, match="passes: a pass over 8 images with a memory of 6"):
        testing.check_method(entered(_TrainsOnItsMemory, **facts))
    monkeypatch.setattr(_TrainsOnItsMemory, "extra", 0)
    monkeypatch.setattr(_TrainsOnItsMemory, "repeats", 2)
    with pytest.raises(AssertionError, match=r"passes: \(3\.0, 0\.0\) forward"):
        testing.check_method(entered(_TrainsOnItsMemory, **facts))


@pytest.mark.usefixtures("own_methods")
@pytest.mark.parametrize(
    ("cls", "clause"),
    [
        (_ForgetsReset, "reset"),
        (_WritesIntoTheModel, "classifier_stays"),
        (_UsesGlobalRandomness, "determinism"),
        (_ReadsTags, "tags_unread"),
        (_KeepsEverything, "bounded_memory"),
        (_SharesItsState, "state"),
        (_AcceptsAnyState, "damaged_state"),
        (_AcceptsAnyState, "other_parameters"),
        (_AcceptsAnyState, "bad_parameters"),
        (_AcceptsForeignStates, "foreign_state"),
        (_IgnoresItsSeed, "seeds"),
        (_HidesItsRandomness, "seeds"),
        (_LearnsFromBatchesOfNothing, "non_finite_images"),
        (_ForgetsItsBounds, "bad_parameters"),
        (_LooksAtItsBatch, "batch_independence"),
        (_SharesItsMemory, "streams_together"),
        (_ChangesItsInput, "inputs_stay"),
        (_RunsTwice, "passes"),
    ],
)
def test_a_broken_method_is_caught(cls: type[ramen.Method], clause: str) -> None:
    with pytest.raises(AssertionError, match=rf"breaks its contract:(.|\n)*  {clause}: ") as broken:
        testing.check_method(entered(cls))
    assert "  record: " not in str(broken.value)  # and not because it cannot be made


@pytest.mark.usefixtures("own_methods")
@pytest.mark.parametrize(
    ("cls", "hole"),
    [
        (_AcceptsAnyState, "damaged_state: .*content.last"),
        (_AcceptsAnyState, "other_parameters: .*keep=20 .*keep=2"),
        (_AcceptsAnyState, "bad_parameters: keep="),
        (_ForgetsItsBounds, "bad_parameters: rate="),
        (_AcceptsForeignStates, "foreign_state: "),
        (_HidesItsRandomness, r"seeds: .*info\.random"),
    ],
)
def test_the_hole_is_named(cls: type[ramen.Method], hole: str) -> None:
    with pytest.raises(AssertionError, match=hole):
        testing.check_method(entered(cls))


@pytest.mark.usefixtures("own_methods")
def test_an_incomplete_record_is_caught() -> None:
    with pytest.raises(AssertionError, match=r"record: info\.updates is empty"):
        testing.check_method(entered(_Honest, updates=""))
