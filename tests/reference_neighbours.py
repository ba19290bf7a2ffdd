"""The oracle of DAPO's neighbours: each paper's equation in plain Python loops, and its slope by hand.

No tensors and no code of the package. A grid is a list of rows of equal length; `mask` says which
tokens belong to the loss, and nothing outside it is ever read. Every objective comes as
(losses, gradient): the loss of each token, and d (sum of upstream * loss) / d log pi of each token,
derived by hand; `upstream` weighs the tokens apart, so a gradient that leaks to a neighbour shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

Grid = list[list[float]]
Mask = list[list[bool]]
SAME = 1e-6  # values within this of each other are one value


def exp(x: float) -> float:
    """e^x, inf where a double can't hold it."""
    return math.exp(x) if x < 709 else math.inf


def times(a: float, b: float) -> float:
    """a b, where nothing times a ratio too large for a double is nothing."""
    return 0.0 if a == 0 or b == 0 else a * b


def inside(mask: Mask) -> Iterator[tuple[int, int]]:
    """The places of the mask, row by row."""
    for b, row in enumerate(mask):
        for t, kept in enumerate(row):
            if kept:
                yield b, t


def zeros(mask: Mask) -> Grid:
    """A grid of zeros."""
    return [[0.0] * len(row) for row in mask]


def tokens_of(mask: Mask) -> int:
    """Masked tokens in all."""
    return sum(1 for _ in inside(mask))


def average(values: Sequence[float]) -> float:
    """The mean of at least one value."""
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float], correction: int) -> float:
    """sqrt(sum (x - mean)^2 / (n - correction))."""
    centre = average(values)
    return math.sqrt(math.fsum((x - centre) ** 2 for x in values) / (len(values) - correction))


# --- advantages -----------------------------------------------------------------------------------


def mean_advantages(rewards: Sequence[float]) -> list[float]:
    """Dr.GRPO for one group: R_i - mean(R)."""
    return [r - average(rewards) for r in rewards]


def leave_one_out_advantages(rewards: Sequence[float]) -> list[float]:
    """RLOO for one group: R_i - 1/(G-1) sum over j != i of R_j."""
    result = []
    for i, r in enumerate(rewards):
        others = [other for j, other in enumerate(rewards) if j != i]
        result.append(r - average(others))
    return result


def batch_std_advantages(rewards: Sequence[float], draws: Sequence[int], correction: int, eps: float) -> list[float]:
    """Lite PPO: the mean is the group's, the standard deviation the whole batch's."""
    if max(rewards) - min(rewards) <= SAME:
        return [0.0] * len(rewards)
    scale = deviation(rewards, correction) + eps
    result = []
    for r, draw in zip(rewards, draws, strict=True):
        group = [other for other, name in zip(rewards, draws, strict=True) if name == draw]
        result.append((r - average(group)) / scale)
    return result


def rewards_to_go(rewards: Sequence[float], costs: Grid, mask: Mask) -> Grid:
    """REINFORCE++: R minus the costs that are still to come, this token's included."""
    result = zeros(mask)
    for b, t in inside(mask):
        later = [costs[b][i] for i in range(t, len(mask[b])) if mask[b][i]]
        result[b][t] = rewards[b] - math.fsum(later)
    return result


def batch_advantages(returns: Grid, mask: Mask, correction: int, eps: float) -> Grid:
    """(x - mean) / (std + eps) over every masked token of the batch."""
    values = [returns[b][t] for b, t in inside(mask)]
    result = zeros(mask)
    if not values or max(values) - min(values) <= SAME:
        return result
    centre, scale = average(values), deviation(values, correction) + eps
    for b, t in inside(mask):
        result[b][t] = (returns[b][t] - centre) / scale
    return result


def gae(rewards: Grid, values: Grid, mask: Mask, gamma: float, lam: float) -> tuple[Grid, Grid]:
    """Schulman et al.: A_t = sum over l of (gamma lam)^l delta_{t+l}, among a row's masked tokens.

    The sum is written out, not by recursion; the value behind the last masked token is 0.
    """
    advantages, returns = zeros(mask), zeros(mask)
    for b, row in enumerate(mask):
        places = [t for t, kept in enumerate(row) if kept]
        deltas = []
        for i, t in enumerate(places):
            after = values[b][places[i + 1]] if i + 1 < len(places) else 0.0
            deltas.append(rewards[b][t] + gamma * after - values[b][t])
        for i, t in enumerate(places):
            advantages[b][t] = math.fsum((gamma * lam) ** (j - i) * deltas[j] for j in range(i, len(places)))
            returns[b][t] = advantages[b][t] + values[b][t]
    return advantages, returns


