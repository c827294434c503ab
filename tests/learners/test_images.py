"""Policies that observe images: learned by convolutions, the same wherever they run, and refused elsewhere."""

import dataclasses
import functools
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation, RescaleObservation

import psyco
from psyco import runtime
from psyco._src.core.errors import DomainError, RunError
from psyco._src.envs.actions import Continuous, Discrete
from psyco._src.envs.images import Image, image_of, image_problem
from psyco._src.policies.c_export import c_files
from psyco._src.policies.image_network import ImageNetwork, default_network_for, image_network_for
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import policy_for
from psyco._src.rollout.episodes import episode_keys
from psyco._src.rollout.record import record_episodes
from tests.environments import PicturedWalk
from tests.making import prepared, stopped_and_resumed

INSIDE = "P>=0.5 [ G !terminated ]"
QUICK = psyco.Settings(hidden=8, learner=psyco.PPO(critic_hidden=8), candidates=1, max_episodes=20)
SHAPES = [(20, 24), (20, 24, 3), (2, 40, 60), (96, 96, 12)]


def image_network(shape: tuple[int, ...], outputs: int = 2, **others) -> ImageNetwork:
    strides = (4, 2) if min(Image(shape, 255.0).sides[:2]) >= 24 else (4,)
    filters = (5, 3)[: len(strides)]
    inputs = int(np.prod(shape))
    return ImageNetwork(
        inputs, outputs, 6, "learned", image=shape, filters=filters, strides=strides, **({"highest": 255.0} | others)
    )


def random_parameters(network: ImageNetwork, *rows: int):
    return np.random.default_rng(0).normal(size=(*rows, network.size), scale=0.3).astype(np.float32)


def random_images(network: ImageNetwork, count: int):
    return np.random.default_rng(1).integers(0, 256, (count, network.inputs)).astype(np.float32)


