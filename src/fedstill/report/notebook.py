"""A result as a notebook shows it: a small table, in the colours of wherever it stands."""

from html import escape

from fedstill.experiment.result import Result, views
from fedstill.report.terminal import size


@views.register("notebook")
def table(result: Result) -> str:
    """The last round of every model, with the worst client and the best round."""
    rows = []
    for name in result.models:
        last, best = result.last(name), result.best(name)
        worst = result.worst(name)
        cells = [metric.text(last.get(metric.key)) for metric in result.metrics]
        cells += [str(worst[0]) if worst else "–", f"{result.metric('amp').text(best['amp'])} (round {best['round']})"]
        rows.append(f"<tr><th>{escape(name)}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    traffic = result.bytes()
    place = f" · {escape(str(result.run_dir))}" if result.run_dir else ""
    head = "".join(
        f"<th>{escape(name)}</th>"
        for name in ("model", *(m.heading for m in result.metrics), "worst client", "best AMP")
    )
    return (
        f"<div><b>{escape(str(result.experiment['method']['name']))}</b> on {escape(str(result.experiment['data']))}, "
        f"seed {result.experiment['seed']}: {len(result.rows)} rounds in {result.seconds:.1f} s, "
        f"{size(traffic['down'])} down, {size(traffic['up'])} up{place}<table><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
