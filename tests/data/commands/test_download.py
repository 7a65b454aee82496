"""``ramen data download``."""

from tests.fakes.layouts import write_cifar_c


def test_download_says_what_failed(run, tmp_path):
    (tmp_path / "CIFAR-10-C").mkdir()
    result = run("download", "cifar10c", "--root", tmp_path)
    assert result.exit_code == 1
    assert "already exists, but" in result.stderr
    assert run("download", "pacs", "--root", tmp_path).exit_code == 2


def test_download_of_what_is_there(run, tmp_path):
    write_cifar_c(tmp_path / "CIFAR-10-C")
    result = run("download", "cifar10c", "--root", tmp_path)
    assert result.exit_code == 0
    assert result.stdout.replace("\n", "") == f"cifar10c is in {tmp_path}/CIFAR-10-C"
