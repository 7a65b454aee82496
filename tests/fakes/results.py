"""Results as the runner writes them, with made-up numbers."""

from typing import Any

import numpy as np

DOMAINS = ("gaussian_noise", "fog", "jpeg_compression")
_IMAGES = 200


def sample_result(
    method: str = "ramen",
    *,
    seed: int = 0,
    average: float = 60.0,
    protocol: str = "mixed",
    data: str = "cifar10c",
    model: str = "ViT-B-32/openai",
    parameters: dict[str, Any] | None = None,
    label: str | None = None,
    domains: tuple[str, ...] = DOMAINS,
    batch: int = 100,
) -> dict[str, Any]:
    """One run's result with accuracies around ``average``, which the seed shifts a little."""
    rng = np.random.default_rng((seed, len(method)))
    accuracies = np.linspace(-5.0, 5.0, len(domains)) + average + rng.normal(0, 0.2)
    accuracies = (accuracies * _IMAGES / 100).round() * 100 / _IMAGES
    zero_shot = np.full(len(domains), 55.0)
    repaired, broken = int(_IMAGES * len(domains) * 0.1), int(_IMAGES * len(domains) * 0.04)
    right = int(accuracies.sum() * _IMAGES / 100)
    counts = np.full((len(domains), len(domains)), 10) + 40 * np.eye(len(domains), dtype=int)
    share = float((np.diag(counts) / counts.sum(1)).mean() * 100)
    images = _IMAGES * len(domains)
    return {
        "kind": "run",
        "experiment": {
            "model": model,
            "templates": "ensemble",
            "data": data,
            "data_options": {"severity": 5},
            "protocol": protocol,
            "protocol_parameters": {},
            "method": method,
            "parameters": {"lr": 0.01} if parameters is None else parameters,
            "label": label,
            "seed": seed,
            "batch": batch,
            "device": "cpu",
            "dtype": "float32",
        },
        "preset": data,
        "overrides": {} if parameters is None else parameters,
        "scores": {
            "average": float(accuracies.mean()),
            "domains": dict(zip(domains, accuracies.tolist(), strict=True)),
            "images": dict.fromkeys(domains, _IMAGES),
            "balanced": float(accuracies.mean()),
            "classes": [float(average), None],
            "calibration_error": 7.5,
            "zero_shot": {
                "average": 55.0,
                "domains": dict(zip(domains, zero_shot.tolist(), strict=True)),
                "calibration_error": 6.0,
                "tail": {"last": 54.0, "worst": 40.0, "windows": 10},
            },
            "difference": {"points": float(accuracies.mean() - 55.0), "margin": 0.8},
            "changes": {
                "both_right": right - repaired,
                "repaired": repaired,
                "broken": broken,
                "both_wrong": images - right - broken,
            },
            "domain_changes": {
                name: {"both_right": 80, "repaired": 20, "broken": 8, "both_wrong": _IMAGES - 108}
                for name in domains
            },
            "tail": {"last": float(average) - 1, "worst": float(average) - 10, "windows": 10},
            "refused": 0,
        },
        "composition": {
            "domains": list(domains),
            "counts": counts.tolist(),
            "same_domain": share,
            "same_domain_weighted": share,
            "chance_weighted": 100 / len(domains),
        }
        if method == "ramen"
        else None,
        "cost": {
            "seconds": {"read": 0.4, "preprocess": 1.1, "predict": 6.0, "zero_shot": 0.2, "score": 0.1},
            "first_batch_seconds": 1.5,
            "ms_an_image": 6000 / images,
            "images": images,
            "batches": -(-images // batch),
            "peak_device_bytes": None,
            "peak_host_bytes": 900 * 2**20,
            "peak_host_scope": "run",
            "memory_bytes": 5 * 2**20 if method == "ramen" else 0,
            "passes": {"forward": 2, "backward": 1},
        },
        "provenance": {
            "classifier": {
                "classes": 10,
                "class_names": "sha256:1",
                "weights": "sha256:2",
                "logit_scale": 100.0,
                "templates": ["a photo of a {}."],
                "dtype": "float32",
                "preprocess": {
                    "size": [224, 224],
                    "mean": [0.48, 0.46, 0.41],
                    "std": [0.27, 0.26, 0.28],
                    "interpolation": "bicubic",
                    "resize_mode": "shortest",
                    "fill_color": 0,
                    "resize_to": None,
                    "crop": "nearest",
                },
                "affine_parameters": 39936,
                "path": "transformer",
            },
            "stream": {
                "protocol": protocol,
                "parameters": {"limit": None, "per_domain": None},
                "seed": seed,
                "dataset": data,
                "domains": list(domains),
                "severities": [],
                "pictures": images,
                "resets": [],
                "order": "sha256:3",
            },
            "dataset": {
                "name": data,
                "root": "/data",
                "domains": dict.fromkeys(domains, _IMAGES),
                "class_names": "sha256:1",
                "labels": "sha256:4",
                "identity": {"severity": 5},
            },
            "method": {
                "title": method,
                "predicts_with": "the second forward pass",
                "batch_dependent": False,
                "reset": "never within the stream",
                "parameters": {"lr": 0.01} if parameters is None else parameters,
                "chosen": {},
            },
            "versions": {
                "ramen": "0.1.0",
                "torch": "2.8.0",
                "torchvision": "0.23.0",
                "open_clip": "3.0.0",
                "numpy": "2.3.0",
                "pillow": "12.3.0",
                "python": "3.11.7",
            },
            "hardware": {"device": "cpu", "name": "x86_64", "threads": 2, "system": "Linux"},
            "commit": "0123abc",
            "started": "2026-01-01T00:00:00+00:00",
            "finished": "2026-01-01T00:01:00+00:00",
            "resumed": 0,
        },
    }
