"""The command that runs the cases of a pipeline file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from xml.etree import ElementTree

import typer

from pipelines.cli.arguments import File, errors_as_exit, out, replace_text
from pipelines.config import PipelineConfig, load
from pipelines.config.load import read_text
from pipelines.counts import count_of

if TYPE_CHECKING:
    from pipelines.preview.cases import Result
    from pipelines.process.program import Program


def test(
    file: File,
    cases: Annotated[
        Path | None, typer.Argument(help="The cases. Default: beside the pipeline file, `orders.tests.yaml` for `orders.yaml`.")
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Write what becomes of the records as the expectation of each case that has none.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="With --record: replace the expectations of all cases.")] = False,
    junit: Annotated[Path | None, typer.Option(help="Write the results as JUnit XML.", dir_okay=False)] = None,
) -> None:
    """Run the cases of a pipeline file: records, and what must become of them. Connects to nothing; exit code 1 if a case fails.

    Example: tallyflow test orders.yaml --record
    """
    if overwrite and not record:
        raise typer.BadParameter("is only for --record", param_hint="--overwrite")
    from pipelines.preview.cases import cases_path, load_cases, run_case
    from pipelines.preview.declared import declared_program

    with errors_as_exit():
        config = load(file, offline=True)
        program = declared_program(config)
        path = cases or cases_path(file)
        if record:
            _record(path, program, config, overwrite)
        found = load_cases(path)
        results = [run_case(case, program, config, found.tables) for case in found.tests]
    for result in results:
        out.print(f"{'failed' if result.differences else 'passed'}  {result.case.name}", markup=False, highlight=False)
        for difference in result.differences:
            out.print(f"        {difference}", markup=False, highlight=False, soft_wrap=True)
    if junit is not None:
        junit.write_bytes(_junit(str(file), results))
    failed = sum(bool(result.differences) for result in results)
    out.print(f"{count_of(len(results), 'case')}, {failed} failed", highlight=False)
    if failed:
        raise typer.Exit(1)


def _record(path: Path, program: "Program", config: PipelineConfig, overwrite: bool) -> None:
    """Write expectations into the file of cases, as a whole."""
    from pipelines.preview.cases import load_cases, preview_of
    from pipelines.preview.recording import expectation_of, with_expectations

    cases = load_cases(path)
    found = {
        index: expectation_of(preview_of(case, program, config, cases.tables), program, config)
        for index, case in enumerate(cases.tests)
        if overwrite or case.expect is None
    }
    if found:
        replace_text(path, with_expectations(path, read_text(path), found))
    out.print(f"{count_of(len(found), 'expectation')} recorded in {path}", markup=False, highlight=False)


def _junit(name: str, results: "list[Result]") -> bytes:
    failed = sum(bool(result.differences) for result in results)
    suite = ElementTree.Element("testsuite", name=name, tests=str(len(results)), failures=str(failed))
    for result in results:
        case = ElementTree.SubElement(suite, "testcase", classname=name, name=result.case.name)
        if result.differences:
            ElementTree.SubElement(case, "failure", message=result.differences[0]).text = "\n".join(result.differences)
    written: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return written
