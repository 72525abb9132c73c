"""The lease table: its rules one by one, its invariants under any events, and that it settles whatever the order of messages."""
from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from itertools import cycle
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fusee_mp.bounds import LACKED_MAX
from fusee_mp.router.lease_events import (
    Assign,
    Closed,
    Dismiss,
    Draining,
    Effect,
    Event,
    Fence,
    Freed,
    Held,
    Joined,
    Lacks,
    Left,
    Released,
    Revoke,
    ShardDown,
    ShardUp,
    TimePassed,
)
from fusee_mp.router.leases import (
    ASSIGN_MS,
    LATE,
    RECONNECTED,
    REPLACED,
    RETRY_MS,
    STAY_MS,
    LeaseTable,
)
from fusee_mp.router.seats import holder_name, worker_of


def table(shards: int, *events: Event) -> LeaseTable:
    """A table with all shards up, after these events at time 0."""
    made = LeaseTable(shards)
    for shard in range(shards):
        made.apply(ShardUp(shard), 0)
    for event in events:
        made.apply(event, 0)
    return made


def to_code(session: int, shard: int, workflow: str, worker: str) -> Revoke:
    return Revoke(session, shard, f'shard {shard} wants workflow "{workflow}", which worker "{worker}" has', gently=True)


def test_a_worker_without_a_bound_takes_all_free_shards() -> None:
    assert table(3).apply(Joined(1, "a", "i"), 0) == [Assign(1, (0, 1, 2))]


def test_two_workers_with_a_bound_of_two_share_four_shards() -> None:
    made = table(4)
    assert made.apply(Joined(1, "a", "i", (), 2), 0) == [Assign(1, (0, 1))]
    assert made.apply(Joined(2, "b", "i", (), 2), 0) == [Assign(2, (2, 3))]


def test_a_shard_that_is_not_up_is_assigned_when_it_comes_up() -> None:
    made = LeaseTable(1)
    assert made.apply(Joined(1, "a", "i"), 0) == []
    assert made.apply(ShardUp(0), 0) == [Assign(1, (0,))]


def test_the_shards_of_a_departed_holder_go_to_the_standby_that_came_first() -> None:
    made = table(2, Joined(1, "a", "i"), Held(0, "a/i", 1), Held(1, "a/i", 1), Joined(2, "b", "i", (), 1), Joined(3, "c", "i"))
    assert made.apply(Left(1), 5) == []
    assert made.apply(Freed(0), 6) == [Assign(2, (0,))]
    assert made.apply(Freed(1), 6) == [Assign(3, (1,))]


def test_what_a_lost_session_had_not_leased_is_free_at_once() -> None:
    made = table(2, Joined(1, "a", "i"), Held(0, "a/i", 1), Joined(2, "b", "i"))
    assert made.apply(Left(1), 5) == [Assign(2, (1,))]


def test_a_worker_that_lost_its_session_only_keeps_its_leases_when_it_comes_back() -> None:
    made = table(1, Joined(1, "a", "i"), Held(0, "a/i", 1), Joined(2, "b", "i"), Left(1))
    assert made.apply(Joined(3, "a", "i"), 5) == []
    assert made.seats[0].session == 3 and made.seats[0].is_settled
    assert made.apply(Freed(0), 6) == [Assign(2, (0,))]


def test_a_second_session_of_one_instance_replaces_the_first() -> None:
    made = table(2, Joined(1, "a", "i"), Held(0, "a/i", 1))
    assert made.apply(Joined(2, "a", "i"), 5) == [Dismiss(1, RECONNECTED), Assign(2, (1,))]
    assert made.members[2].shards == {0, 1}
    assert made.apply(Left(1), 6) == []


def test_a_new_instance_of_a_worker_takes_over_at_once_what_the_old_one_held() -> None:
    made = table(1, Joined(1, "a", "old"), Held(0, "a/old", 1), Joined(2, "b", "i"))
    effects = made.apply(Joined(3, "a", "new"), 5)
    assert effects == [Fence(0, REPLACED), Revoke(1, 0, REPLACED), Dismiss(1, REPLACED), Assign(3, (0,))]
    assert made.apply(Freed(0), 6) == []
    assert made.apply(Held(0, "a/new", 2), 7) == []
    assert made.seats[0].session == 3


