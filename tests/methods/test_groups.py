"""Methods in a group of processes against one process that gets the same global batches."""

import os
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

import ramen
from ramen import testing
from ramen.methods._method import Method
from ramen.methods._registry import get_method
from tests.helpers.process_team import TEAM_SIZE, Failure, ProcessTeam, cut

MOST = TEAM_SIZE
PARTS = {
    1: ((7,), (5,), (6,), (2,), (5,)),
    2: ((3, 4), (0, 5), (6, 0), (1, 1), (2, 3)),
    3: ((3, 2, 4), (0, 0, 5), (6, 1, 0), (1, 1, 1), (2, 0, 3)),
    4: ((3, 2, 4, 1), (0, 0, 5, 2), (6, 1, 0, 0), (1, 1, 1, 1), (2, 0, 3, 0)),
    8: (
        (1,) * 8,
        (0, 3, 0, 0, 2, 0, 1, 0),
        (2, 0, 0, 1, 1, 0, 0, 1),
        (0, 0, 0, 0, 0, 0, 0, 2),
        (3,) + (0,) * 7,
    ),
}
PAPER = {"beta": 5.0, "lr": 1e-2, "capacity": 6, "topk": 2}
VARIANTS: dict[str, dict[str, Any]] = {
    "auto": {},
    "paper": PAPER,
    "causal": {**PAPER, "visibility": "causal"},
    "one queue": {**PAPER, "balance": False},
    "one queue, causal": {**PAPER, "balance": False, "visibility": "causal"},
    "random": {**PAPER, "consistency": False},
    "random, one queue": {**PAPER, "consistency": False, "balance": False},
    "float16": {**PAPER, "fifo": "float16"},
    **{codec: {**PAPER, "codec": codec} for codec in ("fp32", "sign")},
}
OTHERS: dict[str, dict[str, Any]] = {
    "clip": {},
    "ensemble": {},
    "tda": {},
    "dmn": {"capacity": 2},
    "lame": {},
    "t3a": {"capacity": 2},
    "stata": {},
    "oga": {},
    "onzeta": {"horizon": 10},
    "zero": {"views": 6},
    "mta": {"views": 6},
    "tps": {"views": 6},
    "tpt": {"views": 6},
    "entmin": {},
    "tent": {"lr": 1e-3},
    "sar": {"lr": 1e-3, "margin": 0.9, "reset_below": 0.05},
    "mint": {"prior": 5.0},
    "note": {"lr": 1e-3, "memory": 6},
    "rotta": {"memory": 6, "nu": 0.1},
    "eata": {"lr": 1e-2, "margin": 0.9, "redundancy": 0.9, "class_balance": 0.9, "reset_every": 4},
    "deyo": {"lr": 1e-2, "margin": 0.9, "plpd_threshold": 0.0},
    "roid": {"lr": 1e-3, "filter": "kalman"},
    "batclip": {"lr": 1e-3, "optimizer": "sgd"},
    "cliptta": {"lr": 1e-4, "optimizer": "sgd", "iterations": 2, "shots": 2, "sample": 5},
    "clipot": {"lr": 1e-4, "optimizer": "sgd", "templates": "single", "detach_targets": False},
    "moetta": {"lr": 1e-3, "experts": 3},
}


@cache
def classifier(kind: str, dtype: str) -> ramen.ZeroShotClassifier:
    return testing.small_classifier(kind, classes=5, dtype=dtype)


