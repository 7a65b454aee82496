"""Commands let cuBLAS multiply without scratch memory, unless the environment says otherwise."""

import pytest
from typer.testing import CliRunner

from ramen.cli import app

GEMM, LT = "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE"


def test_every_command_multiplies_without_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {GEMM: ":4096:8"}  # asked for by somebody who wants deterministic products
    monkeypatch.setattr("os.environ", environment)
    assert CliRunner().invoke(app, ["describe"]).exit_code == 0
    assert environment[GEMM] == ":4096:8"
    assert environment[LT] == "0"

    del environment[GEMM]
    assert CliRunner().invoke(app, ["describe"]).exit_code == 0
    assert environment[GEMM] == ":0:0"
