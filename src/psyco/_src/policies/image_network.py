"""Policies that observe images: convolutions, and the policy network on their features, over one vector of parameters.

`psyco.runtime` evaluates them with NumPy, so the same few lines run there and in compiled code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.checks import check_count
from psyco._src.core.errors import DomainError, RunError
from psyco._src.envs.images import MAX_SIDE, Image, image_problem
from psyco._src.policies.network import Bias, Hidden, Network, Rows, network_for

if TYPE_CHECKING:
    from jax import Array

    from psyco._src.envs.base import Domain

ENCODERS = ("auto", "dense", "conv")
FILTERS, STRIDES = (16, 32, 32), (4, 2, 2)  # of the convolutions, as far as they leave 2 x 2 places
MAX_FILTERS = 256


@dataclass(frozen=True)
class ImageNetwork(Network):
    """Convolutions with relu, and a `Network` whose inputs are the last one's outputs.

    A convolution with stride s has a kernel of 2s x 2s pixels and no padding. The image is cut into blocks of s x s
    pixels; an output is the sum of products with four neighbouring blocks. So a convolution is a matrix product, and
    rows and columns that do not fill a block are left out.
    """

    image: tuple[int, ...] = ()  # shape of an observation: [H, W], [H, W, C] or [C, H, W]
    highest: float = 255.0  # value of a pixel, by which it is divided
    filters: tuple[int, ...] = ()  # of each convolution
    strides: tuple[int, ...] = ()

    encoder: ClassVar[str] = "conv"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("image", "filters", "strides"):
            object.__setattr__(self, name, tuple(check_count(name, each) for each in getattr(self, name)))
        if self.one_hot or self.masked or self.scale or self.bias != "learned":
            raise RunError("a policy that observes images has learned biases, and no one-hot codes, mask or scale")
        fits = len(self.image) in (2, 3) and math.prod(self.image) == self.inputs and 0.0 < self.highest < math.inf
        if not fits or max(self.image) > MAX_SIDE or max(self.filters, default=0) > MAX_FILTERS:
            raise RunError(
                f"an image of shape {self.image} does not fit {self.inputs} inputs, or {self.filters} filters"
            )
        if len(self.filters) != len(self.strides) or not self.filters or min(self.maps[-1]) < 1:
            raise RunError(f"convolutions with strides {self.strides} leave nothing of an image of shape {self.image}")

    @property
    def observes(self) -> Image:
        """The image that an observation is."""
        return Image(self.image, self.highest)

    @cached_property
    def maps(self) -> list[tuple[int, int, int]]:
        """Height, width and channels of the image, and of the output of each convolution."""
        found = [self.observes.sides]
        for filters, stride in zip(self.filters, self.strides, strict=True):
            height, width, _ = found[-1]
            found.append((height // stride - 1, width // stride - 1, filters))
        return found

    @cached_property
    def _head(self) -> Network:
        return Network(math.prod(self.maps[-1]), self.outputs, self.hidden, self.bias, memory=self.memory)

    @property
    def head(self) -> Network:
        """The network from the outputs of the last convolution to scores."""
        return self._head

    @property
    def encoder_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the weights `[s s channels, 4 filters]` and the biases of each convolution in turn."""
        found: list[tuple[int, ...]] = []
        for (_, _, channels), filters, stride in zip(self.maps, self.filters, self.strides, strict=False):
            found += [(stride * stride * channels, 4 * filters), (filters,)]
        return tuple(found)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the parameters: those of the convolutions, and of the network after them."""
        return self.encoder_shapes + self.head.shapes

    def init(self, key: Array) -> Array:
        """Return random parameters `[D]`; those of convolutions keep the variance of their inputs (He et al. 2015)."""
        import jax
        import jax.numpy as jnp

        own, rest = jax.random.split(key)
        limits = [
            np.full(math.prod(shape), math.sqrt(6.0 / (4 * shape[0])) if len(shape) == 2 else 0.0, np.float32)
            for shape in self.encoder_shapes
        ]
        drawn = jax.random.uniform(own, (sum(map(len, limits)),), np.float32, -1.0, 1.0)
        return jnp.concatenate([drawn * np.concatenate(limits), self.head.init(rest)])

    def head_parameters(self, theta: Any) -> Any:
        """Return the parameters `[..., D']` of `head`."""
        return theta[..., self.size - self.head.size :]

    def encode(self, theta: Any, x: Any) -> Any:
        """Return the outputs `[..., features]` of the convolutions for observations `[..., inputs]`.

        With JAX for parameters `[D]`; with NumPy also for `[B, D]` or `[1, D]`, and observations `[B, inputs]`.
        """
        return self._convolve(self.unflatten(theta), x)

    def _convolve(self, layers: list[Any], x: Any) -> Any:
        relu, leading, image = _relu_for(x), x.shape[:-1], self.observes
        x = x.reshape(*leading, *self.image).transpose(
            *range(len(leading)), *(len(leading) + axis for axis in image.axes)
        )
        x = x.reshape(*leading, *self.maps[0])
        if x.dtype == np.uint8:
            x = x.astype(np.float32)
        x = x / np.float32(self.highest)
        for k, stride in enumerate(self.strides):
            height, width, filters = self.maps[k + 1]
            weight, bias = layers[2 * k : 2 * k + 2]
            x = x[..., : (height + 1) * stride, : (width + 1) * stride, :]
            x = x.reshape(*leading, height + 1, stride, width + 1, stride, x.shape[-1]).swapaxes(-4, -3)
            x = x.reshape(*leading, (height + 1) * (width + 1), weight.shape[-2]) @ weight
            x = x.reshape(*leading, height + 1, width + 1, 4, filters)
            corners = (x[..., i : i + height, j : j + width, 2 * i + j, :] for i in (0, 1) for j in (0, 1))
            x = relu(sum(corners, start=bias[..., None, None, :]))
        return x.reshape(*leading, -1)

    def kernels(self, theta: NDArray[np.float32]) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Return kernels `[filters, channels, 2s, 2s]` and biases of the convolutions, for parameters `[D]`."""
        layers, found = self.unflatten(theta), []
        for k, (stride, filters) in enumerate(zip(self.strides, self.filters, strict=True)):
            # [row in block, column in block, channel, block row, block column, filter]
            weight = layers[2 * k].reshape(stride, stride, -1, 2, 2, filters)
            kernel = weight.transpose(5, 2, 3, 0, 4, 1).reshape(filters, -1, 2 * stride, 2 * stride)
            found.append((kernel, layers[2 * k + 1]))
        return found

    def scores_and_memory(self, layers: list[Array], x: Array, memory: Any) -> tuple[Array, Any]:
        """Return the scores `[outputs]` for an observation `[inputs]`, and the memory after it."""
        own = len(self.encoder_shapes)
        return self.head.scores_and_memory(layers[own:], self._convolve(layers[:own], x), memory)

    def numpy_scores(self, theta: Rows) -> Callable[..., Rows]:
        """Return `scores` in NumPy, `[B, inputs] -> [B, outputs]`, for parameters `[B, D]` or `[1, D]`."""
        layers, scores = self.unflatten(theta), self.head.numpy_scores(self.head_parameters(theta))

        def encoded_scores(x: Rows, *memory: Rows) -> Rows:
            return scores(self._convolve(layers, x), *memory)

        return encoded_scores

    def weights_and_biases(self, theta: Any) -> list[tuple[Any, Any]]:
        """Return weights and biases of the layers after the convolutions, for parameters `[..., D]`."""
        return self.head.weights_and_biases(self.head_parameters(theta))

    def recurrent_weights(self, theta: Any) -> Any:
        """Return U `[..., units, 3 units]` of a memory, for parameters `[..., D]`."""
        return self.head.recurrent_weights(self.head_parameters(theta))


