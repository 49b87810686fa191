"""The roles of a replica: every legal move, and that there are no others."""

from __future__ import annotations

from itertools import product

import pytest

from kwire.broker.replication.roles import MOVES, Move, Role, moved

LEGAL = """
absent    lead leader    follow follower    fail offline
leader    lead leader    follow follower    fail offline    leave absent
follower  lead leader    follow follower    fail offline    leave absent
offline   lead offline   follow offline     fail offline    leave absent
"""


def legal() -> dict[tuple[Role, Move], Role]:
    found = {}
    for line in LEGAL.strip().splitlines():
        role, *moves = line.split()
        for move, then in zip(moves[::2], moves[1::2], strict=True):
            found[Role(role), Move(move)] = Role(then)
    return found


@pytest.mark.parametrize(("role", "move"), list(product(Role, Move)))
def test_a_move_is_legal_or_is_refused(role: Role, move: Move) -> None:
    expected = legal().get((role, move))
    if expected is not None:
        assert moved(role, move) is expected
    else:
        with pytest.raises(AssertionError, match=f"{role.value} cannot {move.value}"):
            moved(role, move)


def test_the_table_has_every_role() -> None:
    assert set(MOVES) == set(Role)
