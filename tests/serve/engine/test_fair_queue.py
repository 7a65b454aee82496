import threading

from ramen.serve.engine.fair_queue import FairQueue

PATIENCE = 60


def test_keys_take_turns_and_each_keeps_its_order() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.put("a", ["a1", "a2", "a3", "a4"])
    queue.put("b", ["b1"])
    queue.put("c", ["c1", "c2"])
    found = [queue.get() for _ in range(3)]
    queue.put("b", ["b2"])
    found += [queue.get() for _ in range(5)]
    assert found == ["a1", "b1", "c1", "a2", "c2", "b2", "a3", "a4"]


def test_a_closed_queue_gives_what_is_left_and_then_nothing() -> None:
    queue: FairQueue[int] = FairQueue()
    queue.put("a", [1])
    queue.close()
    assert [queue.get(), queue.get(), queue.get()] == [1, None, None]


def test_many_threads_get_each_item_once() -> None:
    queue: FairQueue[int] = FairQueue()
    found: list[int] = []

    def work() -> None:
        while (item := queue.get()) is not None:
            found.append(item)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for start in range(0, 1000, 10):
        queue.put(start % 7, range(start, start + 10))
    queue.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(found) == list(range(1000))
