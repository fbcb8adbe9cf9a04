from __future__ import annotations

import torch

from unimoe.models.batching import default_token_budget, last_tokens, plan_batches


class TestPlan:
    def test_the_longest_come_first(self) -> None:
        assert plan_batches([2, 5, 3, 5], token_budget=10) == [[1, 3], [2, 0]]

    def test_padding_counts_in_the_budget(self) -> None:
        assert plan_batches([4, 2, 2], token_budget=8) == [[0, 1], [2]]  # 4 + 2 + 2 fit, 3 x 4 do not

    def test_a_sequence_below_half_of_the_longest_begins_a_batch(self) -> None:
        assert plan_batches([10, 5, 4, 2], token_budget=1000) == [[0, 1], [2, 3]]

    def test_a_sequence_beyond_the_budget_goes_alone(self) -> None:
        assert plan_batches([100, 2, 2], token_budget=4) == [[0], [1, 2]]

    def test_a_batch_size_takes_the_place_of_the_budget(self) -> None:
        assert plan_batches([9, 9, 9, 9, 9], token_budget=1, batch_size=2) == [[0, 1], [2, 3], [4]]

    def test_ties_keep_their_order(self) -> None:
        assert plan_batches([2] * 5, token_budget=6) == [[0, 1, 2], [3, 4]]

    def test_nothing_gives_no_batch(self) -> None:
        assert plan_batches([], token_budget=8) == []

    def test_a_gpu_gets_larger_batches(self) -> None:
        assert default_token_budget(torch.device("cuda")) > default_token_budget(torch.device("cpu")) >= 512


def test_the_last_token_of_each_row_is_taken() -> None:
    states = torch.arange(12.0).reshape(2, 3, 2)
    assert last_tokens(states, [1, 3]).tolist() == [[0, 1], [10, 11]]