def stream(parts: tuple[tuple[int, ...], ...], seed: int = 0) -> list[Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return [torch.randn(sum(sizes), 3, 32, 32, generator=draws) for sizes in parts]


def create(
    name: str, kind: str, dtype: str, parameters: dict[str, Any], group: ProcessGroup | None
) -> Method:
    return ramen.create(name, classifier(kind, dtype), group=group, **parameters)


def answer(method: Method, images: Tensor, numbers: Tensor) -> dict[str, Tensor]:
    out = method.predict(images, tags=numbers, return_support=method.retrieves)
    parts = {"logits": out.logits, "zero_shot": out.zero_shot_logits, "fallback": out.fallback}
    if out.support is not None:
        entries = vars(out.support)
        parts |= {name: torch.where(out.support.valid, entry, 0) for name, entry in entries.items()}
    return parts


def answers(
    method: Method, batches: list[Tensor], parts: tuple[tuple[int, ...], ...]
) -> list[dict[str, Tensor]]:
    """Those of this process's images, if it belongs to a group; of all images otherwise."""
    found = []
    for images, sizes in zip(batches, parts, strict=True):
        numbers = torch.arange(len(images)) + method.images_seen
        if method.peers is not None:
            images, numbers = (cut(rows, sizes, method.peers.rank) for rows in (images, numbers))
        found.append(answer(method, images, numbers))
    return found


def in_group(
    group: ProcessGroup,
    name: str,
    kind: str,
    dtype: str,
    parameters: dict[str, Any],
    parts: Any,
    spoiled: bool,
) -> list[dict[str, Tensor]]:
    method = create(name, kind, dtype, parameters, group)
    return answers(method, given(parts, spoiled), parts)


def given(parts: Any, spoiled: bool) -> list[Tensor]:
    batches = stream(parts)
    if spoiled:
        batches[0][1, 0, 0, 0] = torch.nan
        batches[1][-1] = 1e30
    return batches


def joined(results: list[list[dict[str, Tensor]]]) -> list[dict[str, Tensor]]:
    steps = zip(*results, strict=True)
    return [{name: torch.cat([part[name] for part in step]) for name in step[0]} for step in steps]


def compare(
    team: ProcessTeam,
    name: str,
    kind: str,
    dtype: str,
    parameters: dict[str, Any],
    processes: int,
    spoiled: bool = False,
) -> None:
    parts = PARTS[processes]
    expected = answers(create(name, kind, dtype, parameters, None), given(parts, spoiled), parts)
    results = team.run(in_group, name, kind, dtype, parameters, parts, spoiled, processes=processes)
    assert_same(joined(results), expected, dtype)


def assert_same(found: list[dict[str, Tensor]], expected: list[dict[str, Tensor]], dtype: str) -> None:
    tolerance = 1e-8 if dtype == "float64" else 1e-3
    for number, (step, wanted) in enumerate(zip(found, expected, strict=True)):
        for name in ("fallback", "numbers", "tags", "queues", "valid"):
            if name in wanted:
                assert torch.equal(step[name], wanted[name]), (name, number)
        for name in ("distances", "weights", "zero_shot"):
            if name in wanted:
                torch.testing.assert_close(step[name], wanted[name], rtol=1e-4, atol=1e-5)
        if dtype == "float64":
            torch.testing.assert_close(step["logits"], wanted["logits"], rtol=tolerance, atol=tolerance)
    labels = [torch.cat([step["logits"].argmax(1) for step in steps]) for steps in (found, expected)]
    assert (labels[0] == labels[1]).double().mean() >= 0.999


@pytest.mark.parametrize("variant", VARIANTS)
def test_ramen_in_every_variant(team: ProcessTeam, variant: str) -> None:
    compare(team, "ramen", "vit", "float64", VARIANTS[variant], 3)


@pytest.mark.parametrize("processes", [n for n in PARTS if n <= MOST])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ramen_in_any_number_of_processes(team: ProcessTeam, processes: int, dtype: str) -> None:
    compare(team, "ramen", "resnet", dtype, PAPER, processes)


def own_methods(*, joining: bool) -> list[str]:
    """Those of this package that can share a stream, or cannot; a method of which nobody thought here too."""
    found = {name: get_method(name) for name in ramen.list_methods()}
    own = {name: cls for name, cls in found.items() if cls.__module__.startswith("ramen.methods.")}
    return [name for name, cls in own.items() if cls.joins_groups == joining]


@pytest.mark.parametrize("name", [name for name in own_methods(joining=True) if name != "ramen"])
def test_every_other_method(team: ProcessTeam, name: str) -> None:
    compare(team, name, "vit", "float64", OTHERS.get(name, {}), 3)


@pytest.mark.parametrize("name", ["tent", "mint", "rotta"])
def test_methods_with_batchnorm_layers(team: ProcessTeam, name: str) -> None:
    parameters = OTHERS[name] | ({"statistics": "robust"} if name == "rotta" else {})
    compare(team, name, "resnet", "float64", parameters, 2)


SPOILED = ("ramen", "tda", "tent", "sar", "mint", "note", "rotta", "eata", "deyo", "lame", "stata", "onzeta")


@pytest.mark.parametrize("name", SPOILED)
def test_images_that_cannot_be_used(team: ProcessTeam, name: str) -> None:
    parameters = PAPER if name == "ramen" else OTHERS[name]
    compare(team, name, "vit", "float64", parameters, 2, spoiled=True)


# -- states -----------------------------------------------------------------------------------------


def save_in_group(group: ProcessGroup, name: str, parameters: Any, parts: Any, folder: str) -> int:
    method = create(name, "vit", "float64", parameters, group)
    answers(method, stream(parts), parts)
    method.save(folder)
    return method.images_seen


def continue_in_group(group: ProcessGroup, name: str, parameters: Any, parts: Any, folder: str) -> Any:
    method = create(name, "vit", "float64", parameters, group)
    method.load(folder)
    return answers(method, stream(parts, seed=1), parts)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("ramen", PAPER),
        ("ramen", {**PAPER, "balance": False, "codec": "sign"}),
        ("tda", {}),
        ("note", {"memory": 6}),
        ("eata", OTHERS["eata"]),
        ("onzeta", OTHERS["onzeta"]),
    ],
    ids=["ramen", "ramen-one-queue", "tda", "note", "eata", "onzeta"],
)
def test_a_saved_state_continues_in_any_number_of_processes(
    team: ProcessTeam, tmp_path: Path, name: str, parameters: dict[str, Any]
) -> None:
    reference = create(name, "vit", "float64", parameters, None)
    answers(reference, stream(PARTS[4]), PARTS[4])
    reference.save(tmp_path / "one")
    expected = dict.fromkeys((2, 3))
    for processes in expected:
        method = create(name, "vit", "float64", parameters, None)
        method.load(tmp_path / "one")
        expected[processes] = answers(method, stream(PARTS[processes], seed=1), PARTS[processes])

    seen = team.run(save_in_group, name, parameters, PARTS[4], str(tmp_path / "four"), processes=4)
    assert seen == [reference.images_seen] * 4
    # from four processes to one
    method = create(name, "vit", "float64", parameters, None)
    method.load(tmp_path / "four")
    assert method.images_seen == reference.images_seen
    assert_same(answers(method, stream(PARTS[3], seed=1), PARTS[3]), expected[3], "float64")
    # from four and from one to others
    for source, processes in (("four", 3), ("one", 3), ("four", 2)):
        results = team.run(
            continue_in_group, name, parameters, PARTS[processes], str(tmp_path / source), processes=processes
        )
        assert_same(joined(results), expected[processes], "float64")