def test_a_new_instance_takes_over_also_when_the_old_session_is_gone() -> None:
    made = table(2, Joined(1, "a", "old"), Held(0, "a/old", 1), Held(1, "a/old", 1), Left(1))
    assert made.apply(Joined(2, "a", "new"), 5) == [Fence(0, REPLACED), Fence(1, REPLACED), Assign(2, (0, 1))]


def test_a_lease_that_the_old_instance_was_granted_in_between_is_fenced() -> None:
    made = table(1, Joined(1, "a", "old"), Joined(2, "a", "new"))
    assert made.apply(Held(0, "a/old", 1), 5) == [Fence(0, REPLACED)]
    assert made.seats[0].session == 2
    assert made.apply(Freed(0), 6) == []
    assert made.apply(Held(0, "a/new", 2), 7) == []


def test_a_lease_of_an_instance_without_a_session_is_fenced_when_another_has_one() -> None:
    made = table(1, Joined(1, "a", "old"), Left(1), Joined(2, "a", "new"))
    assert made.apply(Held(0, "a/old", 1), 5) == [Fence(0, REPLACED)]
    assert made.seats[0].session == 2


def test_a_replaced_instance_cannot_come_back_while_the_newer_one_has_a_session_or_a_shard() -> None:
    made = table(1, Joined(1, "a", "old"), Joined(2, "a", "new"))
    assert made.apply(Joined(3, "a", "old"), 5) == [Dismiss(3, REPLACED)]
    assert 3 not in made.members
    made.apply(Held(0, "a/new", 1), 6)
    made.apply(Left(2), 7)
    assert made.apply(Joined(4, "a", "old"), 8) == [Dismiss(4, REPLACED)]


def test_a_replaced_instance_works_again_once_the_newer_one_is_gone() -> None:
    made = table(1, Joined(1, "a", "old"), Held(0, "a/old", 1), Joined(2, "a", "new"), Freed(0), Held(0, "a/new", 2))
    made.apply(Left(2), 5)
    made.apply(Freed(0), 6)
    assert made.apply(Joined(3, "a", "old"), 7) == [Assign(3, (0,))]
    assert made.apply(Held(0, "a/old", 3), 8) == []
    assert made.seats[0].session == 3 and made.seats[0].is_settled


def test_of_two_replaced_instances_the_first_that_comes_back_works_and_the_other_waits() -> None:
    made = table(1, Joined(1, "a", "i"), Joined(2, "a", "j"), Joined(3, "a", "k"), Left(3))
    assert made.apply(Joined(4, "a", "i"), 5) == [Assign(4, (0,))]
    assert made.apply(Joined(5, "a", "j"), 6) == [Dismiss(5, REPLACED)]
    assert made.apply(Left(4), 7) == []
    assert made.apply(Joined(6, "a", "j"), 8) == [Assign(6, (0,))]


def test_a_new_instance_with_less_room_leaves_the_rest_to_others() -> None:
    made = table(2, Joined(1, "a", "old"), Held(0, "a/old", 1), Held(1, "a/old", 1), Joined(2, "b", "i"))
    assert made.apply(Joined(3, "a", "new", (), 1), 5)[-1] == Assign(3, (0,))
    assert made.apply(Freed(1), 6) == [Assign(2, (1,))]


def test_an_assignment_that_is_not_leased_in_time_goes_to_another() -> None:
    made = table(1, Joined(1, "a", "i"), Joined(2, "b", "i"))
    assert made.apply(TimePassed(), ASSIGN_MS - 1) == []
    assert made.apply(TimePassed(), ASSIGN_MS) == [Revoke(1, 0, LATE), Assign(2, (0,))]


def test_an_assignment_that_is_not_leased_in_time_is_repeated_when_nobody_else_is_there() -> None:
    made = table(1, Joined(1, "a", "i"))
    assert made.apply(TimePassed(), ASSIGN_MS) == [Revoke(1, 0, LATE)]
    assert made.apply(TimePassed(), ASSIGN_MS + RETRY_MS) == [Assign(1, (0,))]


