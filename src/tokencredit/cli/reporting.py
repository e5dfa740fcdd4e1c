"""Where a run reports its metrics to, beside its own files: TensorBoard, Weights & Biases, Trackio, ..."""

from __future__ import annotations

from collections.abc import Sequence

from tokencredit.errors import UsageError


def check_reports(names: Sequence[str]) -> None:
    """Refuses a tracker that there is not, or whose package is missing, before anything is loaded.

    Raises:
        UsageError: naming the tracker and what it lacks.
    """
    from transformers.integrations.integration_utils import get_reporting_integration_callbacks

    for name in names:
        try:
            for callback in get_reporting_integration_callbacks([name]):
                callback()  # each says itself what it lacks
        except ValueError as error:
            raise UsageError(f"report_to {name}: {error}") from error
        except (RuntimeError, ImportError) as error:
            raise UsageError(f"report_to {name}: install the package {name}. {error}") from error