# --- objectives -----------------------------------------------------------------------------------


def clip(ratio: float, low: float | None, high: float) -> float:
    """clip(r, 1 - low, 1 + high); low None is no lower bound."""
    return min(ratio if low is None else max(ratio, 1.0 - low), 1.0 + high)


def surrogate(
    log_ratio: float, advantage: float, low: float | None, high: float, dual: float | None = None
) -> tuple[float, float]:
    """-min(r A, clip(r) A) and its slope in log r: -r A where the first is the smaller, 0 where clipped."""
    ratio = exp(log_ratio)
    free, bound = times(ratio, advantage), clip(ratio, low, high) * advantage
    value, slope = (free, free) if free <= bound else (bound, 0.0)
    if dual is not None and advantage < 0 and dual * advantage > value:
        value, slope = dual * advantage, 0.0
    return -value, -slope


def bounded(log_ratio: float, clamp: float | None) -> tuple[float, float]:
    """log r inside +-clamp, and its slope: 0 beyond."""
    if clamp is None or abs(log_ratio) <= clamp:
        return log_ratio, 1.0
    return math.copysign(clamp, log_ratio), 0.0


def dapo(
    logp: Grid,
    old: Grid,
    advantages: Grid,
    mask: Mask,
    upstream: Grid,
    low: float | None,
    high: float,
    dual: float | None = None,
    clamp: float | None = None,
    selected: Mask | None = None,
) -> tuple[Grid, Grid]:
    """DAPO's Eq. 10; with `selected` Clip-Cov: those tokens are cut out of value and gradient."""
    losses, gradient = zeros(mask), zeros(mask)
    for b, t in inside(mask):
        if selected is not None and selected[b][t]:
            continue
        log_ratio, moves = bounded(logp[b][t] - old[b][t], clamp)
        losses[b][t], slope = surrogate(log_ratio, advantages[b][t], low, high, dual)
        gradient[b][t] = upstream[b][t] * slope * moves
    return losses, gradient


def gspo(
    logp: Grid, old: Grid, advantages: Grid, mask: Mask, upstream: Grid, low: float, high: float
) -> tuple[Grid, Grid]:
    """GSPO: s = (pi(y) / pi_old(y))^(1/|y|), one surrogate a row, seen by each of its tokens.

    A token's log-prob moves log s by 1/|y|, and log s moves the loss of every token of the row.
    """
    losses, gradient = zeros(mask), zeros(mask)
    for b, row in enumerate(mask):
        places = [t for t, kept in enumerate(row) if kept]
        if not places:
            continue
        log_s = math.fsum(logp[b][t] - old[b][t] for t in places) / len(places)
        value, slope = surrogate(log_s, average([advantages[b][t] for t in places]), low, high)
        pull = math.fsum(upstream[b][t] for t in places)
        for t in places:
            losses[b][t] = value
            gradient[b][t] = times(pull, slope) / len(places)
    return losses, gradient


def cispo(
    logp: Grid,
    old: Grid,
    advantages: Grid,
    mask: Mask,
    upstream: Grid,
    low: float | None,
    high: float,
    clamp: float | None = None,
) -> tuple[Grid, Grid]:
    """MiniMax-M1: -sg(clip(r)) A log pi; the weight is a number, so the slope is -clip(r) A."""
    losses, gradient = zeros(mask), zeros(mask)
    for b, t in inside(mask):
        log_ratio, _ = bounded(logp[b][t] - old[b][t], clamp)
        weight = clip(exp(log_ratio), low, high)
        losses[b][t] = -weight * advantages[b][t] * logp[b][t]
        gradient[b][t] = -upstream[b][t] * weight * advantages[b][t]
    return losses, gradient


