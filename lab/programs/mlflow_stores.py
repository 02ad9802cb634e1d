"""Uses MLflow's SQLAlchemy stores as a program does: MLflow's own tests need a repository of 900 MB."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture
def registry(address: str) -> Any:
    return import_module("mlflow.store.model_registry.sqlalchemy_store").SqlAlchemyStore(address)


@pytest.fixture
def tracking(address: str, tmp_path: Path) -> Iterator[Any]:
    module = import_module("mlflow.store.tracking.sqlalchemy_store")
    store = module.SqlAlchemyStore(address, str(tmp_path))
    yield store
    store._dispose_engine()


def test_a_model_goes_into_production(registry: Any) -> None:
    entities = import_module("mlflow.entities.model_registry")
    of_version, of_model = entities.ModelVersionTag, entities.RegisteredModelTag
    registry.create_registered_model("shop", tags=[of_model("team", "a")])
    first = registry.create_model_version("shop", "path/1", tags=[of_version("kind", "x")])
    second = registry.create_model_version("shop", "path/2")
    for one in (first, second, first):
        registry.transition_model_version_stage(
            "shop", one.version, "Production", archive_existing_versions=True
        )
    registry.update_model_version("shop", first.version, "better")
    registry.set_model_version_tag("shop", first.version, of_version("kind", "y"))
    registry.set_registered_model_tag("shop", of_model("team", "b"))
    registry.set_registered_model_alias("shop", "champion", first.version)
    registry.set_registered_model_alias("shop", "champion", second.version)
    registry.delete_registered_model_alias("shop", "champion")
    registry.update_registered_model("shop", "of the shop")
    registry.rename_registered_model("shop", "store")
    registry.delete_model_version("store", second.version)
    registry.delete_registered_model("store")


def test_a_run_is_tracked(tracking: Any) -> None:
    entities = import_module("mlflow.entities")
    metric, param, tag = entities.Metric, entities.Param, entities.RunTag
    experiment = tracking.create_experiment("sales")
    tracking.set_experiment_tag(experiment, entities.ExperimentTag("team", "a"))
    tracking.set_experiment_tag(experiment, entities.ExperimentTag("team", "b"))
    run = tracking.create_run(experiment, "ann", 1, [tag("kind", "x")], "first").info.run_id
    for value in (1.0, 3.0, 2.0):
        tracking.log_metric(run, metric("loss", value, int(value), int(value)))
    tracking.log_batch(run, [metric("loss", 5.0, 9, 9)], [param("rate", "1")], [tag("kind", "y")])
    tracking.log_param(run, param("depth", "2"))
    tracking.set_tag(run, tag("kind", "z"))
    tracking.delete_tag(run, "kind")
    tracking.update_run_info(run, entities.RunStatus.FINISHED, 5, "second")
    tracking.delete_run(run)
    tracking.restore_run(run)
    tracking.rename_experiment(experiment, "revenue")
    tracking.delete_experiment(experiment)
    tracking.restore_experiment(experiment)
