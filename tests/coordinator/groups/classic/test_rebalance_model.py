"""Classic groups under every order of events: who owns a partition, and what becomes of committed offsets.

Clients are simple, and do what Kafka's do: they join, sync what the leader has made up, beat, commit while
they own something, leave, fall silent, and now and then the coordinator is another one.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kwire.wire.errors import ErrorCode
from kwire.wire.records.groups import GroupMetadataValue
from tests.coordinator.scripting import Cluster, Config, Reply

PARTITIONS = range(3)
SESSION_MS = 10_000
seldom = st.sampled_from([False, False, False, True])


class Client:
    """What one client knows."""

    def __init__(self, instance_id: str | None) -> None:
        self.instance_id = instance_id
        self.member_id = ""
        self.joining: Reply | None = None
        self.joined: Any = None
        """The answer to its last JoinGroup."""
        self.syncing: Reply | None = None
        self.owned: frozenset[int] | None = None
        """Its partitions in the generation of `joined`; None while it has none."""

    def forget(self) -> None:
        """It is no member any more, as far as it knows."""
        self.__init__(self.instance_id)  # type: ignore[misc]

    @property
    def is_idle(self) -> bool:
        return self.joining is None and self.syncing is None


def owner_of(client: Client) -> Client | str:
    """Who it is to others."""
    return client.instance_id or client


class ClassicGroupsModel(RuleBasedStateMachine):
    """Clients of one group, its coordinator, and time."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(Config(group_initial_rebalance_delay_ms=0))
        self.clients: list[Client] = []
        self.committed: dict[int, int] = {}
        self.newest = 0
        """The newest generation that anybody knows of."""
        self.granted: dict[tuple[int, int], Client | str] = {}
        """Who was given a partition, by generation. A static member's next incarnation is the same owner."""

    # --- what clients do

    def join(self, client: Client) -> None:
        client.owned = None
        client.joined = client.syncing = None
        client.joining = self.cluster.join(
            member=client.member_id, instance=client.instance_id, session_ms=SESSION_MS, rebalance_ms=20_000
        )
        self.listen(client)

    def listen(self, client: Client) -> None:
        """Take in the answers that have come."""
        if client.joining is not None and not client.joining.pending:
            answer, client.joining = client.joining.value, None
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                client.member_id = answer.member_id
                self.join(client)
            elif answer.error_code:
                client.forget()
            else:
                client.member_id, client.joined = answer.member_id, answer
                self.newest = max(self.newest, answer.generation_id)
        if client.syncing is not None and not client.syncing.pending:
            answer, client.syncing = client.syncing.value, None
            if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
                client.joined = None
            elif answer.error_code:
                client.forget()
            else:
                client.owned = frozenset(answer.assignment)
                for partition in client.owned:
                    key = (client.joined.generation_id, partition)
                    owner = self.granted.setdefault(key, owner_of(client))
                    assert owner == owner_of(client), f"{partition} has two owners in generation {key[0]}"

    def all_listen(self) -> None:
        for client in self.clients:
            self.listen(client)

    # --- rules

    @initialize(count=st.integers(1, 3))
    def some_are_there(self, count: int) -> None:
        for _ in range(count):
            self.begin(None)

    @precondition(lambda self: len(self.clients) < 4)
    @rule(instance_id=st.sampled_from([None, None, "i"]))
    def begin(self, instance_id: str | None) -> None:
        client = Client(instance_id)
        self.clients.append(client)
        self.join(client)
        self.all_listen()

    @precondition(lambda self: any(client.is_idle for client in self.clients))
    @rule(data=st.data())
    def one_goes_on(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from([client for client in self.clients if client.is_idle]))
        self.go_on(client, data.draw(st.permutations(PARTITIONS)))
        self.all_listen()

    @precondition(lambda self: any(client.is_idle for client in self.clients))
    @rule(order=st.permutations(PARTITIONS))
    def all_go_on(self, order: list[int]) -> None:
        """Each client does what is next, a second later."""
        for client in self.clients:
            if client.is_idle:
                self.go_on(client, order)
        self.cluster.advance(1_000)
        self.all_listen()

    def go_on(self, client: Client, order: list[int]) -> None:
        """What a client does next: join, sync, or beat."""
        if client.joined is None:
            self.join(client)
        elif client.owned is None:
            # Only the leader is told who is there.
            members = [member.member_id for member in client.joined.members]
            assignments = {member: bytes(order[at :: len(members)]) for at, member in enumerate(members)}
            client.syncing = self.cluster.sync(client.joined, assignments, instance=client.instance_id)
        else:
            code = self.cluster.heartbeat(client.joined, instance=client.instance_id)
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                self.join(client)
            elif code:
                client.forget()

    @precondition(lambda self: any(client.owned for client in self.clients))
    @rule(data=st.data(), advance=st.integers(0, 3), arrives=st.booleans())
    def commit(self, data: st.DataObject, advance: int, arrives: bool) -> None:
        client = data.draw(st.sampled_from([client for client in self.clients if client.owned]))
        assert client.owned is not None
        partition = data.draw(st.sampled_from(sorted(client.owned)))
        offset = self.committed.get(partition, 0) + advance
        reply = self.cluster.commit(
            offset, partition=partition, generation=client.joined.generation_id, member=client.member_id
        )
        if reply.value == ErrorCode.NONE:
            assert client.joined.generation_id == self.newest, "a member of a generation that is over commits"
            self.committed[partition] = offset
        elif reply.value != ErrorCode.REBALANCE_IN_PROGRESS and arrives:
            client.forget()

    @precondition(lambda self: any(client.member_id and client.is_idle for client in self.clients))
    @rule(data=st.data(), does=seldom)
    def leave(self, data: st.DataObject, does: bool) -> None:
        if not does:
            return
        there = [client for client in self.clients if client.member_id and client.is_idle]
        client = data.draw(st.sampled_from(there))
        self.cluster.leave((client.member_id, client.instance_id))
        self.clients.remove(client)
        self.all_listen()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), does=seldom)
    def die(self, data: st.DataObject, does: bool) -> None:
        """A client is gone without a word; what is sent to it is lost."""
        if does:
            self.clients.remove(data.draw(st.sampled_from(self.clients)))

    @precondition(lambda self: any(client.owned for client in self.clients))
    @rule(data=st.data())
    def lose_an_answer(self, data: st.DataObject) -> None:
        """A client joins and does not get the answer, while the others go on."""
        client = data.draw(st.sampled_from([client for client in self.clients if client.owned]))
        self.cluster.join(
            member=client.member_id,
            instance=client.instance_id,
            session_ms=SESSION_MS,
            rebalance_ms=20_000,
            can_skip=False,
        )
        self.all_listen()
        for _ in range(3):
            for other in self.clients:
                if other is not client and other.is_idle:
                    self.go_on(other, list(PARTITIONS))
            self.all_listen()

    @rule(seconds=st.sampled_from([1, 1, 1, 5, 11, 25]))
    def pass_time(self, seconds: int) -> None:
        self.cluster.advance(seconds * 1000)
        self.all_listen()

    @rule(does=seldom)
    def another_coordinator(self, does: bool) -> None:
        if does:
            self.cluster.restart()
            self.all_listen()
            # A generation whose assignment was not stored never was.
            stored = [value for _, value in self.cluster.records() if isinstance(value, GroupMetadataValue)]
            self.newest = stored[-1].generation if stored else 0

    # --- what holds

    @invariant()
    def offsets_are_those_that_were_committed(self) -> None:
        found = {partition: offset for (_, partition), offset in self.cluster.offsets().items()}
        assert found == self.committed

    @invariant()
    def nobody_waits_in_a_group_that_has_settled(self) -> None:
        if self.cluster.state() in ("Stable", "Empty", None):
            assert all(client.syncing is None for client in self.clients)


TestClassicGroups = ClassicGroupsModel.TestCase
TestClassicGroups.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
