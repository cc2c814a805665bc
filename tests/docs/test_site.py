"""What the build of the documentation site finds wrong, and how pages reach the site. `make check` builds the site."""

from pathlib import Path

from docs.site import built, pages

NAVIGATION = '[project]\nnav = [{ "Start" = ["README.md", { "Changes" = "repository/CHANGELOG.md" }] }]\n'


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def test_everything_wrong_with_the_built_pages_is_found(tmp_path: Path) -> None:
    good = '<h1 id="top">x</h1><a href="#top"></a><a href="two.html#a%20b"></a><a href="https://example.org/">y</a>'
    _write(tmp_path, {"index.html": good, "two.html": '<p id="a b"><img src="./a.svg">', "a.svg": "", "a.css": "b {}"})
    assert built.problems(tmp_path) == []
    _write(
        tmp_path,
        {
            "in/one.html": '<a href="../none.html"></a><a href="../two.html#none"></a><a href="../../x.html"></a>'
            '<script src="https://example.org/x.js"></script><link rel="canonical" href="https://example.org/">',
            "a.css": "@font-face { src: url(https://example.org/x.woff) }",
        },
    )
    assert built.problems(tmp_path) == [
        "in/one.html fetches [https://example.org/x.js] from another host",
        "in/one.html links to [../none.html]: there is no such file",
        "in/one.html links to [../two.html#none]: the page has no anchor [none]",
        "in/one.html links to [../../x.html]: there is no such file",
        "a.css fetches a style, a font or a picture",
    ]


def test_pages_bring_what_they_link_to_and_say_what_is_missing(tmp_path: Path) -> None:
    home = (
        "[a](how-to/one.md#x) [b](../docker/a.yaml) [c](none.md)\n\n1. step\n\n   ```\n   [d](none.md)\n   ```\n\n"
        "```\n   [e](none.md)\n```\n\n| `--x a\\|b` | c |\n"
    )
    _write(
        tmp_path,
        {
            "docs/README.md": home,
            "docs/how-to/one.md": "# X\n",
            "docs/decisions/0001-a.md": "# A\n",
            "docker/a.yaml": "a: 1\n",
            "CHANGELOG.md": "[a](docs/how-to/one.md)\n",
            "docs/site/zensical.toml": NAVIGATION,
            "docs/site/site.css": "",
            "docs/site/overrides/main.html": "",
        },
    )
    stage = tmp_path / "stage"
    assert pages.stage(tmp_path, tmp_path / "docs" / "site", stage) == [
        "docs/README.md: [none.md] is no file of the repository",
        "docs/how-to/one.md is not in the navigation: add it to docs/site/zensical.toml",
    ]
    assert (stage / "docs" / "README.md").read_text(encoding="utf-8") == (
        "[a](how-to/one.md#x) [b](repository/docker/a.yaml) [c](none.md)\n\n1. step\n\n"
        "    ```\n    [d](none.md)\n    ```\n\n```\n   [e](none.md)\n```\n\n| `--x a|b` | c |\n"
    )
    assert (stage / "docs" / "repository" / "docker" / "a.yaml").read_text(encoding="utf-8") == "a: 1\n"
    changes = (stage / "docs" / "repository" / "CHANGELOG.md").read_text(encoding="utf-8")
    assert changes == "[a](../how-to/one.md)\n"
