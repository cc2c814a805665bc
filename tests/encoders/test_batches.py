from hypothesis import given
from hypothesis import strategies as st

from es_ttc.encoders.batches import fixed_batches, padded_length

lengths_and_limit = st.integers(16, 600).flatmap(
    lambda limit: st.tuples(st.lists(st.integers(1, limit), max_size=60), st.just(limit))
)


@given(lengths_and_limit, st.integers(1, 4096), st.integers(0, 2))
def test_a_batch_has_the_shape_of_its_members_lengths_alone(
    drawn: tuple[list[int], int], tokens: int, spare: int
) -> None:
    lengths, limit = drawn
    seen: list[int] = []
    for batch in fixed_batches(lengths, max_length=limit, tokens=tokens, spare=spare):
        assert 1 <= len(batch.members) <= batch.rows - spare
        assert batch.rows == max(1, tokens // batch.length) + spare
        assert all(padded_length(lengths[index], limit) == batch.length for index in batch.members)
        seen += batch.members
    assert sorted(seen) == list(range(len(lengths)))


@given(st.integers(1, 512))
def test_padding_is_short(length: int) -> None:
    padded = padded_length(length, 512)
    assert length <= padded < length + 32
    assert padded_length(padded, 512) == padded


def test_the_longest_come_first() -> None:
    batches = list(fixed_batches([10, 200, 60], max_length=256, tokens=1))
    assert [batch.length for batch in batches] == [224, 64, 16]