def test_a_worker_that_declines_is_asked_again_after_a_pause_or_another_at_once() -> None:
    made = table(1, Joined(1, "a", "i"))
    assert made.apply(Released(1, 0), 5) == []
    assert made.apply(TimePassed(), 5 + RETRY_MS) == [Assign(1, (0,))]
    made.apply(Joined(2, "b", "i"), 2000)
    assert made.apply(Released(1, 0), 2001) == [Assign(2, (0,))]


def test_a_draining_worker_is_assigned_nothing_more() -> None:
    made = table(3, Joined(1, "a", "i", (), 2), Held(0, "a/i", 1), Joined(2, "b", "i"))
    assert made.apply(Draining(1), 5) == [Assign(2, (1,))]
    assert made.apply(Freed(0), 6) == [Assign(2, (0,))]


def test_a_lease_that_nobody_was_assigned_counts_for_its_holder() -> None:
    made = table(1, Joined(1, "a", "i"), Joined(2, "b", "i"))
    assert made.apply(Held(0, "b/i", 4), 5) == [Revoke(1, 0, 'worker "b/i" has leased it')]
    assert made.seats[0].session == 2 and made.seats[0].epoch == 4


def test_a_shard_whose_process_ended_is_assigned_again_when_it_is_back() -> None:
    made = table(1, Joined(1, "a", "i"), Held(0, "a/i", 1))
    assert made.apply(ShardDown(0), 5) == []
    assert made.apply(ShardUp(0), 6) == [Assign(1, (0,))]


def test_a_closed_table_assigns_nothing() -> None:
    made = table(1, Joined(1, "a", "i"), Held(0, "a/i", 1), Closed())
    assert made.apply(Freed(0), 5) == []
    assert made.apply(Joined(2, "b", "i"), 5) == []
    assert made.held == 0


SHARDS = 3
shards = st.integers(0, SHARDS - 1)
def test_a_shard_goes_to_a_worker_that_has_the_code_when_its_holder_has_stayed_long_enough() -> None:
    made = table(2, Joined(1, "a", "i", ("red",)), Held(0, "a/i", 1), Held(1, "a/i", 1), Joined(2, "b", "i", ("green",)))
    assert made.apply(Lacks(1, 0, ("blue",)), STAY_MS) == [], "nobody has it"
    assert made.apply(Joined(3, "c", "i", ("red", "blue")), STAY_MS) == [to_code(1, 0, "blue", "c")]
    assert made.apply(Lacks(1, 0, ("blue",)), STAY_MS) == [], "asked once"
    assert made.apply(Freed(0), STAY_MS + 5) == [Assign(3, (0,))], "not to the first in order"
    assert made.apply(Held(0, "c/i", 2), STAY_MS + 6) == []
    assert made.apply(Lacks(3, 0, ("green",)), STAY_MS + 7) == [], "it has only just come"
    assert made.apply(TimePassed(), 2 * STAY_MS + 6) == [to_code(3, 0, "green", "b")]
    assert made.apply(Freed(0), 2 * STAY_MS + 6) == [Assign(2, (0,))]


def test_who_lacks_code_for_a_shard_that_it_does_not_have_is_not_heard() -> None:
    made = table(1, Joined(1, "a", "i"), Held(0, "a/i", 1), Joined(2, "b", "i", ("blue",)))
    assert made.apply(Lacks(2, 0, ("blue",)), 2 * STAY_MS) == []
    assert made.apply(Lacks(7, 0, ("blue",)), 2 * STAY_MS) == []
    assert not made.seats[0].wanted


def test_a_shard_whose_wanted_worker_left_meanwhile_goes_to_the_next_or_back() -> None:
    made = table(1, Joined(1, "a", "i"), Held(0, "a/i", 1), Joined(2, "b", "i", ("blue",)))
    assert made.apply(Lacks(1, 0, ("blue",)), STAY_MS) == [to_code(1, 0, "blue", "b")]
    made.apply(Left(2), STAY_MS + 1)
    assert made.apply(Freed(0), STAY_MS + 2) == []
    assert made.apply(TimePassed(), STAY_MS + 2 + RETRY_MS) == [Assign(1, (0,))]


