"""Inverses of Gram matrices: with a ridge, without one, and where rounding spoils them."""

import torch

from topoff.compensation.principal import regularized_inverse


def test_a_ridge_is_added_to_the_gram_matrix() -> None:
    F = torch.randn(30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    G = F.T @ F
    inverse, smoother, condition = regularized_inverse(G, 0.1)
    shifted = G + 0.1 * G.diagonal().mean() * torch.eye(4, dtype=torch.float64)
    assert torch.allclose(inverse, torch.linalg.inv(shifted))
    assert torch.allclose(smoother, torch.linalg.solve(shifted, G))
    assert 1 <= condition <= float(torch.linalg.cond(shifted)) * (1 + 1e-9)


def test_a_gram_matrix_that_rounding_made_negative_is_inverted_all_the_same() -> None:
    """In single precision a basis of nearly equal columns has eigenvalues below zero, by more than the ridge."""
    column = torch.linspace(1, 2, 50, dtype=torch.float64).unsqueeze(1)
    G = column.T @ column * torch.ones(3, 3, dtype=torch.float64)
    G -= 1e-3 * G[0, 0] * torch.eye(3, dtype=torch.float64)
    inverse, smoother, condition = regularized_inverse(G, 1e-5)
    assert inverse.isfinite().all()
    assert torch.linalg.eigvalsh(inverse).min() > 0
    assert torch.linalg.eigvalsh(smoother).max() <= 1 + 1e-9
    assert condition > 1e4
    clean = torch.linalg.eigh(G)
    fitted = clean.eigenvectors[:, -1]
    assert torch.allclose(smoother @ fitted, fitted, atol=1e-4)