def by_definition(network: ImageNetwork, theta, x):
    """Scores of one image by the sums of its convolutions, in float64."""
    picture = x.astype(np.float64).reshape(network.image) / network.highest
    if picture.ndim == 2:
        picture = picture[None]
    elif picture.shape[0] > 12:
        picture = np.moveaxis(picture, -1, 0)
    for (kernel, bias), s in zip(network.kernels(theta), network.strides, strict=True):
        height, width = (picture.shape[axis] // s - 1 for axis in (1, 2))
        rows = [
            [
                np.sum(kernel * picture[:, i * s : (i + 2) * s, j * s : (j + 2) * s], axis=(1, 2, 3))
                for j in range(width)
            ]
            for i in range(height)
        ]
        picture = np.maximum(np.moveaxis(np.array(rows), -1, 0) + bias[:, None, None], 0.0)
    w1, w2, b1, b2 = network.head.unflatten(network.head_parameters(theta).astype(np.float64))
    return w2 @ np.maximum(np.moveaxis(picture, 0, -1).ravel() @ w1 + b1, 0.0) + b2


@pytest.mark.parametrize("shape", SHAPES)
def test_scores_are_those_of_the_definition_compiled_and_in_numpy(shape: tuple[int, ...]) -> None:
    network = image_network(shape)
    theta, x = random_parameters(network, 3), random_images(network, 3)
    wanted = np.array([by_definition(network, *each) for each in zip(theta, x, strict=True)])
    bound = 1e-5 * np.abs(wanted).max()
    ours = network.numpy_scores(theta)(x)
    np.testing.assert_allclose(ours, wanted, rtol=0, atol=bound)
    compiled = jax.vmap(network.scores)(jnp.asarray(theta), jnp.asarray(x, jnp.uint8))
    np.testing.assert_allclose(compiled, wanted, rtol=0, atol=bound)
    # A row does not see its neighbours, and a batch with common parameters does not see their number.
    for i in range(3):
        np.testing.assert_array_equal(network.numpy_scores(theta[i : i + 1])(x[i : i + 1])[0], ours[i])
    together = network.numpy_scores(theta[:1])(x)
    alone = [network.numpy_scores(theta[:1])(row[None])[0] for row in x]
    np.testing.assert_array_equal(together, alone)


@pytest.mark.slow
def test_ppo_learns_from_pictures() -> None:
    domain = psyco.make(PicturedWalk, horizon=30)
    settings = psyco.Settings(hidden=16, candidates=1, verify_every=0, max_episodes=60)
    found = psyco.synthesize(domain, INSIDE, settings=settings, episodes=400)
    assert isinstance(found.policy.network, ImageNetwork)
    random = network_for(domain, hidden=4)
    paths = record_episodes(domain, policy_for(domain, random, np.zeros(random.size)), seed=0, count=40)
    assert np.mean([len(path["step"]) - 1 for path in paths]) < 20  # one action, whatever it sees
    assert found.certificate.mean_return > 28 and found.certificate.verdict == psyco.Verdict.SATISFIED


def test_critics_may_see_the_image_alone() -> None:
    # So strong a discount that episodes count as endless: the time that is left is no input.
    settings = psyco.Settings(hidden=8, learner=psyco.PPO(critic_hidden=8, discount=0.5), max_episodes=20)
    found = psyco.synthesize(psyco.make(PicturedWalk, horizon=11), INSIDE, settings=settings, episodes=20)
    assert isinstance(found.policy.network, ImageNetwork) and np.isfinite(found.policy.theta).all()


def test_a_file_acts_with_numpy_on_images_as_they_are(tmp_path: Path) -> None:
    domain = psyco.make(PicturedWalk, horizon=11)
    network = image_network_for(domain, hidden=4, bias="learned")
    made = policy_for(domain, network, 3 * random_parameters(network))
    made.save(tmp_path / "policy")
    policy = runtime.load_policy(tmp_path / "policy")
    assert policy.digest == made.digest and policy.network == network and "16x24" in repr(policy)
    together = record_episodes(domain, policy, seed=0, count=5)
    assert len({len(path["step"]) for path in together}) > 1  # some end early, and rows move up
    assert len({action for path in together for action in path["action"]}) > 1
    for i, path in enumerate(together):
        (alone,) = record_episodes(domain, policy, seed=0, first=i, count=1)
        assert {name: values.tobytes() for name, values in path.items()} == {
            name: values.tobytes() for name, values in alone.items()
        }
        pictures = path["obs"].reshape(-1, 16, 24).astype(np.uint8)
        chosen = path["action"][1:].tolist()
        assert [int(policy(picture)) for picture in pictures[:-1]] == policy(pictures)[:-1].tolist() == chosen
        assert policy(path["obs"])[:-1].tolist() == chosen
    with pytest.raises(RunError, match=r"takes images of shape \(16, 24\), or 384 numbers"):
        policy(pictures[0].T)
    turned = psyco.make(functools.partial(Turned, PicturedWalk), horizon=11)
    with pytest.raises(RunError, match=r"images of shape \(16, 24\) .*; .* has images of shape \(24, 16\)"):
        policy.check(turned)
    # It divides pixels by 255, so of these it would see nothing.
    scaled = psyco.make(lambda: RescaleObservation(PicturedWalk(), 0.0, 1.0), horizon=11)
    with pytest.raises(RunError, match=r"with values from 0 to 255; .* \(16, 24\) with values from 0 to 1"):
        policy.check(scaled)


class Turned(gymnasium.ObservationWrapper):
    """An environment whose pictures are transposed."""

    def __init__(self, make) -> None:
        super().__init__(make())
        box = self.env.observation_space
        self.observation_space = spaces.Box(0, 255, box.shape[::-1], box.dtype)

    def observation(self, observation):
        return observation.T


@pytest.mark.extra("onnx", "onnxruntime")
@pytest.mark.parametrize("actions", [Continuous((-1.0, 0.0), (1.0, 5.0)), Discrete(3)])
@pytest.mark.parametrize("shape", SHAPES[:3])
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_an_onnx_file_has_the_convolutions(actions, shape, memory: str, tmp_path: Path) -> None:
    import onnxruntime

    network = image_network(shape, actions.outputs, memory=memory)
    policy = psyco.Policy(random_parameters(network), network, actions, "somewhere", {})
    assert psyco.export(policy, tmp_path / "p.onnx") <= 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "p.onnx")
    act = policy.begin().act if memory == "gru" else policy
    given = {"memory": np.zeros((1, 6), np.float32)} if memory == "gru" else {}
    for x in random_images(network, 5):
        action, *after = session.run(None, {"observation": x[None], **given})
        np.testing.assert_allclose(action[0], act(x.reshape(shape)), rtol=0, atol=1e-5)
        given = dict(zip(given, after, strict=True))


@pytest.mark.extra("onnx", "onnxruntime")
def test_an_onnx_file_of_images_is_verified_as_the_policy_is(tmp_path: Path) -> None:
    domain = psyco.make(PicturedWalk, horizon=11)
    network = image_network_for(domain, hidden=4, bias="learned")
    policy = policy_for(domain, network, 3 * random_parameters(network))
    psyco.export(policy, tmp_path / "p.onnx")
    ours, theirs = (psyco.verify(each, domain, INSIDE, max_episodes=70) for each in (policy, tmp_path / "p.onnx"))
    assert (ours.mean_return, ours.verdict) == (theirs.mean_return, theirs.verdict)


