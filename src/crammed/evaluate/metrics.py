"""Scores by scikit-learn and SciPy, in percent."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def score(
    metric: str, outputs: NDArray[np.floating[Any]], gold: NDArray[np.floating[Any]]
) -> float:
    """The metric of predictions against gold labels, times 100.

    Args:
        outputs: logits [R, classes], or [R, 1] for a correlation.
        gold: class numbers or real values, [R].

    Raises:
        ValueError: the metric is undefined here, such as the correlation of a constant.
    """
    if metric == "pearson":
        from scipy.stats import pearsonr

        predicted = outputs[:, 0]
        if np.ptp(predicted) == 0.0 or np.ptp(gold) == 0.0:
            raise ValueError("the correlation of a constant is undefined")
        value = pearsonr(predicted, gold)[0]
    else:
        from sklearn import metrics

        guess, truth = outputs.argmax(-1), gold.astype(np.int64)
        if metric == "accuracy":
            value = metrics.accuracy_score(truth, guess)
        elif metric == "f1":
            value = metrics.f1_score(truth, guess)
        elif metric == "matthews":
            value = metrics.matthews_corrcoef(truth, guess)
        else:
            raise ValueError(f"no metric {metric}")
    return 100.0 * float(value)
