"""Names and docstrings follow the naming rules. `python tests/test_language.py [PATH]…` prints what does not."""

import ast
import collections
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

PACKAGES = {
    "overlaplab": "overlaplab",
    "overlaplab_engine": "engine/overlaplab_engine",
    "scripts": "scripts",
    "benchmarks": "benchmarks",
}


def _split(words: str) -> frozenset[str]:
    return frozenset(words.split())


BANNED = _split("own found told one kept given known taken said rest made asked met")

# A function of one word is named after what it does or returns. Words in -ed, -ing and -able are taken for participles
# and adjectives, except nouns and verbs; those of other endings are listed.
NOUNS_AND_VERBS = _split("""
    bring disable embed enable feed heading meaning need padding recording ring seed setting sharding shed
    spacing speed string table timing
""")
PARTICIPLES = _split("""
    begun bound brought came chosen done drawn due exposed fitted found given gone got held hidden kept known
    lent lost made meant met overran paid said sent shown spent stolen taken told took undrawn unseen won
    written
""")
ADJECTIVES = _split("""
    absent alike alone asleep asynchronous busy categorical columnar comparable dark earlier early even exact
    far fast few fine hollow idle late latest lenient less many more most narrow near needless new only own
    plain present quiet ready real same several short shortest single slower small sure typical uncertain
    unknown unlike visible whole writable wrong
""")
PARTICLES = _split("""
    about after all along also always among around aside at backwards before behind below beside between beyond
    by down during each every for from in inside into is lazily now of on or others out outside over patiently
    through together until up where which whose why with within without
""")
CONTRACT = _split("along aside exact kept of optimized paused state_of updated updates_of")
"""Methods and fields of public classes that users call by these names."""
OVERRIDDEN = "updated"
"""The method of a public class that others, which inherit it, override."""
SUFFIXES = ("_is", "_of", "_at")
PREFIXES = ("of_", "by_", "on_")
FIRST_WORDS = {"Of", "As", "Whose", "Which"}

CHECKED = (
    *(ast.Name, ast.Attribute, ast.arg, ast.alias, ast.ExceptHandler, ast.MatchAs, ast.MatchStar),
    *(ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef),
)

Offenders = dict[str, list[tuple[int, str]]]
"""The (line, name) of each offender, for each rule."""


def _is_bare(name: str) -> bool:
    """Say whether a function's name is a participle, an adjective or a preposition without a noun."""
    if name.startswith(PREFIXES) or name.endswith(SUFFIXES):
        return True
    if "_" in name or name in NOUNS_AND_VERBS:
        return False
    return name.endswith(("ed", "ing", "able")) or name in PARTICIPLES | ADJECTIVES | PARTICLES


def _public_names(tree: ast.AST) -> set[str]:
    """Collect what a package's `__all__` lists, what it imports as itself, and all imports where it has no more."""
    body = getattr(tree, "body", None) or [tree]
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    passes_on = all(isinstance(statement, ast.ImportFrom) for statement in body[1:])
    names = {alias.name for each in imports for alias in each.names if passes_on or alias.name == alias.asname}
    for statement in body:
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == "__all__":
            names |= {node.value for node in ast.walk(statement.value) if isinstance(node, ast.Constant)}
    return names


def _is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Say whether a function reads as an attribute."""
    return any(ast.unparse(decorator).endswith("property") for decorator in function.decorator_list)


def _bound_name(node: ast.AST) -> str:
    """Return the local, parameter or attribute that a node binds, or nothing."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
            return name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return name
        case ast.alias(asname=str(name)):
            return name
        case ast.FunctionDef(name=name) if _is_property(node):
            return name
    return ""


def _names_of_others(node: ast.AST, public: set[str]) -> list[ast.AST]:
    """List what a class may not rename: its part of the `CONTRACT`, and what a framework calls in its callbacks."""
    if not isinstance(node, ast.ClassDef):
        return []
    is_callback = any(ast.unparse(base).endswith("Callback") for base in node.bases)
    members = [statement.target if isinstance(statement, ast.AnnAssign) else statement for statement in node.body]
    names = [(member, getattr(member, "id", getattr(member, "name", ""))) for member in members]
    return [
        member
        for member, name in names
        if (name in CONTRACT and node.name in public)
        or (name == OVERRIDDEN and node.bases)
        or (is_callback and name.startswith("on_"))
    ]


