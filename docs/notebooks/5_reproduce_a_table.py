# %% [markdown]
# # Reproduce a table
#
# Experiments are planned from presets, which hold the paper's hyper-parameters, and run one by one. Each
# result is one JSON file with everything that is needed to repeat it, and tables are made from these files.
# Here with the tiny model and few images; `data="cifar10c", root="DATA"` plans the paper's first table.

# %%
import json
from pathlib import Path

from IPython.display import Markdown
from rich.console import Console

from ramen.experiments.analysis.grouping import by_setting, group
from ramen.experiments.plan.experiment import plan
from ramen.experiments.run.execute import run_experiments
from ramen.experiments.tables.accuracy import averages_table
from ramen.experiments.tables.group_rows import group_rows
from ramen.experiments.tables.markdown import markdown_page
from ramen.experiments.tables.ranking import ranking_table

experiments = plan(
    ["ensemble", "tent", "ramen"],
    data="tiny",
    data_options={"pictures": 20},
    seeds=[0, 1, 2],
    batch=50,
)
results = run_experiments(experiments, Path("results"), console=Console(quiet=True))
print(len(results), "results in", len(list(Path("results").rglob("*.json"))), "files")

# %% [markdown]
# ## The table

# %%
rows = [group_rows(setting) for setting in by_setting(group(results))]
Markdown(markdown_page([averages_table(rows[0])]))

# %% [markdown]
# ## Who wins
#
# All methods saw the same images in the same order, so they are compared in pairs, seed by seed. With 360
# images and three seeds only large and steady differences pass; [benchmarks](../benchmarks.md#comparing)
# explains the columns.

# %%
Markdown(markdown_page([ranking_table(rows[0])]))

# %% [markdown]
# ## What a result holds

# %%
stored = json.loads(experiments[-1].path(Path("results")).read_text())
print(*stored, sep=", ")
for name, chosen in stored["provenance"]["method"]["chosen"].items():
    print(f"{name} = {chosen['value']}: {chosen['why']}")

# %% [markdown]
# In a terminal this notebook is `ramen compare --run --method ensemble --method tent --method ramen
# --data-set pictures=20 --batch 50 --seeds 3`.