def _relu_for(x: Any) -> Callable[[Any], Any]:
    """Return relu in the library of an array."""
    if isinstance(x, np.ndarray):
        return lambda y: np.maximum(y, 0, out=y)
    import jax

    return jax.nn.relu


def default_network_for(domain: Domain, *, hidden: Hidden = 32) -> Network:
    """Return a network that can act in a domain, whatever it observes; of images one with convolutions."""
    if getattr(domain, "image", None) is None:
        return network_for(domain, hidden=hidden)
    return image_network_for(domain, hidden=hidden, bias="learned")


def image_network_for(domain: Domain, *, hidden: Hidden, bias: Bias, memory: str = "none") -> ImageNetwork:
    """Return the network of a domain with image observations.

    Args:
        domain: where it will act.
        hidden: units of the hidden layer, or of each of several, after the convolutions.
        bias: learned.
        memory: none, or gru.
    """
    image: Image | None = getattr(domain, "image", None)
    if image is None:
        problem = image_problem(getattr(domain, "observation_space", None))
        raise DomainError(f"{domain.name} has no images for encoder='conv': {problem}")
    if bias == "one":
        raise RunError("a policy that observes images has learned biases: leave out bias")
    count, (height, width, _) = 0, image.sides
    for stride in STRIDES:
        height, width = height // stride - 1, width // stride - 1
        if count and min(height, width) < 2:
            break
        count += 1
    return ImageNetwork(
        math.prod(image.shape), domain.actions.outputs, hidden, bias, memory=memory, image=image.shape,
        highest=image.highest, filters=FILTERS[:count], strides=STRIDES[:count],
    )  # fmt: skip
