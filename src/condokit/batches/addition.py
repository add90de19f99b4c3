"""Adds the map of one more batch to fitted maps, which stay as they are.

The new batch is compared with the rows of all known batches, which are mapped to the reference
first.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from condokit.batches.estimate import expected_errors, identity, some_rows, unit_of
from condokit.batches.record import with_added, with_errors
from condokit.data.study import Study
from condokit.fit.estimator import map_rows
from condokit.maps.standard_errors import common_shares, of_rows


def add(adapter: Any, study: Study, new: int) -> None:
    """Learn the map of batch number `new` of a study, and add it to a fitted `BatchAdapter`."""
    label, before = study.labels[new], adapter.report_.batches
    joined = against_others(adapter, study, new)
    # estimated together if the other batches were, so that its errors mean the same as theirs
    joint = adapter.report_.joint or adapter.joint
    fitted = type(adapter)(adapter.adapter, reference=joined.labels[1], joint=joint)
    fitted.fit_study(joined)
    known_batches = [b for b, name in enumerate(study.labels) if name in before]
    known_labels = [study.labels[b] for b in known_batches]
    share = np.array([study.size(b) for b in known_batches], dtype=float)
    share /= share.sum()
    largest = known_labels[int(share.argmax())]
    facts = fitted.report_.batches[label]
    facts = replace(facts, path=[label, *adapter.paths_.get(largest, [largest])])
    # errors of the new map, plus those of the maps by which the known rows were mapped
    new_map = fitted.maps_[label]
    of_known = of_rows([adapter.maps_[name] for name in known_labels], share)
    errors = identity(study, new_map.links).with_errors(of_known).compose(new_map).errors
    if errors is not None:
        linked = replace(study, links=new_map.links)
        rows = some_rows(linked, [new, *known_batches])
        centre = adapter.reference_ if adapter.reference_ in known_labels else largest
        unit = unit_of(rows[study.labels.index(centre)], adapter.maps_[centre])
        facts = with_errors(facts, expected_errors(new_map, errors, rows[new], unit))
    else:  # maps from a file may lack standard errors, but have expected errors of values
        after = np.array([before[name].error_after for name in known_labels])
        carried = np.sqrt(common_shares(share) @ after**2)
        expected = facts.error_before, facts.error_after
        facts = with_errors(facts, [float(np.hypot(error, carried)) for error in expected])
    adapter.maps_ = {**adapter.maps_, label: new_map.with_errors(errors)}
    adapter.paths_ = {**adapter.paths_, label: facts.path}
    adapter.report_ = replace(adapter.report_, batches={**before, label: facts})
    accounts = adapter.provenance_, fitted.provenance_, adapter.report_
    adapter.provenance_ = with_added(*accounts, label, known_labels)


def against_others(adapter: Any, study: Study, batch: int) -> Study:
    """Return a study of two domains: one batch as recorded, and all others with a map, mapped."""
    table, labels = study.tables[0], list(adapter.maps_)
    is_mapped = [name in labels and name != study.labels[batch] for name in study.labels]
    code = [
        labels.index(name) if mapped else len(labels)
        for name, mapped in zip(study.labels, is_mapped)
    ]
    maps = [*adapter.maps_.values(), identity(study)]
    values = table.replaced(map_rows(table, np.array(code)[study.code], maps))
    lost = [study.labels.index(n) for n in adapter.report_.unreachable if n in study.labels]
    keep = study.kept() & ~np.isin(study.code, lost)
    unused = study.unused if values.columns else ()
    moved = replace(study, tables=(values,), keep=keep, unused=unused)
    return moved.merged(batch, adapter.reference_)
