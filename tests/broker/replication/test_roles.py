"""The roles of a replica: every legal move, and that there are no others."""

from __future__ import annotations

from itertools import product

import pytest

from kwire.broker.replication.roles import TRANSITIONS, Role, RoleChange, role_after

LEGAL = """
absent    BECOME_LEADER leader    BECOME_FOLLOWER follower    FAIL offline
leader    BECOME_LEADER leader    BECOME_FOLLOWER follower    FAIL offline    REMOVE absent
follower  BECOME_LEADER leader    BECOME_FOLLOWER follower    FAIL offline    REMOVE absent
offline   BECOME_LEADER offline   BECOME_FOLLOWER offline     FAIL offline    REMOVE absent
"""


def legal() -> dict[tuple[Role, RoleChange], Role]:
    found = {}
    for line in LEGAL.strip().splitlines():
        role, *moves = line.split()
        for move, then in zip(moves[::2], moves[1::2], strict=True):
            found[Role(role), RoleChange[move]] = Role(then)
    return found


@pytest.mark.parametrize(("role", "move"), list(product(Role, RoleChange)))
def test_a_move_is_legal_or_is_refused(role: Role, move: RoleChange) -> None:
    expected = legal().get((role, move))
    if expected is not None:
        assert role_after(role, move) is expected
    else:
        with pytest.raises(AssertionError, match=f"{role.value} cannot {move.value}"):
            role_after(role, move)


def test_the_table_has_every_role() -> None:
    assert set(TRANSITIONS) == set(Role)
