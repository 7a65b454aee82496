"""Creating, listing, resetting and deleting streams, their classes, and true labels."""

import asyncio
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import ramen
from ramen import testing
from ramen.client.operations import ConflictError, FeedbackCounts, InvalidRequestError, NoSuchStreamError
from tests.helpers.sent_images import sent
from tests.serve.engine.engines import PARAMETERS, PATIENCE, ask, engine, make


def test_create(clf) -> None:
    with engine(clf) as where:
        info, is_new = where.create_stream("a")
        assert is_new
        assert (info.name, info.classes, info.method) == ("a", clf.classes, "ramen")
        assert (info.images, info.entries, info.last_used, info.feedback) == (0, 0, None, FeedbackCounts())
        assert info.resident
        assert info.memory_bytes > 0
        ask(where, "a", 1)
        again, is_new = where.create_stream("a")
        assert not is_new
        assert again.images == 1
        assert not where.create_stream("a", list(clf.classes))[1]
        with pytest.raises(ConflictError, match="other classes"):
            where.create_stream("a", ["cat", "dog"])
        with pytest.raises(InvalidRequestError, match="name"):
            where.create_stream("a/b")


def test_a_stream_with_classes_of_its_own_answers_as_such_a_classifier_does(clf, tmp_path: Path) -> None:
    classes = ["cat", "dog", "polar_bear"]
    own = make(clf.with_classes(classes))
    with engine(clf, state=str(tmp_path)) as where:
        info, is_new = where.create_stream("a", classes)
        assert is_new
        assert info.classes == ("cat", "dog", "polar bear")
        assert not where.create_stream("a", classes)[1]
        found = [ask(where, "a", seed)[0] for seed in range(4)]
    with engine(clf, state=str(tmp_path)) as where:
        assert where.stream("a").classes == ("cat", "dog", "polar bear")
        found += [ask(where, "a", seed)[0] for seed in range(4, 8)]
    for seed, answer in enumerate(found):
        prediction = own.predict(clf.preprocess([Image.fromarray(sent(seed)[0].data)]))
        np.testing.assert_allclose(answer.probabilities, prediction.logits.softmax(1)[0], atol=1e-5)
        assert answer.result.label == own.classifier.classes[int(prediction.labels[0])]


def test_impossible_classes_change_nothing(clf) -> None:
    without_text = ramen.ZeroShotClassifier(
        clf.encoder, clf.class_embeddings, 30.0, classes=clf.classes, preprocess=clf.preprocess
    )
    with engine(without_text) as where:
        assert not where.model.can_set_classes
        ask(where, "a", 1)
        with pytest.raises(InvalidRequestError, match="text encoder"):
            where.create_stream("b", ["cat", "dog"])
        with pytest.raises(InvalidRequestError, match="text encoder"):
            where.set_classes("a", ["cat", "dog"])
        assert [info.name for info in where.streams()] == ["a"]
        assert where.stream("a").images == 1
        assert not where.create_stream("a", list(clf.classes))[1]


def test_set_classes_forgets_what_was_learned_with_the_old_ones(clf, tmp_path: Path) -> None:
    with engine(clf, state=str(tmp_path)) as where:
        (before,) = ask(where, "a", 1)
        info = where.set_classes("a", ["cat", "dog"])
        assert (info.classes, info.images, info.entries) == (("cat", "dog"), 0, 0)
        assert ask(where, "a", 2)[0].result.label in ("cat", "dog")
        assert where.set_classes("a", ["cat", "dog"]).images == 1  # they are the same: nothing happens
        assert where.feedback("a", [(before.id, "cat")]) == FeedbackCounts(unknown=1)
        with pytest.raises(NoSuchStreamError):
            where.set_classes("b", ["cat"])
    with engine(clf, state=str(tmp_path)) as where:
        assert where.stream("a").classes == ("cat", "dog")
        ask(where, "a", 3)
        assert where.stream("a").entries == 2
        assert where.set_classes("a", list(clf.classes)).classes == clf.classes


def test_reset(clf, tmp_path: Path) -> None:
    with engine(clf, state=str(tmp_path)) as where:
        first = [ask(where, "a", seed)[0].result for seed in range(4)]
        info = where.reset("a")
        assert (info.images, info.entries, info.changed) == (0, 0, 0)
        assert where.activity("a").entropy is None
        assert [ask(where, "a", seed)[0].result for seed in range(4)] == first
        where.reset("a")
    with engine(clf, state=str(tmp_path)) as where:  # it was written too
        assert where.stream("a").images == 0
        assert ask(where, "a", 0)[0].result == first[0]
        where.close()
    with engine(clf, state=str(tmp_path)) as where:  # also one that is on disk
        assert where.reset("a").entries == 0


def test_snapshot_is_on_disk_when_it_returns(clf, tmp_path: Path) -> None:
    with engine(clf, state=str(tmp_path / "one"), save_every="1000s") as where:
        ask(where, "a", 1, 2, 3)
        assert where.snapshot("a").images == 3
        copy = tmp_path / "two" / "streams" / "a"
        copy.mkdir(parents=True)
        for path in (tmp_path / "one" / "streams" / "a").iterdir():
            if path.name != "lock":
                (copy / path.name).write_bytes(path.read_bytes())
        with engine(clf, state=str(tmp_path / "two")) as other:
            assert other.stream("a").images == 3
            assert ask(other, "a", 4)[0].result.state_version == 4