def exchange() -> LeaseTable:
    """Both workers are full, and a shard of the first wants code that the second has."""
    made = table(3, Joined(1, "a", "i", ("red",), 1), Joined(2, "b", "i", ("blue",), 2))
    for shard, holder in enumerate(("a/i", "b/i", "b/i")):
        made.apply(Held(shard, holder, 1), shard)
    return made


def test_a_worker_without_room_gives_up_the_shard_it_has_longest_for_one_that_wants_its_code() -> None:
    made = exchange()
    first, second = made.apply(Lacks(1, 0, ("blue",)), 2 * STAY_MS)
    assert second == to_code(1, 0, "blue", "b")
    assert first == Revoke(2, 1, f"this worker has no room, and {to_code(1, 0, 'blue', 'b').reason}", gently=True)
    assert made.apply(Lacks(1, 0, ("blue",)), 2 * STAY_MS) == [], "asked once"
    assert made.apply(Freed(1), 2 * STAY_MS + 1) == [Assign(1, (1,))], "it does not wait for the other one"
    assert made.apply(Freed(0), 2 * STAY_MS + 2) == [Assign(2, (0,))]
    made.apply(Held(1, "a/i", 2), 2 * STAY_MS + 3)
    made.apply(Held(0, "b/i", 2), 2 * STAY_MS + 4)
    assert made.apply(TimePassed(), 9 * STAY_MS) == [], "nothing is wanted any more"


def test_a_worker_gives_up_nothing_that_nobody_else_can_have() -> None:
    made = exchange()
    made.apply(Draining(1), 5)
    assert made.apply(Lacks(1, 0, ("blue",)), 2 * STAY_MS) == []


def test_a_shard_that_wants_other_code_itself_is_given_up_first() -> None:
    made = exchange()
    made.apply(Lacks(2, 2, ("green",)), 2 * STAY_MS)
    assert [effect.shard for effect in made.apply(Lacks(1, 0, ("blue",)), 2 * STAY_MS) if isinstance(effect, Revoke)] == [2, 0]


def test_the_place_of_a_shard_on_its_way_is_not_promised_to_another() -> None:
    made = table(2, Joined(1, "a", "i"), Held(0, "a/i", 1), Held(1, "a/i", 1), Joined(2, "b", "i", ("blue",), 1))
    assert made.apply(Lacks(1, 0, ("blue",)), STAY_MS) == [to_code(1, 0, "blue", "b")]
    assert made.apply(Lacks(1, 1, ("blue",)), STAY_MS) == []
    assert made.apply(Freed(0), STAY_MS) == [Assign(2, (0,))]
    made.apply(Held(0, "b/i", 2), STAY_MS)
    assert made.apply(TimePassed(), 2 * STAY_MS)[-1] == to_code(1, 1, "blue", "b"), "after a second, in exchange"


def test_a_holder_that_lacks_ever_new_types_is_believed_a_thousand() -> None:
    made = table(1, Joined(1, "a", "i"), Held(0, "a/i", 1), Joined(2, "b", "i", ("type 7",), 1))
    for first in range(0, 5_000, 500):
        made.apply(Lacks(1, 0, tuple(f"type {number}" for number in range(first, first + 700))), 1)
    assert made.seats[0].wanted == {f"type {number}" for number in range(LACKED_MAX)}
    assert made.apply(TimePassed(), STAY_MS) == [to_code(1, 0, "type 7", "b")]


workers = st.sampled_from("ab")
instances = st.sampled_from("123")
types = st.sampled_from(((), ("red",), ("red", "blue")))


def check_agreement(table: LeaseTable) -> None:
    by_seats = {(seat.session, seat.shard) for seat in table.seats if seat.session is not None}
    by_members = {(member.session, shard) for member in table.members.values() for shard in member.shards}
    assert by_seats == by_members
    members = table.members.values()
    leaving = {(seat.session, seat.shard) for seat in table.seats if seat.is_moving}
    coming = {(seat.target, seat.shard) for seat in table.seats if seat.target is not None}
    assert leaving == {(member.session, shard) for member in members for shard in member.leaving}
    assert coming == {(member.session, shard) for member in members for shard in member.coming}


