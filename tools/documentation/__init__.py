"""The documentation site: pages made from the program, notebooks that are run, figures that are drawn."""
