"""A hash of a domain's code notices changes of the simulator."""

from functools import partial

import psyco
from psyco._src.core.provenance import code_digest
from tests.environments import Walk


def cut(env):
    return env


def test_parameters_do_not_change_the_code():
    digests = {code_digest(psyco.make("obstacle-run", grid=grid)) for grid in (4, 5)}
    assert len(digests) == 1 and None not in digests
    assert digests != {code_digest(psyco.make("particle-dance"))}


def test_an_environment_is_its_class_with_wrappers_and_signals():
    plain = psyco.make(Walk, horizon=5)
    assert code_digest(plain) == code_digest(psyco.make(lambda: Walk(), horizon=5))
    assert code_digest(plain) != code_digest(psyco.make(Walk, horizon=5, wrappers=[cut]))
    assert code_digest(plain) != code_digest(psyco.make(Walk, horizon=5, signals={"x": lambda observation, info: 1.0}))


def test_code_that_cannot_be_found_has_no_hash():
    assert code_digest(psyco.make(Walk, horizon=5, wrappers=[partial(cut)])) is None