class AnyEvents(RuleBasedStateMachine):
    """Whatever comes, also what no well-behaved process would send, the rules at the head of leases.py hold."""

    def __init__(self) -> None:
        super().__init__()
        self.table = LeaseTable(SHARDS)
        self.now = self.last = 0
        self.assigned: dict[int, int] = {}  # shard to session, by effects alone
        self.dismissed: set[int] = set()
        self.effects: list[Effect] = []

    def apply(self, event: Event) -> None:
        before = {seat.shard: seat.session for seat in self.table.seats}
        self.effects = self.table.apply(event, self.now)
        for shard, session in list(self.assigned.items()):
            if before[shard] != session or self.table.seats[shard].session != session:
                del self.assigned[shard]
        for effect in self.effects:
            self.check(effect)

    def check(self, effect: Effect) -> None:
        if isinstance(effect, Dismiss):
            self.dismissed.add(effect.session)
        if not isinstance(effect, Assign):
            return
        member = self.table.members[effect.session]
        assert not member.is_draining and effect.session not in self.dismissed
        assert member.max_shards == 0 or len(member.shards - member.leaving) <= member.max_shards, "only HELD may give more than the bound"
        for shard in effect.shards:
            assert self.assigned.setdefault(shard, effect.session) == effect.session, "a shard is assigned to one session"

    @rule(worker=workers, instance=instances, most=st.integers(0, 2), types=types)
    def join(self, worker: str, instance: str, most: int, types: tuple[str, ...]) -> None:
        self.last += 1
        others = {m.name for m in self.table.members.values()}.union(seat.holder for seat in self.table.seats)
        was_replaced = holder_name(worker, instance) in self.table._replaced
        self.apply(Joined(self.last, worker, instance, types, most))
        if self.last in self.dismissed:
            assert was_replaced and any(worker_of(other) == worker for other in others), "who is alone under its name is let in"

    @rule(session=st.integers(1, 6), shard=shards, types=types)
    def lack(self, session: int, shard: int, types: tuple[str, ...]) -> None:
        self.apply(Lacks(session, shard, types))
        moved = [effect for effect in self.effects if isinstance(effect, Revoke) and effect.gently]
        assert all(self.table.seats[effect.shard].session == effect.session for effect in moved), "the holder keeps it until it lets go"

    @precondition(lambda self: self.table.members)
    @rule(data=st.data(), kind=st.sampled_from((Left, Draining)))
    def end(self, data: st.DataObject, kind: Any) -> None:
        self.apply(kind(data.draw(st.sampled_from(sorted(self.table.members)))))

    @rule(session=st.integers(1, 6), shard=shards)
    def release(self, session: int, shard: int) -> None:
        self.apply(Released(session, shard))

    @rule(shard=shards, worker=workers, instance=instances)
    def hold(self, shard: int, worker: str, instance: str) -> None:
        holder, replaced = holder_name(worker, instance), set(self.table._replaced)
        self.apply(Held(shard, holder, 1))
        assert not self.table.seats[shard].is_up or holder not in replaced or Fence(shard, REPLACED) in self.effects

    @rule(shard=shards, kind=st.sampled_from((Freed, ShardUp, ShardUp, ShardDown)))
    def shard_event(self, shard: int, kind: Any) -> None:
        self.apply(kind(shard))

    @rule(passed=st.sampled_from((1, RETRY_MS, ASSIGN_MS)))
    def wait(self, passed: int) -> None:
        self.now += passed
        self.apply(TimePassed())
        pending = [seat for seat in self.table.seats if seat.session is not None and not seat.is_settled]
        assert all(self.now - seat.assigned_ms < ASSIGN_MS for seat in pending)

    @invariant()
    def seats_and_members_agree(self) -> None:
        check_agreement(self.table)

    @invariant()
    def no_free_shard_is_kept_from_a_session_with_room(self) -> None:
        with_room = {m.session for m in self.table.members.values() if m.places > 0}
        for seat in self.table.seats:
            waits_for = with_room - {seat.shunned if self.now < seat.shunned_until_ms else None}
            assert not (seat.is_free and waits_for), f"shard {seat.shard} is free, and sessions {waits_for} have room"

    @invariant()
    def one_instance_of_a_worker_is_there(self) -> None:
        names = [member.worker for member in self.table.members.values()]
        assert len(names) == len(set(names))
        assert not any(member.name in self.table._replaced for member in self.table.members.values())

    @invariant()
    def a_shard_that_is_down_is_nobodys(self) -> None:
        assert all(seat.is_up or (seat.session is None and not seat.holder) for seat in self.table.seats)


