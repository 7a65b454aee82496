"""Weights from files: every format gives the same tensors, and nothing in a file is executed."""

import os
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ramen.models.checkpoints import is_torchscript, read_torchscript, read_weights

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")


class Network(nn.Module):
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
        self.second = nn.Linear(4, 2)
        self.register_buffer("steps", torch.arange(3))
        self.sizes = [1, 2]
        self.name = "network"

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def archive(path: Path, module: nn.Module) -> Path:
    torch.jit.save(torch.jit.script(module), path)
    return path


def assert_same(found: dict[str, Tensor], module: nn.Module) -> None:
    expected = module.state_dict()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_torchscript_archives(tmp_path: Path, dtype: torch.dtype) -> None:
    module = Network().to(dtype)
    path = archive(tmp_path / "a.pt", module)
    assert is_torchscript(path)
    assert_same(read_torchscript(path), module)
    assert_same(read_weights(path), module)


def test_shared_and_strided_tensors_of_archives(tmp_path: Path) -> None:
    module = Network()
    module.second.weight.data = torch.arange(8.0).view(4, 2).T  # strided
    module.first[1].bias = module.first[1].weight
    assert_same(read_torchscript(archive(tmp_path / "a.pt", module)), module)


def test_other_files(tmp_path: Path) -> None:
    module = Network()
    save_file(module.state_dict(), tmp_path / "a.safetensors")
    contents = {
        "plain.pt": module.state_dict(),
        "of_training.pt": {"epoch": 3, "state_dict": module.state_dict(), "optimizer": {"lr": 0.1}},
        "of_several_processes.pt": {
            "model": {f"module.{name}": value for name, value in module.state_dict().items()}
        },
    }
    for name, content in contents.items():
        torch.save(content, tmp_path / name)
        assert not is_torchscript(tmp_path / name)
    for name in (*contents, "a.safetensors"):
        assert_same(read_weights(tmp_path / name), module)


class Evil:
    """What a pickle would execute when it is read."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (self.command,)


def replaced(path: Path, entry: str, content: bytes) -> Path:
    """A copy of an archive with another entry of that ending."""
    copy = path.with_name("changed.pt")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(copy, "w") as new:
        for name in old.namelist():
            new.writestr(name, content if name.endswith(entry) else old.read(name))
    return copy


def test_no_file_executes_anything(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    evil = pickle.dumps(Evil(f"touch {mark}"), protocol=2)
    torch.save({"weight": torch.ones(2), "other": Evil(f"touch {mark}")}, tmp_path / "evil.pt")
    with pytest.raises(ValueError, match=r"evil.pt cannot be read as weights alone"):
        read_weights(tmp_path / "evil.pt")
    changed = replaced(archive(tmp_path / "a.pt", Network()), "/data.pkl", evil)
    with pytest.raises(ValueError, match=r"it asks for \w+\.system, which weights do not need"):
        read_weights(changed)
    assert not mark.exists()


@pytest.mark.parametrize(
    "name", ["builtins.eval", "torch.load", "torch._utils._rebuild_parameter", "os.system"]
)
def test_archives_may_not_name_functions(tmp_path: Path, name: str) -> None:
    module, _, function = name.rpartition(".")
    content = f"c{module}\n{function}\n.".encode()
    with pytest.raises(ValueError, match=f"it asks for {name}, which weights do not need"):
        read_weights(replaced(archive(tmp_path / "a.pt", Network()), "/data.pkl", content))


@pytest.mark.parametrize("content", [b"", b".", b"K\x01.", b"}.", b"\x80\x02(", b"cos\n"])
def test_damaged_archives(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ValueError, match=r"changed.pt (cannot be read as|is) a TorchScript archive"):
        read_weights(replaced(archive(tmp_path / "a.pt", Network()), "/data.pkl", content))


def test_tensors_beyond_their_storage(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.pt", Network())
    with pytest.raises(ValueError, match=r"has 4 bytes, not \d+"):
        read_weights(replaced(path, "/data/0", b"1234"))


def test_what_holds_no_weights(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ValueError, match=r"list.pt holds no weights by name, got list"):
        read_weights(tmp_path / "list.pt")
    with pytest.raises(ValueError, match="is not a file"):
        read_weights(tmp_path / "nothing.pt")
    (tmp_path / "damaged.safetensors").write_bytes(b"123")
    with pytest.raises(ValueError, match=r"damaged.safetensors cannot be read"):
        read_weights(tmp_path / "damaged.safetensors")