def whole_state(group: ProcessGroup) -> dict[str, Tensor]:
    method = create("ramen", "vit", "float64", PAPER, group)
    answers(method, stream(PARTS[2]), PARTS[2])
    return method.state_dict()


def test_every_process_has_the_whole_state(team: ProcessTeam) -> None:
    method = create("ramen", "vit", "float64", PAPER, None)
    answers(method, stream(PARTS[2]), PARTS[2])
    expected = method.state_dict()
    for state in team.run(whole_state, processes=2):
        assert state.keys() == expected.keys()
        for name in ("content.table", "content.counts", "content.numbers", "images_seen"):
            assert torch.equal(state[name], expected[name]), name
        method.load_state_dict(state)


def test_shares_of_earlier_versions_are_refused(tmp_path: Path) -> None:
    """A group saved a folder of them, of each of which a process had made a state."""
    method = create("ramen", "vit", "float64", PAPER, None)
    share = {**method.state_dict(), "content.share": torch.tensor([1, 2])}
    with pytest.raises(ValueError, match=r"load it and save it once in one process with 0\.2"):
        method.load_state_dict(share)
    with pytest.raises(ValueError, match=r"load it and save it once in one process with 0\.2"):
        method.load(tmp_path)


# -- what goes wrong --------------------------------------------------------------------------------


