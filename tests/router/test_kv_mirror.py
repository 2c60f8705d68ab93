"""Mirrors of block caches: bounded, prefix-closed, and aware of what they regret."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.kv.mirror import MIN_CAPACITY_BLOCKS, Mirrors

BUDGET, CAPACITY = 40, 16
INSTANCES = st.integers(1, 4)
# A prompt is a path in a small tree: each block is the number of its path, so chains share what their paths share.
PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=8)


def chain(path: list[int]) -> tuple[int, ...]:
    hashes, block = [], 1
    for step in path:
        block = block * 4 + step + 1
        hashes.append(block)
    return tuple(hashes)


class MirrorMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.mirrors = Mirrors(BUDGET)
        self.present: set[int] = set()

    @rule(instance=INSTANCES)
    def joins(self, instance: int) -> None:
        self.mirrors.follow(instance, CAPACITY)
        self.present.add(instance)

    @rule(instance=INSTANCES)
    def leaves(self, instance: int) -> None:
        self.mirrors.forget(instance)
        self.present.discard(instance)
        assert self.mirrors.blocks(instance) == ()

    @rule(instance=INSTANCES, path=PATHS)
    def computes(self, instance: int, path: list[int]) -> None:
        if instance in self.present:
            self.mirrors.insert(instance, chain(path))
            [depth] = self.mirrors.match(chain(path), [instance])
            assert depth == min(len(path), self.mirrors.capacity_blocks(instance))

    @invariant()
    def it_is_bounded(self) -> None:
        assert len(self.mirrors) <= BUDGET
        assert self.mirrors.ghosts <= BUDGET
        assert all(len(self.mirrors.blocks(one)) <= self.mirrors.capacity_blocks(one) for one in self.present)

    @invariant()
    def it_is_prefix_closed_and_parents_outlive_children(self) -> None:
        for instance in self.present:
            blocks = self.mirrors.blocks(instance)
            order = {block: at for at, block in enumerate(blocks)}
            for block in blocks:
                parent = (block - 1) // 4
                assert parent == 1 or order[parent] > order[block]

    @invariant()
    def matches_are_what_a_walk_of_each_mirror_finds(self) -> None:
        present = sorted(self.present)
        for path in ([0] * 8, [1, 2, 0, 1], [2]):
            wanted = []
            for instance in present:
                held = set(self.mirrors.blocks(instance))
                wanted.append(next((at for at, block in enumerate(chain(path)) if block not in held), len(path)))
            assert self.mirrors.match(chain(path), present) == wanted


TestMirrors = MirrorMachine.TestCase
TestMirrors.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


def test_a_restarted_instance_starts_empty():
    """Pain 25: same address, another uid; the old mirror must not speak for it. Pain 17: the gone leave the index."""
    mirrors = Mirrors(1000)
    mirrors.follow(1, 100)
    mirrors.insert(1, chain([0, 1, 2]))
    mirrors.forget(1)
    mirrors.follow(2, 100)
    assert mirrors.match(chain([0, 1, 2]), [1, 2]) == [0, 0]
    assert len(mirrors) == 0


@given(st.integers(70, 120))
@settings(max_examples=10)
def test_regret_grows_only_when_the_evicted_come_back(prompts: int):
    mirrors = Mirrors(1000)
    mirrors.follow(1, MIN_CAPACITY_BLOCKS)
    for prompt in range(1000):
        mirrors.insert(1, (prompt,))
    assert mirrors.regret == 0.0
    for prompt in [*range(prompts)] * 10:
        mirrors.insert(1, (prompt,))
    assert mirrors.regret > 0.3


def test_an_eviction_is_not_regretted_while_another_holds_the_block():
    mirrors = Mirrors(1000)
    for instance in (1, 2):
        mirrors.follow(instance, 10)
        mirrors.insert(instance, (5,))
    mirrors.insert(1, tuple(range(100, 110)))
    assert 5 not in mirrors.blocks(1)
    assert mirrors.ghosts == 0


def test_the_believed_size_follows_evidence_within_bounds():
    mirrors = Mirrors(1000)
    mirrors.follow(1, 200)
    for _ in range(500):
        mirrors.scale_capacity(1, 0.98)
    assert mirrors.capacity_blocks(1) == MIN_CAPACITY_BLOCKS
    for _ in range(500):
        mirrors.scale_capacity(1, 1.02)
    assert mirrors.capacity_blocks(1) == 1000


def test_a_newcomer_takes_its_part_of_the_budget_from_all():
    """Pain 1: memory stays bounded however many instances and prompts come."""
    mirrors = Mirrors(100)
    mirrors.follow(1, 100)
    mirrors.insert(1, tuple(range(1000, 1100)))
    mirrors.follow(2, 100)
    assert Counter(len(mirrors.blocks(one)) for one in (1, 2)) == Counter({50: 1, 0: 1})


def test_a_newcomer_is_known_by_how_little_it_holds():
    mirrors = Mirrors(1000)
    for instance in (1, 2, 3):
        mirrors.follow(instance, 100)
    assert mirrors.fills([1, 2, 3]) == [1.0, 1.0, 1.0]
    mirrors.insert(1, tuple(range(100, 140)))
    mirrors.insert(2, tuple(range(200, 240)))
    mirrors.insert(3, (300,))
    full, other, new = mirrors.fills([1, 2, 3])
    assert full == other == 1.0
    assert 0.0 < new < 0.1
