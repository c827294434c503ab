"""The tabular learner on small discrete environments: the exact value of its policies beside the optimum."""

from __future__ import annotations

import time
from functools import cache
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

import psyco

RETURN = "Rmax=? [ C ]"
GOAL = "P>=0.7 [ F obs[15] = 1 ] & C>=0.95"
TAXI = "Taxi-v4" if "Taxi-v4" in gymnasium.registry else "Taxi-v3"
SEEDS = (0, 1, 2)


class Task(NamedTuple):
    """An environment and a budget."""

    name: str
    horizon: int
    episodes: int
    requirement: str = RETURN


TASKS = (
    Task("FrozenLake-v1", 100, 4_000),
    Task("FrozenLake-v1", 100, 20_000, GOAL),
    Task("CliffWalking-v1", 200, 1_000),
    Task(TAXI, 200, 3_000),
    Task("Blackjack-v1", 20, 400_000),
)


class FiniteModel(NamedTuple):
    """The environment as arrays over S states and A actions."""

    start: NDArray[np.float64]  # [S]
    to: NDArray[np.float64]  # [S, A, S]; what is missing to 1 ends the episode
    reward: NDArray[np.float64]  # [S, A]
    observations: list[Any]  # [S]

    def optimum(self, steps: int) -> float:
        """Return the best expected return of an episode, also by policies that know the time."""
        value = np.zeros(len(self.start))
        for _ in range(steps):
            value = (self.reward + self.to @ value).max(axis=1)
        return float(self.start @ value)

    def value(self, policy: psyco.Policy, steps: int) -> float:
        """Return the expected return of an episode of a policy."""
        rows, action = np.arange(len(self.start)), np.array([int(policy(each)) for each in self.observations])
        value = np.zeros(len(self.start))
        for _ in range(steps):
            value = self.reward[rows, action] + self.to[rows, action] @ value
        return float(self.start @ value)


def known_model(name: str) -> FiniteModel:
    """Return the model that an environment of Gymnasium states as `P`."""
    env: Any = gymnasium.make(name).unwrapped
    states, actions = len(env.P), len(env.P[0])
    to, reward = np.zeros((states, actions, states)), np.zeros((states, actions))
    for state, by_action in env.P.items():
        for action, outcomes in by_action.items():
            for p, after, gain, terminated in outcomes:
                reward[state, action] += p * gain
                to[state, action, after] += p * (not terminated)
    first = getattr(env, "initial_state_distrib", None)
    start = np.eye(states)[env.start_state_index] if first is None else np.asarray(first)
    return FiniteModel(start, to, reward, list(range(states)))


CARDS = {card: (4 if card == 10 else 1) / 13 for card in range(1, 11)}


def with_card(total: int, ace: bool, card: int) -> tuple[int, bool]:
    """Return a hand's total, and whether an ace counts as 11, after a further card."""
    hard = total - 10 * ace + card
    ace = (ace or card == 1) and hard + 10 <= 21
    return hard + 10 * ace, ace


@cache
def dealer_totals(total: int, ace: bool) -> dict[int, float]:
    """Return the probability of each total at which the dealer ends; 0: above 21."""
    if total >= 17:
        return {total if total <= 21 else 0: 1.0}
    found: dict[int, float] = {}
    for card, p in CARDS.items():
        for end, q in dealer_totals(*with_card(total, ace, card)).items():
            found[end] = found.get(end, 0.0) + p * q
    return found


def blackjack() -> FiniteModel:
    """Return the model of Blackjack-v1, where ace and ten are a state of their own: they win against other 21s."""
    plain = [(total, dealer, ace) for total in range(4, 22) for dealer in CARDS for ace in (False, True)]
    hands = [*((*hand, False) for hand in plain), *((21, dealer, True, True) for dealer in CARDS)]
    index = {hand: i for i, hand in enumerate(hands)}
    start, to, reward = np.zeros(len(hands)), np.zeros((len(hands), 2, len(hands))), np.zeros((len(hands), 2))
    for (total, dealer, ace, natural), i in index.items():
        ends = dealer_totals(*with_card(0, False, dealer))
        reward[i, 0] = sum(p * ((total > end) - (total < end)) for end, p in ends.items())
        if natural:
            reward[i, 0] = 1.0 - {1: CARDS[10], 10: CARDS[1]}.get(dealer, 0.0)
        for card, p in CARDS.items():
            after, soft = with_card(total, ace, card)
            if after > 21:
                reward[i, 1] -= p
            else:
                to[i, 1, index[after, dealer, soft, False]] += p
    for first, p in CARDS.items():
        for second, q in CARDS.items():
            total, ace = with_card(*with_card(0, False, first), second)
            for dealer, r in CARDS.items():
                start[index[total, dealer, ace, {first, second} == {1, 10}]] += p * q * r
    return FiniteModel(start, to, reward, [(total, dealer, int(ace)) for total, dealer, ace, _ in hands])


def main() -> None:
    print(f"  {'task':18}{'episodes':>9}{'optimum':>9}   exact value of seeds {SEEDS}, seconds of a run, certified")
    for task in TASKS:
        model = blackjack() if task.name.startswith("Blackjack") else known_model(task.name)
        optimum, values, seconds, certified = model.optimum(task.horizon), [], [], 0
        for seed in SEEDS:
            domain, began = psyco.make(task.name, horizon=task.horizon), time.process_time()
            result = psyco.synthesize(domain, task.requirement, episodes=task.episodes, seed=seed)
            seconds.append(time.process_time() - began)
            values.append(model.value(result.policy, task.horizon))
            certified += result.certificate.verdict is psyco.Verdict.SATISFIED
        shown = ", ".join(f"{value:.4f} ({(optimum - value) / abs(optimum):.1%})" for value in values)
        stated = f"   {certified} of {len(SEEDS)}" if task.requirement != RETURN else ""
        print(f"  {task.name:18}{task.episodes:9,}{optimum:9.4f}   {shown}   {max(seconds):.0f} s{stated}", flush=True)


if __name__ == "__main__":
    main()