TestAnyEvents = AnyEvents.TestCase
TestAnyEvents.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


class World:
    """Workers and shard processes that behave, with all messages between them and the table in queues, each in order."""

    def __init__(self) -> None:
        self.table = LeaseTable(SHARDS)
        self.now = 0
        self.sessions: dict[int, tuple[str, int]] = {}  # live workers' processes: holder name and bound, by session
        self.up = [False] * SHARDS
        self.holder = [""] * SHARDS
        self.to_table: dict[str, deque[Event]] = {}
        self.to_others: dict[str, deque[Effect]] = {}
        self.count = 0

    def tell(self, sender: str, event: Event) -> None:
        self.to_table.setdefault(sender, deque()).append(event)

    def join(self, worker: str, most: int) -> None:
        self.count += 1
        for session in [s for s, (name, _) in self.sessions.items() if worker_of(name) == worker]:
            self.die(session)
        self.sessions[self.count] = holder_name(worker, str(self.count)), most
        self.tell(f"session {self.count}", Joined(self.count, worker, str(self.count), (), most))

    def die(self, session: int) -> None:
        name, _ = self.sessions.pop(session)
        self.tell(f"session {session}", Left(session))
        for shard in range(SHARDS):
            if self.holder[shard] == name:
                self.free(shard)

    def free(self, shard: int) -> None:
        if self.holder[shard]:
            self.holder[shard] = ""
            self.tell(f"shard {shard}", Freed(shard))

    def flip(self, shard: int) -> None:
        self.up[shard] = not self.up[shard]
        self.holder[shard] = ""
        self.tell(f"shard {shard}", ShardUp(shard) if self.up[shard] else ShardDown(shard))

    def deliver(self, choice: int) -> bool:
        """Deliver one message of those that are on the way; False if there is none."""
        senders = [("table", name) for name, queue in self.to_table.items() if queue]
        senders += [("other", name) for name, queue in self.to_others.items() if queue]
        if not senders:
            return False
        side, name = senders[choice % len(senders)]
        if side == "table":
            self.order(self.table.apply(self.to_table[name].popleft(), self.now))
        else:
            self.obey(self.to_others[name].popleft())
        return True

    def order(self, effects: list[Effect]) -> None:
        for effect in effects:
            name = f"shard {effect.shard}" if isinstance(effect, Fence) else f"session {effect.session}"
            self.to_others.setdefault(name, deque()).append(effect)

    def obey(self, effect: Effect) -> None:
        if isinstance(effect, Fence):
            self.free(effect.shard)
            return
        if effect.session not in self.sessions:
            return
        name, _ = self.sessions[effect.session]
        if isinstance(effect, Assign):
            for shard in effect.shards:
                self.lease(effect.session, name, shard)
        elif isinstance(effect, Revoke) and self.holder[effect.shard] == name:
            self.free(effect.shard)
        elif isinstance(effect, Dismiss):
            self.die(effect.session)

    def lease(self, session: int, name: str, shard: int) -> None:
        if not self.up[shard] or self.holder[shard]:
            self.tell(f"session {session}", Released(session, shard))
        else:
            self.holder[shard] = name
            self.tell(f"shard {shard}", Held(shard, name, 1))

    def settle(self) -> None:
        for _ in range(8):
            while self.deliver(0):
                pass
            self.now += ASSIGN_MS
            self.order(self.table.apply(TimePassed(), self.now))


kinds = st.sampled_from(("join", "die", "flip", "deliver", "deliver", "deliver", "tick"))
steps = st.lists(st.tuples(kinds, st.integers(0, 99)), max_size=60)