def kl_cov(
    logp: Grid,
    old: Grid,
    advantages: Grid,
    mask: Mask,
    upstream: Grid,
    selected: Mask,
    kl_coef: float,
    clamp: float | None = None,
) -> tuple[Grid, Grid]:
    """KL-Cov: -r A, plus kl_coef (r - 1 - log r) on the selected tokens; slopes -r A and kl_coef (r - 1)."""
    losses, gradient = zeros(mask), zeros(mask)
    for b, t in inside(mask):
        log_ratio, moves = bounded(logp[b][t] - old[b][t], clamp)
        ratio = exp(log_ratio)
        value = slope = -times(ratio, advantages[b][t])
        if selected[b][t]:
            value += kl_coef * (ratio - 1.0 - log_ratio)
            slope += kl_coef * (ratio - 1.0)
        losses[b][t] = value
        gradient[b][t] = times(upstream[b][t] * moves, slope)
    return losses, gradient


# --- selection ------------------------------------------------------------------------------------


def token_covariance(logp: Grid, advantages: Grid, mask: Mask) -> Grid:
    """(log pi - mean log pi)(A - mean A), the means over all masked tokens."""
    result = zeros(mask)
    if not tokens_of(mask):
        return result
    mean_logp = average([logp[b][t] for b, t in inside(mask)])
    mean_advantage = average([advantages[b][t] for b, t in inside(mask)])
    for b, t in inside(mask):
        result[b][t] = (logp[b][t] - mean_logp) * (advantages[b][t] - mean_advantage)
    return result


def picked(mask: Mask, places: Sequence[tuple[int, int]]) -> Mask:
    """A grid that is true at these places."""
    chosen = set(places)
    return [[(b, t) in chosen for t in range(len(row))] for b, row in enumerate(mask)]


def pick_clip_cov(covariance: Grid, mask: Mask, uniforms: Grid, fraction: float, low: float, high: float) -> Mask:
    """max(1, int(fraction * tokens)) of the tokens with low < cov < high, by their uniforms, smallest first."""
    candidates = [(b, t) for b, t in inside(mask) if low < covariance[b][t] < high]
    candidates.sort(key=lambda place: uniforms[place[0]][place[1]])
    return picked(mask, candidates[: max(1, int(fraction * tokens_of(mask)))])


def pick_kl_cov(covariance: Grid, mask: Mask, fraction: float) -> Mask:
    """The max(1, int(fraction * tokens)) masked tokens of largest covariance."""
    places = sorted(inside(mask), key=lambda place: -covariance[place[0]][place[1]])
    return picked(mask, places[: max(1, int(fraction * tokens_of(mask)))])


# --- weights, estimates, entropy ------------------------------------------------------------------


def sequence_weights(old: Grid, engine: Grid, mask: Mask, cap: float) -> Grid:
    """min(p(y) / b(y), C) of the whole row on its masked tokens; 1 elsewhere."""
    result = [[1.0] * len(row) for row in mask]
    for b, t in inside(mask):
        gap = math.fsum(old[b][i] - engine[b][i] for i in range(len(mask[b])) if mask[b][i])
        result[b][t] = min(exp(gap), cap)
    return result


def kl_estimate(logp: float, ref: float, estimator: str) -> tuple[float, float]:
    """Schulman's k1, k2, k3 of KL(pi || ref) from a token of pi, and the slope in log pi."""
    log_ratio = logp - ref  # log pi / ref
    if estimator == "k1":
        return log_ratio, 1.0
    if estimator == "k2":
        return log_ratio**2 / 2, log_ratio
    return exp(-log_ratio) - 1 + log_ratio, 1 - exp(-log_ratio)


def softmax(logits: Sequence[float], temperature: float) -> list[float]:
    """e^(z/T) over their sum."""
    top = max(logits)
    weights = [exp((z - top) / temperature) for z in logits]
    return [w / math.fsum(weights) for w in weights]


def entropy_slopes(logits: Sequence[float], temperature: float) -> list[float]:
    """d H / d z_k = -p_k (log p_k + H) / T; 0 where p_k is 0."""
    probabilities = softmax(logits, temperature)
    entropy = -math.fsum(p * math.log(p) for p in probabilities if p > 0)
    return [-p * (math.log(p) + entropy) / temperature if p > 0 else 0.0 for p in probabilities]
