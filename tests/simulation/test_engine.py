"""The model of one engine."""

from router.simulation.engine import BLOCK_TOKENS, Engine, Hardware, Request


def request(*blocks: int, output_tokens: int = 1) -> Request:
    return Request(0.0, len(blocks) * BLOCK_TOKENS, output_tokens, blocks, anchor=1, session=1)


def compute(engine: Engine, asked: Request) -> float:
    """Run one request alone; how long its prefill took."""
    engine.queue.append(asked)
    started = engine.start()
    assert started is not None
    engine.first_token(asked)
    engine.finish(asked)
    return started[1]


def test_a_prompt_seen_before_costs_almost_nothing():
    engine = Engine(Hardware())
    cold, warm = compute(engine, request(1, 2, 3)), compute(engine, request(1, 2, 3))
    assert warm < cold / 100


def test_the_tail_of_a_prompt_is_evicted_before_its_root():
    engine = Engine(Hardware(cache_blocks=6))
    compute(engine, request(1, 2, 3, 4))
    compute(engine, request(7, 8, 9))
    assert engine.cached_blocks((1, 2, 3, 4)) == 2
    assert engine.cached_blocks((7, 8, 9)) == 3


def test_a_request_waits_until_its_blocks_fit():
    engine = Engine(Hardware(cache_blocks=6))
    first, second = request(1, 2, 3, 4), request(5, 6, 7)
    engine.queue.extend([first, second])
    assert engine.start() is not None
    engine.first_token(first)
    assert engine.start() is None
    engine.finish(first)
    assert engine.start() is not None


def test_only_as_many_requests_run_as_there_are_slots():
    engine = Engine(Hardware(slots=1))
    one, two = request(1), request(2)
    engine.queue.extend([one, two])
    engine.start()
    engine.first_token(one)
    assert engine.start() is None
    engine.finish(one)
    assert engine.start() is not None


def test_a_decode_batch_slows_prefill_and_long_contexts_cost_more_than_their_length():
    hardware = Hardware()
    assert hardware.prefill_s(1000, 0, 64) > 1.2 * hardware.prefill_s(1000, 0, 0)
    assert hardware.prefill_s(100_000, 0, 0) > 1.5 * 10 * hardware.prefill_s(10_000, 0, 0)


def test_a_running_request_cannot_lose_its_blocks():
    engine = Engine(Hardware(cache_blocks=8))
    running = request(1, 2, 3)
    engine.queue.append(running)
    engine.start()
    engine.first_token(running)
    for number in range(10, 40, 10):
        compute(engine, request(number, number + 1))
    assert engine.cached_blocks((1, 2, 3)) == 3
