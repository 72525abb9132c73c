"""Messages between shards arrive exactly once and in order, whatever is lost, repeated, overtaken or forgotten in a crash."""
from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fusee_mp.core.postbox import RESEND_MAX, Inbox, Outbox

TO, FROM = 1, 0


class Post(RuleBasedStateMachine):
    """One sender, one receiver, a network between them, and what each has on disk."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox, self.inbox = Outbox(), Inbox()
        self.sent_log: list[bytes] = []  # the sender's records, durable up to `sent_durable`
        self.sent_durable = self.acked_durable = 0
        self.taken_log: list[int] = []  # the receiver's records: the numbers it took
        self.taken_durable = 0
        self.network: list[tuple[int, bytes]] = []
        self.acks: list[int] = []

    # The sender. A message is a record first; it is put into the outbox, and leaves, once that is durable.

    @rule()
    def record_a_message(self) -> None:
        no = self.outbox.number(TO)
        self.sent_log.append(b"%d" % no)
        assert no == len(self.sent_log)

    @rule(count=st.integers(1, 5))
    def sender_flushes(self, count: int) -> None:
        for no in range(self.sent_durable + 1, min(len(self.sent_log), self.sent_durable + count) + 1):
            self.outbox.put(TO, no, self.sent_log[no - 1])
            self.network.append((no, self.sent_log[no - 1]))
            self.sent_durable = no

    @rule()
    def sender_sends_again(self) -> None:
        lot = self.outbox.first(TO, 3)
        assert lot == [(no, b"%d" % no) for no, _ in lot] and len(self.outbox.first(TO)) <= RESEND_MAX
        self.network += lot

    @rule()
    def sender_crashes(self) -> None:
        del self.sent_log[self.sent_durable:]
        self.outbox = Outbox([(TO, self.sent_durable + 1)])
        for no in range(self.acked_durable + 1, self.sent_durable + 1):
            self.outbox.put(TO, no, self.sent_log[no - 1])

    @precondition(lambda self: self.acks)
    @rule(data=st.data(), keeps=st.booleans(), is_recorded=st.booleans())
    def an_ack_arrives(self, data: st.DataObject, keeps: bool, is_recorded: bool) -> None:
        through = self.acks[data.draw(st.integers(0, len(self.acks) - 1))]
        if not keeps:
            self.acks.remove(through)
        before = len(self.outbox)
        assert self.outbox.acknowledged(TO, through) is (len(self.outbox) < before)
        if is_recorded:
            self.acked_durable = max(self.acked_durable, through)

    # The network loses, repeats and overtakes.

    @precondition(lambda self: self.network)
    @rule(data=st.data())
    def a_message_is_lost(self, data: st.DataObject) -> None:
        self.network.pop(data.draw(st.integers(0, len(self.network) - 1)))

    @precondition(lambda self: self.network)
    @rule(data=st.data(), keeps=st.booleans())
    def a_message_arrives(self, data: st.DataObject, keeps: bool) -> None:
        index = data.draw(st.integers(0, len(self.network) - 1))
        no, message = self.network[index] if keeps else self.network.pop(index)
        assert message == b"%d" % no
        if self.inbox.take(FROM, no):
            self.taken_log.append(no)

    # The receiver.

    @rule()
    def receiver_flushes_and_acks(self) -> None:
        self.taken_durable = len(self.taken_log)
        self.acks.append(self.inbox.taken(FROM))

    @rule()
    def receiver_crashes(self) -> None:
        del self.taken_log[self.taken_durable:]
        self.inbox = Inbox([(FROM, len(self.taken_log))] if self.taken_log else [])

    @invariant()
    def taken_once_and_in_order(self) -> None:
        assert self.taken_log == list(range(1, len(self.taken_log) + 1))
        assert self.inbox.taken(FROM) == len(self.taken_log)

    @invariant()
    def nothing_is_taken_that_a_crash_could_take_back(self) -> None:
        assert len(self.taken_log) <= self.sent_durable

    @invariant()
    def what_is_not_acknowledged_is_kept(self) -> None:
        kept = [no for no, _ in self.outbox.first(TO, 1 << 30)]
        assert kept == list(range(self.sent_durable - len(kept) + 1, self.sent_durable + 1))
        assert self.sent_durable - len(kept) <= self.taken_durable
        assert len(self.outbox) == len(kept) and self.outbox.waiting() == ([TO] if kept else [])

    def teardown(self) -> None:
        """Once the network behaves, everything arrives."""
        self.sender_flushes(1 << 30)
        for _ in range(self.sent_durable + 1):
            for no, _ in self.outbox.first(TO, 2):
                if self.inbox.take(FROM, no):
                    self.taken_log.append(no)
            self.outbox.acknowledged(TO, self.inbox.taken(FROM))
        assert self.taken_log == list(range(1, self.sent_durable + 1)) and not len(self.outbox)


TestPost = Post.TestCase
TestPost.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


def test_receivers_are_numbered_apart() -> None:
    outbox = Outbox([(2, 9)])
    assert [outbox.number(to) for to in (1, 1, 2, 2, 3)] == [1, 2, 9, 10, 1]
    outbox.start_at(3, 50)
    assert outbox.number(3) == 50


def test_senders_are_taken_apart() -> None:
    inbox = Inbox([(4, 7)])
    assert [inbox.take(4, 7), inbox.take(4, 8), inbox.take(5, 1), inbox.take(5, 3)] == [False, True, True, False]
    assert [inbox.taken(4), inbox.taken(5), inbox.taken(6)] == [8, 1, 0]
