"""The programs of docs/recipes, run by many threads at once on each database, with and without their locks."""