@settings(max_examples=200, deadline=None)
@given(steps)
def test_whatever_the_order_of_messages_every_shard_ends_with_a_worker_that_has_room_for_it(chosen: list[tuple[str, int]]) -> None:
    world = World()
    for step, choice in chosen:
        if step == "join":
            world.join("abc"[choice % 3], choice // 3 % 3)
        elif step == "die" and world.sessions:
            world.die(sorted(world.sessions)[choice % len(world.sessions)])
        elif step == "flip":
            world.flip(choice % SHARDS)
        elif step == "deliver":
            world.deliver(choice)
        elif step == "tick":
            world.now += RETRY_MS
            world.order(world.table.apply(TimePassed(), world.now))
    world.settle()
    assert [seat.holder for seat in world.table.seats] == world.holder
    live = dict(world.sessions.values())
    held = {name: world.holder.count(name) for name in live}
    for shard in range(SHARDS):
        if world.holder[shard]:
            assert world.holder[shard] in live, "a shard is held by nobody who is alive"
        elif world.up[shard]:
            assert all(0 < most <= held[name] for name, most in live.items()), f"shard {shard} is free, and somebody has room"


TICK_MS = 250


class Shop:
    """Workers with different code, and runs that need it; letting go of a shard takes its holder some ticks."""

    def __init__(self, workers: list[tuple[int, set[str]]], needs: list[set[str]], delays: Iterator[int]) -> None:
        self.types = {f"{number}/i": types for number, (_, types) in enumerate(workers)}
        self.needs, self.delays = needs, delays
        self.now = 0
        self.holder = [""] * len(needs)
        self.letting_go: dict[int, int] = {}  # shard to time
        self.served: Counter[tuple[int, str]] = Counter()
        self.moves = 0
        self.table = LeaseTable(len(needs))
        for number, (most, types) in enumerate(workers):
            self.apply(Joined(number, str(number), "i", tuple(sorted(types)), most))
        for shard in range(len(needs)):
            self.apply(ShardUp(shard))

    def apply(self, event: Event) -> None:
        for effect in self.table.apply(event, self.now):
            if isinstance(effect, Revoke) and effect.gently:
                self.moves += 1
                self.letting_go[effect.shard] = self.now + next(self.delays) * TICK_MS
            elif isinstance(effect, Assign):
                for shard in effect.shards:
                    assert not self.holder[shard], "a shard is assigned when it is free"
                    self.holder[shard] = f"{effect.session}/i"
                    self.apply(Held(shard, self.holder[shard], 1))

    def tick(self) -> None:
        self.now += TICK_MS
        for shard, holder in enumerate(self.holder):
            types = self.types.get(holder, set())
            if shard not in self.letting_go:
                self.served.update((shard, name) for name in self.needs[shard] & types)
            if holder and self.needs[shard] - types:
                self.apply(Lacks(int(holder[:-2]), shard, tuple(sorted(self.needs[shard] - types))))
        for shard in [shard for shard, at in self.letting_go.items() if at <= self.now]:
            del self.letting_go[shard]
            self.holder[shard] = ""
            self.apply(Freed(shard))
        self.apply(TimePassed())
        check_agreement(self.table)


some_types = st.sets(st.sampled_from(("red", "green", "blue")), min_size=1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), some_types), min_size=2, max_size=4), st.lists(some_types, min_size=1, max_size=4), st.data())
def test_every_run_gets_its_code_again_and_again_and_without_need_nothing_moves(
    workers: list[tuple[int, set[str]]], needs: list[set[str]], data: st.DataObject
) -> None:
    """As long as the workers have places for all shards: whatever their bounds, and however long each takes to let go."""
    assume(sum(most or len(needs) for most, _ in workers) >= len(needs))
    shop = Shop(workers, needs, cycle(data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=5))))
    known = set().union(*(types for _, types in workers))
    for _ in range(2):
        shop.served.clear()
        for _ in range(240):
            shop.tick()
        hungry = {(shard, name) for shard, names in enumerate(needs) for name in names & known} - shop.served.keys()
        assert not hungry, f"never served within a minute: {hungry}"
    shop.needs = [set() for _ in needs]
    for _ in range(40):
        shop.tick()
    moves = shop.moves
    for _ in range(40):
        shop.tick()
    assert shop.moves == moves and all(shop.holder)
