"""Who makes which batch: each request goes to one filler at a time, and what a lost one had goes to others."""

from __future__ import annotations

import random

from penstock.cluster.dispatch import REQUESTS, Dispatcher, Window


def asked(dispatcher: Dispatcher, *numbers: int) -> list[tuple[object, int]]:
    for number in numbers:
        dispatcher.ask(number)
    return list(dispatcher.assign())


def test_the_filler_with_the_least_gets_the_oldest() -> None:
    dispatcher = Dispatcher(requests=2)
    assert asked(dispatcher, 0, 1) == [], "there is no filler"
    dispatcher.join("a")
    dispatcher.join("b")
    assert list(dispatcher.assign()) == [("a", 0), ("b", 1)]
    assert asked(dispatcher, 2, 3, 4) == [("a", 2), ("b", 3)]
    assert dispatcher.done("b", 1)
    assert list(dispatcher.assign()) == [("b", 4)]


def test_what_a_lost_filler_had_goes_first() -> None:
    dispatcher = Dispatcher(requests=2)
    for name in "ab":
        dispatcher.join(name)
    assert asked(dispatcher, *range(6)) == [("a", 0), ("b", 1), ("a", 2), ("b", 3)]
    assert dispatcher.leave("a") == [0, 2]
    assert dispatcher.leave("a") == []
    assert list(dispatcher.assign()) == []
    assert not dispatcher.done("a", 0), "its answer comes too late"
    assert dispatcher.done("b", 3)
    assert list(dispatcher.assign()) == [], "it is made alone: one of them may have ended the filler"
    assert dispatcher.done("b", 1)
    assert list(dispatcher.assign()) == [("b", 0)]
    dispatcher.join("c")
    assert list(dispatcher.assign()) == [("c", 2)]
    assert dispatcher.leave("c") == [2]
    assert dispatcher.done("b", 0)
    assert list(dispatcher.assign()) == [("b", 2)]
    assert dispatcher.done("b", 2)
    assert list(dispatcher.assign()) == [("b", 4), ("b", 5)], "of others it gets several again"


def test_what_is_forgotten_is_not_asked_again() -> None:
    dispatcher = Dispatcher(requests=1)
    dispatcher.join("a")
    assert asked(dispatcher, 0, 1, 2) == [("a", 0)]
    dispatcher.forget(0)
    dispatcher.forget(1)
    assert not dispatcher.done("a", 0)
    assert list(dispatcher.assign()) == [("a", 2)]
    dispatcher.forget(2)
    assert dispatcher.leave("a") == []
    dispatcher.join("b")
    assert list(dispatcher.assign()) == []


def test_no_request_is_lost_or_made_twice() -> None:
    draw = random.Random(3)
    dispatcher, working, made = Dispatcher(), dict[int, list[int]](), list[int]()
    for number in range(500):
        dispatcher.ask(number)
    names = iter(range(10_000))
    while len(made) < 500:
        step = draw.random()
        if step < 0.05 or not working:
            name = next(names)
            working[name] = []
            dispatcher.join(name)
        elif step < 0.1:
            name = draw.choice(list(working))
            assert dispatcher.leave(name) == working.pop(name)
        else:
            name = draw.choice(list(working))
            if working[name]:
                made.append(working[name].pop(0))
                assert dispatcher.done(name, made[-1])
        for owner, number in dispatcher.assign():
            assert isinstance(owner, int)
            working[owner].append(number)
            assert len(working[owner]) <= REQUESTS
    assert sorted(made) == list(range(500))


def test_batches_in_flight_are_limited_by_their_bytes() -> None:
    window = Window(limit=1000)
    asked = 0
    while window.room(fillers=2):
        window.asked()
        asked += 1
    assert asked == 2, "one for each filler until a size is known"
    window.came(0, 300)
    assert window.room(2)
    window.asked()
    assert not window.room(2), "300 held and two awaited of 300"
    window.gone(0)
    assert window.room(2)
    window.came(1, 900)
    assert not window.room(2)
    assert window.bytes == 1800


def test_one_batch_is_in_flight_whatever_its_size() -> None:
    window = Window(limit=10)
    assert window.room(1)
    window.asked()
    window.came(0, 10_000)
    assert not window.room(1)
    window.gone(0)
    assert window.room(1)


def test_small_batches_in_flight_are_a_few_for_each_filler() -> None:
    window = Window(limit=1 << 30)
    window.asked()
    window.came(0, 1)
    asked = 1
    while window.room(fillers=4):
        window.asked()
        asked += 1
    assert asked == 2 * REQUESTS * 4