def _docstrings(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the (line, text) of a module's, class's or function's docstring, and of those below assignments in it."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        for statement in node.body:
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, text


def _checked_nodes(source: str) -> list[ast.AST]:
    """Return the nodes that rules are about; the module is the first."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, CHECKED)]


def find_offenders(nodes: list[ast.AST], public: set[str], homonyms: set[str]) -> Offenders:
    """Find what breaks a rule in one file."""
    offenders: Offenders = collections.defaultdict(list)
    settled = {id(member) for node in nodes for member in _names_of_others(node, public)}
    for node in nodes:
        name = "" if id(node) in settled else _bound_name(node)
        if name.strip("_") in BANNED:
            offenders["name"].append((getattr(node, "lineno", 1), name))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not (_is_property(node) or id(node) in settled):
            bare = node.name.strip("_")
            if not node.name.startswith("__") and node.name not in public and _is_bare(bare):
                offenders["function"].append((node.lineno, node.name))
        if isinstance(node, ast.ClassDef) and node.name.strip("_") in homonyms:
            offenders["class"].append((node.lineno, node.name))
        for line, text in _docstrings(node):
            words = text.split()
            if words and words[0].rstrip(",") in FIRST_WORDS:
                offenders["docstring"].append((line, " ".join(words[:6])))
    return offenders


def find_all() -> dict[str, Offenders]:
    """Find what breaks a rule in each file, by its path."""
    offenders = {}
    for package, folder in PACKAGES.items():
        files = sorted((ROOT / folder).rglob("*.py"))
        if package == "overlaplab":
            files.append(ROOT / "app.py")
        nodes_of = {file.relative_to(ROOT).as_posix(): _checked_nodes(file.read_text()) for file in files}
        public = set[str]().union(*(_public_names(nodes[0]) for nodes in nodes_of.values()))
        classes = collections.Counter(
            node.name.strip("_") for nodes in nodes_of.values() for node in nodes if isinstance(node, ast.ClassDef)
        )
        homonyms = {name for name, count in classes.items() if count > 1}
        offenders |= {path: find_offenders(nodes, public, homonyms) for path, nodes in nodes_of.items()}
    return offenders


def list_problems(paths: tuple[str, ...] = ()) -> list[str]:
    """List what breaks a rule, in files whose paths begin with one of these, or in all."""
    return [
        f"{path}:{line}: {rule}: {name}"
        for path, rules in find_all().items()
        if path.startswith(paths or "")
        for rule, places in rules.items()
        for line, name in places
    ]


def test_names_and_docstrings_follow_the_rules() -> None:
    problems = list_problems()
    assert not problems, "\n".join(problems)


def test_each_rule_has_an_offender() -> None:
    source = '''
class _Step:
    """Which step it is."""
    known: int
    @property
    def told(self): ...

def measured(own, *, found):
    _rest = [one for one in own]
    def rank_of(): ...
    def _of_trace(): ...
    def match_steps(): ...
    try:
        ...
    except OSError as given:
        self.met = 1

LIMIT = 2
"""Of steps."""

class Public(Callback):
    """A public class of a framework's kind."""
    kept: int
    found: int
    def on_step(self): ...
    def updated(self): ...
'''
    offenders = find_offenders(_checked_nodes(source), {"Public"}, {"Step"})
    names = {rule: sorted(name for _, name in places) for rule, places in offenders.items()}
    assert names == {
        "class": ["_Step"],
        "docstring": ["Of steps.", "Which step it is."],
        "function": ["_of_trace", "measured", "rank_of"],
        "name": sorted(["known", "told", "own", "found", "found", "_rest", "one", "given", "met"]),
    }


if __name__ == "__main__":
    print("\n".join(list_problems(tuple(sys.argv[1:]))))
