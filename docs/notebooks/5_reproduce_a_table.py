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

from ramen.experiments import plan, run_all
from ramen.experiments.render import markdown
from ramen.experiments.results import all_rows
from ramen.experiments.tables import averages_table, ranking_table

experiments = plan(
    ["ensemble", "tent", "ramen"],
    data="tiny",
    data_options={"pictures": 20},
    seeds=[0, 1, 2],
    batch=50,
)
results = run_all(experiments, Path("results"), console=Console(quiet=True))
print(len(results), "results in", len(list(Path("results").rglob("*.json"))), "files")

# %% [markdown]
# ## The table

# %%
(rows,) = all_rows(results)
Markdown(markdown(averages_table(rows)))

# %% [markdown]
# ## Who wins
#
# All methods saw the same images in the same order, so they are compared in pairs, seed by seed. With 360
# images and three seeds only large and steady differences pass; [benchmarks](../benchmarks.md#comparing)
# explains the columns.

# %%
Markdown(markdown(ranking_table(rows)))

# %% [markdown]
# ## For analyses of your own
#
# `ramen.results` reads a folder into a DataFrame: one row per run, a column per entry of its file.

# %%
import ramen

runs = ramen.results("results")
runs.groupby("title")[["scores.average", "cost.ms_an_image"]].agg(["mean", "std"])

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
