import threading
import time

from kwire.testing.one_shot_event import OneShotEvent


def test_wait_returns_false_after_the_timeout_and_true_after_set() -> None:
    event = OneShotEvent()
    assert not event.wait(0.001)
    event.set()
    event.set()
    assert event.is_set
    assert event.wait(0)
    assert event.wait()


def test_set_wakes_every_waiting_thread() -> None:
    event, woken = OneShotEvent(), []
    threads = [threading.Thread(target=lambda: woken.append(event.wait(30))) for _ in range(5)]
    for thread in threads:
        thread.start()
    time.sleep(0.01)
    event.set()
    for thread in threads:
        thread.join(30)
    assert woken == [True] * 5