def test_methods_that_cannot_say_so() -> None:
    group = object()
    unable = own_methods(joining=False)
    assert {"watt", "clipartt"} <= set(unable)
    for name in unable:
        with pytest.raises(ValueError, match=f"method '{name}' cannot share a stream.*ramen"):
            ramen.create(name, classifier("vit", "float32"), group=group)
    with pytest.raises(TypeError, match=r"group must be a torch\.distributed process group"):
        ramen.create("ramen", classifier("vit", "float32"), group=group)


def batch_statistics(group: ProcessGroup) -> str:
    try:
        ramen.create("tent", classifier("resnet", "float32"), statistics="batch", group=group)
    except ValueError as error:
        return str(error)
    return ""


def test_statistics_of_the_batch_are_refused(team: ProcessTeam) -> None:
    assert all(
        "needs the whole batch in one process" in text for text in team.run(batch_statistics, processes=2)
    )


def different_parameters(group: ProcessGroup) -> str:
    parameters = {**PAPER, "topk": 1 + group.rank()}
    method = create("ramen", "vit", "float32", parameters, group)
    try:
        method.predict(torch.zeros(1, 3, 32, 32))
    except ValueError as error:
        return str(error)
    return ""


def test_parameters_must_be_the_same(team: ProcessTeam) -> None:
    messages = team.run(different_parameters, processes=2)
    assert all("topk must be the same in all processes" in message for message in messages)


def nobody_has_images(group: ProcessGroup) -> str:
    method = create("ramen", "vit", "float32", PAPER, group)
    try:
        method.predict(torch.zeros(0, 3, 32, 32))
    except ValueError as error:
        return str(error)
    return ""


def test_somebody_must_have_images(team: ProcessTeam) -> None:
    assert all("at least one image" in message for message in team.run(nobody_has_images, processes=2))


def copied(group: ProcessGroup) -> str:
    import copy

    try:
        copy.deepcopy(create("ramen", "vit", "float32", PAPER, group))
    except TypeError as error:
        return str(error)
    return ""


def test_a_method_of_a_group_cannot_be_copied(team: ProcessTeam) -> None:
    assert "save and load it" in team.run(copied, processes=1)[0]


def dying(group: ProcessGroup, folder: str, hangs: bool) -> str:
    method = create("ramen", "vit", "float32", PAPER, group)
    answers(method, stream(PARTS[3])[:2], PARTS[3][:2])
    method.save(folder)
    method.peers.timeout = 3
    if group.rank() == 1:
        if hangs:
            time.sleep(600)
        os._exit(1)
    start = time.monotonic()
    try:
        answers(method, stream(PARTS[3]), PARTS[3])
    except ramen.GroupError as error:
        return f"{time.monotonic() - start < 30} {error}"
    return "nothing was noticed"


@pytest.mark.parametrize("hangs", [False, True], ids=["dies", "hangs"])
def test_a_process_that_does_not_answer_ends_the_group(tmp_path: Path, hangs: bool) -> None:
    team = ProcessTeam(3, tmp_path)
    try:
        found = team.outcomes(dying, str(tmp_path / "state"), hangs, without=1)
    finally:
        team.close()
    for outcome in found:
        assert not isinstance(outcome, Failure), outcome.text
        assert outcome.startswith("True")
        assert "a process of the group did not answer" in outcome
        assert "probably died" in outcome
    # What was saved resumes with those that are left.
    method = create("ramen", "vit", "float32", PAPER, None)
    method.load(tmp_path / "state")
    assert method.images_seen == sum(map(sum, PARTS[3][:2]))
    method.predict(torch.zeros(2, 3, 32, 32))
