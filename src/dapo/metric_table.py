"""Every metric of metrics.jsonl: its name, unit and formula. docs/metrics.md is made of this table.

`python -m dapo.metric_table docs/metrics.md` writes the page again.

G groups of a step, i their responses, L response length in tokens, A advantage, r = pi / pi_old, p token
probability. "Sampled" is all draws up to the cut, before the filter; "kept" is after it. "Loss tokens" are those
that the loss is over. A mean of nothing is null.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dapo.files import write_text


@dataclass(frozen=True, slots=True)
class Metric:
    """name: with PART, SET, BAND or the like where it varies. unit: "1" for a share, ratio or probability."""

    name: str
    unit: str
    formula: str


ROWS = """
sampled/accuracy | 1 | right responses / responses, before the filter
sampled/reward_mean | reward | mean reward before shaping, before the filter
sampled/shaped_reward_mean | reward | mean reward with the overlong penalty, before the filter
sampled/reward_spread | reward | mean over groups of the population std of shaped rewards, before the filter
sampled/reward_PART_mean | reward | mean of a part of the reward, before the filter
sampled/unparsed_responses | responses | no answer found where the policy looks for one
sampled/unparsed_fraction | 1 | the same / responses
sampled/timeout_responses | responses | grading ran out of time (counted wrong)
sampled/timeout_fraction | 1 | the same / responses
sampled/error_responses | responses | grading failed (counted wrong)
sampled/error_fraction | 1 | the same / responses
kept/accuracy | 1 | right responses / responses of kept groups
kept/reward_mean | reward | mean reward before shaping, of kept groups
kept/shaped_reward_mean | reward | mean reward with the overlong penalty, of kept groups
kept/reward_spread | reward | mean over kept groups of the population std of shaped rewards
kept/reward_PART_mean | reward | mean of a part of the reward, of kept groups
sampling/draws | draws | M, draws up to the cut: where the last kept group stands
sampling/kept | draws | N, groups that are trained on
sampling/acceptance | 1 | (N - 1) / (M - 1), which a stop at a success does not bias; N / M of a filling that fell short
sampling/all_right_draws | draws | draws whose responses are all right
sampling/all_right_fraction | 1 | the same / draws
sampling/all_wrong_draws | draws | draws without a right response
sampling/all_wrong_fraction | 1 | the same / draws
sampling/surplus_draws | draws | finished beyond the cut, and not trained on
sampling/cancelled_draws | draws | given up in flight; their prompts come back
sampling/carried_in_draws | draws | taken from the step before
sampling/carried_draws | draws | left for the next step
sampling/skipped_prompts | prompts | passed over by sampling.skip_solved_after
sampling/engine_failures | draws | given up by the engine and run again
sampling/short | 1 | 1 where the batch has fewer groups than asked for
sampling/rounds | rounds | rounds of gen_prompts draws (schedule = "rounds")
sampling/predicted_acceptance | 1 | mean predicted acceptance of prompts seen or rated before
sampling/predictable_acceptance | 1 | accepted share of the same draws
difficulty/BAND_draws | draws | draws of a band of past pass rates
difficulty/BAND_acceptance | 1 | kept / draws of the band
shift/total_variation | 1 | distance of kept prompts' bands from drawn ones': 1/2 sum |share kept - share drawn|
shift/total_variation_low | 1 | lower end of its 95% bootstrap interval
shift/total_variation_high | 1 | upper end of its 95% bootstrap interval
shift/null_mean | 1 | its mean where acceptance does not depend on the band
shift/null_p | 1 | chance of so large a distance where it does not
diversity/distinct_answers_mean | answers | mean over sampled groups of distinct extracted answers (none counts as one)
diversity/duplicate_responses_fraction | 1 | responses equal to an earlier one of their group, in all tokens
response/length_mean_tokens | tokens | mean L, sampled
response/length_max_tokens | tokens | largest L, sampled
response/length_p10_tokens | tokens | 10th percentile of L, sampled
response/length_p50_tokens | tokens | median L, sampled
response/length_p90_tokens | tokens | 90th percentile of L, sampled
response/right_length_mean_tokens | tokens | mean L of right responses, sampled
response/wrong_length_mean_tokens | tokens | mean L of wrong responses, sampled
response/kept_length_mean_tokens | tokens | mean L of kept groups
response/dropped_length_mean_tokens | tokens | mean L of sampled groups that were not kept
response/truncated_fraction | 1 | ended by max_response_tokens without an EOS / responses, sampled
response/in_buffer_fraction | 1 | L over max_response_tokens - overlong_buffer_tokens / responses, sampled
response/overlong_penalty_mean | reward | mean overlong penalty, sampled
response/overlong_penalty_sum | reward | sum of overlong penalties, sampled
tokens/generated | tokens | sampled in this filling, those of given-up draws included
tokens/kept | tokens | response tokens of kept groups
tokens/wasted | tokens | generated + carried in - kept - carried
tokens/lost | tokens | sampled for draws that were given up
tokens/carried_in | tokens | of groups from the step before
tokens/carried | tokens | of groups left for the next step
tokens/loss | tokens | loss tokens of the batch
tokens/per_s | tokens/s | generated / time/rollout_s
staleness/mean_versions | versions | mean over kept tokens of the policy's version - the version that sampled the token
staleness/max_versions | versions | the largest of these
advantage/abs_mean | 1 | mean of abs(A) over responses
advantage/length_weighted_mean | 1 | sum(L A) / sum(L), L loss tokens: what a mean over tokens weighs A with
advantage/length_matched_mean | 1 | the same, each L the mean L of its quarter of length; descriptive, not causal
weight/token_to_sample_max | 1 | largest L / mean L of the group: a mean over tokens against one over responses
weight/token_to_sample_right_mean | 1 | mean of L / mean L over right responses of the batch
weight/token_to_sample_wrong_mean | 1 | mean of L / mean L over wrong responses of the batch
credit/proxy_positive_share | 1 | of sum w abs(A) r 1[not clipped] sqrt(1 - 2 p + sum p_v^2): share with A > 0
credit/proxy_right_share | 1 | the same of right responses; each a mean over updates that have some
credit/proxy_truncated_share | 1 | the same of truncated responses
credit/proxy_longest_share | 1 | the same of the longest quarter of the mini-batch
loss/policy | 1 | sum of row_weights x loss over loss tokens; mean over updates
policy/entropy | nats | mean over loss tokens of the entropy of pi; mean over updates
policy/mean_token_probability | 1 | mean of p over loss tokens; mean over updates
policy/kl_to_old | nats | mean of r^-1 - 1 + log r over loss tokens: estimates KL to the step's start; mean over updates
policy/kl_to_reference | nats | mean of algorithm.kl.estimator over loss tokens
ratio/mean | 1 | mean r over loss tokens; mean over updates
ratio/max | 1 | largest r over loss tokens of all updates
ratio/outside_fraction | 1 | loss tokens with r outside [1 - clip_low, 1 + clip_high], whatever A's sign
ratio/clamped_fraction | 1 | loss tokens with abs(log r) over log_ratio_clamp
ratio/logprob_abs_mean | nats | mean of abs(log r) over loss tokens; mean over updates
clip/high_fraction | 1 | loss tokens with A > 0 and r > 1 + clip_high; mean over updates
clip/low_fraction | 1 | loss tokens with A < 0 and r < 1 - clip_low; mean over updates
clip/dual_fraction | 1 | loss tokens with A < 0 and r > clip_dual; mean over updates
clip/selected_fraction | 1 | loss tokens picked by the entropy control; mean over updates
clip/high_old_probability_mean | 1 | mean of pi_old over tokens of clip/high; mean over updates that have some
importance/mean | 1 | mean truncated importance weight over loss tokens
importance/capped_fraction | 1 | loss tokens whose weight is the cap
importance/effective_fraction | 1 | (sum w)^2 / (n sum w^2): effective share of loss tokens
mismatch/logprob_abs_mean | nats | mean of abs(log p engine - log p learner), same tokens, same weights
mismatch/logprob_abs_max | nats | largest of these
mismatch/logprob_abs_p999 | nats | 99.9th percentile of these
mismatch/probability_correlation | 1 | correlation of the engine's p with the learner's
grad/norm | 1 | norm of the gradient before clipping; mean over updates
grad/nonfinite_updates | updates | skipped because the gradient was not finite
train/learning_rate | 1 | of the step's updates
train/update_norm | 1 | norm of what an update adds to the weights, from up to 4,096 entries of each; mean over updates
train/parameter_norm | 1 | norm of the trained weights, likewise
train/updates | updates | optimiser steps
train/policy_version | versions | version that the step ends with
time/rollout_s | s | sampling
time/rollout_kept_s | s | the same x share of tokens that were kept
time/rollout_wasted_s | s | the same x share of tokens that were wasted
time/rollout_length_q1_s | s | the same x share of tokens in the shortest quarter of this filling's responses
time/rollout_length_q2_s | s | second quarter
time/rollout_length_q3_s | s | third quarter
time/rollout_length_q4_s | s | longest quarter
time/grade_s | s | grading
time/train_s | s | making the batch and updating
time/write_s | s | writing rollouts
time/save_s | s | the training thread's wait for checkpoints
time/eval_s | s | evaluation
time/step_s | s | a step, evaluation left out
total/draws | draws | sum of sampling/draws since step 0
total/kept | draws | sum of sampling/kept
total/all_right_draws | draws | sum of sampling/all_right_draws
total/all_wrong_draws | draws | sum of sampling/all_wrong_draws
total/engine_failures | draws | sum of sampling/engine_failures
total/unparsed_responses | responses | sum of sampled/unparsed_responses
total/timeout_responses | responses | sum of sampled/timeout_responses
total/error_responses | responses | sum of sampled/error_responses
total/tokens_generated | tokens | sum of tokens/generated
total/tokens_kept | tokens | sum of tokens/kept
total/tokens_wasted | tokens | sum of tokens/wasted
total/tokens_lost | tokens | sum of tokens/lost
total/rewards | responses | behind reward.normalisation = "running": responses so far
total/reward_sum | reward | their rewards' sum
total/reward_square_sum | reward^2 | their rewards' sum of squares
total/device_hours | h | sum of time/step_s / 3600, one device
progress/accuracy_gain_per_device_hour | 1/h | (sampled/accuracy - that of the first step) / total/device_hours
data/epoch | epochs | place in the prompt stream / its length
data/prompts_drawn | prompts | graded draws since step 0
grading/lost_workers | processes | grading processes that died unasked
pipeline/learner_wait_s | s | with pipeline.max_staleness: how long the loop waited for draws
pipeline/engine_wait_s | s | how long the engine had nothing it might sample
pipeline/batch_age_s | s | from sampled (in_flight: graded, mean of the kept groups) to when the step began
memory/peak_gb | GiB | largest resident memory of the process so far
memory/device_peak_gb | GiB | most that torch has held on the CUDA device so far
checkpoint/failed_saves | saves | checkpoints that could not be written
checks/gap_p999_nats | nats | the mismatch's 99.9th percentile at version 0, which the gap's bound is made of
checks/findings | findings | what the self-checks found in the step, see docs/checks.md
trackers/failures | calls | calls of trackers that failed or were dropped since the line before
alerts/raised | alerts | alerts that began at this step, see docs/alerts.md
eval/accuracy | 1 | right responses / responses of the evaluation set
eval/SET/FIGURE | see docs/evaluation.md | the same figures of each set, where there are several
eval/FIGURE | see docs/evaluation.md | other figures of the evaluation set
"""

VARIES = re.compile(r"PART|BAND|SET|FIGURE")


@cache
def metrics() -> tuple[Metric, ...]:
    """The table."""
    rows = [line.split(" | ") for line in ROWS.strip().splitlines()]
    return tuple(Metric(name, unit, formula) for name, unit, formula in rows)


def definition(name: str) -> Metric | None:
    """What a name of metrics.jsonl stands for; None of a name that the table does not know."""
    for metric in metrics():
        if re.fullmatch(VARIES.sub("[^/]+", re.escape(metric.name)), name):
            return metric
    return None


def page() -> str:
    """docs/metrics.md."""
    assert __doc__ is not None
    legend = __doc__.split("\n\n")[2].strip()
    lines = [
        "# Metrics",
        "",
        "What a line of a run's metrics.jsonl holds. This page is made by `make metric-docs`.",
        "",
        *legend.splitlines(),
    ]
    area = ""
    for metric in metrics():
        if metric.name.split("/")[0] != area:
            area = metric.name.split("/")[0]
            lines += ["", f"## {area}", "", "| name | unit | formula |", "|---|---|---|"]
        lines.append(f"| `{metric.name}` | {metric.unit} | {metric.formula} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    write_text(Path(sys.argv[1]), page())
