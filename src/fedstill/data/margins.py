"""Matrices with given sums of rows and columns: scaled to them, then rounded without breaking them."""

import numpy as np
from numpy.typing import NDArray


def scaled(matrix: NDArray[np.float64], rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.float64]:
    """A matrix scaled by rows and columns in turn until its sums are `rows` and `columns` (Sinkhorn and Knopp).

    Where it has zeros that make this impossible, tiny numbers stand for them; columns are exact, rows nearly.

        >>> scaled(np.array([[1.0, 1.0], [1.0, 3.0]]), np.array([2, 2]), np.array([1, 3])).round(3).tolist()
        [[0.697, 1.303], [0.303, 1.697]]
    """
    shares = np.maximum(matrix, 1e-9)
    for _ in range(2000):
        shares *= (rows / shares.sum(axis=1))[:, None]
        shares *= columns / shares.sum(axis=0)
        if np.abs(shares.sum(axis=1) - rows).max() < 1e-6:
            break
    return shares


def rounded(matrix: NDArray[np.float64], rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Whole numbers near a matrix whose sums are exactly `rows` and `columns`: floors, then the largest remainders.

    >>> rounded(np.array([[0.6, 1.4], [0.4, 1.6]]), np.array([2, 2]), np.array([1, 3])).tolist()
    [[1, 1], [0, 2]]
    """
    whole: NDArray[np.int64] = np.floor(matrix + 1e-9).astype(np.int64)
    whole -= _surplus(whole, rows, columns)
    for place in np.argsort(-(matrix - whole), axis=None, kind="stable"):
        row, column = np.unravel_index(place, matrix.shape)
        if whole[row].sum() < rows[row] and whole[:, column].sum() < columns[column]:
            whole[row, column] += 1
    while (whole.sum(axis=1) < rows).any():  # remainders that found no partner: any row and column that still lack
        row, column = int((rows - whole.sum(axis=1)).argmax()), int((columns - whole.sum(axis=0)).argmax())
        whole[row, column] += 1
    return whole


def _surplus(whole: NDArray[np.int64], rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """What a row or column has too much of after rounding down: only where the scaling was not exact."""
    take = np.zeros_like(whole)
    for row in range(len(rows)):
        for _ in range(max(0, int(whole[row].sum() - rows[row]))):
            take[row, int((whole - take)[row].argmax())] += 1
    for column in range(len(columns)):
        for _ in range(max(0, int((whole - take)[:, column].sum() - columns[column]))):
            take[int((whole - take)[:, column].argmax()), column] += 1
    return take
