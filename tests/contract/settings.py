"""The parameters with which methods go through the contract."""

import ramen
from tests.helpers.slow_tests import RUN_SLOW_TESTS

# Fewer of the same steps, for speed; the counts of the defaults are in the methods' own tests.
FEWER_STEPS = {
    "watt": {"rounds": 1, "steps": 1},
    "clipartt": {"iterations": 3},
    "zero": {"views": 8},
    "mta": {"views": 6},
    "tps": {"views": 6},
    "tpt": {"views": 6},
    "cotta": {"augmentations": 2, "threshold": 1.0},
    "cliptta": {"iterations": 1, "shots": 1},
    "clipot": {"templates": "single"},
    "moetta": {"experts": 3},
}
# In half precision a sum that is almost zero may have another sign in a batch of another size, and a signed
# step turns with it: logits of EntMin differ by 0.57 at its own step, by 0.20 at this one, by 1e-14 in fp64.
SMALLER_STEPS = {"entmin": {"lr": 1e-3}}
SETTINGS = [
    *((name, FEWER_STEPS.get(name, {})) for name in ramen.list_methods()),
    ("ramen", {"capacity": 2, "topk": 2}),
    ("ramen", {"defaults": "steered", "visibility": "causal", "capacity": 2, "topk": 2}),
    ("ramen", {"visibility": "causal", "capacity": 3, "topk": 1}),
    ("ramen", {"balance": False, "capacity": 3, "topk": 2}),
    ("ramen", {"consistency": False, "capacity": 4, "topk": 2}),
    ("ramen", {"fifo": "float16", "capacity": 2, "topk": 1}),
    ("ramen", {"placement": "cpu", "codec": "fp32"}),
    ("ramen", {"codec": "sign", "capacity": 3, "topk": 2, "placement": "split"}),
    ("ramen", {"codec": "sign", "capacity": 3, "topk": 2, "visibility": "causal"}),
    ("ramen", {"placement": "split", "entropy_weight": False, "similarity_weight": False}),
    ("note", {"memory": 4, "lr": 1e-2}),
    ("sar", {"frozen": "top", "lr": 1e-2, "margin": 0.8}),
    ("sar", {"clear_average": True, "reset_below": 0.4, "lr": 1e-2, "margin": 0.8}),
    ("rotta", {"memory": 4}),
    ("rotta", {"memory": 8, "interval": 5, "nu": 0.5}),
    ("tda", {"positive_capacity": 1, "negative_capacity": 1, "entropy_lower": 0.0, "entropy_upper": 1.0}),
    ("dmn", {"capacity": 2, "alpha": 1.0}),
    ("watt", {"rounds": 1, "steps": 1, "templates": "watt", "detach_targets": True}),
    ("clipartt", {"iterations": 2, "topk": 2, "detach_targets": True, "cached_prompts": 1}),
    ("mint", {"prior": 20.0}),
    ("lame", {"affinity": "neighbours", "neighbours": 2, "rounds": 3}),
    ("t3a", {"capacity": 2, "text": "support"}),
    ("oga", {"capacity": 20, "divide_by": "capacity"}),
    ("onzeta", {"horizon": 5, "proxy_share": 1.0}),
    ("zero", {"views": 5, "combined": "mean", "kept": 0.5, "views_at_once": 3}),
    ("mta", {"views": 4, "augmix": 3.0}),
    ("tps", {"views": 4, "steps": 2, "shift": "shared", "kept": 1.0}),
    ("tpt", {"views": 4, "steps": 2, "kept": 1.0, "prompts_at_once": 5}),
    ("tent", {"optimizer": "sgd", "loss": "come", "lr": 1e-2}),
    ("sar", {"optimizer": "adam", "loss": "come", "lr": 1e-3, "margin": 0.8, "reset_below": 0.4}),
    ("note", {"optimizer": "adam", "memory": 4, "lr": 1e-3}),
    ("rotta", {"optimizer": "adam", "memory": 4, "lr": 1e-3}),
    ("eata", {"lr": 1e-2, "margin": 0.8, "redundancy": 2.0, "reset_every": 3, "class_balance": 0.9}),
    ("deyo", {"lr": 1e-2, "margin": 0.8, "plpd_threshold": 0.0, "transform": "pixel", "frozen": "none"}),
    ("roid", {"lr": 1e-2, "prior": "off", "filter": "kalman"}),
    ("cotta", {"threshold": 0.0, "loss": "symmetric", "forget": 0.2}),
    ("batclip", {"optimizer": "sgd", "length": "unit", "pairs": "mean", "lr": 1e-2}),
    ("batclip", {"towers": "image"}),
    ("cliptta", {"iterations": 2, "shots": 1, "learn_from": "memory", "optimizer": "sgd", "lr": 1e-4}),
    ("clipot", {"templates": "single", "predictions": "template", "detach_targets": False}),
    ("moetta", {"experts": 2, "optimizer": "adam", "frozen": 0, "balance": 1.0}),
]
# With both towers; in the short run, all but the methods' own settings with one of them, by turns.
TOWERS = [
    (name, parameters, kind)
    for number, (name, parameters) in enumerate(SETTINGS)
    for kind in ("vit", "resnet")
    if RUN_SLOW_TESTS or number < len(ramen.list_methods()) or kind == ("vit", "resnet")[number % 2]
]
# For encoders with BatchNorm.
STATISTICS_SETTINGS = [
    ("tent", {"statistics": "batch", "lr": 1e-2}),
    ("entmin", {"statistics": "batch"}),
    ("note", {"statistics": "batch", "memory": 4, "lr": 1e-2}),
    ("sar", {"statistics": "batch", "lr": 1e-2, "margin": 0.8}),
    ("rotta", {"statistics": "robust", "memory": 8, "interval": 5, "nu": 0.5}),
    ("watt", {"statistics": "batch", "rounds": 1, "steps": 1}),
    ("clipartt", {"statistics": "batch", "iterations": 2}),
    ("mint", {"statistics": "batch", "prior": 20.0}),
    ("eata", {"statistics": "batch", "lr": 1e-2, "margin": 0.8, "redundancy": 2.0}),
    ("deyo", {"statistics": "batch", "lr": 1e-2, "margin": 0.8, "plpd_threshold": 0.0}),
    ("roid", {"statistics": "batch"}),
    ("cotta", {"statistics": "batch", "augmentations": 2, "threshold": 1.0}),
    ("batclip", {"statistics": "batch"}),
    ("cliptta", {"statistics": "batch", "iterations": 1, "shots": 1}),
    ("clipot", {"statistics": "batch", "templates": "single", "lr": 1e-5}),
    ("moetta", {"statistics": "batch", "experts": 3, "lr": 1e-4}),
]
