"""Pages of commands and of public names."""

import re

import typer.main

import ramen
from ramen.cli import app
from tools.documentation import command_pages, reference_pages


def test_every_command_and_option_is_on_the_page() -> None:
    page = command_pages.pages()[command_pages.PATH]
    command = typer.main.get_command(app)
    assert page.count("\n## ramen ") == len(list(command_pages._commands("ramen", command)))
    classify = command.commands["classify"]
    section = page.split("## ramen classify\n")[1].split("\n## ")[0]
    for option in classify.params:
        if option.param_type_name == "option":
            assert f"`{option.opts[0]}`" in section
    assert "required" in page.split("## ramen data make\n")[1].split("\n## ")[0]


def test_every_public_name_has_its_place() -> None:
    page = reference_pages.page("ramen")
    missing = [name for name in ramen.__all__ if not re.search(rf"(::: [\w.]+\.|## `?){name}`?\n", page)]
    assert missing == []
    assert "::: ramen.methods._registry.create" in page
    assert "(ramen.methods.md)" in page


def test_a_module_that_is_defined_elsewhere() -> None:
    assert reference_pages.modules()["ramen.scoring"] == "ramen.experiments.analysis.scoring"
    assert "::: ramen.experiments.analysis.scoring." in reference_pages.page("ramen.scoring")


def test_examples_of_docstrings_become_code() -> None:
    text = "Words.\n\n>>> 1 + 1\n2\n\nMore ``words``."
    assert reference_pages._plain(text) == "Words.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore `words`."
