"""Recipes: what contradicts itself is refused in one sentence."""

import pytest

from topoff.data.recipe import PRESETS, Recipe, check_recipe, near_share, scaled

WRONG = {
    "nodes": ({"nodes": 1}, r"'nodes' to be 2 or more \(got 1\)"),
    "many nodes": ({"nodes": 2**31 + 1}, r"'nodes' to be at most 2\^31"),
    "edges": ({"edges": 10**6}, r"at most 999000 edges among 1000 nodes \(got 1000000\)"),
    "task": ({"task": "links"}, r"'task' to be classes or multilabel \(got 'links'\)"),
    "communities": ({"communities": 5}, r"as many communities as classes, 10, or more, .* nodes, 1000 \(got 5\)"),
    "exponent": ({"exponent": 2.0}, r"'exponent' to be above 2 and at most 100 \(got 2.0\)"),
    "between": ({"between": 1.5}, r"'between' to be a share from 0 to 1 \(got 1.5\)"),
    "split": ({"split": (0.5, 0.5, 0.5)}, r"shares that add up to 1 at most \(got 0.5, 0.5, 0.5\)"),
    "no training": ({"split": (0, 0.5, 0.5)}, "a split with training nodes"),
    "split share": ({"split": (0.5, -0.5, 0.5)}, r"'the split's val' to be a share from 0 to 1"),
    "noise": ({"feature_noise": -1}, r"'feature_noise' to be 0 or more \(got -1\)"),
    "one": ({"classes": 2, "communities": 1}, "as many communities as classes"),
    "homophily": ({"homophily": 0.2}, r"'homophily' from 0.667 to 0.829, .* \(got 0.2\); change one of them"),
    "labels": ({"homophily": 0.7, "task": "multilabel"}, r"no 'homophily' with several labels per node \(got 0.7\)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_no_graph_can_be_is_refused(name: str) -> None:
    changes, match = WRONG[name]
    with pytest.raises(ValueError, match=match):
        check_recipe(Recipe(**{"nodes": 1000, "edges": 10_000, **changes}))


@pytest.mark.parametrize("scale", [0, -1, float("nan"), float("inf")])
def test_a_scale_is_above_0(scale: float) -> None:
    with pytest.raises(ValueError, match=r"'scale' to be above 0 \(got"):
        scaled(PRESETS["arxiv"], scale)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("scale", [1, 0.1, 0.01, 2])
def test_every_preset_is_a_recipe_at_any_scale(name: str, scale: float) -> None:
    recipe = scaled(PRESETS[name], scale)
    check_recipe(recipe)
    assert recipe.nodes == round(PRESETS[name].nodes * scale)
    assert 0 <= near_share(recipe) <= 1
    if scale >= 1:
        assert recipe.edges == round(PRESETS[name].edges * scale)
    assert sum(recipe.split) == pytest.approx(1 if name != "papers100M" else 0.0139, abs=1e-4)
