"""``ramen data list``."""

import json

from ramen.data import registry


def test_list(run):
    result = run("list")
    assert result.exit_code == 0
    assert [
        line.split()[0] for line in result.output.splitlines() if line[0] != " "
    ] == registry.list_datasets()
    assert "https://zenodo.org/records/3555552" in result.output


def test_list_as_json(run):
    records = {record["name"]: record for record in json.loads(run("list", "--json").stdout)}
    assert list(records) == registry.list_datasets()
    assert records["domainnet"]["classes"] == 345
    assert records["domainnet"]["pictures"] == 586_575
    assert records["imagenetc5k"]["options"] == ["severity", "domains", "class_names", "image_list"]
    assert [name for name, record in records.items() if record["downloadable"]] == ["cifar10c", "cifar100c"]