@pytest.mark.more
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_a_run_resumes_to_the_same_bytes_on_any_number_of_workers(memory: str, tmp_path: Path) -> None:
    settings = dataclasses.replace(QUICK, memory=memory)
    domain = psyco.make(PicturedWalk, horizon=11)
    whole = psyco.synthesize(domain, INSIDE, settings=settings, episodes=60)
    assert whole.policy.network.memory == memory
    pool = psyco.synthesize(domain, INSIDE, settings=settings, episodes=60, execution=psyco.Execution(workers=2))
    assert pool.policy.digest == whole.policy.digest
    resumed = stopped_and_resumed(
        domain, INSIDE, tmp_path, settings=settings, episodes=60, trust=["tests.environments:PicturedWalk"]
    )
    assert resumed.policy.digest == whole.policy.digest


def some_policy(domain):
    network = image_network_for(domain, hidden=4, bias="learned")
    return policy_for(domain, network, 3 * random_parameters(network))


@pytest.mark.slow
def test_a_warm_start_continues_with_the_convolutions() -> None:
    domain = psyco.make(PicturedWalk, horizon=11)
    policy, settings = some_policy(domain), psyco.Settings(learner="ppo", candidates=1, max_episodes=20)
    found = psyco.synthesize(domain, INSIDE, settings=settings, episodes=20, start_from=policy)
    assert found.policy.network == policy.network
    with pytest.raises(RunError, match="encoder = 'dense' does not fit the policy to start from"):
        psyco.synthesize(domain, INSIDE, settings=psyco.Settings(encoder="dense"), start_from=policy)


def test_images_are_kept_as_bytes_and_judged_as_numbers() -> None:
    domain = psyco.make(PicturedWalk, horizon=11)
    # 0 - 255 is not the byte 1.
    problem = prepared(domain, "P>=0.5 [ G (0 - obs[12] <= 0) ]", hidden=4, episodes=40)
    learner = problem.learner
    proposal = learner.propose(jax.random.key(1), learner.init(problem.network.init(jax.random.key(0))))
    keys = episode_keys(jax.random.key(2), 0, learner.episodes_per_generation)
    episodes = problem.sampler.explore(proposal.theta, proposal.std, keys)
    assert episodes.trace.obs.dtype == episodes.trace.final_obs.dtype == np.uint8
    assert episodes.trace.obs.max() == 255 and episodes.satisfied.all() and not episodes.cost.any()
    for learner_of_numbers in ("sac", "safe-es"):
        other = prepared(domain, INSIDE, hidden=4, episodes=40, learner=learner_of_numbers)
        assert not isinstance(other.network, ImageNetwork)
    trace = other.sampler.explore(np.zeros((1, other.network.size)), np.ones((1, 2)), keys[:1]).trace
    assert trace.obs.dtype == np.float32
    (path,) = record_episodes(domain, some_policy(domain), seed=0, count=1)
    assert path["obs"].dtype == np.float32 and path["obs"].max() == 255


class Bytes(PicturedWalk):
    """A picture whose values leave the range that its space states."""

    def _observe(self):
        return 2 * super()._observe().astype(np.int64)


def test_values_beyond_bytes_are_kept() -> None:
    (path,) = record_episodes(psyco.make(Bytes, horizon=3), some_policy(psyco.make(Bytes, horizon=3)), seed=0, count=1)
    assert path["obs"].max() == 510


@pytest.mark.parametrize(
    ("shape", "sides", "axes"),
    [
        ((40, 60), (40, 60, 1), (0, 1)),
        ((96, 16, 12), (96, 16, 12), (0, 1, 2)),
        ((4, 84, 84), (84, 84, 4), (1, 2, 0)),
    ],
)
def test_channels_are_the_short_axis(shape, sides, axes) -> None:
    image = image_of(spaces.Box(0, 255, shape, np.uint8))
    assert (image.sides, image.axes, image.highest) == (sides, axes, 255.0)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Box(0, 255, (96, 97, 3), np.uint8), "more than 96 pixels on a side: .*ResizeObservation"),
        (spaces.Box(0, 255, (4, 64, 64, 3), np.uint8), "four axes: make frames grey .*GrayscaleObservation"),
        (spaces.Box(0, 255, (7, 7, 3), np.uint8), "not two sides of 16 to 96 pixels"),
        (spaces.Box(0, 255, (16, 16, 16), np.uint8), "at most 12 channels .*stack fewer frames"),
        (spaces.Box(0, 255, (64, 3, 64), np.uint8), "transpose .*TransformObservation"),
        (spaces.Box(-1.0, 1.0, (64, 64)), "not from 0 to 255 or from 0 to 1"),
        (spaces.Box(0.0, np.float32([[1.0, 2.0]] * 16).repeat(8, 1), (16, 16)), "not from 0 to 255"),
        (spaces.Box(0.0, 1.0, (64,)), "a Box of shape"),
        (spaces.Discrete(3), "a Box of shape"),
    ],
)
def test_other_observations_are_no_images_and_the_reason_has_a_remedy(space, words: str) -> None:
    assert image_of(space) is None
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(image_problem(space))


