"""Which file becomes which: patterns, folders, numbered names, templates, pairs, and what is refused."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from penstock.errors import DatasetNotFound, PlanError
from penstock.jobs.files import Resolver, expand_braces, make_pairs

STORE = Resolver(None, None)


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a.tar", "b.tar", "deep/c.tar", "deep/d.txt"):
        (tmp_path / "raw" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "raw" / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(pairs: list[tuple[str, str]], root: Path) -> list[tuple[str, str]]:
    """Return pairs as seen from the working folder; what lies there must have come out as whole paths."""
    for path in (path for pair in pairs for path in pair):
        assert path.startswith(f"{root}/"), path
    return [(one.removeprefix(f"{root}/"), other.removeprefix(f"{root}/")) for one, other in pairs]


def test_a_pattern_and_a_folder_keep_the_names_below_the_pattern(raw: Path) -> None:
    assert names(make_pairs("raw/*.tar", "out", STORE), raw) == [
        ("raw/a.tar", "out/a.tar"),
        ("raw/b.tar", "out/b.tar"),
    ]
    found = names(make_pairs("raw/**/*.tar", "out/", STORE), raw)
    assert found == [("raw/a.tar", "out/a.tar"), ("raw/b.tar", "out/b.tar"), ("raw/deep/c.tar", "out/deep/c.tar")]


def test_a_folder_stands_for_all_its_files(raw: Path) -> None:
    assert [out for _, out in names(make_pairs(Path("raw"), "out", STORE), raw)] == [
        "out/a.tar", "out/b.tar", "out/deep/c.tar", "out/deep/d.txt",
    ]  # fmt: skip


def test_names_that_begin_with_an_underscore_are_files_too(raw: Path) -> None:
    for name in ("raw/_e.tar", "raw/_more/f.tar", "raw/.g.tar", "raw/.more/h.tar"):
        (raw / name).parent.mkdir(exist_ok=True)
        (raw / name).write_text(name)
    assert [out for _, out in names(make_pairs("raw/**/*.tar", "out", STORE), raw)] == [
        "out/_e.tar", "out/_more/f.tar", "out/a.tar", "out/b.tar", "out/deep/c.tar",
    ]  # fmt: skip
    assert [out for _, out in names(make_pairs("raw", "out", STORE), raw)] == [
        "out/_e.tar", "out/_more/f.tar", "out/a.tar", "out/b.tar", "out/deep/c.tar", "out/deep/d.txt",
    ]  # fmt: skip


def test_numbered_names_go_side_by_side_and_nothing_is_asked_for_them() -> None:
    pairs = make_pairs("gs://b/original-{0008..0010}.tar", "gs://b/rescaled-{0008..0010}.tar", STORE)
    assert pairs == [(f"gs://b/original-{i:04d}.tar", f"gs://b/rescaled-{i:04d}.tar") for i in (8, 9, 10)]


def test_braces_are_those_of_a_shell() -> None:
    assert expand_braces("{1..3}") == ["1", "2", "3"]
    assert expand_braces("{3..1}") == ["3", "2", "1"]
    assert expand_braces("{a,b}-{01..02}") == ["a-01", "a-02", "b-01", "b-02"]
    assert expand_braces("{stem}.mp4") == ["{stem}.mp4"]


@pytest.mark.parametrize(
    ("template", "first"),
    [
        ("out/{stem}.webp", "out/a.webp"),
        ("out/{index:05d}{suffix}", "out/00000.tar"),
        ("{relative}.gz", "a.tar.gz"),
    ],
)
def test_templates(raw: Path, template: str, first: str) -> None:
    assert names(make_pairs("raw/*.tar", template, STORE), raw)[0][1] == first


def test_a_single_file_has_a_single_output(raw: Path) -> None:
    for output, wanted in [("b.tar", "b.tar"), ("out/", "out/a.tar"), ("raw/deep", "raw/deep/a.tar")]:
        assert names(make_pairs("raw/a.tar", output, STORE), raw) == [("raw/a.tar", wanted)]


@pytest.mark.parametrize("inputs", ["raw/a.tar", ["raw/a.tar"], Path("raw/a.tar"), iter(["raw/a.tar"])])
def test_whether_outputs_are_a_file_or_a_folder_is_told_by_their_name(raw: Path, inputs: object) -> None:
    listed = list(inputs) if not isinstance(inputs, str | Path) else inputs
    (raw / "there.d").mkdir()
    for output, wanted in [
        ("result.txt", "result.txt"),
        ("result.txt/", "result.txt/a.tar"),
        ("there.d", "there.d/a.tar"),
        ("result", "result/a.tar"),
        (".hidden", ".hidden/a.tar"),
    ]:
        assert names(make_pairs(listed, output, STORE), raw) == [("raw/a.tar", wanted)]


@pytest.mark.parametrize(
    ("inputs", "what"), [(["raw/a.tar", "raw/b.tar"], "2 files"), ("raw/a*", "a pattern"), ("raw", "a pattern or fold")]
)
def test_a_file_for_several_inputs_is_refused(raw: Path, inputs: object, what: str) -> None:
    with pytest.raises(PlanError, match=rf"'all.tar' reads as the name of one file.*{what}.*'all.tar/'"):
        make_pairs(inputs, "all.tar", STORE)
    assert make_pairs([], "all.tar", STORE) == []


def test_a_folder_on_a_store_is_known(raw: Path) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe("/stored.d/x", b"x")
    assert make_pairs(["raw/a.tar"], "memory://stored.d", STORE)[0][1] == "memory://stored.d/a.tar"
    assert make_pairs(["raw/a.tar"], "memory://new.d", STORE)[0][1] == "memory://new.d"


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([("raw/a.tar", "link/a.tar")], "'raw/a.tar' is input and output at once"),
        ([("link/a.tar", "raw/a.tar")], "'link/a.tar' is input and output at once"),
        ([("alias.tar", "raw/a.tar")], "'alias.tar' is input and output at once"),
        ([("raw/a.tar", "raw/b.tar"), ("raw/b.tar", "out/x")], "'raw/b.tar' of 'raw/a.tar' is the input 'raw/b.tar'"),
        ([("raw/b.tar", "out/x"), ("raw/a.tar", "link/b.tar")], "is the input 'raw/b.tar' of another pair"),
        ([("raw/b.tar", "out/x"), ("alias.tar", "y"), ("raw/b.tar", "raw/a.tar")], "is the input 'alias.tar'"),
        ([("raw/a.tar", "deep2/x"), ("raw/b.tar", "raw/deep/x")], "two inputs have the output 'raw/deep/x'"),
        ([("raw/a.tar", "out/x"), ("raw/b.tar", "out/x/y")], "the output '.*/out/x/y' lies in '.*/out/x'"),
        ([("raw/a.tar", "raw")], "the input '.*/raw/a.tar' lies in '.*/raw', which is the output of 'raw/a.tar'"),
        ([("a", "memory://d/x"), ("b", "memory:///d/x")], "two inputs have the output"),
        ([("s3a://b/x", "s3://b/x")], "is input and output at once"),
    ],
)
def test_no_pair_overwrites_what_another_reads_or_makes(raw: Path, pairs: list[tuple[str, str]], message: str) -> None:
    (raw / "link").symlink_to("raw")
    (raw / "deep2").symlink_to(raw / "raw" / "deep")
    (raw / "alias.tar").symlink_to("raw/a.tar")
    with pytest.raises(PlanError, match=message):
        make_pairs(pairs, None, STORE)


def test_a_link_that_is_an_output_is_replaced_and_not_what_it_leads_to(raw: Path) -> None:
    (raw / "alias.tar").symlink_to("raw/a.tar")
    assert names(make_pairs([("raw/a.tar", "alias.tar")], None, STORE), raw) == [("raw/a.tar", "alias.tar")]


def test_lists_pairs_dicts_and_functions(raw: Path) -> None:
    wanted = [("x", "y"), ("z", "w")]
    assert names(make_pairs(["x", "z"], ["y", "w"], STORE), raw) == wanted
    assert names(make_pairs(wanted, None, STORE), raw) == wanted
    assert names(make_pairs(dict(wanted), None, STORE), raw) == wanted
    assert names(make_pairs(["x"], lambda one: Path(f"out/{one}"), STORE), raw) == [("x", "out/x")]
    assert names(make_pairs(iter([Path("x")]), "out", STORE), raw) == [("x", "out/x")]


def test_local_names_are_made_whole_where_the_job_is_begun(raw: Path) -> None:
    """Workers of a cluster may run in another folder; a store's names are the same everywhere."""
    pairs = [("raw/a.tar", "./out/../a.gz"), (f"file://{raw}/raw/b.tar", "memory://b"), ("~/x", f"{raw}/x")]
    made = make_pairs(pairs, None, STORE)
    assert made[0] == (f"{raw}/raw/a.tar", f"{raw}/a.gz")
    assert made[1] == (f"{raw}/raw/b.tar", "memory://b")
    assert made[2] == (str(Path("~/x").expanduser()), f"{raw}/x")
    memory = Resolver(None, fsspec.filesystem("memory"))
    assert make_pairs([("a", "b")], None, memory) == [("a", "b")]


