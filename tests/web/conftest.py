"""A headless Chromium and the built pages; without them these tests skip and say what is missing (make test-web)."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MODULES = ROOT / "node_modules"
RUNGS = "03-04"
SERIOUS = ("serious", "critical")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/web/" in item.path.as_posix():
            item.add_marker(pytest.mark.web)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is missing; run: make test-web")
    system = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_api.sync_playwright() as playwright:
        if system is None and not Path(playwright.chromium.executable_path).is_file():
            pytest.skip("no Chromium; install Debian's package chromium, or run: playwright install chromium")
        # In a container Chromium cannot make its sandbox; it sees nothing but the pages built here.
        made = playwright.chromium.launch(executable_path=system, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of pages, with rungs 03 and 04 in the explorer."""
    from docs.generate.explorer import build_site
    from peakgemm.kernels.registry import rungs

    if not (MODULES / "pyodide").is_dir():
        pytest.skip("node_modules is missing; run: make test-web")
    out = tmp_path_factory.mktemp("site")
    build_site(out, MODULES / "pyodide", ROOT / "build" / "cache", rungs(RUNGS))
    return out


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[[Path], str]]:
    """Serves a folder; its address."""
    with ExitStack() as servers:
        def started(folder: Path) -> str:
            server = servers.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder)))
            servers.callback(server.shutdown)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            return f"http://127.0.0.1:{server.server_port}"
        yield started


@pytest.fixture(scope="session")
def served(site: Path, serve: Callable[[Path], str]) -> str:
    return serve(site)


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens an address; at the end of the test its console must hold no error."""
    errors: list[str] = []
    contexts = []

    def opened(address: str, wide: int = 1400, high: int = 1000, scheme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": wide, "height": high}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: errors.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("requestfailed", lambda request: errors.append(f"{request.url}: {request.failure}"))
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture
def axe() -> Callable[[Any], list[str]]:
    """What axe finds serious or critical on a page."""
    script = MODULES / "axe-core" / "axe.min.js"
    if not script.is_file():
        pytest.skip("axe-core is missing; run: make test-web")

    def faults(page: Any) -> list[str]:
        page.add_script_tag(path=str(script))
        found = page.evaluate("axe.run()")
        return [f"{one['id']}: {one['help']}: {[node['target'] for node in one['nodes'][:3]]}"
                for one in found["violations"] if one["impact"] in SERIOUS]
    return faults
