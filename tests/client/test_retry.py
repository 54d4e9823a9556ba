import grpc
import pytest

from seqenc import RetryPolicy, SeqencError
from seqenc.retry import Attempts, Deadline

UNAVAILABLE = SeqencError(grpc.StatusCode.UNAVAILABLE, "down")
OVERLOADED = SeqencError(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", retry_after_s=2.0)
FOR_GOOD = SeqencError(grpc.StatusCode.RESOURCE_EXHAUSTED, "too large")


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_the_ceiling_of_the_delay_doubles_up_to_its_limit():
    policy = RetryPolicy(max_attempts=9, first_delay_s=0.1, max_delay_s=1.0, jitter=lambda: 1.0)
    delays = [policy.delay_s(attempt, UNAVAILABLE) for attempt in range(1, 7)]
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_jitter_is_full():
    assert RetryPolicy(jitter=lambda: 0.0).delay_s(3, UNAVAILABLE) == 0.0
    assert RetryPolicy(jitter=lambda: 0.25).delay_s(1, UNAVAILABLE) == pytest.approx(0.025)


def test_the_server_is_given_the_time_that_it_asks_for():
    assert RetryPolicy(jitter=lambda: 0.5).delay_s(1, OVERLOADED) == pytest.approx(2.05)


@pytest.mark.parametrize(
    "code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.UNAVAILABLE]
)
def test_nothing_else_is_retried(code):
    assert RetryPolicy().delay_s(1, SeqencError(code, "no")) is None


def test_attempts_are_counted():
    attempts = Attempts(RetryPolicy(max_attempts=3, jitter=lambda: 0.0), Deadline(None))
    attempts.next_delay_s(UNAVAILABLE)
    attempts.next_delay_s(UNAVAILABLE)
    with pytest.raises(SeqencError, match="down"):
        attempts.next_delay_s(UNAVAILABLE)


def test_success_starts_the_count_again():
    attempts = Attempts(RetryPolicy(max_attempts=2, jitter=lambda: 0.0), Deadline(None))
    for _ in range(5):
        attempts.next_delay_s(UNAVAILABLE)
        attempts.succeeded()


def test_no_wait_goes_past_the_deadline():
    clock = Clock()
    attempts = Attempts(RetryPolicy(jitter=lambda: 0.0), Deadline(5.0, clock))
    clock.now += 2.9
    assert attempts.next_delay_s(OVERLOADED) == 2.0
    clock.now += 0.2
    with pytest.raises(SeqencError, match="full"):
        attempts.next_delay_s(OVERLOADED)


def test_the_deadline_counts_down_to_zero():
    clock = Clock()
    deadline = Deadline(5.0, clock)
    clock.now += 2.0
    assert deadline.remaining_s() == 3.0
    clock.now += 4.0
    assert deadline.remaining_s() == 0.0
    assert Deadline(None, clock).remaining_s() is None
