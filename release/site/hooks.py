"""mkdocs calls these (`hooks` in mkdocs.yml): https://www.mkdocs.org/user-guide/configuration/#hooks."""

import re
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from release.site.generated import with_generated
from release.site.outside_pages import OUTSIDE, with_site_links

_NEEDS: Final = re.compile(r"^( *\*Needs .+\.\*)$", re.MULTILINE)
"""The note above a command that no test runs."""
_LONG_NAME: Final = re.compile(r"<code>(?=\w*_)(\w{24,}|(?<!<td><code>)\w{17,})</code>")
"""Such as a metric's: wider than its column. The first column has more room."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that live outside docs/."""
    for path, name in OUTSIDE.items():
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Puts what is generated in its place, leads links to pages outside docs/ to where the site has them, marks notes."""
    marked = _NEEDS.sub(r'\1{ .needs title="Our tests do not run this." }', markdown)
    return with_site_links(with_generated(marked), page.file.src_uri)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lets long names break behind an underscore, and nowhere else."""
    return _LONG_NAME.sub(lambda name: f'<code class="long">{name[1].replace("_", "_<wbr>")}</code>', html)
