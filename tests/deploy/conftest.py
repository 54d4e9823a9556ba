"""Every set of manifests that an operator can apply, rendered once a run."""

from __future__ import annotations

import shutil

import pytest

from deploy.rendered import (
    COMPONENTS,
    DEPLOY,
    KUBERNETES,
    OVERLAYS,
    Manifest,
    render,
    render_component,
    render_documented,
)


@pytest.fixture(scope="session")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Manifest]]:
    """By name: overlays, the base with each component, the README's example, KServe's and the job."""
    if shutil.which("kubectl") is None:
        pytest.skip("rendering needs kubectl")
    rendered = {name: render(KUBERNETES / "overlays" / name) for name in OVERLAYS}
    for name in COMPONENTS:
        rendered[f"component {name}"] = render_component(name, tmp_path_factory.mktemp(name))
    rendered["documented"] = render_documented(tmp_path_factory.mktemp("documented"))
    return rendered | {"kserve": render(KUBERNETES / "kserve"), "job": render(DEPLOY / "job")}
