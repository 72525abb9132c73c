"""The filter of known IDs."""
from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fusee_mp.core.idfilter import IdFilter, key
from fusee_mp.core.placement import shard_of


@settings(max_examples=50, deadline=None)
@given(keys=st.sets(st.integers(0, (1 << 62) - 1), max_size=400), cut=st.integers(0, 400))
def test_a_known_id_is_never_denied_also_after_a_journey_as_bytes(keys: set[int], cut: int) -> None:
    made = IdFilter(64)
    for number, known in enumerate(keys):
        if number == cut:
            made = IdFilter.from_layers([made.layer(index) for index in range(made.layers)])
        made.add(known)
    assert all(map(made.maybe, keys))
    assert [len(made.layer(index)) for index in range(made.layers)] == made.layer_bytes


def test_an_id_takes_two_bytes_and_unknown_ones_are_rarely_mistaken() -> None:
    made, ids = IdFilter(1024), [f"order-{n}" for n in range(7 * 1024)]
    ids = [id for id in ids if shard_of(id, 16) == 3] + ids
    known = set(map(key, ids))
    for number in known:
        made.add(number)
    assert len(made) == len(known) == 7 * 1024 and made.layers == 3
    assert sum(made.layer_bytes) < 2.05 * len(made)
    mistaken = sum(made.maybe(key(f"other-{n}")) for n in range(20_000))
    assert mistaken < 200


def test_ids_of_one_shard_spread_as_well() -> None:
    shard = [id for id in (f"order-{n}" for n in range(60_000)) if shard_of(id, 64) == 5]
    made = IdFilter.of(map(key, shard[: len(shard) // 2]), 512)
    mistaken = sum(made.maybe(key(id)) for id in shard[len(shard) // 2 :])
    assert mistaken <= 5


def test_a_missing_or_damaged_layer_makes_every_answer_maybe() -> None:
    made = IdFilter(64)
    for n in range(100):
        made.add(key(str(n)))
    layers = [made.layer(0), made.layer(1)]
    damaged = layers[1][:-1] + bytes([layers[1][-1] ^ 1])
    for broken in ([layers[0], None], [None, layers[1]], [layers[0], damaged], [b"", layers[1]], [layers[0], layers[1][:-8]], [None]):
        filter = IdFilter.from_layers(broken)
        assert not filter.is_complete and filter.maybe(key("never seen"))
        filter.add(key("new"))
    assert not IdFilter.from_layers(layers).maybe(key("never seen"))


def test_a_full_layer_never_changes_again() -> None:
    made = IdFilter(64)
    for n in range(64):
        made.add(key(str(n)))
    full = made.layer(0)
    for n in range(64, 300):
        made.add(key(str(n)))
    assert made.layer(0) == full and made.layers == 3