def test_delete(clf, tmp_path: Path) -> None:
    with engine(clf, state=str(tmp_path), max_delay_ms=500.0) as where:
        ask(where, "a", 1)
        ask(where, "b", 1)
        waiting = where.submit("a", sent(2))
        where.delete("a")
        assert isinstance(waiting.future.exception(PATIENCE), NoSuchStreamError)
        assert [info.name for info in where.streams()] == ["b"]
        assert not (tmp_path / "streams" / "a").exists()
        for attempt in (where.stream, where.delete, where.reset, where.snapshot, where.activity):
            with pytest.raises(NoSuchStreamError, match="no stream 'a'"):
                attempt("a")
        assert ask(where, "a", 1)[0].result.state_version == 1  # a new one


def test_listing(clf) -> None:
    names = [f"{kind}-{n}" for kind in ("camera", "door") for n in range(4)]
    with engine(clf) as where:
        for name in reversed(names):
            where.create_stream(name)
        assert [info.name for info in where.streams()] == names
        assert [info.name for info in where.streams(limit=3)] == names[:3]
        assert [info.name for info in where.streams(after="camera-2", limit=3)] == names[3:6]
        assert [info.name for info in where.streams(prefix="door")] == names[4:]
        assert [info.name for info in where.streams(prefix="camera", after="camera-2")] == ["camera-3"]
        assert where.streams(prefix="door", after="door-3") == []
        assert where.streams(prefix="window") == []


def test_true_labels(clf, tmp_path: Path) -> None:
    with engine(clf, state=str(tmp_path)) as where:
        answers = [ask(where, "a", seed)[0] for seed in range(12)]
        (other,) = ask(where, "b", 1)
        right = [(answer.id, answer.result.label) for answer in answers[:6]]
        wrong = [
            (answer.id, next(c for c in clf.classes if c != answer.result.label)) for answer in answers[6:]
        ]
        where.feedback("a", right)
        counts = where.feedback(
            "a", [*wrong, right[0], (other.id, "class 0"), ("no-such", "class 0"), ("", "class 0")]
        )
        results = [answer.result for answer in answers]
        zero_shot = sum(r.zero_shot_label == r.label for r in results[:6])
        zero_shot += sum(r.zero_shot_label == label for r, (_, label) in zip(results[6:], wrong, strict=True))
        assert counts == FeedbackCounts(labels=12, correct=6, zero_shot_correct=zero_shot, unknown=4)
        assert where.stream("a").feedback == counts
        with pytest.raises(InvalidRequestError, match="'cow' is none of the classes of stream 'a'"):
            where.feedback("a", [(answers[0].id, "class 0"), (answers[1].id, "cow")])
        assert where.stream("a").feedback == counts
    with engine(clf, state=str(tmp_path)) as where:
        assert where.stream("a").feedback == counts
        assert where.feedback("a", right[:1]).unknown == 5  # answers are forgotten, counts are not


def wait_for_thumbnails(where) -> None:
    async def all_made() -> None:
        while where.engine._tasks - {asyncio.current_task()}:
            await asyncio.sleep(0.01)

    where.run(all_made())


def test_activity(clf) -> None:
    with engine(clf, keep_changed=2, parameters={**PARAMETERS, "lr": 0.1}) as where:
        results = [answer.result for n in range(0, 160, 8) for answer in ask(where, "a", *range(n, n + 8))]
        wait_for_thumbnails(where)
        found = where.activity("a")
    changed = [result for result in results if result.changed]
    assert len(changed) > 2
    assert found.entropy == pytest.approx(np.mean([result.entropy for result in results]))
    assert found.zero_shot_entropy == pytest.approx(np.mean([result.zero_shot_entropy for result in results]))
    assert found.changed_share == pytest.approx(len(changed) / 160)
    labels = [result.label for result in results]
    assert dict(found.class_mix) == {label: labels.count(label) for label in labels}
    assert found.answers == len(labels)
    assert [count for _, count in found.class_mix] == sorted(map(labels.count, set(labels)), reverse=True)
    assert [image.key for image in found.changed_images] == [result.key for result in changed[:-3:-1]]
    newest = found.changed_images[0]
    assert (newest.label, newest.zero_shot_label) == (changed[-1].label, changed[-1].zero_shot_label)
    with Image.open(io.BytesIO(newest.thumbnail)) as image:
        assert (image.format, image.size) == ("JPEG", (32, 32))


def test_no_image_is_kept_unless_the_operator_says_so() -> None:
    with engine(testing.small_classifier(), parameters={**PARAMETERS, "lr": 0.1}) as where:
        for n in range(0, 64, 8):
            ask(where, "a", *range(n, n + 8))
        assert where.activity("a").changed_share > 0
        assert where.activity("a").changed_images == ()
