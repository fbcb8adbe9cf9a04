"""Token trees small enough to draw. Tokens are letters here: ``"abc"`` stands for three ids."""

from __future__ import annotations

import sys

import pytest

from unimoe.models.token_tree import MIN_SHARED, Segment, TokenTree, build_tree, plan_trees, tree_tokens

SHARED = "abcdefgh"  # just enough to be worth a segment


def ids(*texts: str) -> list[list[int]]:
    return [list(map(ord, text)) for text in texts]


def row(tree: TokenTree) -> list[str]:
    """The segments as text."""
    return ["".join(map(chr, tree.ids[segment.begin : segment.end])) for segment in tree.segments]


def parents(tree: TokenTree) -> list[int]:
    return [segment.parent for segment in tree.segments]


class TestBuildTree:
    def test_a_beginning_that_two_share_stands_once(self) -> None:
        tree = build_tree(ids("abcdefgh-one", "abcdefgh+two!"))
        assert row(tree) == ["abcdefgh", "+two!", "-one"]  # in the order of their tokens
        assert tree.segments == [Segment(-1, 0, 8, 1), Segment(0, 8, 13, 1), Segment(0, 13, 17, 0)]
        assert tree.positions == [*range(8), 8, 9, 10, 11, 12, 8, 9, 10, 11]
        assert tree.last == [16, 12]

    def test_a_group_shares_a_beginning_and_within_it_a_pair_shares_more(self) -> None:
        tree = build_tree(ids("abcdefgh12345678x", "abcdefgh12345678y", "abcdefghz"))
        assert row(tree) == ["abcdefgh", "12345678", "x", "y", "z"]
        assert parents(tree) == [-1, 0, 1, 1, 0]
        assert tree.last == [16, 17, 18]

    def test_a_sequence_that_begins_another_keeps_its_last_token_to_itself(self) -> None:
        tree = build_tree(ids("abcdefghi", "abcdefghijk"))
        assert row(tree) == ["abcdefgh", "i", "ijk"]
        assert tree.last == [8, 11]

    def test_equal_sequences_have_a_last_token_each(self) -> None:
        tree = build_tree(ids(*["abcdefghi"] * 3))
        assert row(tree) == ["abcdefgh", "i", "i", "i"]
        assert tree.last == [8, 9, 10]

    def test_no_sequences_no_tree(self) -> None:
        assert build_tree([]) == TokenTree([], [], [], [])

    def test_a_chain_deeper_than_the_stack(self) -> None:
        depth = sys.getrecursionlimit() + 100
        tree = build_tree([[0] * (MIN_SHARED * level + 1) for level in range(1, depth + 1)])
        # A segment to go on from and a last token at each level, but for the longest, which goes on alone.
        assert len(tree.segments) == 2 * depth - 1
        assert len(tree.ids) == (MIN_SHARED + 1) * depth
        assert max(tree.positions) == MIN_SHARED * depth


class TestPlanTrees:
    # Eight tokens shared and two of their own each: 10 for the first of a group, 2 for every other.
    GROUPS = ids("abcdefgh0.", "ABCDEFGH0.", "abcdefgh1.", "ABCDEFGH1.", "abcdefgh2.", "ABCDEFGH2.")

    def test_sequences_that_begin_alike_stand_together(self) -> None:
        assert plan_trees(self.GROUPS, 28) == [[1, 3, 5, 0, 2, 4]]  # 14 + 14

    def test_a_batch_ends_between_groups_though_it_had_room_for_more(self) -> None:
        for budget in (14, 24, 27):
            assert plan_trees(self.GROUPS, budget) == [[1, 3, 5], [0, 2, 4]]

    def test_a_group_that_does_not_fit_is_cut(self) -> None:
        assert plan_trees(self.GROUPS, 12) == [[1, 3], [5], [0, 2], [4]]


class TestTreeTokens:
    @pytest.mark.parametrize(
        ("texts", "tokens"),
        [
            ([], 0),
            (["a"], 1),
            (["abcdefgh-one", "abcdefgh+two"], 8 + 4 + 4),
            (["abcdefg-one", "abcdefg+two"], 11 + 11),
            (["abcdefghi", "abcdefghijk"], 8 + 1 + 3),
            (["abcdefghi"] * 3, 8 + 3),
        ],
    )
    def test_shared_beginnings_count_once(self, texts: list[str], tokens: int) -> None:
        assert tree_tokens(ids(*texts)) == tokens
        assert len(build_tree(ids(*texts)).ids) == tokens

    def test_they_count_what_the_tree_repeats_because_it_is_short(self) -> None:
        sequences = ids("abcdefgh1234567x", "abcdefgh1234567y", "abcdefghz")
        assert tree_tokens(sequences) == 8 + 7 + 1 + 1 + 1
        assert len(build_tree(sequences).ids) == tree_tokens(sequences) + 7