def test_urls_keep_their_scheme() -> None:
    fs = fsspec.filesystem("memory")
    for name in "ab":
        fs.pipe(f"/pairs/{name}.tar", b"x")
    for text in ("memory://pairs/*.tar", "memory:///pairs/*.tar", "memory://pairs"):
        pairs = make_pairs(text, "memory://out", STORE)
        assert [out for _, out in pairs] == ["memory://out/a.tar", "memory://out/b.tar"]
        assert [STORE.resolve(one)[1] for one, _ in pairs] == ["/pairs/a.tar", "/pairs/b.tar"]


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        (["a", "b"], ["c"], "2 inputs and 1 outputs"),
        (["a", "b"], "x-{1..3}", "names 3 outputs"),
        (["d/a", "e/a"], "out", "two inputs have the output 'out/a': 'd/a' and 'e/a'"),
        (["a"], "out/{nam}", "no field '{nam}'; did you mean 'name'"),
        (["a"], "out/{name:05d}", r"outputs='out/{name:05d}': '{name:05d}' cannot be filled with 'a'.*{index}"),
        (["a"], ["./a"], "input and output at once"),
        ("a", None, "no outputs; pass outputs="),
        (["a"], None, r"pair 0 must be \(input, output\); got 'a'"),
        ([3], "out", "as text; got 3"),
        (3, "out", "a path, a pattern, a folder or a list"),
    ],
)
def test_what_does_not_fit_together_is_refused(inputs: object, outputs: object, message: str, raw: Path) -> None:
    with pytest.raises(PlanError, match=message):
        make_pairs(inputs, outputs, STORE)  # type: ignore[arg-type]


def test_a_pattern_or_folder_without_files_is_an_error(raw: Path) -> None:
    with pytest.raises(DatasetNotFound, match=r"no file matches 'raw/\*.zip'"):
        make_pairs("raw/*.zip", "out", STORE)
    (raw / "empty").mkdir()
    with pytest.raises(DatasetNotFound, match="holds no files"):
        make_pairs("empty", "out", STORE)