class Large(PicturedWalk):
    """A walk whose picture is larger than convolutions read."""

    observation_space = spaces.Box(0, 255, (120, 160, 3), np.uint8)

    def _observe(self):
        return np.zeros((120, 160, 3), np.uint8)


def test_images_that_are_too_large_are_refused_and_their_episodes_run_otherwise() -> None:
    with pytest.raises(DomainError, match=r"57,600 numbers.* up to 96 x 96 pixels, but its shape .*ResizeObservation"):
        prepared(psyco.make(Large, horizon=5), INSIDE, learner="ppo")
    middle = psyco.make(functools.partial(Resized, Large), horizon=5)
    assert prepared(middle, INSIDE, learner="ppo", episodes=20).network.image == (64, 96, 3)
    with pytest.raises(DomainError, match=r"at most 4,096 inputs.* Use ppo and encoder='auto'"):
        prepared(middle, INSIDE, learner="safe-es")
    with pytest.raises(DomainError, match="though not from demonstrations"):
        psyco.synthesize(middle, INSIDE, settings=QUICK, episodes=20, start_from=lambda x: 0)
    found = psyco.verify(lambda x: 0, psyco.make(Large, horizon=5), INSIDE, max_episodes=20)
    assert found.mean_return > 4


class Resized(gymnasium.ObservationWrapper):
    """A picture of a part of another one."""

    def __init__(self, make) -> None:
        super().__init__(make())
        self.observation_space = spaces.Box(0.0, 1.0, (64, 96, 3))

    def observation(self, observation):
        return (observation[:64, :96] / 255.0).astype(np.float32)


@pytest.mark.parametrize("learner", ["safe-es", "snes", "sac"])
def test_learners_without_convolutions_say_so(learner: str) -> None:
    with pytest.raises(RunError, match=f"{learner} learns networks without convolutions; encoder='conv' needs ppo"):
        prepared(psyco.make(PicturedWalk, horizon=5), INSIDE, encoder="conv", learner=learner)


def test_what_images_do_not_fit_is_refused() -> None:
    domain = psyco.make(PicturedWalk, horizon=5)
    with pytest.raises(DomainError, match="no images for encoder='conv': an image is a Box"):
        prepared(psyco.make("CartPole-v1"), "P>=0.5 [ G (step >= 0) ]", encoder="conv", learner="ppo")
    with pytest.raises(DomainError, match="no images for encoder='conv'"):
        prepared(psyco.make("particle-dance"), "P>=0.5 [ G (step >= 0) ]", encoder="conv", learner="ppo")
    with pytest.raises(RunError, match="images are scaled by the largest value of a pixel"):
        prepared(domain, INSIDE, normalization="running")
    with pytest.raises(RunError, match="learned biases"):
        prepared(domain, INSIDE, learner="ppo", encoder="conv", bias="one")
    with pytest.raises(RunError, match=r"no convolutions, and .* has 2; leave out encoder"):
        prepared(psyco.make("particle-dance", agents=2), "P>=0.5 [ G (step >= 0) ]", encoder="conv", learner="ppo")
    with pytest.raises(RunError, match="a policy that observes images is not exported as C"):
        c_files(some_policy(domain))
    assert not isinstance(prepared(domain, INSIDE, encoder="dense", learner="ppo").network, ImageNetwork)


def test_stacked_frames_and_their_order_of_axes() -> None:
    domain = psyco.make(lambda: FrameStackObservation(PicturedWalk(), 2), horizon=5)
    network = default_network_for(domain)
    assert network.image == (2, 16, 24) and network.maps[0] == (16, 24, 2)
    (path,) = record_episodes(domain, policy_for(domain, network, random_parameters(network)), seed=0, count=1)
    first, second = path["obs"].reshape(-1, 2, 16, 24)[1]
    np.testing.assert_array_equal(first, path["obs"].reshape(-1, 2, 16, 24)[0, 1])
    assert (first != second).any()


@pytest.mark.parametrize(
    "changes",
    [
        {"image": (20, 25)},
        {"image": (20,)},
        {"filters": (5, 3)},
        {"strides": (11,)},
        {"filters": ()},
        {"filters": (10**6,)},
        {"highest": 0.0},
        {"highest": float("nan")},
        {"strides": (0,)},
        {"bias": "one"},
    ],
)
def test_damaged_descriptions_of_convolutions_are_refused(changes) -> None:
    own = {"image": (20, 24), "filters": (5,), "strides": (4,), "bias": "learned"} | changes
    with pytest.raises(RunError):
        ImageNetwork(480, 2, 6, **own)
