"""Workspaces of cuBLAS. Does not import torch, which reads these settings once."""

import os


def without_workspaces() -> None:
    """Let cuBLAS multiply without workspaces, which it would clear before every product.

    For programs, before their first product on a GPU. Settings that the environment already has are kept.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    os.environ.setdefault("CUBLASLT_WORKSPACE_SIZE", "0")
