"""What a report of an ImageNet run shows beside its scores: mean images of some classes."""

from __future__ import annotations

import hashlib

from smoe.reports.parts import Classes, Places
from smoe_paper.experiments.open_run import OpenRun
from smoe_paper.experiments.report_parts import ReportParts
from smoe_paper.imagenet.data.folder_samples import FolderImages
from smoe_paper.imagenet.pictures import mean_images


def report_parts(run: OpenRun, split: str | None) -> ReportParts:
    """Returns mean images of the first classes of a split; nothing without data."""
    if split is None:
        return ReportParts()
    samples = run.task.splits[split]
    assert isinstance(samples, FolderImages)
    images = mean_images(samples).numpy()
    names = tuple(samples.images.classes[: len(images)])
    digest = hashlib.sha256("\n".join(map(str, samples.images.classes)).encode()).hexdigest()[:16]
    return ReportParts(
        places=Places("grid", images.shape[1:]),
        classes=Classes(names, images),
        data={
            "images": f"{len(samples.images.labels):,} of {len(samples.images.classes):,} classes, {split} split",
            "SHA-256 of the names of the classes": digest,
        },
    )
